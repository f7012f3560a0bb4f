"""Shows the progress of a syphon: as plain lines, or as JSON for programs."""

from __future__ import annotations

import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pairbus.cli.output import format_count, format_duration, print_json_line
from pairbus.cost.usage import IDLE_COUNT_SECONDS
from pairbus.json_style import camel_case_keys, utc_text
from pairbus.syphon.receipts import Receipt, ReceiptOutcome, RoundEnded, Waiting

PLAIN_SECONDS: Final = 10.0
COUNT_SECONDS: Final = 5.0
# How often to count if no round has ended: while messages wait, more may arrive.
WAITING_COUNT_SECONDS: Final = 60.0

BacklogCounts = dict[str, tuple[int, int]]
"""Messages and dead letters of each backlog queue."""


class BacklogCounter:
    """Counts what is left, if it may have changed: a count is a request that is billed."""

    def __init__(
        self,
        ask: Callable[[], BacklogCounts | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: BacklogCounts | None = None
        self._due = 0.0
        self._is_waiting = False

    def round_ended(self, ended: RoundEnded) -> None:
        self._due, self._is_waiting = 0.0, bool(ended.pending)

    def __call__(self) -> BacklogCounts | None:
        """The last count. None if the secondary does not answer."""
        with self._lock:
            if self._clock() >= self._due:
                pause = WAITING_COUNT_SECONDS if self._is_waiting else IDLE_COUNT_SECONDS
                self._due = self._clock() + pause
                self._counts = self._ask()
                if self._counts is None:
                    self._due = 0.0  # ask again next time
            return self._counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What the syphon works on."""

    primaries: Sequence[str]
    queues: int
    others: Mapping[str, int]
    """The number of backlog queues of other primaries, which are ignored."""
    rights: Mapping[str, str]
    """What was checked of the rights on each primary."""


class Progress(ABC):
    def __init__(self) -> None:
        self._started_at = time.monotonic()

    @abstractmethod
    def begin(self, ready: Ready) -> None: ...

    @abstractmethod
    def round_ended(self, ended: RoundEnded) -> None: ...

    @abstractmethod
    def waiting(self, waits: tuple[Waiting, ...]) -> None:
        """What the syphon waits for has changed; empty: for nothing."""

    def stopping(self) -> None:  # noqa: B027  # JSON output does not show it
        """Called in a signal handler, so it must not take a lock."""

    def end(self, receipts: Sequence[Receipt], backlog: BacklogCounts | None) -> None:
        """The job has ended without an error. `backlog`: what is left; None if it is unknown."""
        counts, left = count_outcomes(receipts), _left(backlog)
        print(
            f"{counts['brought_home']:,} brought home, {counts['dead_lettered']:,} dead-lettered, "
            f"{counts['expired']:,} expired, {'unknown number' if left is None else f'{left:,}'} "
            f"left in the backlog, in {format_duration(time.monotonic() - self._started_at)}",
            flush=True,
        )

    def close(self) -> None:  # noqa: B027
        """Called in any case."""


class NewWaits:
    """Whether waits should be reported: not if only the time of the next attempt has changed."""

    def __init__(self) -> None:
        self._last: tuple[tuple[str, str], ...] = ()

    def __call__(self, waits: tuple[Waiting, ...]) -> bool:
        names = tuple((each.name, each.reason) for each in waits)
        is_new = bool(names) and names != self._last
        self._last = names or self._last
        return is_new


def count_outcomes(receipts: Iterable[Receipt]) -> Counter[str]:
    counts = Counter({outcome.value: 0 for outcome in ReceiptOutcome})
    for receipt in receipts:
        counts[receipt.outcome.value] += receipt.count
    return counts


def _left(backlog: BacklogCounts | None) -> int | None:
    return None if backlog is None else sum(left for left, _ in backlog.values())


def dead_letters(receipts: Iterable[Receipt]) -> list[str]:
    """How many messages were dead-lettered, where, and why."""
    return [
        f"{each.count:,} in {each.queue}: {each.reason}{f' ({each.path})' if each.path else ''}"
        for each in _dead_lettered(receipts)
    ]


def _dead_lettered(receipts: Iterable[Receipt]) -> list[Receipt]:
    return [
        each for each in receipts if each.outcome is ReceiptOutcome.DEAD_LETTERED and each.count
    ]


def unproven(rights: Mapping[str, str]) -> list[str]:
    """What was checked, if that was not the right itself."""
    return [
        f"checked on {name}: {text}"
        for name, text in rights.items()
        if not text.startswith("the Send right on")
    ]


def ignored(others: Mapping[str, int]) -> str:
    names = ", ".join(f"{count} of {name}" for name, count in sorted(others.items()))
    return f"backlog queues of other primaries are ignored: {names}"


class JsonProgress(Progress):
    """On stdout, one JSON object per line: `ready`, each `round`, `waiting`, and `ended`."""

    def __init__(self) -> None:
        super().__init__()
        self._is_news = NewWaits()

    def begin(self, ready: Ready) -> None:
        print_json_line(
            {
                "event": "ready",
                "primaries": list(ready.primaries),
                "backlogQueues": ready.queues,
                "ignored": dict(ready.others),
                "checked": dict(ready.rights),
            }
        )

    def waiting(self, waits: tuple[Waiting, ...]) -> None:
        if self._is_news(waits):
            found = [
                {"name": each.name, "reason": each.reason, "nextTry": utc_text(each.next_try)}
                for each in waits
            ]
            print_json_line({"event": "waiting", "waitingFor": found})

    def round_ended(self, ended: RoundEnded) -> None:
        names = ("queue", "path", "outcome", "reason", "count", "bytes")
        print_json_line(
            {
                "event": "round",
                "round": ended.round,
                "durationSeconds": round(ended.seconds, 3),
                **camel_case_keys(count_outcomes(ended.receipts)),
                "receipts": [_fields(each, *names) for each in ended.receipts],
                "pending": list(ended.pending),
                "errors": dict(ended.errors),
            }
        )

    def end(self, receipts: Sequence[Receipt], backlog: BacklogCounts | None) -> None:
        names = ("queue", "path", "reason", "count")
        print_json_line(
            {
                "event": "ended",
                "durationSeconds": round(time.monotonic() - self._started_at, 3),
                **camel_case_keys(count_outcomes(receipts)),
                "left": _left(backlog),
                "deadLetters": [_fields(each, *names) for each in _dead_lettered(receipts)],
            }
        )


def _fields(receipt: Receipt, *names: str) -> dict[str, Any]:
    return {name: getattr(receipt, name) for name in names}


class PlainProgress(Progress):
    """Lines on stderr from time to time, for a log; the summary on stdout."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_at = 0.0
        self._unlogged = 0
        self._unlogged_since = self._started_at
        self._brought_home = 0
        self._is_news = NewWaits()

    def begin(self, ready: Ready) -> None:
        found = format_count(ready.queues, "backlog queue")
        _log(f"ready: {found} of {', '.join(ready.primaries)}; Ctrl-C ends it")
        if ready.others:
            _log(ignored(ready.others))
        for text in unproven(ready.rights):
            _log(text)

    def waiting(self, waits: tuple[Waiting, ...]) -> None:
        if self._is_news(waits):
            for each in waits:
                _log(f"waiting for {each.name}: {each.reason}")

    def round_ended(self, ended: RoundEnded) -> None:
        counts = count_outcomes(ended.receipts)
        if not self._unlogged:
            self._unlogged_since = time.monotonic() - ended.seconds
        self._unlogged += counts["brought_home"]
        self._brought_home += counts["brought_home"]
        now = time.monotonic()
        is_drained = not ended.pending and self._unlogged
        is_first = not self._logged_at
        is_urgent = counts["dead_lettered"] or ended.errors or is_drained or is_first
        if now - self._logged_at < PLAIN_SECONDS and not is_urgent:
            return
        rate = self._unlogged / max(now - self._unlogged_since, 0.001)
        parts = [f"round {ended.round}: {self._unlogged:,} brought home ({rate:,.0f}/s)"]
        if counts["waiting"]:
            parts.append(f"{counts['waiting']:,} wait for their destination")
        if counts["dead_lettered"]:
            parts.append(f"{counts['dead_lettered']:,} dead-lettered")
        text = ", ".join(parts)
        if ended.pending:
            text += f"; {format_count(len(ended.pending), 'queue')} not read to the end"
        _log(f"{text}; {self._brought_home:,} in total")
        self._logged_at, self._unlogged = now, 0

    def stopping(self) -> None:
        _log("stopping after this round; Ctrl-C again ends it at once")


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
