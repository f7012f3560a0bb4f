"""How a syphon goes, for who watches: a live picture, plain lines, or JSON for programs."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pairbus.console.tables import make_table
from pairbus.syphon.destinations import Condition
from pairbus.syphon.job import RoundEnded
from pairbus.syphon.receipts import Outcome, Receipt

PLAIN_SECONDS = 10.0
RATE_SECONDS = 10.0
COUNT_SECONDS = 5.0

Left = dict[str, tuple[int, int]]
"""Messages and dead letters of each backlog queue."""


class Show(Protocol):
    def begin(self, namespace: str, queues: int) -> None: ...

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
        f"{counts['moved']:,} brought home, {counts['buried']:,} dead-lettered, "
        f"{counts['expired']:,} expired, in {seconds:.1f} s"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class JsonShow:
    """On stdout, one object in a line for each round, and one at the end."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def begin(self, namespace: str, queues: int) -> None:
        print(
            json.dumps({"ready": True, "namespace": namespace, "backlog_queues": queues}),
            flush=True,
        )

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
            "troubles": dict(ended.troubles),
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

    def begin(self, namespace: str, queues: int) -> None:
        _say(f"ready: {queues} backlog queues of {namespace}; Ctrl-C ends it")

    def round_ended(self, ended: RoundEnded) -> None:
        counts = counts_of(ended.receipts)
        if not self._untold:
            self._untold_since = time.monotonic() - ended.seconds
        self._untold += counts["moved"]
        self._moved += counts["moved"]
        now = time.monotonic()
        is_over = not ended.pending and self._untold
        if now - self._said < PLAIN_SECONDS and not (
            counts["buried"] or ended.troubles or is_over or not self._said
        ):
            return
        rate = self._untold / max(now - self._untold_since, 0.001)
        waiting = f", {counts['waiting']:,} wait for their destination" if counts["waiting"] else ""
        buried = f", {counts['buried']:,} dead-lettered" if counts["buried"] else ""
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
        self._namespace = ""
        self._counts: Counter[str] = Counter()
        self._by_path: dict[str, Counter[str]] = {}
        self._conditions: dict[str, tuple[str, str]] = {}
        self._rounds: deque[tuple[float, float, int]] = deque(maxlen=1000)
        self._left: Left = {}
        self._note = ""
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
        self._live.start()

    def begin(self, namespace: str, queues: int) -> None:
        with self._lock:
            self._namespace, self._state = namespace, "waiting for messages"
        self._counting.start()

    def round_ended(self, ended: RoundEnded) -> None:
        now = time.monotonic()
        with self._lock:
            counts = counts_of(ended.receipts)
            counts.pop("waiting")  # is counted again each time that it is looked at
            self._counts.update(counts)
            self._rounds.append((now - ended.seconds, now, counts["moved"]))
            for receipt in ended.receipts:
                if receipt.path and receipt.outcome is not Outcome.WAITING:
                    sums = self._by_path.setdefault(receipt.path, Counter())
                    sums[receipt.outcome.value] += receipt.count
            for each in ended.destinations:
                self._by_path.setdefault(each.path, Counter())
                self._conditions[each.path] = each.condition.value, each.detail
            if not self._ending.is_set() and not self._state.startswith("stopping"):
                self._state = "bringing home" if ended.pending else "waiting for messages"
            self._note = "; ".join(f"{queue}: {why}" for queue, why in ended.troubles)

    def stopping(self) -> None:
        # No lock: called by a signal's handler, in a thread that may hold it.
        self._state = "stopping, after this round; once more to end at once"

    def end(self, receipts: Iterable[Receipt]) -> None:
        self.close()
        print(_summary(counts_of(receipts), time.monotonic() - self._began), flush=True)

    def close(self) -> None:
        self._ending.set()
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
            return Group(self._headline(), *self._queues(), *self._destinations(), *self._notes())

    def _headline(self) -> Text:
        parts = [f"syphon {self._namespace}".strip(), self._state]
        if self._counts["moved"]:
            parts += [f"{self._counts['moved']:,} brought home", f"{self._rate():,.0f}/s"]
        for outcome, words in (("buried", "dead-lettered"), ("expired", "expired")):
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

    def _destinations(self) -> list[Any]:
        if not self._by_path:
            return []
        table = make_table("destination", "state", right=("brought home", "dead-lettered"))
        for path, sums in sorted(self._by_path.items()):
            condition, detail = self._conditions.get(path, (Condition.UNKNOWN.value, ""))
            state = f"{condition}: {detail[:60]}" if detail else condition
            table.add_row(path, state, f"{sums['moved']:,}", f"{sums['buried']:,}")
        return [Text(""), table]

    def _notes(self) -> list[Any]:
        return [Text(f"\n{self._note}")] if self._note else []
