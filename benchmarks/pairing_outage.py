"""Which times of an outage are taken, and by what: runs pairing_times.py, with a primary that is
killed where that is part of it. Prints nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ours
import pairing_ends
from pairing_ends import QUEUE, Ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    what: str
    titles: dict[str, str]
    """Of each time that it answers."""
    arguments: tuple[str, ...] = ()
    kills: bool = False
    is_slow: bool = False
    """Not with --quick."""


NO_RETRIES = ("--retries", "0")
MEASURES = (
    Measure(
        what="pair",
        titles={
            "made": "pairing makes 10 backlog queues",
            "found": "... finds them",
            "lazy": "... and keeps no connection ready (secondary_connections='lazy')",
        },
    ),
    Measure(
        what="kill-paired",
        titles={"noticed": "kill -9 of the primary to the first diverted message, retry_total=0"},
        arguments=NO_RETRIES,
        kills=True,
    ),
    Measure(
        what="kill-plain",
        titles={"noticed": "... to the error of a plain sender"},
        arguments=NO_RETRIES,
        kills=True,
        is_slow=True,
    ),
    Measure(
        what="kill-paired",
        titles={"noticed": "kill -9 to the first diverted message, the SDK's default retries"},
        kills=True,
        is_slow=True,
    ),
    Measure(
        what="kill-plain",
        titles={"noticed": "... to the error of a plain sender"},
        kills=True,
        is_slow=True,
    ),
    Measure(
        what="failback", titles={"home": "an answered ping to the first message on the primary"}
    ),
)


def run(
    folder: Path,
    ends: Ends,
    secondary: ours.Ours,
    turns: Sequence[Sequence[str]],
    *,
    rounds: int,
    is_quick: bool,
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Each once in a round. `turns`: the shells that are asked at once, one after the other."""
    measures = [each for each in MEASURES if not (is_quick and each.is_slow)]
    lines: list[dict[str, Any]] = [
        {"title": title, "shells": {}} for each in measures for title in each.titles.values()
    ]
    for number in range(rounds):
        for shells in turns:
            found: list[dict[str, float]] = []
            for measure in measures:
                title = next(iter(measure.titles.values()))
                progress(f"round {number + 1} of {rounds}: {title}, {', '.join(shells)}")
                with ExitStack() as stack:
                    those = dict.fromkeys(shells, ends)
                    if measure.kills:
                        those = {s: _victim(stack, folder / s, secondary) for s in shells}
                    options = ("--what", measure.what, "--name", number, *measure.arguments)
                    taken = pairing_ends.ask("pairing_times.py", those, options)
                found += ({s: taken[s][key] for s in shells} for key in measure.titles)
            for line, times in zip(lines, found, strict=True):
                for shell, seconds in times.items():
                    line["shells"].setdefault(shell, []).append(seconds)
    return lines


def _victim(stack: ExitStack, folder: Path, secondary: ours.Ours) -> Ends:
    """The ends of a pair whose primary may be killed."""
    stack.callback(shutil.rmtree, folder)
    return Ends.of(stack.enter_context(ours.broker(folder, [QUEUE])), secondary)
