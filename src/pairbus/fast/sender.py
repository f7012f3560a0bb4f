"""Sending encoded messages to one entity, in as few batches as its limits allow.

Several sends may be pending at once, to different entities of one namespace, so that `wait_all`
waits for all answers at the same time.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from azure.core.exceptions import AzureError
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus.amqp.client.blocking import (
    ClientError,
    ClientSenderLink,
    Connection,
    ConnectionLost,
    Delivery,
    LinkLost,
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

_WINDOW: Final = 4  # of batches: a distant service has the next one when it has stored one
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

    def __init__(
        self,
        namespace: NamespaceConnection,
        path: str,
        messages: Sequence[bytes],
        window: int,
        tally: Tally,
    ) -> None:
        self.what = f"sending to {path!r}"
        self.connection: Connection | None = None
        self._namespace = namespace
        self._path = path
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
        self._is_given_up = False
        self._heard_at = 0.0

    def start(self, connection: Connection, link: ClientSenderLink) -> None:
        """The link is attached: send as much as the window allows. Raises ClientError."""
        self.connection, self._link = connection, link
        self._heard_at = time.monotonic()
        if self._messages:
            self._groups = _groups(self._messages, _batch_limit(link))
        self._next = next(self._groups, None)
        self._advance(link)
        connection.exchange(0.0)

    @property
    def overdue_at(self) -> float:
        """When (monotonic) the next answer is overdue. The client's timeout applies to each."""
        namespace = self._namespace
        return min(self._heard_at + namespace.timeout_seconds, namespace.latest_deadline)

    def has_ended(self) -> bool:
        """Reads the answers that have arrived, and sends more if the window allows. Never waits:
        call it after each exchange of bytes, and when `overdue_at` has come.
        """
        link, connection = self._link, self.connection
        if self._is_given_up or link is None or connection is None or self._advance(link):
            return True
        error: ClientError
        if connection.is_over:
            lost = ConnectionLost(f"the connection to {self._namespace.namespace} is over")
            error = connection.loss or lost
        elif link.is_over:
            error = LinkLost(f"link {link.name!r} was ended", link.error)
        elif (now := time.monotonic()) >= self.overdue_at:
            error = PeerSilent(
                f"{self._namespace.namespace} did not answer within {now - self._heard_at:.1f} s: "
                "waited for an acknowledgement"
            )
            link.detach()  # a late answer could be mistaken for the answer to another message
        else:
            return False
        self.fail(from_client_error(error, self.what))
        return True

    def _advance(self, link: ClientSenderLink) -> bool:
        """Returns True when the send has ended."""
        waiting = self._waiting
        while waiting and waiting[0][1].outcome is not None:
            self._answered(*waiting.popleft())
        while (
            self._next is not None
            and self._error is None
            and len(waiting) < self._window
            and link.credit > 0
            and not link.is_over
        ):
            self._send(link, self._next)
        return not waiting and (self._next is None or self._error is not None)

    def _send(self, link: ClientSenderLink, indexes: range) -> None:
        first = self._messages[indexes.start]
        if len(indexes) > 1:
            delivery = link.send(_batch(self._messages, indexes), message_format=BATCH_FORMAT)
        elif len(first) <= (link.size_max or len(first)):
            delivery = link.send(first)
        else:
            self._error = MessageSizeExceededError(
                message=f"a message for {self._path!r} has {len(first)} bytes; the maximum is "
                f"{link.size_max}"
            )
            return
        self._waiting.append((indexes, delivery))
        self._sent = indexes.stop
        self._next = next(self._groups, None)

    def _answered(self, indexes: range, delivery: Delivery) -> None:
        outcome = delivery.outcome
        assert outcome is not None
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

    # -- the end ----------------------------------------------------------------------------

    def fail(self, error: AzureError) -> None:
        """No more answers will come."""
        self._is_given_up = True
        self._error = self._error or error

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
            self._path,
            error=self._error,
            accepted=self._accepted,
            refused=[*self._refused, never_sent] if never_sent else self._refused,
            doubtful=doubtful,
        )


def wait_all(sends: Sequence[PendingSend]) -> None:
    """Wait until all sends, which belong to one client, have ended. Never raises: each send has its
    error.
    """

    def left() -> list[PendingSend]:
        return [one for one in sends if not one.has_ended()]

    while waiting := left():
        connection = waiting[0].connection
        assert connection is not None, "a send that never started is over"
        due = min(one.overdue_at for one in waiting)
        with contextlib.suppress(ClientError):  # `has_ended` reports it
            connection.wait_quietly(lambda: not left(), due)


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
