"""What a paired client spends, in billed operations.

The router counts messages, and nearly every message is one operation. This module counts the rest:
the extra operations of large messages, and the messages per backlog queue. For a message clearly
smaller than 64 KB, it only reads the length of the body.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from azure.servicebus import ServiceBusMessageBatch

from pairbus.client.route.plans import ToBacklog, Way
from pairbus.client.route.status import PairingStatus
from pairbus.client.sdk import private
from pairbus.client.sdk.batches import messages_of
from pairbus.client.sdk.messages import body_bytes
from pairbus.cost.meter import UNIT_BYTES, Tally, units_of, units_of_all

logger = logging.getLogger("pairbus.client")

# More than the sections in front of a body need, without the application's own properties.
_HEAD_BYTES: Final = 4096
_PLAIN_BYTES: Final = UNIT_BYTES - _HEAD_BYTES
_BYTES_OF_A_CHARACTER_MAX: Final = 4
_OTHER_BYTES: Final = 32


def extra_units(sender: Any, messages: Any) -> int:
    """Returns the billed operations of a message, a list or a batch, in addition to one per
    message.

    `sender` is a sender of the SDK; its encoder measures messages that may be large. Never raises:
    the messages are acknowledged, and a later SDK that breaks this must not look like a failed
    send.
    """
    try:
        if isinstance(messages, ServiceBusMessageBatch):
            return _extra_units_of_batch(messages)
        if isinstance(messages, list):
            return sum(_extra_units(sender, message) for message in messages_of(messages))
        return _extra_units(sender, messages)
    except Exception:
        logger.debug("could not measure a %s", type(messages).__name__, exc_info=True)
        return 0


def _extra_units_of_batch(batch: ServiceBusMessageBatch) -> int:
    if batch.size_in_bytes <= UNIT_BYTES:  # so is each of its messages
        return 0
    sizes = [len(each) for each in private.encoded_in(batch)]
    return units_of_all(sizes) - len(sizes)


def _extra_units(sender: Any, message: Any) -> int:
    raw = getattr(message, "raw_amqp_message", message)
    size, properties = body_bytes(raw), raw.application_properties
    if size is not None:
        if properties:
            size += _size_bound(properties)
        if size <= _PLAIN_BYTES:
            return 0
    return units_of(private.encoded_size(sender, raw)) - 1


def _size_bound(properties: Mapping[Any, Any]) -> int:
    """An upper bound for the encoded size of the properties, in bytes."""
    size = 0
    for key, value in properties.items():
        size += len(key) * _BYTES_OF_A_CHARACTER_MAX + _OTHER_BYTES
        if isinstance(value, str | bytes):
            size += len(value) * _BYTES_OF_A_CHARACTER_MAX
    return size


class BilledUnits:
    """Counters. The pairing's lock protects them."""

    def __init__(self) -> None:
        self._extra: Counter[str] = Counter()
        self._backlog: Counter[str] = Counter()
        self._peeks: Counter[str] = Counter()

    def sent(self, path: str, way: Way, *, count: int, extra: int) -> None:
        if isinstance(way, ToBacklog):
            self._backlog[way.queue] += count + extra
        elif extra:
            self._extra[path.lower()] += extra

    def primary(self, status: PairingStatus, *, pings_are_messages: bool) -> dict[str, Tally]:
        found = {
            each.path: Tally(
                send=each.sent + self._extra[each.path.lower()],
                ping=each.pings_answered if pings_are_messages else 0,
            )
            for each in status.entities
        }
        return {path: tally for path, tally in found.items() if tally.total}

    def peeked(self, queue: str, *, size: int) -> None:
        self._peeks[queue] += units_of(size)

    def secondary(self) -> dict[str, Tally]:
        return {
            queue: Tally(send=self._backlog[queue], peek=self._peeks[queue])
            for queue in self._backlog | self._peeks
        }
