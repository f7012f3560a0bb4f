"""The syphon: a loop of bounded rounds on Spark, and a quiet wait in between.

While there is nothing to bring home, the driver alone waits, with one long poll for each backlog
queue on one connection. A message arrives: it is released, and a round runs, a Spark job with a
task for each group of queues. A round lasts some seconds, so a stop takes no longer than that, and
leaves nothing locked. The account of a round goes to the ledger before the next one begins.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from azure.core.exceptions import AzureError

from pairbus.errors import PairbusError
from pairbus.servicebus.fast import FastClient, Receiver
from pairbus.servicebus.fast.watch import wait_for_any
from pairbus.spark.settings import Address
from pairbus.syphon.destinations import Condition, Destination
from pairbus.syphon.discovery import Discovery
from pairbus.syphon.drain import Drained, DrainTask
from pairbus.syphon.plan import Backlog
from pairbus.syphon.receipts import Outcome, Receipt, merged

logger = logging.getLogger("pairbus.syphon")

LONG_POLL_SECONDS = 15 * 60.0
DISCOVER_SECONDS = 60.0
# How often the quiet wait looks whether it is to end; costs nothing but a wake-up.
LOOK_SECONDS = 0.5
TROUBLE_SECONDS = 5.0
# `once` gives up after so many rounds in a row that brought nothing home.
FRUITLESS_ROUNDS_MAX = 10
# ... and looks so often, so far apart, for what others have locked: longer than a lock lasts.
LOCKED_LOOKS_MAX = 18
LOCKED_SECONDS = 5.0


class SyphonError(PairbusError):
    """The syphon cannot go on: the text says why, and what to mend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonOptions:
    primary: Address
    secondary: Address
    round_seconds: float = 3.0
    chunk: int = 500
    shares: int = 1
    ttl_keeps_running: bool = False
    long_poll_seconds: float = LONG_POLL_SECONDS


class Runner(Protocol):
    """Who runs the tasks of a round, wherever."""

    @property
    def slots(self) -> int: ...

    def run(self, tasks: Sequence[DrainTask]) -> list[Drained]: ...


