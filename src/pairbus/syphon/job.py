"""The syphon: a loop of bounded rounds on Spark, and a quiet wait in between.

While there is nothing to bring home, the driver alone waits, with one long poll for each backlog
queue (`watch.py`). A message arrives: it is released, and a round runs, a Spark job with a task for
each group of queues of one primary. A round lasts some seconds, so a stop takes no longer than
that, and leaves nothing locked. The account of a round goes to the ledger before the next one
begins.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from azure.core.exceptions import AzureError

from pairbus.errors import OptionsError, PairbusError
from pairbus.fast.address import Address
from pairbus.syphon.discovery import ListQueues, PeriodicDiscovery
from pairbus.syphon.drain import Drained, DrainTask
from pairbus.syphon.policy import Condition, Destination
from pairbus.syphon.receipts import Outcome, Receipt, RoundEnded, merged
from pairbus.syphon.runner import Runner
from pairbus.syphon.schedule import Backlogs, Group
from pairbus.syphon.usage import Usage
from pairbus.syphon.watch import ANSWER_SECONDS, Tails, Watch
from pairbus.syphon.window import opening

if TYPE_CHECKING:
    from pairbus.syphon.ledger import ParquetLedger

logger = logging.getLogger("pairbus.syphon")

LONG_POLL_SECONDS = 15 * 60.0
DISCOVER_SECONDS = 60.0
# How often the quiet wait looks whether it is to end; costs nothing but a wake-up.
LOOK_SECONDS = 0.5
TROUBLE_SECONDS = 5.0
# A round that a stop would have to wait for longer is cancelled, where that is possible: Spark may
# have nobody to run it.
CANCEL_SECONDS = 4.0
# A probe takes so many messages of a queue, or a few more.
PROBE_MESSAGES = 5
# `once` gives up after so many rounds in a row that brought nothing home.
FRUITLESS_ROUNDS_MAX = 10
ONCE_REST_SECONDS_MAX = 5.0
# ... and looks so often, so far apart, for what others have locked: longer than a lock lasts.
LOCKED_LOOKS_MAX = 18
LOCKED_SECONDS = 5.0


class SyphonError(PairbusError):
    """The syphon cannot go on: the text says why, and what to mend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonOptions:
    primaries: Mapping[str, Address]
    """Where messages belong, by the primary's name in the paths of its backlog queues. If there is
    only one, it owns all queues and its name does not matter."""
    secondary: Address
    round_seconds: float = 3.0
    chunk: int = 1000
    shares: int = 1
    ttl_keeps_running: bool = False
    long_poll_seconds: float = LONG_POLL_SECONDS
    begins_with_a_round: bool = True
    """That makes Spark ready for the next one. If not, a round runs when a message was seen."""

    def __post_init__(self) -> None:
        for address in (*self.primaries.values(), self.secondary):
            if (path := address.entity_path) is not None:
                raise OptionsError(
                    f"the connection string of {address.host} is for EntityPath {path!r} only; the "
                    "syphon needs one for the whole namespace"
                )


