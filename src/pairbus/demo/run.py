"""Runs the demo: processes, traffic and script together.

The calling thread decides, starts and ends processes, and updates the view. It never waits for
long, so it reacts to Ctrl-C at any time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

from pairbus.demo.ledger import Ledger
from pairbus.demo.processes import (
    BrokerProcess,
    DashboardProcess,
    SyphonProcess,
    free_port,
)
from pairbus.demo.script import Action, DemoFacts, Phase, PhaseSeconds, Script, Step
from pairbus.demo.traffic import (
    ENTITIES,
    PLACES,
    PRIMARY,
    SECONDARY,
    MessageCounter,
    Receivers,
    Senders,
)
from pairbus.demo.view import DemoResult, DemoRow, Snapshot, View
from pairbus.errors import NamespaceError

START_SECONDS_MAX: Final = 60.0
RESTART_SECONDS: Final = 2.0
"""The pause between two attempts to start the primary, if it ended before it was ready."""
UPDATE_SECONDS: Final = 0.25
HISTORY_SECONDS: Final = 0.5


class DemoRun:
    """Two namespaces, the syphon, the traffic and the script, from start to end."""

    def __init__(
        self,
        folder: Path,
        view: View,
        check_interrupt: Callable[[], None],
        *,
        seconds: float,
        rate: float,
        seed: int,
        syphon: Any = None,
        entities: Mapping[str, Any] = ENTITIES,
        dashboard: bool = False,
    ) -> None:
        """`check_interrupt` is called often, and raises to end the demo. `syphon` replaces the
        `SyphonProcess` in tests."""
        self._view = view
        self._check_interrupt = check_interrupt
        self._rate = rate
        self._timing = PhaseSeconds.random(seconds, Random(seed))
        self.ledger = Ledger(PLACES)
        self.primary = BrokerProcess(PRIMARY, folder, entities)
        self.secondary = BrokerProcess(SECONDARY, folder)
        self.syphon = SyphonProcess(folder, PRIMARY) if syphon is None else syphon
        self.dashboard = DashboardProcess(folder, PRIMARY) if dashboard else None
        self.senders = Senders(self.ledger, rate=rate, seed=seed)
        self.receivers = Receivers(self.ledger)
        self.counter = MessageCounter()
        self.steps: list[tuple[float, Step]] = []
        self._started_at = time.monotonic()
        self._script: Script
        self._history: list[int] = []
        self._updated_at = float("-inf")
        self._killed_at: float | None = None
        self._restart_at: float | None = None
        self._down_seconds = 0.0
        self.restart_after_seconds: float | None = None
        """If set, a killed primary is started again after this time."""

    # --- from start to end ------------------------------------------------------------------------

    def run(self) -> DemoResult:
        self._set_up()
        self._started_at = time.monotonic()
        self._script = Script(self._timing, now=self._started_at)
        self._show(
            Step(
                phase=Phase.HEALTHY,
                text=f"All is well: {self._rate:g} messages per second go to three queues and "
                "a topic of the primary, and a receiver with the official SDK receives them. "
                "Meanwhile Spark starts for the syphon.",
            )
        )
        return self._run_to_end()

    def stop_and_count(self) -> DemoResult:
        """Stops the senders and counts again."""
        self._apply(self._script.stop_sending(now=time.monotonic()))
        return self._run_to_end()

    def _run_to_end(self) -> DemoResult:
        while self._script.phase is not Phase.OVER:
            self.step()
        return self.result()

    def step(self, seconds: float = 0.1) -> None:
        """Collects the facts, does what the script says, and updates the view."""
        self._check_interrupt()
        self._check_processes()
        now = time.monotonic()
        self._apply(self._script.advance(self._facts(), now=now))
        if now - self._updated_at >= UPDATE_SECONDS:
            self._updated_at = now
            self._view.update(self.snapshot())
        time.sleep(seconds)

    def close(self) -> None:
        """Closes all connections, while the other side still runs."""
        workers = (self.senders, self.receivers, self.counter)
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.close()

    def kill(self) -> None:
        """Kills all processes at once. Threads that still run get errors and end."""
        for worker in (self.senders, self.receivers, self.counter):
            worker.stop()
        for process in (self.dashboard, self.syphon, self.primary, self.secondary):
            if process is not None:
                process.kill()

    # --- steps ------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        self._view.note("Two namespaces start, each a broker in its own process.")
        self.primary.start()
        self.secondary.start()
        self._wait_for(lambda: self.primary.is_ready and self.secondary.is_ready)
        east, west = self.primary.connection_string, self.secondary.connection_string
        ca_files = self.primary.ca_file, self.secondary.ca_file
        has_metrics = self.dashboard is not None
        self._run_in_thread(
            lambda: self.senders.pair(east, west, ca_files[1], has_metrics=has_metrics)
        )
        if self.dashboard is None:
            self.syphon.start(east, west)
        else:
            self._start_dashboard(self.dashboard, east, west)
        self.receivers.start(east, [place for places in PLACES.values() for place in places])
        self.counter.start(east, west, ca_files)
        self.senders.start()

    def _start_dashboard(self, dashboard: DashboardProcess, east: str, west: str) -> None:
        port = free_port()
        self.syphon.start(east, west, metrics_port=port)
        urls = (self.senders.metrics_url, f"http://127.0.0.1:{port}/metrics")
        dashboard.start(east, west, urls)
        self._wait_for(lambda: dashboard.address)
        self._view.note(f"The dashboard is at {dashboard.address}")

    def _wait_for(self, is_done: Callable[[], object]) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not is_done():
            self._check_interrupt()
            self._check_processes()
            if time.monotonic() >= deadline:
                raise NamespaceError(f"the demo did not start within {START_SECONDS_MAX:.0f}s")
            time.sleep(0.05)

    def _run_in_thread(self, work: Callable[[], None]) -> None:
        """The SDK may wait for a long time. On its own thread, it does not delay Ctrl-C."""
        errors: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, name="demo-pair", daemon=True)
        thread.start()
        self._wait_for(lambda: not thread.is_alive())
        if errors:
            raise errors[0]

    def _check_processes(self) -> None:
        """Raises if a process ended that should run. Restarts the primary when it is due,
        repeatedly until it is ready.
        """
        for process in (self.secondary, self.syphon, self.dashboard):
            if process is not None and process.has_ended:
                raise NamespaceError(f"the demo cannot continue: {process.exit_message}")
        now = time.monotonic()
        if self._killed_at is None and self.primary.has_ended:
            if self.restart_after_seconds is None:
                raise NamespaceError(f"the demo cannot continue: {self.primary.exit_message}")
            self._kill_primary()
            self._restart_at = now + self.restart_after_seconds
            self._view.note(
                f"The primary is gone. It starts again in {self.restart_after_seconds:.0f}s."
            )
        is_due = self._restart_at is not None and now >= self._restart_at
        if is_due and not self.primary.is_running:
            self._restart_at = now + RESTART_SECONDS
            self.primary.start()

    def _apply(self, steps: list[Step]) -> None:
        for step in steps:
            self._show(step)
            if step.action is Action.KILL:
                self._kill_primary()
            elif step.action is Action.RESTART:
                self._restart_at = time.monotonic()
            elif step.action is Action.STOP_SENDING:
                self.senders.stop()

    def _show(self, step: Step) -> None:
        at = time.monotonic() - self._started_at
        self.steps.append((at, step))
        self._view.step(at, step)

    def _kill_primary(self) -> None:
        self._killed_at = time.monotonic()
        self.primary.kill()

    # --- what is known ----------------------------------------------------------------------------

    def _facts(self) -> DemoFacts:
        if self._killed_at is not None and self.primary.is_ready:
            self._down_seconds += time.monotonic() - self._killed_at
            self._killed_at = self._restart_at = None
        status = self.senders.status
        accounts = self.ledger.accounts.values()
        counts = self.counter.counts
        return DemoFacts(
            entities=len(PLACES),
            failed_over=0 if status is None else len(status.failed_over),
            primary_pid=self.primary.pid,
            is_primary_ready=self.primary.is_ready,
            is_syphon_ready=self.syphon.is_ready,
            sent=sum(len(account.acknowledged) for account in accounts),
            diverted=0 if status is None else sum(each.diverted for each in status.entities),
            raised=self.ledger.raised.total(),
            received=sum(account.arrivals for account in accounts),
            brought_home=self.syphon.brought_home,
            is_sending=self.senders.is_working,
            backlog=counts.backlog,
            left=counts.left,
            counted_at=counts.at,
        )

    def _rows(self) -> tuple[DemoRow, ...]:
        status = self.senders.status
        by_path = {} if status is None else {each.path: each for each in status.entities}
        rows = []
        for entity, line in self.ledger.lines().items():
            known = by_path.get(entity)
            rows.append(
                DemoRow(
                    entity=entity,
                    state="starting" if known is None else known.state,
                    on_primary=0 if known is None else known.sent,
                    diverted=0 if known is None else known.diverted,
                    delivered=line.delivered,
                )
            )
        return tuple(rows)

    def snapshot(self) -> Snapshot:
        at = time.monotonic() - self._started_at
        while len(self._history) <= at / HISTORY_SECONDS:
            self._history.append(self.counter.counts.backlog)
        if self.primary.is_ready:
            primary = f"up, process {self.primary.pid}"
        else:
            primary = "starting" if self.primary.is_running else "down"
        return Snapshot(
            at=at,
            phase=self._script.phase.value,
            primary=primary,
            secondary="up" if self.secondary.is_running else "down",
            syphon="ready" if self.syphon.is_ready else "starting",
            brought_home=self.syphon.brought_home,
            rows=self._rows(),
            backlog=self.counter.counts.backlog,
            history=tuple(self._history),
        )

    def result(self) -> DemoResult:
        status = self.senders.status
        return DemoResult(
            lines=self.ledger.lines(),
            rows=self._rows(),
            down_seconds=self._down_seconds,
            slowest_seconds=self.senders.slowest_seconds,
            pings=0 if status is None else status.pings_sent,
            brought_home=self.syphon.brought_home,
            missing=self.ledger.missing(),
            failure=self._script.failure,
            error=self.senders.error,
        )
