"""Messages on their way to one entity: sent in batches, and answered one by one.

Several of them may be in the air at once, to as many entities of one namespace, so that the time
until an answer passes but once: `land` waits for all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from azure.core.exceptions import AzureError
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus.amqp.client.connection import ClientError, Connection, PeerSilent, SenderLink, Ticket
from pairbus.amqp.codec.batches import BATCH_FORMAT, build_batch
from pairbus.amqp.codec.sections import read_annotations, read_property, slice_message
from pairbus.amqp.codec.values import MalformedMessage
from pairbus.amqp.outcomes import AmqpError, OutcomeKind
from pairbus.fast.connection import Access
from pairbus.fast.errors import SendFailed, of_client, of_message

MIB: Final = 1024 * 1024
_SMALL_BATCH: Final = 256 * 1024
_ENVELOPE_SIZE: Final = 1024  # of the sections before the messages, generously


class Flight:
    """The messages of one call, and what became of them as far as it is known."""

    __slots__ = (
        "_accepted",
        "_error",
        "_groups",
        "_has_taken",
        "_link",
        "_messages",
        "_next",
        "_refused",
        "_sent",
        "_waiting",
        "_window",
        "access",
        "answers",
        "connection",
        "path",
    )  # fmt: skip

    def __init__(
        self,
        access: Access,
        path: str,
        messages: Sequence[bytes],
        window: int,
        has_taken: Callable[[Sequence[bytes]], None],
    ) -> None:
        """`has_taken` is told of the messages that the service has taken."""
        self.access = access
        self.path = path
        self.connection: Connection | None = None
        self.answers = 0
        """How many batches were answered."""
        self._messages = messages
        self._window = window
        self._has_taken = has_taken
        self._link: SenderLink | None = None
        self._groups: Iterator[range] = iter(())
        self._next: range | None = None
        self._waiting: deque[tuple[range, Ticket]] = deque()
        self._accepted: list[range] = []
        self._refused: list[range] = []
        self._sent = 0
        self._error: AzureError | None = None  # the first one

    @property
    def what(self) -> str:
        return f"sending to {self.path!r}"

    def board(self, connection: Connection, link: SenderLink) -> None:
        """Its link is there: send what may go at once. Raises ClientError."""
        self.connection, self._link = connection, link
        if self._messages:
            self._groups = _groups(self._messages, batch_limit(link))
        self._next = next(self._groups, None)
        self.go_on()
        connection.turn(0.0)

    def go_on(self) -> bool:
        """Take the answers that have come, and send what may follow. True: it is over."""
        waiting, link = self._waiting, self._link
        while waiting and waiting[0][1].outcome is not None:
            self._landed(*waiting.popleft())
        if link is None:
            return True
        while (
            self._next is not None
            and self._error is None
            and len(waiting) < self._window
            and link.credit > 0
            and not link.is_over
        ):
            self._send(link, self._next)
        if link.is_over and self._error is not None:
            return True
        return not waiting and (self._next is None or self._error is not None)

    @property
    def is_cut_off(self) -> bool:
        """Nothing more can come: its link has ended."""
        return self._link is None or self._link.is_over

    def _send(self, link: SenderLink, indexes: range) -> None:
        first = self._messages[indexes.start]
        if len(indexes) > 1:
            ticket = link.send(_batch(self._messages, indexes), message_format=BATCH_FORMAT)
        elif len(first) <= (link.size_max or len(first)):
            ticket = link.send(first)
        else:
            self._error = MessageSizeExceededError(
                message=f"message {indexes.start} for {self.path!r} has {len(first)} bytes; "
                f"{link.size_max} are the most"
            )
            return
        self._waiting.append((indexes, ticket))
        self._sent = indexes.stop
        self._next = next(self._groups, None)

    def _landed(self, indexes: range, ticket: Ticket) -> None:
        outcome = ticket.outcome
        assert outcome is not None
        self.answers += 1
        if outcome.kind is OutcomeKind.ACCEPTED:
            self._accepted.append(indexes)
            self._has_taken(self._messages[indexes.start : indexes.stop])
            return
        self._refused.append(indexes)
        if self._error is None:
            said = outcome.error or AmqpError(
                "amqp:internal-error", f"it was answered with {outcome.kind.name.lower()}"
            )
            self._error = of_message(said, self.what)

    # -- its end ----------------------------------------------------------------------------

    def fail(self, error: AzureError) -> None:
        """No answer will come any more."""
        self._error = self._error or error

    def give_up(self, error: ClientError) -> None:
        """The same. One that did not answer in time is not asked again on this link."""
        link = self._link
        if isinstance(error, PeerSilent) and link is not None:
            link.detach()  # its next answer would be taken for another's
        self.fail(of_client(error, self.what))

    def look_at_link(self) -> None:
        """If it has ended, and something is still waited for, that will not come."""
        if not self.go_on() and self._link is not None:
            try:
                self._link.check()
            except ClientError as error:
                self.give_up(error)

    def failure(self) -> SendFailed | None:
        """None if all were taken. To be asked once, when it is over."""
        doubtful: list[range] = []
        while self._waiting:
            indexes, ticket = self._waiting.popleft()
            if ticket.outcome is None:
                doubtful.append(indexes)
            else:
                self._landed(indexes, ticket)
        if self._error is None:
            return None
        never_sent = range(self._sent, len(self._messages))
        return SendFailed(
            self.path,
            error=self._error,
            accepted=self._accepted,
            refused=[*self._refused, never_sent] if never_sent else self._refused,
            doubtful=doubtful,
        )


def land(flights: Sequence[Flight], *, until: float | None = None) -> None:
    """Wait until all of them are over, which are of one client. Raises nothing: they tell.

    Each answer is given the client's time, and all of them together have until then (monotonic).
    """
    left = [flight for flight in flights if not flight.go_on()]
    while left:
        connection, access = left[0].connection, left[0].access
        assert connection is not None, "one that never boarded is over"
        due = access.until() if until is None else min(access.until(), until)
        try:
            connection.wait(_next_news(left), due, "an acknowledgement")
        except ClientError as error:
            for flight in left:
                if not flight.go_on():
                    flight.give_up(error)
            return
        for flight in left:
            flight.look_at_link()
        left = [flight for flight in left if not flight.go_on()]


def _next_news(flights: Sequence[Flight]) -> Callable[[], bool]:
    answers = sum(flight.answers for flight in flights)

    def has_come() -> bool:
        return (
            any(flight.go_on() or flight.is_cut_off for flight in flights)
            or sum(flight.answers for flight in flights) > answers
        )

    return has_come


def batch_limit(link: SenderLink) -> int:
    """As the service says, or else as the SDK takes it to be."""
    told = link.properties.get("com.microsoft:max-message-batch-size")
    if isinstance(told, int) and told > 0:
        return int(told)
    return MIB if (link.size_max or MIB) >= MIB else _SMALL_BATCH


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
