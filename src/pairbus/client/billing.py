"""What a paired client spends, in billed units: the router counts messages, and here is the rest.

Nearly every message is one operation. What the router does not know is how many more a large one
is, and which backlog queue has taken what. So a message that is plainly smaller than 64 KB costs a
look at the length of its body, and nothing else.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch

from pairbus.client.route.router import ToBacklog, Way
from pairbus.client.route.status import RouterStatus
from pairbus.client.sdk import private as internals
from pairbus.cost.meter import UNIT_BYTES, Tally, units_of

logger = logging.getLogger("pairbus.client")

_HEAD_BYTES: Final = 4096
"""What is in front of a body, but for the application's own properties, generously."""
_PLAIN_BYTES: Final = UNIT_BYTES - _HEAD_BYTES
_BYTES_OF_A_CHARACTER_MAX: Final = 4
_OTHER_BYTES: Final = 32


def extra_units(sender: Any, message: Any, *, sent_as: Any = None) -> int:
    """How many operations a message, a list or a batch is beyond one for each message; `sent_as`
    is what went to the backlog in place of one.

    `sender` is one of the SDK, whose encoder is asked where that is not plain. Never raises: they
    are acknowledged, and whatever a later SDK does to this must not look like a failed send.
    """
    try:
        # Almost every message ends here, with its envelope or without.
        if type(message) is ServiceBusMessage and _is_plain(message._raw_amqp_message):
            return 0
        return _extra_units(sender, message if sent_as is None else sent_as)
    except Exception:
        logger.debug("the size of %r could not be told", type(message), exc_info=True)
        return 0


def _is_plain(raw: Any) -> bool:
    """Without properties of the application's, and so small that nothing else can matter."""
    body = raw._data_body
    if body is None or len(body) != 1 or raw.application_properties:
        return False
    return len(body[0]) <= _PLAIN_BYTES


def _extra_units(sender: Any, message: Any) -> int:
    if type(message) is ServiceBusMessage:
        raw: Any = message._raw_amqp_message
    elif isinstance(message, list):
        return sum(_extra_units(sender, one) for one in message)
    elif isinstance(message, ServiceBusMessageBatch):
        if message.size_in_bytes <= UNIT_BYTES:
            return 0
        sizes = internals.sizes_in(message)
        return sum(map(units_of, sizes)) - len(sizes)
    else:
        raw = getattr(message, "raw_amqp_message", message)
    body, properties = raw._data_body, raw.application_properties
    if body is not None:
        size = len(body[0]) if len(body) == 1 else sum(map(len, body))
        if size <= _PLAIN_BYTES and (not properties or size + _bound(properties) <= _PLAIN_BYTES):
            return 0
    return units_of(internals.encoded_size(sender, raw)) - 1


def _bound(properties: Mapping[Any, Any]) -> int:
    size = 0
    for key, value in properties.items():
        size += len(key) * _BYTES_OF_A_CHARACTER_MAX + _OTHER_BYTES
        if isinstance(value, str | bytes):
            size += len(value) * _BYTES_OF_A_CHARACTER_MAX
    return size


class Extras:
    """Kept under the pair's lock."""

    def __init__(self) -> None:
        self._large: Counter[str] = Counter()
        self._backlog: Counter[str] = Counter()

    def sent(self, path: str, way: Way, *, count: int, extra: int) -> None:
        if isinstance(way, ToBacklog):
            self._backlog[way.queue] += count + extra
        elif extra:
            self._large[path.lower()] += extra

    def primary(self, seen: RouterStatus, *, pings_are_messages: bool) -> dict[str, Tally]:
        found = {
            each.path: Tally(
                send=each.sent + self._large[each.path.lower()],
                ping=each.pings_answered if pings_are_messages else 0,
            )
            for each in seen.entities
        }
        return {path: tally for path, tally in found.items() if tally.total}

    def secondary(self) -> dict[str, Tally]:
        return {queue: Tally(send=units) for queue, units in self._backlog.items()}
