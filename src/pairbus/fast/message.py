"""One message as it was delivered: its bytes, and how to settle it.

What the service says of it is read from the annotations when it is asked for, and kept; the body is
never looked at. Anything that is not there, or is not what it should be, reads as None.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from pairbus.amqp.codec.sections import HEADER, MESSAGE_ANNOTATIONS, section_values
from pairbus.amqp.codec.values import MalformedMessage, decode, skip

if TYPE_CHECKING:
    from pairbus.amqp.client.connection import ReceiverLink

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DELIVERY_COUNT: Final = 4  # its place in the header
_i64 = struct.Struct(">q").unpack_from


class Received:
    __slots__ = ("_facts", "data", "delivery_id", "link", "tag")

    def __init__(self, link: ReceiverLink, delivery_id: int, tag: bytes, data: bytes) -> None:
        self.data = data
        """The encoded message, with the service's annotations."""
        self.tag = tag
        """The bytes of the lock token, in .NET's order; empty if it is not locked."""
        self.delivery_id = delivery_id
        self.link: ReceiverLink | None = link
        """Where it came from, and can be settled as long as that link lives. None: it was."""
        self._facts: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<Received {self.sequence_number} of {len(self.data)} bytes>"

    @property
    def lock_token(self) -> UUID:
        return UUID(bytes_le=self.tag)

    @property
    def sequence_number(self) -> int | None:
        return _integer(self.facts.get("x-opt-sequence-number"))

    @property
    def enqueued_time(self) -> datetime | None:
        return moment(self.facts.get("x-opt-enqueued-time"))

    @property
    def locked_until(self) -> datetime | None:
        """As it was when the message was sent: a renewed lock is not seen here."""
        return moment(self.facts.get("x-opt-locked-until"))

    @property
    def delivery_count(self) -> int | None:
        """How often it was delivered in vain before."""
        return _integer(self.facts.get("delivery-count"))

    @property
    def facts(self) -> dict[str, Any]:
        """The annotations by name, and the header's delivery-count."""
        if self._facts is None:
            self._facts = read_facts(self.data)
        return self._facts


def _integer(value: object) -> int | None:
    return int(value) if isinstance(value, int) else None


def moment(value: object) -> datetime | None:
    """Of milliseconds since 1970."""
    if not isinstance(value, int):
        return None
    try:
        return EPOCH + timedelta(milliseconds=value)
    except OverflowError:
        return None


def read_facts(data: bytes) -> dict[str, Any]:
    """What is said of a message in front of it; as much as can be read."""
    facts: dict[str, Any] = {}
    at, end = 0, len(data)
    try:
        # A descriptor in long form is not read: neither Azure nor the broker writes one.
        while at < end and data[at] == 0x00 and data[at + 1] == 0x53:
            section = data[at + 2]
            if section > MESSAGE_ANNOTATIONS:
                break
            after = skip(data, at + 3)
            first, count = section_values(data, at, after)
            if section == HEADER and count > _DELIVERY_COUNT:
                for _ in range(_DELIVERY_COUNT):
                    first = skip(data, first)
                facts["delivery-count"] = decode(data, first)[0]
            elif section == MESSAGE_ANNOTATIONS:
                _read_pairs(data, first, after, facts)
                break
            at = after
    except (MalformedMessage, IndexError, struct.error):
        pass
    return facts


def _read_pairs(data: bytes, at: int, end: int, facts: dict[str, Any]) -> None:
    """A map's pairs. Short symbols and eight-byte numbers, as nearly all are, the short way."""
    while at < end:
        if data[at] == 0xA3:
            after = at + 2 + data[at + 1]
            key, at = data[at + 2 : after].decode("utf-8", "replace"), after
        else:
            name, at = decode(data, at)
            key = str(name)
        if data[at] in (0x81, 0x83):
            facts[key], at = _i64(data, at + 1)[0], at + 9
        else:
            facts[key], at = decode(data, at)
