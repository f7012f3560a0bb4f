"""What pairing costs, next to the plain SDK in the same process, and how long an outage takes.

    python benchmarks/pairing.py            the whole table (about eight minutes)
    python benchmarks/pairing.py --quick    some seconds; figures without meaning

Both namespaces are brokers in processes of their own. Their data are in memory if there is room: a
disk would only hide the cost of our own code. Everything that was started is stopped and deleted at
the end, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import command
import ours
import pairing_ends
import pairing_outage
import pairing_speed
import report
from command import Progress
from pairing_ends import DISABLED, QUEUE, SHELLS, Ends
from pairing_speed import SUBJECTS

SIZE = 500
ENTITIES = 1_000
ROW_SECONDS = 5.0
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 * 2**30


def main() -> int:
    parser = command.parser(__doc__)
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN:
        parser.set_defaults(folder=str(MEMORY))
    parser.add_argument(
        "--seconds", type=float, default=0.0, help=f"for a row in a round (default {ROW_SECONDS:g})"
    )
    return command.main(parser, _run, tables)


def _run(options: argparse.Namespace, base: Path, progress: Progress) -> dict[str, Any]:
    result = command.blank(options, base, SIZE)
    result["notes"] = []  # that the folder is memory is what is wanted here
    # Where figures mean nothing, both shells are asked at once.
    turns = (SHELLS,) if options.quick else tuple((shell,) for shell in SHELLS)
    progress("starting two namespaces")
    with (
        ours.broker(base / "primary", [QUEUE, *SHELLS]) as primary,
        ours.broker(base / "secondary", [QUEUE]) as secondary,
    ):
        ends = Ends.of(primary, secondary)
        with ends.administration() as administration:
            administration.create_queue(DISABLED, status="Disabled")

        def ask(script: str, shells: Sequence[str], arguments: Sequence[Any]) -> dict[str, Any]:
            return pairing_ends.ask(script, dict.fromkeys(shells, ends), arguments)

        result["speed"] = pairing_speed.run(
            ask,
            turns,
            rounds=options.rounds,
            seconds=options.seconds or (0.0 if options.quick else ROW_SECONDS),
            size=SIZE,
            progress=progress,
        )
        entities = 200 if options.quick else ENTITIES
        progress(f"memory of {entities:,} entities")
        found = ask("pairing_memory.py", SHELLS, ("--entities", entities))
        result["memory"] = {"entities": entities, "shells": found}
        result["times"] = pairing_outage.run(
            base / "victims",
            ends,
            secondary,
            turns,
            rounds=options.rounds,
            is_quick=options.quick,
            progress=progress,
        )
    return result


# --- the tables -----------------------------------------------------------------------------------


def tables(result: dict[str, Any]) -> Iterator[report.Table]:
    for situation in pairing_speed.BUDGETS_US:
        yield _speed_table(result, situation)
    yield _bare_table(result)
    yield _times_table(result)
    yield _memory_table(result)
    yield report.measured_on(result)


TITLES = {
    "healthy": "A healthy primary: a paired sender next to plain ones",
    "diverted": "Failed over: a paired sender, whose messages go to a backlog queue, next to plain "
    "ones that send to a queue of the same namespace",
}


def _speed_table(result: dict[str, Any], situation: str) -> report.Table:
    table = report.Table(
        f"{TITLES[situation]}. Messages of {result['size']} bytes",
        ["", "", "turns", "plain, messages a second", "paired is", "plain again is",
         "paired, a call more", "processor", "99 % of plain calls", "paired is", "plain again is"],
        is_grouped=True,
    )  # fmt: skip
    rows = [row for row in result["speed"] if row["situation"] == situation]
    for number, row in enumerate(rows):
        figures = row["figures"]
        plain, paired, again = (figures[subject] for subject in SUBJECTS)
        is_new = not number or rows[number - 1]["title"] != row["title"]
        table.rows.append(
            [
                row["title"] if is_new else "",
                row["shell"],
                f"{row['turns']:,}",
                f"{plain['rate']:,.0f}",
                _ratio(paired),
                _ratio(again),
                f"{paired['extra_us']:+,.0f} us",
                f"{paired['extra_cpu_us']:+,.0f} us",
                f"{plain['p99_us']:,.0f} us",
                f"{paired['p99_ratio']:.2f} x",
                f"{again['p99_ratio']:.2f} x",
            ]
        )
    return table


def _ratio(figure: dict[str, Any]) -> str:
    low, high = figure["ratio_interval"]
    return f"{figure['ratio']:.3f} x ({low:.3f} - {high:.3f})"


def _bare_table(result: dict[str, Any]) -> report.Table:
    budgets = pairing_speed.BUDGETS_US
    limits = ", ".join(f"{budget:g} us {situation}" for situation, budget in budgets.items())
    table = report.Table(
        "Our own part of a call, in processor time: what the paired sender needs more than the "
        f"plain one in a tight loop, with an SDK that stops short of the wire. Budget of one "
        f"message: {limits}",
        ["", *(f"{s}, {shell}" for s in budgets for shell in SHELLS)],
    )
    rows = [row for row in result["speed"] if row["bare_us"] is not None]
    for title in dict.fromkeys(row["title"] for row in rows):
        found = {(r["situation"], r["shell"]): r["bare_us"] for r in rows if r["title"] == title}
        cells = [f"{found[s, shell]:+,.1f} us" for s in budgets for shell in SHELLS]
        table.rows.append([title, *cells])
    return table


def _times_table(result: dict[str, Any]) -> report.Table:
    table = report.Table(
        f"How long it takes, failover_interval=0: the median of {result['rounds']} rounds (in "
        "brackets the shortest and the longest)",
        ["", *SHELLS],
    )
    for line in result["times"]:
        table.rows.append([line["title"], *(_seconds(line["shells"][s]) for s in SHELLS)])
    return table


def _seconds(found: list[float]) -> str:
    spread = f" ({min(found):.3f} - {max(found):.3f})" if len(found) > 1 else ""
    return f"{statistics.median(found):.3f} s{spread}"


def _memory_table(result: dict[str, Any]) -> report.Table:
    memory = result["memory"]
    table = report.Table(
        f"Memory that Python holds, with {memory['entities']:,} idle entities", ["", *SHELLS]
    )
    for title, key in (
        ("a plain sender, made and not opened", "plain_sender"),
        ("a paired sender and its entity, made and not opened", "paired_sender"),
        ("an entity whose senders are gone", "state"),
        ("a connection to a backlog queue, kept ready; at most one for each queue", "connection"),
    ):
        cells = [f"{memory['shells'][shell][key] / 1024:.2f} KB" for shell in SHELLS]
        table.rows.append([title, *cells])
    return table


if __name__ == "__main__":
    sys.exit(main())
