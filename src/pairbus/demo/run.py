"""The play of the demo: the cast and the traffic, brought together and led by the script.

One thread, that of who calls, decides, starts and ends processes, and shows. It never waits for
longer than a moment, so that who wants it to end is heard at any time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

from pairbus.demo.delivery_check import Account, total
from pairbus.demo.picture import Moment, Report, Row
from pairbus.demo.processes import Namespace, Syphon
from pairbus.demo.script import Action, Cue, Facts, Pace, Scene, Script
from pairbus.demo.traffic import (
    ENTITIES,
    PLACES,
    PRIMARY,
    SECONDARY,
    Counter,
    Receivers,
    Senders,
)
from pairbus.demo.view import Show
from pairbus.errors import NamespaceError

START_SECONDS_MAX: Final = 60.0
RESTART_SECONDS: Final = 2.0
"""From one attempt to start the primary again to the next, if it ended before it was ready."""
LOOK_SECONDS: Final = 0.25
HISTORY_SECONDS: Final = 0.5


class Play:
    """Two namespaces, the syphon, the traffic and the script, from the first to the last step."""

    def __init__(
        self,
        folder: Path,
        show: Show,
        check: Callable[[], None],
        *,
        seconds: float,
        rate: float,
        seed: int,
        syphon: Any = None,
        entities: Mapping[str, Any] = ENTITIES,
    ) -> None:
        """`check` is called all the time, and raises when it is to end. `syphon`, if given, plays
        its part: something like a `Syphon`."""
        self._show = show
        self._check = check
        self._rate = rate
        self._pace = Pace.of(seconds, Random(seed))
        self.account = Account(PLACES)
        self.primary = Namespace(PRIMARY, folder, entities)
        self.secondary = Namespace(SECONDARY, folder)
        self.syphon = Syphon(folder, PRIMARY) if syphon is None else syphon
        self.senders = Senders(self.account, rate=rate, seed=seed)
        self.receivers = Receivers(self.account)
        self.counter = Counter()
        self.told: list[tuple[float, Cue]] = []
        self._began = time.monotonic()
        self._script: Script
        self._history: list[int] = []
        self._looked = float("-inf")
        self._killed_at: float | None = None
        self._restart_at: float | None = None
        self._down_seconds = 0.0
        self.revives_after: float | None = None
        """After so many seconds the primary is started again, whoever has killed it."""

    # --- the play ---------------------------------------------------------------------------------

    def perform(self) -> Report:
        self._set_up()
        self._began = time.monotonic()
        self._script = Script(self._pace, now=self._began)
        self._tell(
            Cue(
                scene=Scene.HEALTHY,
                text=f"All is well: {self._rate:g} messages a second go to three queues and "
                "a topic of the primary, and a receiver with the official SDK takes them out. "
                "Meanwhile Spark starts, for the syphon.",
            )
        )
        while self._script.scene is not Scene.OVER:
            self.step()
        return self.report()

    def step(self, seconds: float = 0.1) -> None:
        """Looks around, does what the script says, and shows it."""
        self._check()
        self._check_cast()
        now = time.monotonic()
        self._follow(self._script.advance(self._facts(), now=now))
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._show.look(self.moment())
        time.sleep(seconds)

    def settle(self) -> Report:
        """Sending ends, and the account is made again."""
        self._follow(self._script.settle(now=time.monotonic()))
        while self._script.scene is not Scene.OVER:
            self.step()
        return self.report()

    def close(self) -> None:
        """As it should be: connections are closed while there is somebody to say so to."""
        workers = (self.senders, self.receivers, self.counter)
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.close()

    def kill(self) -> None:
        """Whatever runs, at once. Who still works on a thread finds nobody, and ends with us."""
        for worker in (self.senders, self.receivers, self.counter):
            worker.stop()
        for member in (self.syphon, self.primary, self.secondary):
            member.kill()

    # --- its steps --------------------------------------------------------------------------------

    def _set_up(self) -> None:
        self._show.note("Two namespaces start, each a broker in a process of its own.")
        self.primary.start()
        self.secondary.start()
        self._wait_for(lambda: self.primary.is_ready and self.secondary.is_ready)
        east, west = self.primary.connection_string, self.secondary.connection_string
        ca_files = str(self.primary.ca_file), str(self.secondary.ca_file)
        self._wait_for_work(lambda: self.senders.pair(east, west, ca_files[1]))
        self.syphon.start(east, west)
        self.receivers.start(east, [place for where in PLACES.values() for place in where])
        self.counter.start(east, west, ca_files)
        self.senders.start()

    def _wait_for(self, is_done: Callable[[], object]) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not is_done():
            self._check()
            self._check_cast()
            if time.monotonic() >= deadline:
                raise NamespaceError(f"the demo is not set up after {START_SECONDS_MAX:.0f} s")
            time.sleep(0.05)

    def _wait_for_work(self, work: Callable[[], None]) -> None:
        """On a thread, because the SDK may wait for long, and Ctrl-C must not."""
        failed: list[BaseException] = []

        def working() -> None:
            try:
                work()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=working, name="demo-pair", daemon=True)
        thread.start()
        self._wait_for(lambda: not thread.is_alive())
        if failed:
            raise failed[0]

    def _check_cast(self) -> None:
        """All must run who should; who is to start again is started until it has its port."""
        for member in (self.secondary, self.syphon):
            if member.has_ended:
                raise NamespaceError(f"the demo cannot go on: {member.complaint}")
        now = time.monotonic()
        if self._killed_at is None and self.primary.has_ended:
            if self.revives_after is None:
                raise NamespaceError(f"the demo cannot go on: {self.primary.complaint}")
            self.kill_primary()
            self._restart_at = now + self.revives_after
            self._show.note(f"The primary is gone. It is back in {self.revives_after:.0f} s.")
        is_due = self._restart_at is not None and now >= self._restart_at
        if is_due and not self.primary.is_running:
            self._restart_at = now + RESTART_SECONDS
            self.primary.start()

    def _follow(self, cues: list[Cue]) -> None:
        for cue in cues:
            self._tell(cue)
            if cue.action is Action.KILL:
                self.kill_primary()
            elif cue.action is Action.RESTART:
                self._restart_at = time.monotonic()
            elif cue.action is Action.STOP_SENDING:
                self.senders.stop()

    def _tell(self, cue: Cue) -> None:
        at = time.monotonic() - self._began
        self.told.append((at, cue))
        self._show.tell(at, cue)

    def kill_primary(self) -> None:
        self._killed_at = time.monotonic()
        self.primary.kill()

    # --- what is known ----------------------------------------------------------------------------

    def _facts(self) -> Facts:
        if self._killed_at is not None and self.primary.is_ready:
            self._down_seconds += time.monotonic() - self._killed_at
            self._killed_at = self._restart_at = None
        status = self.senders.status
        line = total(self.account.lines().values())
        counted = self.counter.counted
        return Facts(
            entities=len(PLACES),
            failed_over=0 if status is None else len(status.failed_over),
            primary_pid=self.primary.pid,
            is_primary_ready=self.primary.is_ready,
            is_syphon_ready=self.syphon.is_ready,
            sent=line.sent,
            diverted=0 if status is None else sum(each.diverted for each in status.entities),
            raised=line.raised,
            received=self.account.received,
            moved=self.syphon.moved,
            is_sending=self.senders.is_working,
            backlog=counted.backlog,
            left=counted.left,
            counted_at=counted.at,
        )

    def _rows(self) -> tuple[Row, ...]:
        status = self.senders.status
        known = {} if status is None else {each.path: each for each in status.entities}
        rows = []
        for entity, line in self.account.lines().items():
            one = known.get(entity)
            rows.append(
                Row(
                    entity=entity,
                    state="starting" if one is None else one.state,
                    on_primary=0 if one is None else one.sent,
                    diverted=0 if one is None else one.diverted,
                    delivered=line.delivered,
                )
            )
        return tuple(rows)

    def moment(self) -> Moment:
        at = time.monotonic() - self._began
        while len(self._history) <= at / HISTORY_SECONDS:
            self._history.append(self.counter.counted.backlog)
        if self.primary.is_ready:
            primary = f"up, process {self.primary.pid}"
        else:
            primary = "starting" if self.primary.is_running else "down"
        return Moment(
            at=at,
            scene=self._script.scene.value,
            primary=primary,
            secondary="up" if self.secondary.is_running else "down",
            syphon="ready" if self.syphon.is_ready else "starting",
            moved=self.syphon.moved,
            rows=self._rows(),
            backlog=self.counter.counted.backlog,
            history=tuple(self._history),
        )

    def report(self) -> Report:
        missing: dict[str, list[str]] = {}
        for entity in PLACES:
            missing |= self.account.missing(entity)
        status = self.senders.status
        return Report(
            lines=self.account.lines(),
            rows=self._rows(),
            down_seconds=self._down_seconds,
            slowest_seconds=self.senders.slowest,
            pings=0 if status is None else status.pings_sent,
            moved=self.syphon.moved,
            missing=missing,
            failure=self._script.failure,
            error=self.senders.error,
        )
