"""What being paired costs, next to the plain SDK in the same process, and how long an outage takes.

    python benchmarks/pairing.py            the whole table (about seven minutes)
    python benchmarks/pairing.py --quick    some seconds; figures without meaning

Both namespaces are brokers in processes of their own. Their data lie in memory where there is room:
no disk is measured here, and what a disk takes would only hide what we do. Everything that was
started is stopped and deleted at the end, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import command
import ours
import pairing_speed
import report
import rows
from command import Progress
from loop import LoadError
from pairing_ends import DISABLED, QUEUE, SHELLS, Ends

SIZE = 500
ENTITIES = 1_000
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """One line of what takes its time: how pairing_times.py is asked for it."""

    title: str
    what: str
    arguments: tuple[str, ...] = ()
    is_new: bool = False
    """The backlog queues are missing."""
    kills: bool = False
    is_slow: bool = False
    """Not with --quick."""


NO_RETRIES = ("--retries", "0")
TIMES = (
    Time(title="pair: 10 backlog queues are made", what="pair", is_new=True),
    Time(title="pair: they are found", what="pair"),
    Time(title='... secondary_connections="lazy"', what="pair", arguments=("--lazy",)),
    Time(
        title="kill -9 of the primary to the first diverted message, retry_total=0",
        what="kill-paired",
        arguments=NO_RETRIES,
        kills=True,
    ),
    Time(
        title="... to the plain sender's error",
        what="kill-plain",
        arguments=NO_RETRIES,
        kills=True,
    ),
    Time(
        title="kill -9 to the first diverted message, the SDK's default retries",
        what="kill-paired",
        kills=True,
        is_slow=True,
    ),
    Time(title="... to the plain sender's error", what="kill-plain", kills=True, is_slow=True),
    Time(title="ping answered to the first message on the primary", what="failback"),
)


def main() -> int:
    parser = command.parser(__doc__)
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN:
        parser.set_defaults(folder=str(MEMORY))
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="for each row of a round (5; with --quick 0)"
    )
    return command.main(parser, _run, tables)


def _run(options: argparse.Namespace, base: Path, progress: Progress) -> dict[str, Any]:
    result = command.blank(options, base, SIZE)
    # Whoever chose memory by --folder knows; and it is the better choice here.
    result["notes"] = []
    seconds = options.seconds or (0.0 if options.quick else 5.0)
    progress("starting two namespaces")
    with _namespaces(base / "speed") as ends:
        result["speed"] = pairing_speed.run(
            partial(_ask, ends),
            SHELLS,
            rounds=options.rounds,
            seconds=seconds,
            size=SIZE,
            progress=progress,
        )
    result["times"] = _times(options, base / "times", progress)
    with _namespaces(base / "memory") as ends:
        progress("memory")
        entities = 50 if options.quick else ENTITIES
        found = {s: _ask(ends, "pairing_memory.py", s, "--entities", entities) for s in SHELLS}
        result["memory"] = {"entities": entities, "shells": found}
    return result


@contextmanager
def _namespaces(folder: Path) -> Iterator[Ends]:
    with ours.broker(folder / "primary", [QUEUE]) as primary, _secondary(folder) as secondary:
        ends = Ends.of(primary, secondary)
        with ends.administration() as administration:
            administration.create_queue(DISABLED, status="Disabled")
        yield ends


@contextmanager
def _secondary(folder: Path) -> Iterator[ours.Ours]:
    with ours.broker(folder / "secondary", [QUEUE]) as secondary:
        yield secondary


def _times(options: argparse.Namespace, folder: Path, progress: Progress) -> list[dict[str, Any]]:
    """Each line once in a round, in both shells."""
    lines = [line for line in TIMES if not (options.quick and line.is_slow)]
    samples: dict[tuple[Time, str], list[float]] = {}
    with _namespaces(folder) as ends, _secondary(folder / "of-the-killed") as secondary:
        for number in range(options.rounds):
            for line in lines:
                for shell in SHELLS:
                    progress(f"round {number + 1} of {options.rounds}: {line.title}, {shell}")
                    found = samples.setdefault((line, shell), [])
                    if line.kills:
                        found.append(_until_noticed(line, shell, folder, secondary))
                    else:
                        name = f"bench-{shell}" + (f"-{number}" if line.is_new else "-0")
                        given = ("--what", line.what, "--name", name, *line.arguments)
                        found.append(_ask(ends, "pairing_times.py", shell, *given))
    return [
        {
            "title": line.title,
            "what": line.what,
            "shells": {
                shell: {
                    "seconds": statistics.median(samples[line, shell]),
                    "samples": samples[line, shell],
                }
                for shell in SHELLS
            },
        }
        for line in lines
    ]


def _until_noticed(line: Time, shell: str, folder: Path, secondary: ours.Ours) -> float:
    with ours.broker(folder / "victim", [QUEUE]) as victim:
        given = ("--what", line.what, "--pid", victim.pid, *line.arguments)
        seconds: float = _ask(Ends.of(victim, secondary), "pairing_times.py", shell, *given)
    shutil.rmtree(folder / "victim")
    return seconds


def _ask(ends: Ends, script: str, shell: str, *arguments: Any) -> Any:
    """What a measuring process answers. It is ended when it has."""
    options = ["--ends", json.dumps(asdict(ends)), "--shell", shell, *map(str, arguments)]
    process = subprocess.Popen(
        [sys.executable, str(rows.HERE / script), *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ours.environment(),
        start_new_session=True,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
    finally:
        process.kill()
        _, said = process.communicate()
    if not line:
        raise LoadError(f"{script}, {shell}: {said.strip()[-600:] or 'no answer'}")
    return json.loads(line)


# --- the tables -----------------------------------------------------------------------------------


def tables(result: dict[str, Any]) -> Iterator[report.Table]:
    for situation, aim in pairing_speed.AIMS.items():
        yield _speed_table(result, situation, aim)
    yield _times_table(result)
    yield _memory_table(result)
    yield report.measured_on(result)


TITLES = {
    "healthy": "A healthy primary: a paired sender next to plain ones",
    "diverted": "Failed over: a paired sender, whose messages go to a backlog queue, next to plain "
    "ones that send to a queue of the same namespace",
}


def _speed_table(result: dict[str, Any], situation: str, aim: float) -> report.Table:
    table = report.Table(
        f"{TITLES[situation]}. Messages of {result['size']} bytes; aim {aim:.2f} x or more",
        ["", "", "messages a second", "to plain", "95 % of the time", "a call more",
         "processor", "half of the calls", "99 % of them", "to plain"],
        is_grouped=True,
    )  # fmt: skip
    for row in result["speed"]:
        if row["situation"] != situation:
            continue
        for subject, figure in row["figures"].items():
            is_first = subject == "plain"
            low, high = figure["ratio_interval"]
            table.rows.append(
                [
                    f"{row['shell']}, {row['title']} ({row['turns']} turns)" if is_first else "",
                    subject,
                    f"{figure['rate']:,.0f}",
                    "" if is_first else f"{figure['ratio']:.3f} x",
                    "" if is_first else f"{low:.3f} - {high:.3f}",
                    "" if is_first else f"{figure['extra_us']:+,.0f} us",
                    "" if is_first else f"{figure['extra_cpu_us']:+,.0f} us",
                    f"{figure['call_us']:,.0f} us",
                    f"{figure['p99_us']:,.0f} us",
                    "" if is_first else f"{figure['p99_ratio']:.2f} x",
                ]
            )
    return table


def _times_table(result: dict[str, Any]) -> report.Table:
    table = report.Table(
        "How long it takes, failover_interval=0: the median of "
        f"{result['rounds']} rounds (in brackets the shortest and the longest)",
        ["", *SHELLS],
    )
    for line in result["times"]:
        table.rows.append([line["title"], *(_seconds(line["shells"][s]) for s in SHELLS)])
    return table


def _seconds(found: dict[str, Any]) -> str:
    samples = found["samples"]
    spread = f" ({min(samples):.3f} - {max(samples):.3f})" if len(samples) > 1 else ""
    return f"{found['seconds']:.3f} s{spread}"


def _memory_table(result: dict[str, Any]) -> report.Table:
    memory = result["memory"]
    table = report.Table(
        f"Memory that Python holds, with {memory['entities']:,} idle entities", ["", *SHELLS]
    )
    found = [memory["shells"][shell] for shell in SHELLS]
    for title, key in (
        ("a plain sender, made and not opened", "plain_sender"),
        ("a paired sender and its entity, made and not opened", "paired_sender"),
        ("an entity whose senders are gone", "state"),
    ):
        table.rows.append([title, *(f"{each[key] / 1024:.2f} KB" for each in found)])
    title = f"a client's connections to {found[0]['queues']:.0f} backlog queues, kept ready"
    table.rows.append([title, *(f"{each['ready'] / 1024:,.0f} KB" for each in found)])
    return table


if __name__ == "__main__":
    sys.exit(main())
