"""One message as it was delivered: its bytes, and how to settle it.

What the service says of it is read from the annotations when it is asked for, and kept; the body is
never looked at. Anything that is not there, or is not what it should be, reads as None.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from pairbus.amqp.sections import HEADER, MESSAGE_ANNOTATIONS
from pairbus.amqp.values import decode
from pairbus.amqp.walk import MalformedMessage, skip

if TYPE_CHECKING:
    from pairbus.amqp.client import ReceiverLink

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DELIVERY_COUNT: Final = 4


class Received:
    __slots__ = ("_facts", "data", "delivery_id", "link", "tag")

    def __init__(self, link: ReceiverLink, delivery_id: int, tag: bytes, data: bytes) -> None:
        self.data = data
        """The encoded message, with the service's annotations."""
        self.tag = tag
        """The lock token's bytes, in .NET's order."""
        self.delivery_id = delivery_id
        self.link = link
        """Where it came from, and can be settled as long as that link lives."""
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
        return _moment(self.facts.get("x-opt-enqueued-time"))

    @property
    def locked_until(self) -> datetime | None:
        return _moment(self.facts.get("x-opt-locked-until"))

    @property
    def delivery_count(self) -> int | None:
        """How often it was delivered in vain before."""
        return _integer(self.facts.get("delivery-count"))

    @property
    def facts(self) -> dict[str, Any]:
        """The annotations by name, and the header's delivery-count."""
        if self._facts is None:
            try:
                self._facts = read_facts(self.data)
            except (MalformedMessage, IndexError, struct.error):
                self._facts = {}
        return self._facts


def _integer(value: object) -> int | None:
    return int(value) if isinstance(value, int) else None


def _moment(value: object) -> datetime | None:
    if not isinstance(value, int):
        return None
    try:
        return _EPOCH + timedelta(milliseconds=value)
    except OverflowError:
        return None


def read_facts(data: bytes) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    at = 0
    while at < len(data):
        if data[at] or data[at + 1] != 0x53:
            break  # a descriptor in long form, which neither Azure nor the broker writes
        section = data[at + 2]
        if section == HEADER:
            fields, at = decode(data, at + 3)
            if len(fields) > _DELIVERY_COUNT:
                facts["delivery-count"] = fields[_DELIVERY_COUNT]
        elif section == MESSAGE_ANNOTATIONS:
            annotations, at = decode(data, at + 3)
            facts |= {str(key): value for key, value in annotations.items()}
            break
        elif section > MESSAGE_ANNOTATIONS:
            break
        else:
            at = skip(data, at + 3)
    return facts
