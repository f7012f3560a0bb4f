"""Batches in Service Bus's form: messages inside the data sections of one envelope.

A transfer of message-format 0x80013700 carries one. Each data section holds a whole encoded
message, which is not read here. Knows nothing of transfers or size limits.
"""

from collections.abc import Sequence

from pairbus.amqp.codec.sections import (
    APPLICATION_PROPERTIES,
    DATA8,
    DATA32,
    FOOTER,
    GROUP_ID,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    encode_section,
    with_short_descriptors,
)
from pairbus.amqp.codec.types import Symbol
from pairbus.amqp.codec.values import PAST_THE_END, MalformedMessage, encode, skip, u32

BATCH_FORMAT = 0x80013700

_ENVELOPE = frozenset(
    bytes((0x00, 0x53, section)) for section in (*range(HEADER, APPLICATION_PROPERTIES + 1), FOOTER)
)


def split_batch(data: bytes) -> list[bytes]:
    """The messages of an envelope, in order. Other sections do not belong to a message and are
    ignored.
    """
    messages: list[bytes] = []
    pos, end = 0, len(data)
    try:
        while pos < end:
            head = data[pos : pos + 4]
            if head == DATA32:
                start = pos + 8
                pos = start + u32(data, pos + 4)[0]
                messages.append(data[start:pos])
            elif head == DATA8:
                start = pos + 5
                pos = start + data[pos + 4]
                messages.append(data[start:pos])
            elif head[:3] in _ENVELOPE:
                pos = skip(data, pos + 3)
            else:
                return split_batch(with_short_descriptors(data, pos))
    except PAST_THE_END as error:
        raise MalformedMessage(f"offset {pos}: the batch ends inside this section") from error
    if pos != end:
        raise MalformedMessage(f"offset {end}: the last section of the batch would end at {pos}")
    return messages


def build_batch(
    messages: Sequence[bytes],
    *,
    message_id: str | None = None,
    group_id: str | None = None,
    partition_key: str | None = None,
) -> bytes:
    """The envelope around encoded messages, with the ids of the first message, as in the SDKs."""
    pieces: list[bytes] = []
    if partition_key is not None:
        annotations = encode({Symbol("x-opt-partition-key"): partition_key})
        pieces.append(encode_section(MESSAGE_ANNOTATIONS, annotations))
    if group_id is not None:
        properties = encode([message_id, *[None] * (GROUP_ID - 1), group_id])
        pieces.append(encode_section(PROPERTIES, properties))
    elif message_id is not None:
        pieces.append(encode_section(PROPERTIES, encode([message_id])))
    for message in messages:
        size = len(message)
        if size < 256:
            pieces += (DATA8, bytes((size,)), message)
        else:
            pieces += (DATA32, size.to_bytes(4, "big"), message)
    return b"".join(pieces)
