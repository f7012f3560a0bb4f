"""Receiving from one entity: messages as bytes, received in bulk and settled in ranges."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Self
from uuid import uuid4

from azure.core.exceptions import AzureError

from pairbus.amqp.client.blocking import (
    ClientError,
    ClientReceiverLink,
    Connection,
    ConnectionLost,
    SettlementGroup,
)
from pairbus.amqp.outcomes import ACCEPTED, RELEASED, AmqpError, Outcome, modified, rejected
from pairbus.cost.meter import Tally, units_of_all
from pairbus.fast.connection import CLOSE_SECONDS, Attachment, NamespaceConnection
from pairbus.fast.management import Disposition, Management
from pairbus.fast.message import ReceivedMessage
from pairbus.fast.settlement import PendingSettlement

_ABANDONED: Final = modified(failed=True)
MESSAGE_BYTES_UNKNOWN: Final = 256 * 1024
"""The size of a message before the first one has come: the largest of the Standard tier."""
_MODES: Final = ("peekLock", "receiveAndDelete")


class Receiver(Attachment[ClientReceiverLink]):
    def __init__(
        self,
        namespace: NamespaceConnection,
        path: str,
        management: Management,
        tally: Tally,
        *,
        credit: int,
        mode: str,
        at_most: int | None = None,
        bytes_max: int | None = None,
        message_bytes: int = MESSAGE_BYTES_UNKNOWN,
    ) -> None:
        super().__init__(namespace, path)
        if credit < 1:
            raise ValueError(f"credit for {path!r} is {credit}, but must be at least 1")
        if mode not in _MODES:
            raise ValueError(f"mode for {path!r} is {mode!r}; expected {' or '.join(_MODES)}")
        self._management = management
        self._tally = tally
        self.credit = credit
        """The maximum number of messages in transit or in the buffer. It may be changed."""
        self._deletes = mode == "receiveAndDelete"
        self._at_most = at_most
        self._bytes_max = bytes_max
        self.message_bytes = message_bytes
        """The size of a message, on average of those that were taken last."""
        self._taken = 0
        self._grants_no_more = False
        self._is_draining = False
        self._taken_bytes = 0  # of what the current link delivered
        self._releasing: SettlementGroup | None = None
        self._kept: list[ReceivedMessage] = []  # delivered by a lost link, and still locked for us
        self._set_aside: list[ReceivedMessage] = []  # arrived while it stops
        # A poll is a grant of credit. The service bills a poll that ends without a message.
        self._is_polling = False
        self._was_answered = False

    @property
    def has_locks(self) -> bool:
        """Whether messages are in the buffer, or may still come. After `stop`, it is false if the
        service has answered. With receiveAndDelete, it is always true.
        """
        if self._deletes or self._kept or self._set_aside:
            return True
        link = self._alive()
        return link is not None and bool(link.inbox or link.credit)

    def take_over(self, other: Self) -> None:
        super().take_over(other)
        if self._link is not None:
            self._taken_bytes = self._link.arrived_bytes

    def open(self) -> None:
        """Attach and grant credit now. This is optional: the first `receive` does it, too."""
        with self._namespace.translating_errors(f"receiving from {self.path!r}"):
            connection, link = self._ready()
            self._grant(link)
            connection.exchange(0.0)

    # -- receiving --------------------------------------------------------------------------

    def receive(self, max_count: int, *, max_wait_seconds: float) -> list[ReceivedMessage]:
        """Wait for the first message, then return all that have arrived. Empty if none came in
        time.

        Messages that a lost link had delivered come first: their locks outlive the link.
        """
        if max_count < 1:
            raise ValueError(f"max_count is {max_count}, but must be at least 1")
        until = time.monotonic() + max_wait_seconds
        with self._namespace.translating_errors(f"receiving from {self.path!r}"):
            self._check_link()
            if self._kept:
                return self._take_kept(max_count)
            connection, link = self._ready()
            self._grant(link)
            if len(link.inbox) < max_count:
                try:
                    connection.exchange(0.0)
                except ConnectionLost:
                    if not link.inbox:  # otherwise the next call raises it
                        raise
            if not link.inbox:
                connection.wait_quietly(lambda: link.inbox or link.is_over, until)
                if not link.inbox:
                    link.check()
                    return []
            return self._take(link, max_count)

    def take(self, max_count: int, *, max_bytes: int) -> list[ReceivedMessage]:
        """Messages that have arrived, up to both limits, but at least one; empty if there is none.
        It reads nothing from the connection: `wait_together` does. See also `receive`.
        """
        with self._namespace.translating_errors(f"receiving from {self.path!r}"):
            self._check_link()
            if self._kept:
                return self._take_kept(_count_within(self._kept, max_count, max_bytes))
            _, link = self._ready()
            if not link.inbox:
                self._grant(link)
                return []
            return self._take(link, _count_within(link.inbox, max_count, max_bytes))

    def _take_kept(self, max_count: int) -> list[ReceivedMessage]:
        taken, self._kept = self._kept[:max_count], self._kept[max_count:]
        self._took(taken)
        return taken

    def _take(self, link: ClientReceiverLink, max_count: int) -> list[ReceivedMessage]:
        taken = link.inbox
        if len(taken) <= max_count:
            link.inbox = []
        else:
            taken, link.inbox = taken[:max_count], taken[max_count:]
        self._is_draining = False
        self._took(taken)
        self._grant(link)
        return taken

    def _took(self, taken: Sequence[ReceivedMessage]) -> None:
        self._taken += len(taken)
        self._count(taken)

    @property
    def has_messages(self) -> bool:
        """Whether `take` returns some, or raises because the link is lost."""
        link = self._link
        return bool(self._kept) or (link is not None and (bool(link.inbox) or link.is_over))

    @property
    def buffered_bytes(self) -> int:
        """The size of the messages that have arrived and were not taken."""
        link = self._link
        return 0 if link is None or not link.inbox else link.arrived_bytes - self._taken_bytes

    def ask_for_the_rest(self) -> None:
        """Have the service send what it has, and take the credit back. If no message comes before
        `has_credit` is false, the entity is empty. The next message that is taken ends this.
        """
        link = self._alive()
        if link is not None:
            self._is_draining = True
            link.drain()

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    def limit_to(self, count: int) -> None:
        """Request at most `count` more messages than were taken. Then there are none to release."""
        self._at_most = self._taken + count

    def stop_granting(self) -> None:
        """Grant no more credit until `stop`. The credit already granted stays valid."""
        self._grants_no_more = True

    @property
    def credit_for_bytes(self) -> int:
        """`credit`, or less if the messages are large."""
        if self._bytes_max is None:
            return self.credit
        return max(1, min(self.credit, self._bytes_max // self.message_bytes))

    @property
    def has_credit(self) -> bool:
        """Whether the service still has unused credit."""
        return self._link is not None and self._link.credit > 0

    def _grant(self, link: ClientReceiverLink) -> None:
        """Grant credit in bulk: one flow frame per message would cost too much."""
        self._is_polling = True
        if self._grants_no_more or self._is_draining:
            return
        credit = self.credit_for_bytes
        room, least = credit - len(link.inbox), max(1, credit // 4)
        if self._at_most is not None:
            left = self._at_most - self._taken - len(self._kept) - len(link.inbox)
            room, least = min(room, left), least if link.credit else 1
        if room - link.credit >= least:
            link.grant(room)

    def _new_link(self, connection: Connection) -> ClientReceiverLink:
        return connection.start_receiver(
            self._namespace.address(self.path),
            _unlocked if self._deletes else ReceivedMessage,
            # With locks: a message is settled when the service has answered the settlement, so a
            # lost one is noticed. Without locks, it is settled when it is sent.
            snd_settle_mode=1 if self._deletes else 0,
            rcv_settle_mode=0 if self._deletes else 1,
            properties={"com.microsoft:receiver-name": f"pairbus-{uuid4()}"},
        )

    def _keep_received(self) -> None:
        link = self._link
        if link is None:
            return
        self._was_answered |= bool(link.inbox)
        self._poll_ended()
        self._is_draining, self._taken_bytes = False, 0
        if link.inbox:
            self._kept, link.inbox = self._kept + link.inbox, []

    # -- settling ---------------------------------------------------------------------------

    def complete(self, received: Sequence[ReceivedMessage]) -> None:
        """Returns when all are completed. Raises SettleFailed with those that could not be.

        After any other error the result is unknown: call it again, and it settles by lock token.
        Messages in the order of their delivery cost the least.
        """
        self.start_completing(received).wait()

    def start_completing(self, received: Sequence[ReceivedMessage]) -> PendingSettlement:
        """Like `complete`, without waiting for the answers. `wait` waits, and raises the errors.

        When this returns, the service gets the settlement even if this process dies. The exception
        is a lost link: then only `wait` sends it.
        """
        return self._start(received, ACCEPTED, "completed")

    def abandon(self, received: Sequence[ReceivedMessage]) -> None:
        """Make the messages available again at once, with the delivery count increased. See
        `complete`.
        """
        self._start(received, _ABANDONED, "abandoned").wait()

    def release(self, received: Sequence[ReceivedMessage]) -> None:
        """Make the messages available again at once, with the delivery count unchanged. See
        `complete`.
        """
        self._start(received, RELEASED, "abandoned").wait()

    def dead_letter(
        self, received: Sequence[ReceivedMessage], *, reason: str, description: str = ""
    ) -> None:
        """Dead-letter the messages, all with the same reason. See `complete`."""
        info = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        outcome = rejected(AmqpError("com.microsoft:dead-letter", description, info))
        self._start(received, outcome, "suspended", reason, description).wait()

    def _start(
        self,
        received: Sequence[ReceivedMessage],
        outcome: Outcome,
        disposition: Disposition,
        reason: str = "",
        description: str = "",
    ) -> PendingSettlement:
        """Settle on the link that delivered the messages, or by lock token if that link is lost."""
        if self._deletes:
            raise ValueError(f"{self!r} has nothing to settle: its mode is receiveAndDelete")
        received = list(dict.fromkeys(received))  # each is answered once, even if it is given twice
        here, elsewhere = self._by_link(received)
        by_token = partial(
            self._management.settle_each, elsewhere, disposition, reason, description
        )
        return PendingSettlement(
            self._namespace,
            self.path,
            self._alive(),
            here,
            outcome,
            self._tally,
            by_token=by_token if elsewhere else None,
        )

    def _by_link(
        self, received: Sequence[ReceivedMessage]
    ) -> tuple[Sequence[ReceivedMessage], Sequence[ReceivedMessage]]:
        """Splits the messages: those that the current link delivered, and the others."""
        link = self._alive()
        if link is None:
            return [], received
        if all(one.link is link for one in received):
            return received, []
        here = [one for one in received if one.link is link]
        return here, [one for one in received if one.link is not link]

    # -- the end ----------------------------------------------------------------------------

    def stop(self) -> list[ReceivedMessage]:
        """Stop receiving: take the credit back, and release the buffered messages at once.

        Delivery counts stay as they are. With receiveAndDelete nothing can be released, so this
        returns the buffered messages. The next `receive` starts again. Never raises for errors of
        the service: if it cannot be reached, the locks expire.
        """
        return stop_all([self])

    def _set_arrived_aside(self) -> None:
        """While it stops. What has arrived will only be released, so none of its bytes are kept."""
        arrived, self._kept = self._kept, []
        if self._link is not None:
            arrived, self._link.inbox = arrived + self._link.inbox, []
        self._count(arrived)
        if not self._deletes:
            for one in arrived:
                one.data = b""
        self._set_aside += arrived

    def _stopped(self) -> list[ReceivedMessage]:
        """The credit was taken back: release what has arrived."""
        self._grants_no_more = self._is_draining = False
        self._set_arrived_aside()
        waiting, self._set_aside = self._set_aside, []
        if waiting and not self._deletes:
            with contextlib.suppress(ClientError, AzureError):
                self._release_quickly(waiting)
        self._poll_ended()
        return waiting if self._deletes else []

    def _release_quickly(self, received: list[ReceivedMessage]) -> None:
        """Releases messages without waiting for answers on the link: `stop_all` does."""
        here, elsewhere = self._by_link(received)
        link, connection = self._alive(), self._namespace.current
        if link is not None and connection is not None:
            ids = sorted([one.delivery_id for one in here])
            self._releasing = link.settle(ids, RELEASED)
            connection.exchange(0.0)
        if elsewhere and self._namespace.is_open:
            # Their links are lost, so settle them by lock token.
            self._management.settle_each(elsewhere, "abandoned")
        self._tally.settle += len(here)

    @property
    def _is_releasing(self) -> bool:
        releasing = self._releasing
        return releasing is not None and releasing.left > 0 and self._alive() is not None

    def close(self) -> list[ReceivedMessage]:
        """`stop`, and detach."""
        left = [] if self.is_closed else self.stop()
        super().close()
        return left

    # -- counting ---------------------------------------------------------------------------

    def _count(self, received: Sequence[ReceivedMessage]) -> None:
        if received:
            # Messages of a lost link belong to the poll of that link.
            is_of_this_link = received[-1].link is self._link
            self._was_answered |= is_of_this_link
            sizes = [len(one.data) for one in received]
            self.message_bytes = max(1, sum(sizes) // len(sizes))
            self._taken_bytes += sum(sizes) if is_of_this_link else 0
            self._tally.receive += units_of_all(sizes)

    def _poll_ended(self) -> None:
        if self._is_polling and not self._was_answered:
            self._tally.empty_receive += 1
        self._is_polling = self._was_answered = False


def _count_within(messages: Sequence[ReceivedMessage], max_count: int, max_bytes: int) -> int:
    """How many of the first messages are within both limits. At least one."""
    size = 0
    for count, one in enumerate(messages[:max_count]):
        size += len(one.data)
        if size > max_bytes and count:
            return count
    return max_count


def _unlocked(link: ClientReceiverLink, number: int, tag: bytes, data: bytes) -> ReceivedMessage:
    """No lock token: with receiveAndDelete, the service's delivery tag is not one."""
    return ReceivedMessage(link, number, b"", data)


