"""Shows the progress of a syphon: as plain lines, or as JSON for programs."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

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


class Progress(Protocol):
    def begin(
        self,
        primaries: Sequence[str],
        queues: int,
        others: Mapping[str, int],
        rights: Mapping[str, str],
    ) -> None:
        """`others`: the number of backlog queues of other primaries, which are ignored. `rights`:
        what was checked of the rights on each primary."""

    def round_ended(self, ended: RoundEnded) -> None: ...

    def waiting(self, waits: tuple[Waiting, ...]) -> None:
        """What the syphon waits for has changed; empty: for nothing."""

    def stopping(self) -> None:
        """Called in a signal handler, so it must not take a lock."""

    def end(self, receipts: Sequence[Receipt], backlog: BacklogCounts | None) -> None:
        """The job has ended without an error. `backlog`: what is left; None if it is unknown."""

    def close(self) -> None:
        """Called in any case."""


def count_outcomes(receipts: Iterable[Receipt]) -> Counter[str]:
    counts = Counter({outcome.value: 0 for outcome in ReceiptOutcome})
    for receipt in receipts:
        counts[receipt.outcome.value] += receipt.count
    return counts


def print_summary(
    receipts: Sequence[Receipt], backlog: BacklogCounts | None, started_at: float
) -> None:
    counts = count_outcomes(receipts)
    left = _left(backlog)
    print(
        f"{counts['brought_home']:,} brought home, {counts['dead_lettered']:,} dead-lettered, "
        f"{counts['expired']:,} expired, {'unknown number' if left is None else f'{left:,}'} left "
        f"in the backlog, in {format_duration(time.monotonic() - started_at)}",
        flush=True,
    )


def _left(backlog: BacklogCounts | None) -> int | None:
    return None if backlog is None else sum(left for left, _ in backlog.values())


def dead_letters(receipts: Iterable[Receipt]) -> list[str]:
    """How many messages were dead-lettered, where, and why."""
    return [
        f"{each.count:,} in {each.queue}: {each.reason}{f' ({each.path})' if each.path else ''}"
        for each in receipts
        if each.outcome is ReceiptOutcome.DEAD_LETTERED and each.count
    ]


def unproven(rights: Mapping[str, str]) -> list[str]:
    """What was checked, if that was not the right itself."""
    return [
        f"checked of {name}: {text}"
        for name, text in rights.items()
        if not text.startswith("the Send right on")
    ]


def ignored(others: Mapping[str, int]) -> str:
    names = ", ".join(f"{count} of {name}" for name, count in sorted(others.items()))
    return f"backlog queues of other primaries are ignored: {names}"


class JsonProgress:
    """On stdout, one JSON object per line: `ready`, each `round`, `waiting`, and `ended`."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self._waits: tuple[tuple[str, str], ...] = ()

    def begin(
        self,
        primaries: Sequence[str],
        queues: int,
        others: Mapping[str, int],
        rights: Mapping[str, str],
    ) -> None:
        print_json_line(
            {
                "event": "ready",
                "primaries": list(primaries),
                "backlogQueues": queues,
                "ignored": dict(others),
                "checked": dict(rights),
            }
        )

    def waiting(self, waits: tuple[Waiting, ...]) -> None:
        names = tuple((each.name, each.reason) for each in waits)
        if names and names != self._waits:
            found = [
                {"name": each.name, "reason": each.reason, "nextTry": utc_text(each.next_try)}
                for each in waits
            ]
            print_json_line({"event": "waiting", "waitingFor": found})
        self._waits = names or self._waits

    def round_ended(self, ended: RoundEnded) -> None:
        print_json_line(
            {
                "event": "round",
                "round": ended.round,
                "durationSeconds": round(ended.seconds, 3),
                **camel_case_keys(count_outcomes(ended.receipts)),
                "receipts": [
                    {
                        "queue": each.queue,
                        "path": each.path,
                        "outcome": each.outcome.value,
                        "reason": each.reason,
                        "count": each.count,
                        "bytes": each.bytes,
                    }
                    for each in ended.receipts
                ],
                "pending": list(ended.pending),
                "errors": dict(ended.errors),
            }
        )

    def stopping(self) -> None:
        pass

    def end(self, receipts: Sequence[Receipt], backlog: BacklogCounts | None) -> None:
        print_json_line(
            {
                "event": "ended",
                "durationSeconds": round(time.monotonic() - self._started_at, 3),
                **camel_case_keys(count_outcomes(receipts)),
                "left": _left(backlog),
                "deadLetters": [
                    {
                        "queue": each.queue,
                        "path": each.path,
                        "reason": each.reason,
                        "count": each.count,
                    }
                    for each in receipts
                    if each.outcome is ReceiptOutcome.DEAD_LETTERED and each.count
                ],
            }
        )

    def close(self) -> None:
        pass


class PlainProgress:
    """Lines on stderr from time to time, for a log; the summary on stdout."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self._logged_at = 0.0
        self._unlogged = 0
        self._unlogged_since = self._started_at
        self._brought_home = 0
        self._waits: tuple[tuple[str, str], ...] = ()

    def begin(
        self,
        primaries: Sequence[str],
        queues: int,
        others: Mapping[str, int],
        rights: Mapping[str, str],
    ) -> None:
        found = format_count(queues, "backlog queue")
        _log(f"ready: {found} of {', '.join(primaries)}; Ctrl-C ends it")
        if others:
            _log(ignored(others))
        for text in unproven(rights):
            _log(text)

    def waiting(self, waits: tuple[Waiting, ...]) -> None:
        names = tuple((each.name, each.reason) for each in waits)
        if names and names != self._waits:
            for name, reason in names:
                _log(f"waiting for {name}: {reason}")
        self._waits = names or self._waits

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
        more = f"; more in {format_count(len(ended.pending), 'queue')}" if ended.pending else ""
        _log(f"{', '.join(parts)}{more}; {self._brought_home:,} in total")
        self._logged_at, self._unlogged = now, 0

    def stopping(self) -> None:
        _log("stopping after this round; Ctrl-C again ends it at once")

    def end(self, receipts: Sequence[Receipt], backlog: BacklogCounts | None) -> None:
        print_summary(receipts, backlog, self._started_at)

    def close(self) -> None:
        pass


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
