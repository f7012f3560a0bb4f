"""Sending encoded messages to one entity, in as few batches as its limits allow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from azure.core.exceptions import AzureError
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus.amqp.batches import BATCH_FORMAT, build_batch
from pairbus.amqp.client import Connection, PeerSilent, SenderLink, Ticket
from pairbus.amqp.outcomes import AmqpError, OutcomeKind
from pairbus.amqp.sections import MalformedMessage, read_annotations, read_property, slice_message
from pairbus.servicebus.fast.attachment import Attachment
from pairbus.servicebus.fast.errors import SendFailed, of_message

_MIB: Final = 1024 * 1024
_SMALL_BATCH: Final = 256 * 1024
_ENVELOPE_SIZE: Final = 1024  # of the sections before the messages, generously
_WINDOW: Final = 4


class Sender(Attachment[SenderLink]):
    @property
    def max_message_bytes(self) -> int:
        """Of one encoded message, as the service says when the link is attached."""
        return self._told().size_max or _MIB

    @property
    def max_batch_bytes(self) -> int:
        return _batch_limit(self._told())

    def _told(self) -> SenderLink:
        with self._access.telling(f"opening a link to {self.path!r}"):
            return self._ready()[1]

    def _attach(self, connection: Connection) -> SenderLink:
        return connection.attach_sender(self._access.address(self.path), until=self._access.until())

    # -- sending ----------------------------------------------------------------------------

    def send_one(self, message: bytes) -> None:
        """One message, as itself and not in a batch. Raises what the SDK would."""
        try:
            self.send([message])
        except SendFailed as failed:
            raise failed.error from failed

    def send(self, messages: Sequence[bytes], *, window: int = _WINDOW) -> None:
        """All of them, in order; returns when all are accepted.

        `window`: how many batches may be without an answer. With more than one, a batch behind a
        refused one may still be taken. Raises SendFailed, which tells what became of which.
        """
        if window < 1:
            raise ValueError(f"window is {window}, but must be at least 1")
        if not messages:
            return
        flight = _Flight(self.path)
        try:
            with self._access.telling(f"sending to {self.path!r}"):
                self._fly(messages, flight, window)
        except AzureError as error:
            flight.error = flight.error or error
        if flight.error is not None:
            raise flight.failure(len(messages)) from flight.error

    def _fly(self, messages: Sequence[bytes], flight: _Flight, window: int) -> None:
        connection, link = self._ready()
        for indexes in _groups(messages, _batch_limit(link)):
            while len(flight.waiting) >= window:
                self._land(connection, link, flight)
            if flight.error is not None:
                break
            self._await(connection, link, lambda: link.credit > 0, "credit")
            first = messages[indexes.start]
            if len(indexes) > 1:
                ticket = link.send(_batch(messages, indexes), message_format=BATCH_FORMAT)
            elif len(first) <= (link.size_max or len(first)):
                ticket = link.send(first)
            else:
                flight.error = MessageSizeExceededError(
                    message=f"message {indexes.start} for {self.path!r} has {len(first)} bytes; "
                    f"{link.size_max} are the most"
                )
                break
            flight.waiting.append((indexes, ticket))
            flight.sent = indexes.stop
            connection.turn(0.0)
        while flight.waiting:
            self._land(connection, link, flight)

    def _land(self, connection: Connection, link: SenderLink, flight: _Flight) -> None:
        """Wait for the oldest answer."""
        indexes, ticket = flight.waiting[0]
        self._await(connection, link, lambda: ticket.outcome is not None, "an acknowledgement")
        flight.waiting.popleft()
        flight.landed(indexes, ticket)

    def _await(
        self, connection: Connection, link: SenderLink, done: Callable[[], bool], what: str
    ) -> None:
        if not done():
            try:
                connection.wait(lambda: done() or link.is_over, self._access.until(), what)
            except PeerSilent:
                link.detach()  # its next answer would be taken for another's
                raise
            if not done():
                link.check()


class _Flight:
    """What became of the messages of one call, as far as it is known."""

    __slots__ = ("accepted", "error", "path", "refused", "sent", "waiting")

    def __init__(self, path: str) -> None:
        self.path = path
        self.waiting: deque[tuple[range, Ticket]] = deque()
        self.accepted: list[range] = []
        self.refused: list[range] = []
        self.sent = 0
        self.error: AzureError | None = None
        """The first one."""

    def landed(self, indexes: range, ticket: Ticket) -> None:
        outcome = ticket.outcome
        assert outcome is not None
        if outcome.kind is OutcomeKind.ACCEPTED:
            self.accepted.append(indexes)
            return
        self.refused.append(indexes)
        if self.error is None:
            said = outcome.error or AmqpError(
                "amqp:internal-error", f"it was answered with {outcome.kind.name.lower()}"
            )
            self.error = of_message(said, f"sending to {self.path!r}")

    def failure(self, count: int) -> SendFailed:
        assert self.error is not None
        doubtful = []
        for indexes, ticket in self.waiting:
            if ticket.outcome is None:
                doubtful.append(indexes)
            else:
                self.landed(indexes, ticket)
        never_sent = range(self.sent, count)
        return SendFailed(
            self.path,
            error=self.error,
            accepted=self.accepted,
            refused=[*self.refused, never_sent] if never_sent else self.refused,
            doubtful=doubtful,
        )


def _batch_limit(link: SenderLink) -> int:
    """As the service says, or else as the SDK takes it to be."""
    told = link.properties.get("com.microsoft:max-message-batch-size")
    if isinstance(told, int) and told > 0:
        return int(told)
    return _MIB if (link.size_max or _MIB) >= _MIB else _SMALL_BATCH


def _groups(messages: Sequence[bytes], limit: int) -> Iterator[range]:
    """Which messages go together: as many as fit, in order."""
    start, room = 0, limit - _ENVELOPE_SIZE
    size = 0
    for index, message in enumerate(messages):
        length = len(message)
        length += 5 if length < 256 else 8
        size += length
        if size > room and index > start:
            yield range(start, index)
            start, size = index, length
    yield range(start, len(messages))


def _batch(messages: Sequence[bytes], indexes: range) -> bytes:
    """The envelope bears the ids of the first message, as the SDKs do it."""
    chosen = messages[indexes.start : indexes.stop]
    message_id = group_id = partition_key = None
    try:
        parts = slice_message(chosen[0])
        message_id = read_property(parts.bare, parts.properties, 0)
        group_id = read_property(parts.bare, parts.properties, 10)
        if parts.annotations:
            partition_key = read_annotations(parts.annotations).get("x-opt-partition-key")
    except MalformedMessage:
        pass  # the service will say so
    return build_batch(
        chosen,
        message_id=message_id if type(message_id) is str else None,
        group_id=group_id if type(group_id) is str else None,
        partition_key=partition_key if type(partition_key) is str else None,
    )
