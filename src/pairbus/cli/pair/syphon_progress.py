"""How a syphon goes, for who watches: a live picture, plain lines, or JSON for programs."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pairbus.cli.output import make_table
from pairbus.syphon.discovery import namespace_of
from pairbus.syphon.policy import Condition
from pairbus.syphon.receipts import Outcome, Receipt, RoundEnded

PLAIN_SECONDS = 10.0
RATE_SECONDS = 10.0
COUNT_SECONDS = 5.0
WARNING_SECONDS = 30.0

Left = dict[str, tuple[int, int]]
"""Messages and dead letters of each backlog queue."""


class Show(Protocol):
    def begin(self, primaries: Sequence[str], queues: int, others: Mapping[str, int]) -> None:
        """`others`: primaries whose backlog queues are left alone, and how many these are."""

    def round_ended(self, ended: RoundEnded) -> None: ...

    def stopping(self) -> None: ...

    def end(self, receipts: Iterable[Receipt]) -> None:
        """All went well, and that was it."""

    def close(self) -> None:
        """Whatever happened."""


def show_for(*, as_json: bool, count: Callable[[], Left]) -> Show:
    if as_json:
        return JsonShow()
    console = Console(file=sys.stderr, markup=False, highlight=False)
    return LiveShow(console, count) if console.is_terminal else PlainShow()


def counts_of(receipts: Iterable[Receipt]) -> Counter[str]:
    counts = Counter({outcome.value: 0 for outcome in Outcome})
    for receipt in receipts:
        counts[receipt.outcome.value] += receipt.count
    return counts


def _summary(counts: Counter[str], seconds: float) -> str:
    return (
        f"{counts['brought_home']:,} brought home, {counts['dead_lettered']:,} dead-lettered, "
        f"{counts['expired']:,} expired, in {seconds:.1f} s"
    )


def _left_alone(others: Mapping[str, int]) -> str:
    told = ", ".join(f"{count} of {name}" for name, count in sorted(others.items()))
    return f"backlog queues of other primaries are left alone: {told}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class JsonShow:
    """On stdout, one object in a line for each round, and one at the end."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def begin(self, primaries: Sequence[str], queues: int, others: Mapping[str, int]) -> None:
        told = {"ready": True, "primaries": list(primaries), "backlog_queues": queues}
        print(json.dumps(told | {"left_alone": dict(others)}), flush=True)

    def round_ended(self, ended: RoundEnded) -> None:
        by_path = [
            {
                "queue": each.queue,
                "path": each.path,
                "outcome": each.outcome.value,
                "reason": each.reason,
                "count": each.count,
                "bytes": each.bytes,
            }
            for each in ended.receipts
        ]
        told = {
            "round": ended.round,
            "seconds": round(ended.seconds, 3),
            **counts_of(ended.receipts),
            "by_path": by_path,
            "pending": list(ended.pending),
            "errors": dict(ended.errors),
        }
        print(json.dumps(told), flush=True)

    def stopping(self) -> None:
        pass

    def end(self, receipts: Iterable[Receipt]) -> None:
        seconds = round(time.monotonic() - self._began, 3)
        print(json.dumps({"ended": True, "seconds": seconds, **counts_of(receipts)}), flush=True)

    def close(self) -> None:
        pass