# -- several receivers ------------------------------------------------------------------------


def stop_all(receivers: Sequence[Receiver]) -> list[ReceivedMessage]:
    """`stop` for several receivers of one client, all at the same time.

    All credit is taken back before anything is released. Otherwise the service would deliver the
    released messages again at once.
    """

    def wait(done: Callable[[], bool]) -> None:
        namespace = receivers[0]._namespace
        if namespace.current is not None:
            with contextlib.suppress(ClientError):
                namespace.current.wait_quietly(done, namespace.deadline(CLOSE_SECONDS))

    links = [link for receiver in receivers if (link := receiver._alive()) is not None]

    def has_all_come() -> bool:
        for receiver in receivers:
            receiver._set_arrived_aside()
        return all(not link.credit or link.is_over for link in links)

    for link in links:
        link.drain()
    if links:
        wait(has_all_come)
    left = [one for receiver in receivers for one in receiver._stopped()]
    if any(receiver._is_releasing for receiver in receivers):
        # Until then, the next receiver would get what is behind the released messages.
        wait(lambda: not any(receiver._is_releasing for receiver in receivers))
        for receiver in receivers:
            if receiver._is_releasing and receiver._link is not None:
                receiver._link.detach()  # as in PendingSettlement
    return left


def wait_for_any(receivers: Sequence[Receiver], *, max_wait_seconds: float) -> list[Receiver]:
    """Returns the receivers, all of one client, that have a message now or whose link has ended.
    Empty if there is none in time. It grants missing credit, which stays until `stop`.
    """
    until = time.monotonic() + max_wait_seconds
    connection: Connection | None = None
    links: list[ClientReceiverLink] = []
    for receiver in receivers:
        with receiver._namespace.translating_errors(f"receiving from {receiver.path!r}"):
            connection, link = receiver._ready()
        receiver._grant(link)
        links.append(link)

    def ready() -> list[Receiver]:
        return [
            one
            for one, link in zip(receivers, links, strict=True)
            if link.inbox or link.is_over or one._kept
        ]

    if connection is not None:
        what = f"receiving from {len(links)} entities"
        with receivers[0]._namespace.translating_errors(what):
            connection.wait_quietly(ready, until)
    return ready()
