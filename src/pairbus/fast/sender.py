"""Sending encoded messages to one entity, in as few batches as its limits allow.

Several sends may be pending at once, to different entities of one namespace, so that `wait_all`
waits for all answers at the same time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from azure.core.exceptions import AzureError
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus.amqp.client.blocking import (
    ClientError,
    ClientSenderLink,
    Connection,
    ConnectionLost,
    Delivery,
    PeerSilent,
)
from pairbus.amqp.codec.batches import BATCH_FORMAT, build_batch
from pairbus.amqp.codec.sections import (
    GROUP_ID,
    MESSAGE_ID,
    read_annotations,
    read_property,
    slice_message,
)
from pairbus.amqp.codec.values import MalformedMessage
from pairbus.amqp.outcomes import AmqpError, OutcomeKind
from pairbus.cost.meter import Tally, units_of_all
from pairbus.fast.connection import Attachment, NamespaceConnection
from pairbus.fast.errors import SendIncomplete, from_client_error, from_refusal

_WINDOW: Final = 4
_MIB: Final = 1024 * 1024
_SMALL_BATCH: Final = 256 * 1024
_ENVELOPE_SIZE: Final = 1024  # of the sections in front of the messages, at most


class Sender(Attachment[ClientSenderLink]):
    def __init__(self, namespace: NamespaceConnection, path: str, tally: Tally) -> None:
        super().__init__(namespace, path)
        self._tally = tally

    def send(self, messages: Sequence[bytes], *, window: int = _WINDOW) -> None:
        """Send all of them, in order; returns when all are accepted.

        `window` is the number of batches that may be unanswered. With more than one, a batch after
        a refused one may still be accepted. Raises SendIncomplete, which has the outcome of each
        message.
        """
        if not messages:
            return
        pending = self.start(messages, window=window)
        wait_all([pending])
        failed = pending.failure()
        if failed is not None:
            raise failed from failed.error

    def start(self, messages: Sequence[bytes], *, window: int = 1) -> PendingSend:
        """Like `send`, without waiting for the answers. `wait_all` waits, for several sends.

        Waits for the link to be attached, if needed. Never raises: PendingSend has the error.
        """
        if window < 1:
            raise ValueError(f"window is {window}, but must be at least 1")
        pending = PendingSend(self._namespace, self.path, messages, window, self._tally)
        try:
            with self._namespace.translating_errors(pending.what):
                pending.start(*self._ready())
        except AzureError as error:
            pending.fail(error)
        return pending

    def _new_link(self, connection: Connection) -> ClientSenderLink:
        return connection.start_sender(self._namespace.address(self.path))


class PendingSend:
    """The messages of one call, and their known outcomes."""

    __slots__ = (
        "_accepted",
        "_error",
        "_groups",
        "_heard_at",
        "_link",
        "_messages",
        "_next",
        "_refused",
        "_sent",
        "_tally",
        "_waiting",
        "_window",
        "answers",
        "connection",
        "namespace",
        "path",
    )  # fmt: skip

    def __init__(
        self,
        namespace: NamespaceConnection,
        path: str,
        messages: Sequence[bytes],
        window: int,
        tally: Tally,
    ) -> None:
        self.namespace = namespace
        self.path = path
        self.connection: Connection | None = None
        self.answers = 0
        """How many batches were answered."""
        self._messages = messages
        self._window = window
        self._tally = tally
        self._link: ClientSenderLink | None = None
        self._groups: Iterator[range] = iter(())
        self._next: range | None = None
        self._waiting: deque[tuple[range, Delivery]] = deque()
        self._accepted: list[range] = []
        self._refused: list[range] = []
        self._sent = 0
        self._error: AzureError | None = None  # the first one
        self._heard_at = time.monotonic()

    @property
    def what(self) -> str:
        return f"sending to {self.path!r}"

    def start(self, connection: Connection, link: ClientSenderLink) -> None:
        """The link is attached: send as much as the window allows. Raises ClientError."""
        self.connection, self._link = connection, link
        if self._messages:
            self._groups = _groups(self._messages, _batch_limit(link))
        self._next = next(self._groups, None)
        self.advance()
        connection.exchange(0.0)

    def advance(self) -> bool:
        """Read the answers that have arrived, and send more if the window allows. Returns True at
        the end.
        """
        waiting, link = self._waiting, self._link
        while waiting and waiting[0][1].outcome is not None:
            self._answered(*waiting.popleft())
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
    def is_link_lost(self) -> bool:
        """No more answers can come."""
        return self._link is None or self._link.is_over

    def _send(self, link: ClientSenderLink, indexes: range) -> None:
        first = self._messages[indexes.start]
        if len(indexes) > 1:
            delivery = link.send(_batch(self._messages, indexes), message_format=BATCH_FORMAT)
        elif len(first) <= (link.size_max or len(first)):
            delivery = link.send(first)
        else:
            self._error = MessageSizeExceededError(
                message=f"message {indexes.start} for {self.path!r} has {len(first)} bytes; the "
                f"maximum is {link.size_max}"
            )
            return
        self._waiting.append((indexes, delivery))
        self._sent = indexes.stop
        self._next = next(self._groups, None)

    def _answered(self, indexes: range, delivery: Delivery) -> None:
        outcome = delivery.outcome
        assert outcome is not None
        self.answers += 1
        self._heard_at = time.monotonic()
        if outcome.kind is OutcomeKind.ACCEPTED:
            self._accepted.append(indexes)
            accepted = self._messages[indexes.start : indexes.stop]
            self._tally.send += units_of_all([len(one) for one in accepted])
            return
        self._refused.append(indexes)
        if self._error is None:
            error = outcome.error or AmqpError(
                "amqp:internal-error", f"the answer was {outcome.kind.name.lower()}"
            )
            self._error = from_refusal(error, self.what)

    def has_ended(self) -> bool:
        """Like `wait_all` for one send, but it never waits. Call it after each exchange of bytes,
        and when `overdue_at` has come.
        """
        if self.advance():
            return True
        assert self.connection is not None
        if self.connection.is_over:
            lost = ConnectionLost(f"the connection to {self.namespace.namespace} is over")
            self.give_up(self.connection.loss or lost)
        elif self.is_link_lost:
            self.check_link()
        elif time.monotonic() >= self.overdue_at:
            self.give_up(
                PeerSilent(f"{self.namespace.namespace} did not acknowledge the messages in time")
            )
        return self.advance()

    @property
    def overdue_at(self) -> float:
        """When (monotonic) the next answer is overdue. The client's timeout applies to each."""
        namespace = self.namespace
        return min(self._heard_at + namespace.timeout_seconds, namespace.latest_deadline)

    # -- the end ----------------------------------------------------------------------------

    def fail(self, error: AzureError) -> None:
        """No more answers will come."""
        self._error = self._error or error

    def give_up(self, error: ClientError) -> None:
        """The same, for an error of the connection or the link."""
        link = self._link
        if isinstance(error, PeerSilent) and link is not None:
            link.detach()  # a late answer could be mistaken for the answer to another message
        self.fail(from_client_error(error, self.what))

    def check_link(self) -> None:
        """End the send if its link has ended: the missing answers will not arrive."""
        if not self.advance() and self._link is not None:
            try:
                self._link.check()
            except ClientError as error:
                self.give_up(error)

    def failure(self) -> SendIncomplete | None:
        """Returns None if all were accepted. Call it once, when the send has ended."""
        doubtful: list[range] = []
        while self._waiting:
            indexes, delivery = self._waiting.popleft()
            if delivery.outcome is None:
                doubtful.append(indexes)
            else:
                self._answered(indexes, delivery)
        never_sent = range(self._sent, len(self._messages))
        if self._error is None:
            if doubtful or never_sent:
                # The syphon settles the originals on this answer: never say more than is known.
                raise RuntimeError(
                    f"{self.what} has not ended: {sum(map(len, doubtful))} messages have no answer "
                    f"and {len(never_sent)} were not sent"
                )
            return None
        return SendIncomplete(
            self.path,
            error=self._error,
            accepted=self._accepted,
            refused=[*self._refused, never_sent] if never_sent else self._refused,
            doubtful=doubtful,
        )


