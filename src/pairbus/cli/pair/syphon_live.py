"""Shows the progress of a syphon live on a terminal."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pairbus.cli.output import format_duration, make_table
from pairbus.cli.pair.syphon_progress import (
    COUNT_SECONDS,
    BacklogCounts,
    JsonProgress,
    PlainProgress,
    Progress,
    Ready,
    count_outcomes,
    ignored,
    unproven,
)
from pairbus.syphon.discovery import namespace_of
from pairbus.syphon.policy import Condition
from pairbus.syphon.receipts import Receipt, ReceiptOutcome, RoundEnded, Waiting

RATE_SECONDS: Final = 10.0
WARNING_SECONDS: Final = 30.0


def make_progress(*, as_json: bool, count: Callable[[], BacklogCounts | None]) -> Progress:
    if as_json:
        return JsonProgress()
    console = Console(file=sys.stderr, markup=False, highlight=False)
    return LiveProgress(console, count) if console.is_terminal else PlainProgress()


class LiveProgress(Progress):
    """A live view on a terminal, updated twice a second; the summary on stdout."""

    def __init__(self, console: Console, count: Callable[[], BacklogCounts | None]) -> None:
        super().__init__()
        self._count = count
        self._state = "starting Spark"
        self._primaries: tuple[str, ...] = ()
        self._ignored = ""
        self._counts: Counter[str] = Counter()
        self._destinations: dict[tuple[str, str], _Destination] = {}
        self._rounds: deque[tuple[float, float, int]] = deque(maxlen=1000)
        self._backlog: BacklogCounts = {}
        self._errors: list[str] = []
        self._warning = "", 0.0
        self._waits: tuple[Waiting, ...] = ()
        self._unproven: list[str] = []
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._counting = threading.Thread(target=self._keep_counting, daemon=True)
        self._live = Live(
            console=console,
            get_renderable=self._view,
            refresh_per_second=2,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._handler = _Warnings(self)
        logging.getLogger("pairbus.syphon").addHandler(self._handler)
        self._live.start()

    def begin(self, ready: Ready) -> None:
        with self._lock:
            self._unproven = unproven(ready.rights)
            self._primaries, self._state = tuple(ready.primaries), "waiting for messages"
            self._ignored = ignored(ready.others) if ready.others else ""
        self._counting.start()

    def waiting(self, waits: tuple[Waiting, ...]) -> None:
        with self._lock:
            self._waits = waits

    def round_ended(self, ended: RoundEnded) -> None:
        now = time.monotonic()
        with self._lock:
            counts = count_outcomes(ended.receipts)
            counts.pop("waiting")  # the same messages are counted again by each re-check
            self._counts.update(counts)
            self._rounds.append((now - ended.seconds, now, counts["brought_home"]))
            for receipt in ended.receipts:
                if receipt.path and receipt.outcome is not ReceiptOutcome.WAITING:
                    primary = namespace_of(receipt.queue) or ""
                    counts = self._destination(primary, receipt.path).counts
                    counts[receipt.outcome.value] += receipt.count
            for primary, each in ended.destinations:
                known = self._destination(primary, each.path)
                known.condition, known.detail = each.condition.value, each.detail
            if not self._ending.is_set() and not self._state.startswith("stopping"):
                self._state = "bringing home" if ended.pending else "waiting for messages"
            if any(counts[outcome] for outcome in counts):
                self._waits = ()
            self._errors = [f"backlog queue {queue}: {error}" for queue, error in ended.errors]

    def _destination(self, primary: str, path: str) -> _Destination:
        """Service Bus ignores the case of names, so we do, too."""
        if len(self._primaries) == 1:
            [primary] = self._primaries
        return self._destinations.setdefault(
            (primary.lower(), path.lower()), _Destination(primary=primary, path=path)
        )

    def warn(self, text: str) -> None:
        # Do not take the lock: the thread that logs this may hold it.
        self._warning = text, time.monotonic()

    def stopping(self) -> None:
        # Do not take the lock: this runs in a signal handler, in a thread that may hold it.
        self._state = "stopping after this round; Ctrl-C again ends it at once"

    def end(self, receipts: Sequence[Receipt], backlog: BacklogCounts | None) -> None:
        with self._lock:
            # What is shown last stays on the terminal.
            self._state, self._waits = "ended", ()
            self._backlog = self._backlog if backlog is None else backlog
        self.close()
        super().end(receipts, backlog)

    def close(self) -> None:
        self._ending.set()
        logging.getLogger("pairbus.syphon").removeHandler(self._handler)
        if self._live.is_started:
            self._live.stop()

    def _keep_counting(self) -> None:
        while not self._ending.is_set():
            backlog = self._count()
            with self._lock:
                if not self._ending.is_set():
                    self._backlog = backlog or self._backlog
            self._ending.wait(COUNT_SECONDS)

    # --- the view ---------------------------------------------------------------------------------

    def _view(self) -> Group:
        with self._lock:
            return Group(
                self._headline(),
                *self._queue_table(),
                *self._destination_table(),
                *self._notes(),
            )

    def _headline(self) -> Text:
        parts = [f"syphon {', '.join(self._primaries)}".strip(), self._state_text()]
        if self._counts["brought_home"]:
            parts += [f"{self._counts['brought_home']:,} brought home", f"{self._rate():,.0f}/s"]
        for outcome, name in (("dead_lettered", "dead-lettered"), ("expired", "expired")):
            if self._counts[outcome]:
                parts.append(f"{self._counts[outcome]:,} {name}")
        return Text(" · ".join(parts), style="bold", no_wrap=True, overflow="ellipsis")

    def _state_text(self) -> str:
        if not self._waits or self._state.startswith("stopping"):
            return self._state
        first = min(self._waits, key=lambda each: each.next_try)
        more = f" and {len(self._waits) - 1} more" if len(self._waits) > 1 else ""
        seconds = max(round(first.next_try - time.time()), 0)
        return f"waiting for {first.name}{more}, next try in {format_duration(seconds)}"

    def _rate(self) -> float:
        now = time.monotonic()
        recent = [each for each in self._rounds if each[1] > now - RATE_SECONDS]
        if not recent:
            return 0.0
        return sum(count for _, _, count in recent) / max(now - recent[0][0], 0.001)

    def _queue_table(self) -> list[Any]:
        if not self._backlog:
            return []
        table = make_table("backlog queue", right=("left", "dead letters"))
        for queue, (left, dead) in self._backlog.items():
            table.add_row(queue, f"{left:,}", f"{dead:,}")
        return [Text(""), table]

    def _destination_table(self) -> list[Any]:
        if not self._destinations:
            return []
        first = 0 if len(self._primaries) > 1 else 1  # the primary's name only if there are several
        table = make_table(
            *("primary", "destination", "state")[first:], right=("brought home", "dead-lettered")
        )
        for _, each in sorted(self._destinations.items()):
            table.add_row(
                *(each.primary, each.path)[first:],
                each.condition,
                f"{each.counts['brought_home']:,}",
                f"{each.counts['dead_lettered']:,}",
            )
        return [Text(""), table]

    def _notes(self) -> list[Any]:
        warning, at = self._warning
        lines = [self._ignored, *self._unproven, *self._errors, *self._reasons()]
        if time.monotonic() - at < WARNING_SECONDS and warning not in lines:
            lines.append(warning)
        return [Text("\n" + line) for line in lines if line]

    def _reasons(self) -> list[str]:
        """Why messages wait, in full: the table has no room for it."""
        reasons = {f"{each.name}: {each.reason}" for each in self._waits}
        has_several = len(self._primaries) > 1
        for each in self._destinations.values():
            name = f"{each.primary}: {each.path}" if has_several else each.path
            if each.detail:
                reasons.add(f"{name}: {each.detail}")
        return sorted(reasons)


@dataclass(slots=True, kw_only=True)
class _Destination:
    """A row of the table."""

    primary: str
    path: str
    condition: str = Condition.UNKNOWN.value
    detail: str = ""
    counts: Counter[str] = field(default_factory=Counter)


class _Warnings(logging.Handler):
    """Shows warnings inside the live view. On stderr they would disturb it."""

    def __init__(self, progress: LiveProgress) -> None:
        super().__init__(logging.WARNING)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        self._progress.warn(record.getMessage())