class Job:
    def __init__(
        self,
        options: SyphonOptions,
        runner: Runner,
        list_queues: ListQueues,
        *,
        ledger: ParquetLedger | None = None,
        progress: Callable[[RoundEnded], None] | None = None,
        cancel: Callable[[], None] | None = None,
        cancel_seconds: float = CANCEL_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`cancel` ends a round that runs so long after a stop, from another thread."""
        self.run_id = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(clock()))}-{uuid4().hex[:8]}"
        self._options = options
        self._runner = runner
        self._ledger = ledger
        self._progress = progress
        self._cancel = cancel
        self._cancel_seconds = cancel_seconds
        self._clock = clock
        self._backlog = Backlogs(options.primaries, shares=options.shares)
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._discovery = PeriodicDiscovery(list_queues, every_seconds=DISCOVER_SECONDS)
        self._is_listed = False
        self._begins_with_a_round = options.begins_with_a_round
        self.usage = Usage(since=clock())
        """The operations of the syphon and its tasks so far."""
        self._connect = partial(
            options.secondary.client, meter=self.usage.meter_of(options.secondary.host)
        )
        self._tails = Tails(self._connect, stopping=self._stopping)
        self._watch = Watch(
            self._connect,
            poll_seconds=options.long_poll_seconds,
            stopping=self._stopping,
            clock=clock,
        )
        self._round = 0
        self.left = ""
        """Why `once` has ended although something is left; empty where nothing is."""
        self._fruitless = 0
        self._looks_left = LOCKED_LOOKS_MAX
        self._errors: tuple[tuple[str, str], ...] = ()
        self._full: set[str] = set()
        self._told = ""

    def stop(self) -> None:
        """From any thread, but from no signal's handler: ends within a round."""
        if not self._stopping.is_set():
            self._stopping.set()
            threading.Thread(target=self._cancel_late, daemon=True).start()

    def run(self, *, once: bool = False) -> list[Receipt]:
        """Until `stop`; `once`: until nothing is left that could be brought home. Answers what was
        done, added up."""
        receipts: list[Receipt] = []
        self._begins_with_a_round = once or self._options.begins_with_a_round
        if once:
            self._backlog.hurry(ONCE_REST_SECONDS_MAX)
        try:
            while not self._stopping.is_set():
                self._discover()
                if once and not self._backlog.pending and not self._has_locked_left():
                    break
                self._wait(once=once)
                told = self._run_round()
                receipts = merged([*receipts, *told], across_rounds=True)
                if once and self._is_fruitless():
                    self._give_up(f"nothing could be brought home for a while: {self._why()}")
                    break
        finally:
            self._ended.set()
            self._watch.close()
            if self._ledger is not None:
                self._ledger.close()
                if self._ledger.error:
                    self._give_up(f"the ledger lacks the last rounds: {self._ledger.error}")
        return receipts

    def _cancel_late(self) -> None:
        if self._cancel is not None and not self._ended.wait(self._cancel_seconds):
            self._cancel()

    # --- the end of `once` ------------------------------------------------------------------------

    def _has_locked_left(self) -> bool:
        """What somebody else has locked cannot be received, and yet is there: wait a little."""
        try:
            left, why = self._peek(), "messages are left that others have locked, in "
        except AzureError as error:
            left, why = self._backlog.queues, f"they cannot be looked at ({error}): "
        if not left:
            return False
        if not self._looks_left:
            self._give_up(why + ", ".join(left))
            return False
        self._looks_left -= 1
        self._stopping.wait(LOCKED_SECONDS)
        self._backlog.arrived(left)
        return True

    def _peek(self) -> Sequence[str]:
        """The backlog queues that hold messages, locked or not."""
        if not self._backlog.queues:
            return ()
        with self._connect(timeout_seconds=ANSWER_SECONDS) as client:
            return [
                queue
                for queue in self._backlog.queues
                if not self._stopping.is_set() and client.management(queue).peek(0, 1)
            ]

    def _give_up(self, why: str) -> None:
        self.left = why
        logger.warning("%s", why)

    def _is_fruitless(self) -> bool:
        return self._fruitless >= FRUITLESS_ROUNDS_MAX and bool(self._backlog.pending)

    def _why(self) -> str:
        down = [
            f"{self._name(primary, one)} is {one.condition.value}"
            for primary, one in self._backlog.destinations
            if one.condition is not Condition.UP
        ]
        return "; ".join([*down, *(f"{queue}: {text}" for queue, text in self._errors)])

    def _name(self, primary: str, destination: Destination) -> str:
        is_one_of_many = len(self._options.primaries) > 1
        return f"{primary}: {destination.path}" if is_one_of_many else destination.path

    # --- rounds -----------------------------------------------------------------------------------

    def _run_round(self) -> list[Receipt]:
        """None, if it is for no queue the time."""
        if stale := self._backlog.stale(now=self._clock()):
            without_news = self._tails.without_news(stale)
            self._backlog.nothing_new(without_news, now=self._clock())
        groups = self._backlog.groups(max(1, self._runner.slots), now=self._clock())
        if not groups or self._stopping.is_set():
            return []
        self._round += 1
        began = time.monotonic()
        results = self._run([self._task(group) for group in groups])
        for result in results:
            self.usage.add(result.usage)
        receipts = merged(receipt for result in results for receipt in result.receipts)
        if self._ledger is not None:
            self._ledger.append(receipts)
        self._learn(groups, results)
        if self._progress is not None:
            self._progress(
                RoundEnded(
                    round=self._round,
                    seconds=time.monotonic() - began,
                    receipts=tuple(receipts),
                    pending=self._backlog.pending,
                    destinations=self._backlog.destinations,
                    errors=self._errors,
                )
            )
        for queue, error in self._errors:
            logger.warning("backlog queue %s: %s", queue, error)
        self._check_credentials()
        return receipts

    def _run(self, tasks: Sequence[DrainTask]) -> list[Drained]:
        try:
            return self._runner.run(tasks)
        except Exception:
            if self._cancel is None or not self._stopping.is_set():
                raise
            logger.warning("the last round was cancelled; what it had locked is free in a minute")
            return []

    def _learn(self, groups: Sequence[Group], results: Sequence[Drained]) -> None:
        by_primary: dict[str, list[tuple[Group, Drained]]] = {}
        for group, result in zip(groups, results, strict=False):
            by_primary.setdefault(group.primary, []).append((group, result))
        for primary, some in by_primary.items():
            self._backlog.ended(
                primary,
                {queue: group.is_probe for group, _ in some for queue in group.queues},
                [receipt for _, result in some for receipt in result.receipts],
                [destination for _, result in some for destination in result.destinations],
                [queue for _, result in some for queue in result.emptied],
                troubled=[queue for _, result in some for queue, _ in result.errors],
                now=self._clock(),
            )
        self._errors = tuple(error for result in results for error in result.errors)
        has_moved = any(
            each.outcome is not Outcome.WAITING and each.count
            for result in results
            for each in result.receipts
        )
        has_emptied = any(result.emptied for result in results)
        self._fruitless = 0 if has_moved or has_emptied else self._fruitless + 1
        self._tell_full(groups, results)

    def _tell_full(self, groups: Sequence[Group], results: Sequence[Drained]) -> None:
        """Once, until it was seen to the end again. A probe is to see no more than a handful."""
        for group, result in zip(groups, results, strict=False):
            if group.is_probe:
                continue
            for queue in set(result.full) - self._full:
                logger.warning(
                    "backlog queue %s: so many messages wait that what lies behind them is not "
                    "seen before their destinations take some",
                    queue,
                )
            self._full = (self._full - set(group.queues)) | set(result.full)

    def _check_credentials(self) -> None:
        if (stopper := self._backlog.stopper) is not None:
            primary, destination = stopper
            raise SyphonError(
                f"the primary {self._options.primaries[primary].host} refuses the syphon's "
                f"credentials for {destination.path!r}: {destination.detail}. They need the Send "
                "claim; nothing was lost"
            )

    def _task(self, group: Group) -> DrainTask:
        options = self._options
        task = DrainTask(
            run=self.run_id,
            round=self._round,
            queues=group.queues,
            primary=options.primaries[group.primary],
            secondary=options.secondary,
            open_seconds=opening(self._fruitless),
            seconds=options.round_seconds,
            chunk=options.chunk,
            ttl_keeps_running=options.ttl_keeps_running,
            known=tuple(each for name, each in self._backlog.destinations if name == group.primary),
        )
        if not group.is_probe:
            return task
        few = min(options.chunk, PROBE_MESSAGES)
        return replace(task, chunk=few, held_max=few)

    # --- between rounds ---------------------------------------------------------------------------

    def _discover(self) -> None:
        """The first time it is waited for."""
        try:
            found = self._discovery.poll(until=None if self._is_listed else self._stopping.is_set)
        except AzureError as error:
            if not self._is_listed:
                raise SyphonError(
                    f"the backlog queues on the secondary cannot be listed: {error}"
                ) from error
            logger.warning(
                "the backlog queues could not be listed, the known ones go on: %s", error
            )
            return
        if found is not None:
            self._is_listed = True
            new = self._backlog.found(found, are_pending=self._begins_with_a_round)
            if new:
                logger.info("backlog queues found: %s", ", ".join(new))

    def _wait(self, *, once: bool) -> None:
        """Until the next round is due, or something has arrived; but not long."""
        pending = self._backlog.pending
        pause = self._backlog.pause(now=self._clock())
        if once:
            self._stopping.wait(pause)
            return
        if not self._backlog.queues:
            self._stopping.wait(TROUBLE_SECONDS)
            self._discovery.request()
            return
        idle = [queue for queue in self._backlog.queues if queue not in pending]
        try:
            seconds = min(pause, LOOK_SECONDS) if pending else LOOK_SECONDS
            self._backlog.arrived(self._watch.look(idle, seconds=seconds))
            self._told = ""
        except AzureError as error:
            if str(error) != self._told:
                self._told = str(error)
                logger.warning("waiting for messages on the secondary: %s", error)
            self._stopping.wait(pause if pending else TROUBLE_SECONDS)