def wait_all(sends: Sequence[PendingSend], *, until: float | None = None) -> None:
    """Wait until all sends, which belong to one client, have ended. Never raises: each send has its
    error.

    The client's timeout applies to each answer; `until` (monotonic) limits the total time.
    """
    left = [one for one in sends if not one.advance()]
    while left:
        connection, namespace = left[0].connection, left[0].namespace
        assert connection is not None, "a send that never started is over"
        due = namespace.deadline() if until is None else min(namespace.deadline(), until)
        try:
            connection.wait(_next_answer(left), due, "an acknowledgement")
        except ClientError as error:
            for one in left:
                if not one.advance():
                    one.give_up(error)
            return
        for one in left:
            one.check_link()
        left = [one for one in left if not one.advance()]


def _next_answer(sends: Sequence[PendingSend]) -> Callable[[], bool]:
    answers = sum(one.answers for one in sends)

    def has_come() -> bool:
        return (
            any(one.advance() or one.is_link_lost for one in sends)
            or sum(one.answers for one in sends) > answers
        )

    return has_come


# -- batches ----------------------------------------------------------------------------------


def _batch_limit(link: ClientSenderLink) -> int:
    """The service's limit, or else the one that the SDK assumes."""
    limit = link.properties.get("com.microsoft:max-message-batch-size")
    if isinstance(limit, int) and limit > 0:
        return int(limit)
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
    """The envelope carries the ids of the first message, as in the SDKs."""
    chosen = messages[indexes.start : indexes.stop]
    message_id = group_id = partition_key = None
    try:
        parts = slice_message(chosen[0])
        message_id = read_property(parts.bare, parts.properties, MESSAGE_ID)
        group_id = read_property(parts.bare, parts.properties, GROUP_ID)
        if parts.annotations:
            partition_key = read_annotations(parts.annotations).get("x-opt-partition-key")
    except MalformedMessage:
        pass  # the service refuses it
    return build_batch(
        chosen,
        message_id=message_id if type(message_id) is str else None,
        group_id=group_id if type(group_id) is str else None,
        partition_key=partition_key if type(partition_key) is str else None,
    )