class Ledger(Protocol):
    def append(self, receipts: Sequence[Receipt]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEnded:
    """Progress, for whoever watches."""

    round: int
    seconds: float
    receipts: tuple[Receipt, ...]
    pending: tuple[str, ...]
    """Queues that may hold more."""
    destinations: tuple[Destination, ...]
    troubles: tuple[tuple[str, str], ...]


class Job:
    def __init__(
        self,
        options: SyphonOptions,
        runner: Runner,
        discovery: Discovery,
        *,
        ledger: Ledger | None = None,
        progress: Callable[[RoundEnded], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.run_id = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(clock()))}-{uuid4().hex[:8]}"
        self._options = options
        self._runner = runner
        self._discovery = discovery
        self._ledger = ledger
        self._progress = progress
        self._clock = clock
        self._backlog = Backlog(shares=options.shares)
        self._stopping = threading.Event()
        self._round = 0
        self.left = ""
        """Why `once` has ended although something is left; empty where nothing is."""
        self._fruitless = 0
        self._looks_left = LOCKED_LOOKS_MAX
        self._troubles: tuple[tuple[str, str], ...] = ()
        self._discovered = 0.0

    def stop(self) -> None:
        """From any thread or a signal's handler: ends within a round."""
        self._stopping.set()

    def run(self, *, once: bool = False) -> list[Receipt]:
        """Until `stop`; `once`: until nothing is left that could be brought home. Answers what was
        done, added up."""
        receipts: list[Receipt] = []
        try:
            while not self._stopping.is_set():
                self._discover()
                if not self._backlog.pending:
                    if once and not self._has_locked_left():
                        break
                    if once:
                        continue
                    self._wait_quietly()
                    continue
                if self._stopping.wait(self._backlog.pause(now=self._clock())):
                    break
                told = self._run_round()
                receipts = merged([*receipts, *told], across_rounds=True)
                if self._is_fruitless(told) and once:
                    self._give_up(f"nothing could be brought home for a while: {self._why()}")
                    break
        finally:
            if self._ledger is not None:
                self._ledger.close()
        return receipts

    # --- the end of `once` ------------------------------------------------------------------------

    def _has_locked_left(self) -> bool:
        """What somebody else has locked cannot be received, and yet is there: wait a little."""
        try:
            with self._options.secondary.client(timeout_seconds=15.0) as client:
                left = [each for each in self._backlog.queues if client.management(each).peek(0, 1)]
        except AzureError as error:
            self._give_up(f"whether others have locked messages cannot be looked at: {error}")
            return False
        if not left:
            return False
        if not self._looks_left:
            self._give_up(f"messages are left that others have locked, in {', '.join(left)}")
            return False
        self._looks_left -= 1
        self._stopping.wait(LOCKED_SECONDS)
        self._backlog.arrived(left)
        return True

    def _give_up(self, why: str) -> None:
        self.left = why
        logger.warning("%s", why)

    def _is_fruitless(self, receipts: Sequence[Receipt]) -> bool:
        has_moved = any(each.outcome is not Outcome.WAITING and each.count for each in receipts)
        self._fruitless = 0 if has_moved else self._fruitless + 1
        return self._fruitless >= FRUITLESS_ROUNDS_MAX and bool(self._backlog.pending)

    def _why(self) -> str:
        down = [
            f"{one.path} is {one.condition.value}"
            for one in self._backlog.destinations
            if one.condition is not Condition.UP
        ]
        return "; ".join([*down, *(f"{queue}: {text}" for queue, text in self._troubles)])

    # --- rounds -----------------------------------------------------------------------------------

    def _run_round(self) -> list[Receipt]:
        self._round += 1
        began = time.monotonic()
        tasks = [self._task(group) for group in self._backlog.groups(self._runner.slots)]
        results = self._runner.run(tasks)
        receipts = merged(receipt for result in results for receipt in result.receipts)
        destinations = [one for result in results for one in result.destinations]
        emptied = [queue for result in results for queue in result.emptied]
        self._troubles = troubles = tuple(
            trouble for result in results for trouble in result.troubles
        )
        if self._ledger is not None:
            self._ledger.append(receipts)
        self._backlog.ended(receipts, destinations, emptied, now=self._clock())
        if self._progress is not None:
            self._progress(
                RoundEnded(
                    round=self._round,
                    seconds=time.monotonic() - began,
                    receipts=tuple(receipts),
                    pending=self._backlog.pending,
                    destinations=tuple(self._backlog.destinations),
                    troubles=troubles,
                )
            )
        for queue, trouble in troubles:
            logger.warning("backlog queue %s: %s", queue, trouble)
        stopper = self._backlog.destinations.stopper
        if stopper is not None:
            raise SyphonError(
                f"the primary refuses the syphon's credentials for {stopper.path!r}: "
                f"{stopper.detail}. They need the Send claim; nothing was lost"
            )
        return receipts

    def _task(self, queues: tuple[str, ...]) -> DrainTask:
        options = self._options
        return DrainTask(
            run=self.run_id,
            round=self._round,
            queues=queues,
            primary=options.primary,
            secondary=options.secondary,
            seconds=options.round_seconds,
            chunk=options.chunk,
            ttl_keeps_running=options.ttl_keeps_running,
            known=tuple(self._backlog.destinations),
        )

    # --- between rounds ---------------------------------------------------------------------------

    def _discover(self) -> None:
        now = self._clock()
        if self._discovered and now - self._discovered < DISCOVER_SECONDS:
            return
        try:
            new = self._backlog.found(self._discovery.queues())
        except AzureError as error:
            if not self._backlog.queues:
                raise SyphonError(
                    f"the backlog queues on the secondary cannot be listed: {error}"
                ) from error
            logger.warning(
                "the backlog queues could not be listed, the known ones go on: %s", error
            )
        else:
            if new:
                logger.info("backlog queues found: %s", ", ".join(new))
        self._discovered = now

    def _wait_quietly(self) -> None:
        """Until a message arrives, it is time to look for queues, or the end."""
        queues = self._backlog.queues
        if not queues:
            self._stopping.wait(min(DISCOVER_SECONDS, TROUBLE_SECONDS))
            self._discovered = 0.0
            return
        try:
            with self._options.secondary.client(timeout_seconds=15.0) as client:
                self._backlog.arrived(self._watch(client, queues))
        except AzureError as error:
            logger.warning("waiting for messages on the secondary: %s", error)
            self._stopping.wait(TROUBLE_SECONDS)

    def _watch(self, client: FastClient, queues: tuple[str, ...]) -> list[str]:
        receivers = [client.receiver(queue, credit=1) for queue in queues]
        polled = time.monotonic()
        while not self._stopping.is_set():
            seen = wait_for_any(receivers, max_wait_seconds=LOOK_SECONDS)
            if seen:
                return [receiver.path for receiver in seen]
            if time.monotonic() - polled >= self._options.long_poll_seconds:
                polled = time.monotonic()
                self._poll_again(receivers)
            self._discover()
            if self._backlog.queues != queues:
                return []
        return []

    @staticmethod
    def _poll_again(receivers: Sequence[Receiver]) -> None:
        """One poll has ended without a message; the next one begins."""
        for receiver in receivers:
            receiver.stop()
