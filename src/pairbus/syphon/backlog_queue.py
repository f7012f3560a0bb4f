"""One backlog queue as a task sees it: what is taken from it, settled in it, and given back to it.

A settlement is said as soon as the primary has acknowledged what it is about, and its answer is
collected later. What cannot go home now is held until the end of the task, so that it does not
come round again and again, and then released.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from azure.core.exceptions import AzureError

from pairbus.fast.client import FastClient
from pairbus.fast.errors import SettleFailed
from pairbus.fast.message import ReceivedMessage
from pairbus.fast.receiver import PendingSettlement
from pairbus.syphon.policy import DeadLetter, Destinations
from pairbus.syphon.receipts import Outcome, TaskReport
from pairbus.syphon.restore import Restored

logger = logging.getLogger("pairbus.syphon")

Pair = tuple[ReceivedMessage, Restored]
"""A message as it was received, and as it was sent by the application."""

# Locks of backlog queues last a minute; what is older than this when its turn comes is renewed.
RENEW_SECONDS = 20.0


class Source:
    def __init__(self, client: FastClient, queue: str, report: TaskReport, *, credit: int) -> None:
        self.queue = queue
        self.receiver = client.receiver(queue, credit=credit)
        self.held: dict[str, list[Pair]] = {}
        """By destination: later messages for the same must not overtake them."""
        self.held_count = 0
        self.empty_since: float | None = None
        self._client = client
        self._report = report
        self._settling: tuple[PendingSettlement, Sequence[ReceivedMessage]] | None = None

    # --- settling ---------------------------------------------------------------------------------

    def settle(
        self,
        done: Sequence[ReceivedMessage],
        dead_letters: Mapping[DeadLetter, Sequence[ReceivedMessage]],
    ) -> None:
        """Complete what has gone home, and dead-letter the rest.

        Completing is only begun: `land` ends it. But nothing that happens to this process from here
        on keeps the secondary from hearing of it.
        """
        if done:
            self.land()
            self._settling = self.receiver.start_completing(done), done
            if not self._settling[0].is_sent:
                self.land()
        for step, received in dead_letters.items():
            self._settle(
                lambda received=received, step=step: self.receiver.dead_letter(  # type: ignore[misc]
                    received, reason=step.reason, description=step.description
                )
            )

    def land(self) -> None:
        """Collect the answer to what was begun."""
        begun, self._settling = self._settling, None
        if begun is not None:
            settling, done = begun
            self._settle(settling.wait, lambda: self.receiver.complete(done), doubtful=len(done))

    def _settle(
        self,
        settle: Callable[[], None],
        again: Callable[[], None] | None = None,
        *,
        doubtful: int = 0,
    ) -> None:
        """Once more if the connection was lost: then it goes by the lock's token.

        `doubtful`: how many arrive twice if it fails.
        """
        for is_last, act in ((False, settle), (True, again or settle)):
            try:
                act()
                return
            except SettleFailed as error:
                # Their locks have run out: they are delivered again, and so they arrive twice.
                if doubtful:
                    self._report.record_possible_duplicates(self.queue, "", len(error.failed))
                return
            except AzureError as error:
                if is_last:
                    self._report.record_possible_duplicates(self.queue, "", doubtful)
                    self._report.record_error(self.queue, error)

    def renew(self, received: Sequence[ReceivedMessage]) -> None:
        try:
            self._client.management(self.queue).renew_locks(
                [one.lock_token_bytes for one in received]
            )
        except AzureError as error:
            logger.info("locks of %s could not be renewed: %s", self.queue, error)

    # --- what cannot go now -----------------------------------------------------------------------

    def hold(self, path: str, pairs: Sequence[Pair]) -> None:
        """Until `release`. Of what is held, the bytes are not needed any more."""
        self.held.setdefault(path, []).extend(pairs)
        self.held_count += len(pairs)
        for received, restored in pairs:
            received.data = restored.data = b""

    def release(self, destinations: Destinations) -> None:
        """Nothing stays locked of what was held. What was not looked at, the receiver gives back
        when it is closed."""
        self.land()
        held = [received for pairs in self.held.values() for received, _ in pairs]
        held.sort(key=lambda received: received.delivery_id)
        try:
            if held:
                self.receiver.release(held)
        except AzureError as error:
            logger.info("messages of %s were not released: %s", self.queue, error)
        for pairs in self.held.values():
            destination = destinations[pairs[0][1].path]
            reason = destination.condition.value
            waiting = [restored for _, restored in pairs]
            self._report.record(self.queue, destination.path, Outcome.WAITING, waiting, reason)
        self.held, self.held_count = {}, 0
