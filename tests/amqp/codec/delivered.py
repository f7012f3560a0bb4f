"""What several tests of the codec write: a section, and a message as the broker delivers it."""

from uuid import UUID

from pairbus.amqp.codec.stamp import stamp
from pairbus.amqp.codec.values import encode

TOKEN = UUID("00112233-4455-6677-8899-aabbccddeeff")


def section(code, value):
    return bytes((0x00, 0x53, code)) + encode(value)


def stamped(parts, **changes):
    """Locked with `TOKEN`."""
    arguments = {
        "durable": parts.durable,
        "priority": parts.priority,
        "ttl_ms": parts.ttl_ms,
        "delivery_count": 0,
        "lock_token": TOKEN.bytes,
        "sequence": 7,
        "enqueued_ms": 1_700_000_000_000,
        "locked_until_ms": 1_700_000_030_000,
        "delivery_annotations": parts.delivery_annotations,
        "delivery_annotation_count": parts.delivery_annotation_count,
        "annotations": parts.annotations,
        "annotation_count": parts.annotation_count,
        "bare": parts.bare,
    }
    return stamp(**(arguments | changes))