class PlainShow:
    """Lines on stderr now and then, for a log; on stdout the sum at the end."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._said = 0.0
        self._untold = 0
        self._untold_since = self._began
        self._moved = 0

    def begin(self, primaries: Sequence[str], queues: int, others: Mapping[str, int]) -> None:
        _say(f"ready: {queues} backlog queues of {', '.join(primaries)}; Ctrl-C ends it")
        if others:
            _say(_left_alone(others))

    def round_ended(self, ended: RoundEnded) -> None:
        counts = counts_of(ended.receipts)
        if not self._untold:
            self._untold_since = time.monotonic() - ended.seconds
        self._untold += counts["brought_home"]
        self._moved += counts["brought_home"]
        now = time.monotonic()
        is_over = not ended.pending and self._untold
        if now - self._said < PLAIN_SECONDS and not (
            counts["dead_lettered"] or ended.errors or is_over or not self._said
        ):
            return
        rate = self._untold / max(now - self._untold_since, 0.001)
        waiting = f", {counts['waiting']:,} wait for their destination" if counts["waiting"] else ""
        buried = f", {counts['dead_lettered']:,} dead-lettered" if counts["dead_lettered"] else ""
        left = f"; more in {len(ended.pending)} queues" if ended.pending else ""
        _say(
            f"round {ended.round}: {self._untold:,} brought home ({rate:,.0f}/s){waiting}{buried}"
            f"{left}; {self._moved:,} in all"
        )
        self._said, self._untold = now, 0

    def stopping(self) -> None:
        _say("stopping: the round that runs is ended first; once more to end at once")

    def end(self, receipts: Iterable[Receipt]) -> None:
        print(_summary(counts_of(receipts), time.monotonic() - self._began), flush=True)

    def close(self) -> None:
        pass


class LiveShow:
    """A picture on a terminal, drawn anew twice a second; on stdout the sum at the end."""

    def __init__(self, console: Console, count: Callable[[], Left]) -> None:
        self._count = count
        self._began = time.monotonic()
        self._state = "starting Spark"
        self._primaries: tuple[str, ...] = ()
        self._others = ""
        self._counts: Counter[str] = Counter()
        self._destinations: dict[tuple[str, str], _Destination] = {}
        self._rounds: deque[tuple[float, float, int]] = deque(maxlen=1000)
        self._left: Left = {}
        self._troubles: list[str] = []
        self._warning = "", 0.0
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._counting = threading.Thread(target=self._keep_counting, daemon=True)
        self._live = Live(
            console=console,
            get_renderable=self._picture,
            refresh_per_second=2,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._handler = _Warnings(self)
        logging.getLogger("pairbus.syphon").addHandler(self._handler)
        self._live.start()

    def begin(self, primaries: Sequence[str], queues: int, others: Mapping[str, int]) -> None:
        with self._lock:
            self._primaries, self._state = tuple(primaries), "waiting for messages"
            self._others = _left_alone(others) if others else ""
        self._counting.start()

    def round_ended(self, ended: RoundEnded) -> None:
        now = time.monotonic()
        with self._lock:
            counts = counts_of(ended.receipts)
            counts.pop("waiting")  # is progress again each time that it is looked at
            self._counts.update(counts)
            self._rounds.append((now - ended.seconds, now, counts["brought_home"]))
            for receipt in ended.receipts:
                if receipt.path and receipt.outcome is not Outcome.WAITING:
                    primary = namespace_of(receipt.queue) or ""
                    counts = self._destination(primary, receipt.path).counts
                    counts[receipt.outcome.value] += receipt.count
            for primary, each in ended.destinations:
                known = self._destination(primary, each.path)
                known.condition, known.detail = each.condition.value, each.detail
            if not self._ending.is_set() and not self._state.startswith("stopping"):
                self._state = "bringing home" if ended.pending else "waiting for messages"
            self._troubles = [f"backlog queue {queue}: {why}" for queue, why in ended.errors]

    def _destination(self, primary: str, path: str) -> _Destination:
        """Names that differ in case only are one, as they are to the service."""
        if len(self._primaries) == 1:
            [primary] = self._primaries
        return self._destinations.setdefault(
            (primary.lower(), path.lower()), _Destination(primary=primary, path=path)
        )

    def warn(self, text: str) -> None:
        """No lock: whoever has something to log may hold it."""
        self._warning = text, time.monotonic()

    def stopping(self) -> None:
        # No lock: called by a signal's handler, in a thread that may hold it.
        self._state = "stopping, after this round; once more to end at once"

    def end(self, receipts: Iterable[Receipt]) -> None:
        self.close()
        print(_summary(counts_of(receipts), time.monotonic() - self._began), flush=True)

    def close(self) -> None:
        self._ending.set()
        logging.getLogger("pairbus.syphon").removeHandler(self._handler)
        if self._live.is_started:
            self._live.stop()

    def _keep_counting(self) -> None:
        while not self._ending.is_set():
            left = self._count()
            with self._lock:
                self._left = left or self._left
            self._ending.wait(COUNT_SECONDS)

    # --- the picture ------------------------------------------------------------------------------

    def _picture(self) -> Group:
        with self._lock:
            return Group(self._headline(), *self._queues(), *self._homes(), *self._notes())

    def _headline(self) -> Text:
        parts = [f"syphon {', '.join(self._primaries)}".strip(), self._state]
        if self._counts["brought_home"]:
            parts += [f"{self._counts['brought_home']:,} brought home", f"{self._rate():,.0f}/s"]
        for outcome, words in (("dead_lettered", "dead-lettered"), ("expired", "expired")):
            if self._counts[outcome]:
                parts.append(f"{self._counts[outcome]:,} {words}")
        return Text(" · ".join(parts), style="bold", no_wrap=True, overflow="ellipsis")

    def _rate(self) -> float:
        now = time.monotonic()
        recent = [each for each in self._rounds if each[1] > now - RATE_SECONDS]
        if not recent:
            return 0.0
        return sum(moved for _, _, moved in recent) / max(now - recent[0][0], 0.001)

    def _queues(self) -> list[Any]:
        if not self._left:
            return []
        table = make_table("backlog queue", right=("left", "dead letters"))
        for queue, (left, dead) in self._left.items():
            table.add_row(queue, f"{left:,}", f"{dead:,}")
        return [Text(""), table]

    def _homes(self) -> list[Any]:
        if not self._destinations:
            return []
        has_several = len(self._primaries) > 1
        columns = ("primary", "destination", "state")[0 if has_several else 1 :]
        table = make_table(*columns, right=("brought home", "dead-lettered"))
        for _, each in sorted(self._destinations.items()):
            state = f"{each.condition}: {each.detail[:60]}" if each.detail else each.condition
            named = (each.primary, each.path)[0 if has_several else 1 :]
            table.add_row(
                *named,
                state,
                f"{each.counts['brought_home']:,}",
                f"{each.counts['dead_lettered']:,}",
            )
        return [Text(""), table]

    def _notes(self) -> list[Any]:
        warning, at = self._warning
        lines = [self._others, *self._troubles]
        if time.monotonic() - at < WARNING_SECONDS and warning not in lines:
            lines.append(warning)
        return [Text("\n" + line) for line in lines if line]


@dataclass(slots=True, kw_only=True)
class _Destination:
    """A line of the picture."""

    primary: str
    path: str
    condition: str = Condition.UNKNOWN.value
    detail: str = ""
    counts: Counter[str] = field(default_factory=Counter)


class _Warnings(logging.Handler):
    """What would be written across the picture becomes a part of it."""

    def __init__(self, show: LiveShow) -> None:
        super().__init__(logging.WARNING)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show.warn(record.getMessage())
