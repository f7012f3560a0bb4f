"""One message as it was delivered: its bytes, and how to settle it.

The service's annotations are decoded on first use, and kept; the body is never read. Anything that
is missing or malformed reads as None.
"""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from pairbus.amqp.client.blocking import ClientReceiverLink
from pairbus.amqp.codec.sections import MESSAGE_ID, identifier_text, pairs, scan
from pairbus.amqp.codec.types import EPOCH
from pairbus.amqp.codec.values import PAST_THE_END, MalformedMessage, decode

SEQUENCE_END: Final = 2**48
"""Above this, the upper bits of a sequence number are the partition of a partitioned entity. Such
numbers are not in the order of arrival.
"""


class ReceivedMessage:
    __slots__ = ("_annotations", "data", "delivery_id", "link", "lock_token_bytes")

    def __init__(
        self, link: ClientReceiverLink, delivery_id: int, lock_token_bytes: bytes, data: bytes
    ) -> None:
        self.data = data
        """The encoded message, with the service's annotations."""
        self.lock_token_bytes = lock_token_bytes
        """The lock token in .NET's byte order; empty if the message is not locked."""
        self.delivery_id = delivery_id
        self.link: ClientReceiverLink | None = link
        """The link that delivered it. It can be settled there while the link is open. None: it is
        settled.
        """
        self._annotations: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<ReceivedMessage {self.sequence_number} of {len(self.data)} bytes>"

    @property
    def lock_token(self) -> UUID:
        return UUID(bytes_le=self.lock_token_bytes)

    @property
    def sequence_number(self) -> int | None:
        return _sequence_number_in(self.annotations)

    @property
    def message_id(self) -> str | None:
        with contextlib.suppress(MalformedMessage, *PAST_THE_END):
            data, sections = scan(self.data)
            _, first, _, count = sections.properties
            if count > MESSAGE_ID:  # it is the first of the properties
                return identifier_text(decode(data, first)[0])
        return None

    @property
    def enqueued_time(self) -> datetime | None:
        return moment(self.annotations.get("x-opt-enqueued-time"))

    @property
    def locked_until(self) -> datetime | None:
        """The value at the time of delivery. A renewal does not change it."""
        return moment(self.annotations.get("x-opt-locked-until"))

    @property
    def annotations(self) -> dict[str, Any]:
        if self._annotations is None:
            self._annotations = read_annotations_of(self.data)
        return self._annotations


def read_annotations_of(data: bytes) -> dict[str, Any]:
    """The annotations of a delivered message by name; of a malformed one, as many as possible."""
    found: dict[str, Any] = {}
    with contextlib.suppress(MalformedMessage, *PAST_THE_END):
        data, sections = scan(data)
        _, first, end, _ = sections.annotations
        for name, value, _, _ in pairs(data, first, end):
            found[name] = value
    return found


def sequence_number_of(data: bytes) -> int | None:
    """The sequence number of a delivered or peeked message."""
    return _sequence_number_in(read_annotations_of(data))


def _sequence_number_in(annotations: dict[str, Any]) -> int | None:
    number = annotations.get("x-opt-sequence-number")
    return int(number) if isinstance(number, int) else None


def moment(value: object) -> datetime | None:
    """The time of a number of milliseconds since 1970."""
    if not isinstance(value, int):
        return None
    try:
        return EPOCH + timedelta(milliseconds=value)
    except OverflowError:
        return None
