"""The syphon: a loop of short rounds on Spark, with an idle wait between them.

While the backlog is empty, only the driver waits, with one long poll for each backlog queue
(`long_poll.py`). When a message arrives, it is released, and a round runs: a Spark job with a task
for each group of queues of one primary (`schedule.py`, `drain.py`). A round lasts a few seconds, so
a stop takes no longer than that, and leaves nothing locked. The receipts of a round are in the
ledger before the next round begins.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from azure.core.exceptions import AzureError

from pairbus.errors import NamespaceError
from pairbus.syphon.backlog_peek import BacklogPeek
from pairbus.syphon.discovery import ListQueues, PeriodicDiscovery
from pairbus.syphon.drain import HELD_MAX, DrainTask
from pairbus.syphon.link_probes import LinkProbes
from pairbus.syphon.long_poll import LongPolls
from pairbus.syphon.options import SyphonOptions
from pairbus.syphon.receipts import (
    Drained,
    Receipt,
    ReceiptOutcome,
    RoundEnded,
    Waiting,
    merged,
)
from pairbus.syphon.runner import Runner
from pairbus.syphon.schedule import Schedule, TaskPlan
from pairbus.syphon.usage import SyphonUsage
from pairbus.syphon.window import open_seconds

if TYPE_CHECKING:
    from pairbus.syphon.ledger import ParquetLedger

logger = logging.getLogger("pairbus.syphon")

DISCOVERY_SECONDS = 60.0
# How often the idle wait checks whether to end. Each check costs only a wake-up.
CHECK_SECONDS = 0.5
RETRY_SECONDS = 5.0
# A round that is still running this long after a stop is cancelled, if the runner can do that:
# Spark may have no free core for it.
CANCEL_SECONDS = 4.0
# A queue is left after this many messages in a row that have to wait. What is behind them is
# peeked at, which costs less than receiving it.
HELD_IN_A_ROW_MAX = 1_000
# With `once`: give up after this long without progress.
FUTILE_SECONDS = 60.0
ONCE_REST_SECONDS_MAX = 5.0
# With `once`: check this often, this far apart, whether messages that others have locked are free.
# Together that is longer than a lock lasts.
LOCKED_CHECKS_MAX = 18
LOCKED_SECONDS = 5.0


class Job:
    def __init__(
        self,
        options: SyphonOptions,
        runner: Runner,
        list_queues: ListQueues,
        *,
        ledger: ParquetLedger | None = None,
        progress: Callable[[RoundEnded], None] | None = None,
        waiting: Callable[[tuple[Waiting, ...]], None] | None = None,
        check: Callable[[], None] = lambda: None,
        cancel: Callable[[], None] | None = None,
        cancel_seconds: float = CANCEL_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`waiting` is called when what the syphon waits for changes; with an empty tuple, when
        there is something to do again. `check` is called between rounds, and raises if no further
        round can run. `cancel` ends a round that is still running `cancel_seconds` after a stop.
        It is called from another thread."""
        self.run_id = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(clock()))}-{uuid4().hex[:8]}"
        self.schedule = Schedule(options.primaries, shares=options.shares)
        self.usage = SyphonUsage(since=clock())
        """The billed operations of the driver and its tasks so far."""
        self.left = ""
        """Why messages were left behind; empty if none were."""
        self._options = options
        self._runner = runner
        self._ledger = ledger
        self._progress = progress
        self._waiting = waiting
        self._waiting_for: tuple[Waiting, ...] = ()
        self._check = check
        self._cancel = cancel
        self._cancel_seconds = cancel_seconds
        self._clock = clock
        self._stopping = threading.Event()
        folder = runner.folder
        self._stop_file = None if folder is None else folder / f"stop-{self.run_id}"
        """Tells the tasks of the current round to end early."""
        self._ended = threading.Event()
        self._discovery = PeriodicDiscovery(list_queues, every_seconds=DISCOVERY_SECONDS)
        self._is_discovered = False
        secondary = options.secondary
        connect = partial(secondary.client, meter=self.usage.meter_of(secondary.host))
        self._peek = BacklogPeek(connect, stopping=self._stopping)
        self._polls = LongPolls(
            connect,
            poll_seconds=options.long_poll_seconds,
            stopping=self._stopping,
            clock=clock,
        )
        self._probes = LinkProbes(
            {name: address.client for name, address in options.primaries.items()}, clock=clock
        )
        self._round = 0
        self._progress_at = clock()
        self._rounds_without_progress = 0
        self._message_bytes: dict[str, int] = {}
        """By backlog queue: the average size of the messages of one destination, the largest of the
        last round in which there were some."""
        self._locked_checks = 0
        self._errors: tuple[tuple[str, str], ...] = ()
        self._last_warning = ""

    def stop(self) -> None:
        """End within a round. Call it from any thread, but not from a signal handler."""
        if not self._stopping.is_set():
            self._stopping.set()
            if self._stop_file is not None:
                with contextlib.suppress(OSError):  # then the round lasts as long as planned
                    self._stop_file.touch()
            threading.Thread(target=self._cancel_late_round, daemon=True).start()

    def primary_lost(self, primary: str, detail: str) -> None:
        """Call it before `run` if a primary does not answer: then nothing is received for it."""
        self.schedule.primary_lost(primary, detail, now=self._clock())

    def run(self, *, once: bool = False) -> list[Receipt]:
        """Run until `stop`. With `once`, run until no more messages can be brought home.

        Returns the receipts of all rounds, added up.
        """
        receipts: list[Receipt] = []
        if once:
            self.schedule.rest_seconds_max = ONCE_REST_SECONDS_MAX
        try:
            while not self._stopping.is_set():
                self._check()
                self._discover(are_pending=once or self._options.begins_with_a_round)
                if once:
                    if not self.schedule.pending and not self._wait_for_locked():
                        break
                    pause = self.schedule.pause(now=self._clock())
                    self._stopping.wait(min(pause, CHECK_SECONDS))
                else:
                    self._wait()
                self._ask_primaries()
                receipts = merged([*receipts, *self._run_round()], across_rounds=True)
                if once and self._is_futile():
                    errors = [f"{queue}: {text}" for queue, text in self._errors]
                    why = "; ".join([*self.schedule.failing, *errors])
                    self._give_up(f"nothing could be brought home for {FUTILE_SECONDS:g} s: {why}")
                    break
        finally:
            self._ended.set()
            self._polls.close()
            if self._stop_file is not None:
                with contextlib.suppress(OSError):
                    self._stop_file.unlink(missing_ok=True)
            if self._ledger is not None:
                self._ledger.close()
                if self._ledger.error:
                    self._give_up(f"the ledger lacks the last rounds: {self._ledger.error}")
        return receipts

    def _cancel_late_round(self) -> None:
        if self._cancel is not None and not self._ended.wait(self._cancel_seconds):
            self._cancel()

    # --- between rounds ---------------------------------------------------------------------------

    def _discover(self, *, are_pending: bool) -> None:
        """Update the list of queues. The first call waits for it."""
        try:
            found = self._discovery.poll(
                until=None if self._is_discovered else self._stopping.is_set
            )
        except AzureError as error:
            if not self._is_discovered:
                raise NamespaceError(
                    f"cannot list the backlog queues of the secondary: {error}"
                ) from error
            logger.warning("cannot list the backlog queues, using those already known: %s", error)
            return
        if found is not None:
            self._is_discovered = True
            new = self.schedule.found(found, are_pending=are_pending)
            if new:
                logger.info("backlog queues found: %s", ", ".join(new))

    def _wait(self) -> None:
        """Wait until the next round is due or a message arrives, but not for long."""
        if not self.schedule.queues:
            self._stopping.wait(RETRY_SECONDS)
            self._discovery.request()
            return
        pending = self.schedule.pending
        pause = self.schedule.pause(now=self._clock())
        idle = [queue for queue in self.schedule.queues if queue not in pending]
        try:
            seconds = min(pause, CHECK_SECONDS) if pending else CHECK_SECONDS
            self.schedule.arrived(self._polls.wait_for_messages(idle, seconds=seconds))
            self._last_warning = ""
        except AzureError as error:
            if str(error) != self._last_warning:
                self._last_warning = str(error)
                logger.warning("cannot wait for messages on the secondary: %s", error)
            self._stopping.wait(min(pause, CHECK_SECONDS) if pending else RETRY_SECONDS)

    def _ask_primaries(self) -> None:
        """Ask those that are down whether they are back, and collect the answers."""
        wanted = self.schedule.to_probe(now=self._clock())
        for primary, paths in self._probes.poll(wanted).items():
            self.schedule.answered(primary, paths, now=self._clock())
        self._report_waiting()

    def _report_waiting(self) -> None:
        if self._waiting is None:
            return
        now, found = self._clock(), []
        if self.schedule.pause(now=now) > 0:
            for primary, name, each in self.schedule.waiting_for():
                by_link = self._probes.next_try(primary) if each.is_back_by_link else None
                next_try = each.until if by_link is None else min(each.until, by_link)
                found.append(Waiting(name=name, reason=each.detail, next_try=max(next_try, now)))
        if tuple(found) != self._waiting_for:
            self._waiting_for = tuple(found)
            self._waiting(self._waiting_for)

    def _peek_at_resting(self) -> None:
        """See what is in the queues that rest. It costs less than receiving it."""
        queues = self.schedule.to_peek(now=self._clock())
        if not queues:
            return
        try:
            peeked = self._peek.look_into(queues)
        except AzureError as error:
            logger.info("cannot peek at the backlog queues: %s", error)
            peeked = {}
        for queue in queues:
            found = peeked.get(queue)
            if found is None:
                self.schedule.peek_failed(queue, now=self._clock())
                continue
            self.schedule.peeked(
                queue,
                found.ahead if found.has_order else None,
                is_complete=found.is_complete,
                now=self._clock(),
            )

    # --- rounds -----------------------------------------------------------------------------------

    def _run_round(self) -> list[Receipt]:
        """Returns the receipts of the round. Empty if no queue is due."""
        self._peek_at_resting()
        plans = self.schedule.tasks(max(1, self._runner.slots), now=self._clock())
        if not plans or self._stopping.is_set():
            return []
        self._round += 1
        began = time.monotonic()
        results = self._run([self._task(plan) for plan in plans])
        for result in results:
            self.usage.add(result.usage)
        receipts = merged(receipt for result in results for receipt in result.receipts)
        if self._ledger is not None:
            self._ledger.append(receipts, [line for each in results for line in each.unwritten])
        # A round that was cancelled has no results.
        self._learn(list(zip(plans, results, strict=False)))
        if self._progress is not None:
            self._progress(
                RoundEnded(
                    round=self._round,
                    seconds=time.monotonic() - began,
                    receipts=tuple(receipts),
                    pending=self.schedule.pending,
                    destinations=self.schedule.destinations,
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
            logger.warning("the last round was cancelled; its locks expire within a minute")
            return []

    def _task(self, plan: TaskPlan) -> DrainTask:
        options = self._options
        return DrainTask(
            run=self.run_id,
            round=self._round,
            queues=plan.queues,
            primary=options.primaries[plan.primary],
            secondary=options.secondary,
            open_seconds=open_seconds(self._rounds_without_progress),
            seconds=options.round_seconds,
            chunk=options.chunk,
            ttl_keeps_running=options.ttl_keeps_running,
            message_bytes={
                name: size for name, size in self._message_bytes.items() if name in plan.queues
            },
            known=self.schedule.destinations_of(plan.primary),
            stop_file=self._stop_file,
            messages_folder=None if self._ledger is None else self._ledger.messages_folder,
            at_most=plan.at_most,
            held_max=HELD_MAX if plan.is_deep or plan.at_most else HELD_IN_A_ROW_MAX,
        )

    def _learn(self, results: Sequence[tuple[TaskPlan, Drained]]) -> None:
        self.schedule.round_ended(results, now=self._clock())
        self._errors = tuple(error for _, result in results for error in result.errors)
        sizes: dict[str, int] = {}
        for receipt in [each for _, result in results for each in result.receipts]:
            if receipt.count:
                size = max(1, receipt.bytes // receipt.count)
                sizes[receipt.queue] = max(size, sizes.get(receipt.queue, 0))
        self._message_bytes |= sizes
        has_progress = any(
            result.emptied
            or any(
                each.count and each.outcome is not ReceiptOutcome.WAITING
                for each in result.receipts
            )
            for _, result in results
        )
        self._rounds_without_progress = 0 if has_progress else self._rounds_without_progress + 1
        if has_progress:
            self._progress_at = self._clock()
        for queue in self.schedule.newly_full:
            logger.warning(
                "backlog queue %s: too many messages wait, so those behind them "
                "cannot be seen until a destination accepts some",
                queue,
            )

    def _check_credentials(self) -> None:
        if (forbidden := self.schedule.forbidden_everywhere) is not None:
            primary, destination = forbidden
            address = self._options.primaries[primary]
            raise NamespaceError(
                f"the primary {address.host} refuses the credentials for "
                f"{destination.path!r}: {destination.detail}. {address.needs('Send')}. No message "
                "was lost"
            )

    # --- the end of `once` ------------------------------------------------------------------------

    def _wait_for_locked(self) -> bool:
        """Handles messages that other receivers have locked: they exist but cannot be received.
        Returns whether to try again.
        """
        queues = self.schedule.queues
        if not queues:
            return False
        try:
            left, why = (
                self._peek.non_empty(queues),
                "other receivers have locked the messages left in ",
            )
        except AzureError as error:
            left, why = list(queues), f"cannot peek ({error}) at "
        if not left:
            return False
        if self._locked_checks >= LOCKED_CHECKS_MAX:
            self._give_up(why + ", ".join(left))
            return False
        self._locked_checks += 1
        self._stopping.wait(LOCKED_SECONDS)
        self.schedule.arrived(left)
        return True

    def _is_futile(self) -> bool:
        return bool(self.schedule.pending) and self._clock() - self._progress_at > FUTILE_SECONDS

    def _give_up(self, why: str) -> None:
        self.left = why
        logger.warning("%s", why)
