"""A paired sender next to a plain one: runs pairing_load.py, and computes figures from its turns.

A turn of one sender is compared with the turn of the plain one that was next to it, and the median
of those ratios counts: if something slows the machine for a while, it slows both. Prints nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from pairing_load import ROWS, SUBJECTS, Row

BUDGETS_US = {"healthy": 40.0, "diverted": 120.0}
"""By situation: the most processor time that our own part of a call with one message may take."""


def run(
    ask: Callable[[str, Sequence[str], Sequence[Any]], dict[str, Any]],
    turns: Sequence[Sequence[str]],
    *,
    rounds: int,
    seconds: float,
    size: int,
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """`turns`: the shells that are asked at once, one after the other."""
    samples: dict[str, list[dict[str, Any]]] = {}
    for number in range(rounds):
        for shells in turns:
            progress(f"round {number + 1} of {rounds}: paired and plain, {', '.join(shells)}")
            options = ("--seconds", seconds, "--size", size)
            for shell, found in ask("pairing_load.py", shells, options).items():
                samples.setdefault(shell, []).append(found)
    return [
        _figures(situation, shell, row, [found[situation][row.key] for found in each])
        for situation in BUDGETS_US
        for row in ROWS
        for shell, each in samples.items()
    ]


def _figures(situation: str, shell: str, row: Row, samples: list[dict[str, Any]]) -> dict[str, Any]:
    turns = {s: _Turns(row, [sample["subjects"][s] for sample in samples]) for s in SUBJECTS}
    plain = turns[SUBJECTS[0]]
    bare = [sample["bare"] for sample in samples if sample["bare"] is not None]
    least_us = {s: min(each[s] for each in bare) * 1e6 for s in (bare[0] if bare else ())}
    return {
        "situation": situation,
        "shell": shell,
        "key": row.key,
        "title": row.title,
        "turns": len(plain.seconds),
        "bare_us": least_us["paired"] - least_us["plain"] if bare else None,
        "figures": {subject: each.figure(plain) for subject, each in turns.items()},
    }


class _Turns:
    """All turns of one sender in one row, those of all rounds."""

    def __init__(self, row: Row, samples: list[dict[str, Any]]) -> None:
        turns = [turn for sample in samples for turn in sample["calls"]]
        self._row = row
        self._calls = sorted(call for turn in turns for call in turn)
        self._cpu = [cpu for sample in samples for cpu in sample["cpu"]]
        self.seconds = [sum(turn) for turn in turns]

    def figure(self, plain: _Turns) -> dict[str, Any]:
        calls = self._row.calls
        ratios = sorted(p / s for p, s in zip(plain.seconds, self.seconds, strict=True))
        extra = [(s - p) / calls for p, s in zip(plain.seconds, self.seconds, strict=True)]
        cpu = [(s - p) / calls for p, s in zip(plain._cpu, self._cpu, strict=True)]
        percentile = quantile(self._calls, 0.99)
        return {
            "rate": self._row.per_call * calls / statistics.median(self.seconds),
            "ratio": statistics.median(ratios),
            "ratio_interval": interval(ratios),
            "extra_us": statistics.median(extra) * 1e6,
            "extra_cpu_us": statistics.median(cpu) * 1e6,
            "call_us": quantile(self._calls, 0.5) * 1e6,
            "p99_us": percentile * 1e6,
            "p99_ratio": percentile / quantile(plain._calls, 0.99),
        }


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value that a share of all values does not exceed: of 100 values, the 99th for 0.99."""
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


def interval(ordered: Sequence[float]) -> tuple[float, float]:
    """Where the median would be in 95 of 100 repetitions, for any distribution."""
    half, reach = len(ordered) / 2, 0.98 * math.sqrt(len(ordered))
    low, high = math.floor(half - reach), math.ceil(half + reach)
    return ordered[max(0, low)], ordered[min(len(ordered) - 1, high)]
