"""One backlog queue in a task: receives, settles and releases its messages.

A settlement is sent as soon as the primary has acknowledged the messages, and its answer is
collected later. Messages that cannot go home now are held until the end of the task, because a
message that is released at once is delivered again at once.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from azure.core.exceptions import AzureError

from pairbus.fast.client import FastClient
from pairbus.fast.errors import SettleFailed
from pairbus.fast.message import SEQUENCE_END, ReceivedMessage, sequence_number_of
from pairbus.fast.settlement import PendingSettlement
from pairbus.syphon.policy import Destinations, ToDeadLetter
from pairbus.syphon.receipts import ReceiptOutcome, TaskReport
from pairbus.syphon.restore import Restored

logger = logging.getLogger("pairbus.syphon")

Pair = tuple[ReceivedMessage, Restored]
"""A message as it was received, and as the application sent it."""

# Locks of backlog queues last a minute. One that is older than this before a send is renewed.
RENEW_SECONDS = 20.0
# How many gaps of one batch are looked into. What is behind them waits for the next round.
GAPS_MAX = 50


@dataclass(frozen=True, slots=True)
class Settling:
    """Messages that the primary has acknowledged, and that the secondary has not answered yet."""

    pending: PendingSettlement
    done: Sequence[ReceivedMessage]
    sent_at: float
    """Monotonic: when the messages were sent to the primary."""


class BacklogQueue:
    def __init__(
        self,
        client: FastClient,
        name: str,
        report: TaskReport,
        *,
        credit: int,
        bytes_max: int,
        message_bytes: int,
        at_most: int | None = None,
    ) -> None:
        self.name = name
        self.receiver = client.receiver(
            name,
            credit=credit,
            at_most=at_most,
            bytes_max=bytes_max,
            message_bytes=message_bytes,
        )
        self.held: dict[str, list[Pair]] = {}
        """By destination, in lower case. Later messages for it must not overtake these."""
        self.held_count = 0
        self.held_before = 0
        """How many were held when a message was last settled."""
        self._silent_since: float | None = None
        self._client = client
        self._report = report
        self._last_number: int | None = None
        """All messages of the queue up to this one were received by this task, or are gone."""
        self._settling: deque[Settling] = deque()

    # --- receiving --------------------------------------------------------------------------------

    def take(self, max_count: int, *, max_bytes: int) -> list[ReceivedMessage]:
        """See `Receiver.take`."""
        received = self.receiver.take(max_count, max_bytes=max_bytes)
        if received:
            self._silent_since = None
        return received

    def ask_if_silent(self, *, seconds: float) -> None:
        """Ask whether the queue is empty if no message has come for this long."""
        receiver, now = self.receiver, time.monotonic()
        if receiver.has_messages or not receiver.has_credit:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now
        elif now - self._silent_since >= seconds:
            receiver.ask_for_the_rest()

    @property
    def silent_since(self) -> float | None:
        """Monotonic: when `ask_if_silent` found it silent; None if it is not, or has been asked."""
        receiver = self.receiver
        return None if receiver.is_draining or receiver.has_messages else self._silent_since

    @property
    def has_ended(self) -> bool:
        """Whether the secondary has said that the queue has no more messages now."""
        receiver = self.receiver
        return receiver.is_draining and not receiver.has_credit and not receiver.has_messages

    # --- order ------------------------------------------------------------------------------------

    def count_next(self, received: Sequence[ReceivedMessage]) -> int:
        """How many of these, from the first one on, have no message ahead of them that another
        receiver holds.

        Another one may: a task that died, whose locks have not expired yet, or another syphon. Only
        where sequence numbers leave a gap, a peek, which also shows locked messages, must tell.
        """
        numbers = [message.sequence_number or 0 for message in received]
        if not all(0 < number < SEQUENCE_END for number in numbers):
            return len(numbers)  # a partitioned queue has no order that could be kept
        peeks = 0
        for count, number in enumerate(numbers):
            last = self._last_number
            if last is None or number != last + 1:
                peeks += 1
                if peeks > GAPS_MAX or self._first_number(after=last or 0) != number:
                    return count
            self._last_number = number
        return len(numbers)

    def _first_number(self, *, after: int) -> int | None:
        """The sequence number of the first message behind another one, locked or not."""
        try:
            peeked = self._client.management(self.name).peek(after + 1, 1)
        except AzureError as error:
            logger.info("cannot peek at %s: %s", self.name, error)
            return None
        return sequence_number_of(peeked[0]) if peeked else None

    # --- settling ---------------------------------------------------------------------------------

    def settle(
        self,
        done: Sequence[ReceivedMessage],
        dead_letters: Mapping[ToDeadLetter, Sequence[ReceivedMessage]],
        *,
        sent_at: float,
    ) -> None:
        """Complete messages that the primary has acknowledged, and dead-letter others.

        Completion is only started here; the answer is collected later. When this returns, the
        secondary gets the settlement even if this process dies.
        """
        if done:
            for one in done:
                one.data = b""  # the primary has it
            started = Settling(self.receiver.start_completing(done), done, sent_at)
            self._settling.append(started)
            if not started.pending.is_sent:
                self.await_settlements()
        for step, received in dead_letters.items():
            reason, text = step.reason, step.description
            self._settle(
                partial(self.receiver.dead_letter, received, reason=reason, description=text)
            )

    @property
    def settling_count(self) -> int:
        """How many messages the secondary has not answered yet."""
        return sum(len(one.done) for one in self._settling)

    @property
    def has_settled(self) -> bool:
        """Whether there is an answer to collect."""
        return bool(self._settling) and self._settling[0].pending.is_answered

    def collect_settlement(self) -> float:
        """Wait for the next answer. Returns how long it took, from when the messages were sent."""
        started = self._settling.popleft()
        done = started.done
        self._settle(started.pending.wait, lambda: self.receiver.complete(done), sent=len(done))
        return time.monotonic() - started.sent_at

    def await_settlements(self) -> None:
        """Wait for all answers."""
        while self._settling:
            self.collect_settlement()

    def _settle(
        self, settle: Callable[[], None], again: Callable[[], None] | None = None, *, sent: int = 0
    ) -> None:
        """Settle, and repeat it by lock token if the connection was lost.

        `sent`: the number of messages that were sent. They arrive twice if this fails.
        """
        for is_last, act in ((False, settle), (True, again or settle)):
            try:
                act()
                return
            except SettleFailed as error:
                # Their locks have expired, so they are delivered again. No retry can change that.
                if sent:
                    self._report.record_possible_duplicates(self.name, "", len(error.failed))
                return
            except AzureError as error:
                if is_last:
                    self._report.record_possible_duplicates(self.name, "", sent)
                    self._report.record_error(self.name, error)

    def renew_locks(self, received: Sequence[ReceivedMessage]) -> None:
        tokens = [one.lock_token_bytes for one in received]
        try:
            self._client.management(self.name).renew_locks(tokens)
        except AzureError as error:
            logger.info("cannot renew locks of %s: %s", self.name, error)

    # --- messages that cannot go home now ---------------------------------------------------------

    def hold(self, path: str, pairs: Sequence[Pair]) -> None:
        """Keep messages locked until `release`. Drop their bytes, which are no longer needed."""
        self.held.setdefault(path, []).extend(pairs)
        self.held_count += len(pairs)
        for received, restored in pairs:
            received.data = restored.data = b""

    def release(self, destinations: Destinations) -> None:
        """Release the held messages. When the receiver is closed, it releases its buffered
        messages.
        """
        self.await_settlements()
        held = [received for pairs in self.held.values() for received, _ in pairs]
        try:
            if held:
                self.receiver.release(held)
        except AzureError as error:
            logger.info("cannot release messages of %s: %s", self.name, error)
        for pairs in self.held.values():
            destination = destinations[pairs[0][1].path]
            waiting = [restored for _, restored in pairs]
            reason = destination.condition.value
            self._report.record(
                self.name, destination.path, ReceiptOutcome.WAITING, waiting, reason
            )
        self.held, self.held_count = {}, 0
