"""Carries a run out: prepares two queues, starts the processes, causes faults, and drains all.

The calling thread does everything, and never waits for long, so it reacts to Ctrl-C at any time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from pairbus.demo.account import Verdict
from pairbus.errors import NamespaceError
from pairbus.verify.journal import Journal, judge, read_journals
from pairbus.verify.nemesis import FaultKind, Nemesis, PlannedFault, kinds, plan
from pairbus.verify.processes import LocalPair, RunProcesses, WorkerProcess
from pairbus.verify.queues import BacklogCurve, RunQueues, Sample
from pairbus.verify.worker import Assignment, Pair, Role

_Answer = TypeVar("_Answer")

START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 60.0
DELETE_SECONDS_MAX: Final = 15.0
LATE_SECONDS: Final = 5.0
_STEP_SECONDS: Final = 0.05
_QUIET_SECONDS: Final = 2.0
"""A drain is over when nothing has been received for this long, and nothing is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    verdict: Verdict
    started_at: float
    """Seconds since the epoch."""
    samples: tuple[Sample, ...]
    faults: tuple[PlannedFault, ...]
    note: str
    """Why the drain ended early; empty if everything was received."""


class VerifyRun:
    def __init__(
        self,
        folder: Path,
        pair: Pair | LocalPair,
        *,
        run: str,
        seconds: float,
        rate: float,
        senders: int,
        seed: int,
        drain_seconds: float,
        has_syphon: bool,
        check_interrupt: Callable[[], None],
        note: Callable[[str], None],
        make_table: Callable[[Sequence[str]], Sequence[FaultKind]] | None = None,
    ) -> None:
        """`check_interrupt` is called often, and raises to end the run. `make_table` makes the
        table of faults for local brokers, from the names of the senders and receivers."""
        self._folder = folder
        self._local = pair if isinstance(pair, LocalPair) else None
        self._given = pair if isinstance(pair, Pair) else None
        self._run = run
        self._seconds = seconds
        self._rate = rate
        self._sender_count = senders
        self._seed = seed
        self._drain_seconds = drain_seconds
        self._has_syphon = has_syphon
        self._check_interrupt = check_interrupt
        self._note = note
        self._make_table = make_table or partial(kinds, has_syphon=has_syphon)
        self._processes = RunProcesses(folder, self._local)
        self._queues: RunQueues | None = None
        self._nemesis: Nemesis | None = None

    # --- from start to end ------------------------------------------------------------------------

    def run(self) -> RunResult:
        queues = self._prepare()
        self._wait_for(self._are_sending, "a sender")
        started_at, began = time.time(), time.monotonic()
        self._note(f"sending for {self._seconds:g}s: {self._sender_count} processes")
        curve = BacklogCurve(queues, began)
        self._nemesis = nemesis = self._make_nemesis()
        while (at := time.monotonic() - began) < self._seconds:
            nemesis.step(at)
            self._step()
        nemesis.end_all()
        self._stop_senders()
        self._note("draining: waiting until every message is home")
        note = self._drain(queues)
        with_end = Journal(self._folder / "end.journal")
        try:
            self._ask(lambda: queues.read_what_is_left(with_end))
        finally:
            with_end.close()
        return RunResult(
            verdict=judge(read_journals(self._folder), late_seconds=LATE_SECONDS),
            started_at=started_at,
            samples=curve.stop(),
            faults=tuple(nemesis.faults),
            note=note,
        )

    def close(self, *, seconds: float = DELETE_SECONDS_MAX) -> list[str]:
        """Ends all processes, and deletes the two queues.

        Returns the queues that may be left, because the primary did not answer in this time.
        """
        left: list[str] = []
        if self._queues is not None and self._local is None:
            for worker in self._processes.workers(""):
                worker.kill()  # otherwise a receiver would complain that its queue has gone
            left = self._queues.delete(seconds=seconds)
        self._processes.close()
        return left

    def _prepare(self) -> RunQueues:
        pair = self._given if self._local is None else self._local.start(self._wait_for)
        assert pair is not None
        self._processes.pair_started(pair)
        self._queues = queues = RunQueues(pair, self._run)
        self._ask(lambda: queues.create(deletes_itself=self._local is None))
        if self._has_syphon:
            self._processes.start_syphon()
        # An identity's token is for the blocking shell: the asyncio one needs another credential.
        has_identity = pair.targets[0].identity is not None
        for role in (Role.RECEIVER, Role.SESSION_RECEIVER):
            self._start_worker(str(role), role)
        for number in range(1, self._sender_count + 1):
            is_blocking = number % 2 or has_identity
            self._start_worker(f"sender {number}", Role.BLOCKING if is_blocking else Role.ASYNCIO)
        return queues

    def _start_worker(self, name: str, role: Role) -> None:
        assert self._queues is not None
        pair = self._processes.pair_of("sender" if role.is_sender else "receiver")
        self._processes.start_worker(
            Assignment(
                role=role,
                name=name,
                run=self._run,
                folder=str(self._folder),
                pair=pair,
                queue=self._queues.plain,
                session_queue=self._queues.with_sessions,
                rate=self._rate / self._sender_count,
                seed=self._seed,
            )
        )

    def _make_nemesis(self) -> Nemesis:
        table = self._make_table([worker.name for worker in self._processes.workers("")])
        faults = plan(table, seconds=self._seconds, seed=self._seed) if self._local else []
        return Nemesis(self._processes, table, faults, note=self._note)

    # --- steps ------------------------------------------------------------------------------------

    def _ask(self, request: Callable[[], _Answer]) -> _Answer:
        """On a daemon thread, because a namespace may hang: Ctrl-C ends the wait."""
        answer: Future[_Answer] = Future()

        def work() -> None:
            try:
                answer.set_result(request())
            except Exception as error:
                answer.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        while not wait([answer], _STEP_SECONDS).done:
            self._check_interrupt()
        self._check_interrupt()
        return answer.result()

    def _step(self) -> None:
        self._check_interrupt()
        self._check_processes()
        time.sleep(_STEP_SECONDS)

    def _check_processes(self) -> None:
        is_down = (lambda name: False) if self._nemesis is None else self._nemesis.is_down
        self._processes.check(is_down)

    def _senders(self) -> list[WorkerProcess]:
        return self._processes.workers("sender")

    def _are_sending(self) -> bool:
        journals = [sender.journal for sender in self._senders()]
        return all(path.exists() and path.stat().st_size for path in journals)

    def _wait_for(self, is_done: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not is_done():
            self._step()
            if time.monotonic() >= deadline:
                raise NamespaceError(f"{what} did not start within {START_SECONDS_MAX:g}s")

    def _stop_senders(self) -> None:
        senders = self._senders()
        for sender in senders:
            sender.request_stop()
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while any(sender.is_running for sender in senders) and time.monotonic() < deadline:
            self._check_interrupt()
            time.sleep(_STEP_SECONDS)
        for sender in senders:
            sender.kill()

    def _drain(self, queues: RunQueues) -> str:
        deadline = time.monotonic() + self._drain_seconds
        while (began := time.monotonic()) < deadline:
            sizes = self._journal_sizes()
            while time.monotonic() < began + _QUIET_SECONDS:
                self._step()
            if self._journal_sizes() == sizes and self._ask(queues.waiting) == 0:
                verdict = judge(read_journals(self._folder), late_seconds=LATE_SECONDS)
                if not verdict.lost:
                    return ""
        return f"messages were still under way after {self._drain_seconds:g}s"

    def _journal_sizes(self) -> list[int]:
        return [path.stat().st_size for path in sorted(self._folder.glob("*.journal"))]
