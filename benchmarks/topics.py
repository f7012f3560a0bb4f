"""How fast topics, filters and the administration API are.

    python benchmarks/topics.py            the whole table (about four minutes)
    python benchmarks/topics.py --quick    some seconds; figures without meaning

Fan-out is compared with a single queue of the same broker in the same run. Everything that was
started is stopped and deleted at the end, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import command
import fanout
import listing
import ours
import report
import rows
from command import Progress

SIZE = 500
ENTITIES = 1_000
EVALUATIONS_AIM = 200_000
LISTING_AIM_SECONDS = 1.0


def main() -> int:
    return command.main(command.parser(__doc__), _run, tables)


def _run(options: argparse.Namespace, base: Path, progress: Progress) -> dict[str, Any]:
    result = command.blank(options, base, SIZE)
    progress("filters")
    result["filters"] = fanout.run_filters(2_000 if options.quick else 500_000, SIZE)
    counts = fanout.QUICK if options.quick else fanout.FULL
    result["fanout"] = fanout.run(base / "fanout", counts, options.rounds, SIZE, progress)
    entities = 150 if options.quick else ENTITIES
    result["listing"] = _listing(base / "listing", entities, options.rounds, progress)
    return result


def _listing(folder: Path, entities: int, rounds: int, progress: Progress) -> dict[str, Any]:
    """So many queues, as many topics, and as many subscriptions of one topic."""
    numbers = range(entities)
    crowded = ours.Topic(listing.TOPIC, {f"subscription-{n}": None for n in numbers})
    topics = [crowded, *(ours.Topic(f"topic-{n}") for n in numbers[1:])]
    progress(f"starting with {3 * entities:,} entities")
    samples: dict[str, list[rows.Sample]] = {kind: [] for kind in listing.KINDS}
    with ours.broker(folder, [f"queue-{n}" for n in numbers], topics) as broker:
        arguments = ["--connection-string", broker.connection_string, "--count", str(entities)]
        arguments += ["--ca-file", str(broker.ca_file())]
        script = [sys.executable, str(rows.HERE / "listing.py"), *arguments]
        for number in range(rounds):
            for kind in listing.KINDS:
                progress(f"round {number + 1} of {rounds}: list {entities:,} {kind}")
                samples[kind].append(rows.drive([*script, "--kind", kind], broker.pid, kind))
        startup_seconds = broker.startup_seconds
    return {
        "entities": entities,
        "startup_seconds": startup_seconds,
        "kinds": {kind: _listed(entities, found) for kind, found in samples.items()},
    }


def _listed(entities: int, samples: list[rows.Sample]) -> dict[str, Any]:
    figure = rows.summary(samples)
    return asdict(figure) | {
        "seconds": entities / figure.rate,
        "generator_share": figure.generator_share,
    }


def tables(result: dict[str, Any]) -> Iterator[report.Table]:
    yield _fanout_table(result)
    yield _filter_table(result)
    yield _listing_table(result)
    yield report.measured_on(result)


def _fanout_table(result: dict[str, Any]) -> report.Table:
    table = report.Table(
        f"Fan-out, messages of {result['size']} bytes: the median of {result['rounds']} rounds (in "
        "brackets the slowest and the fastest), and processor time of the broker",
        ["", "", "messages a second", "to a queue", "copies a second", "to a queue",
         "a message", "a copy", "generator"],
        is_grouped=True,
    )  # fmt: skip
    for row in result["fanout"]:
        for number, found in enumerate(row["figures"]):
            figure, copies = found["figure"], found["copies"]
            table.rows.append(
                [
                    "" if number else row["title"],
                    found["title"],
                    report.rate(figure),
                    f"{found['ratio']:.2f} x" if number else "",
                    f"{figure['rate'] * copies:,.0f}",
                    f"{found['copies_ratio']:.2f} x" if number else "",
                    f"{figure['broker_us']:.0f} us",
                    f"{figure['broker_us'] / copies:.1f} us",
                    f"{figure['generator_share']:.0%}",
                ]
            )
    return table


def _filter_table(result: dict[str, Any]) -> report.Table:
    table = report.Table(
        f"Filters: evaluations a second on one core; aim {EVALUATIONS_AIM:,}",
        ["", "facts decoded", "to the aim", "with decoding", "decoding and filter"],
    )
    for found in result["filters"]:
        table.rows.append(
            [
                found["filter"],
                f"{found['rate']:,.0f}",
                f"{found['rate'] / EVALUATIONS_AIM:.1f} x",
                f"{found['rate_with_decoding']:,.0f}",
                f"{1e6 / found['rate_with_decoding']:.1f} us",
            ]
        )
    return table


def _listing_table(result: dict[str, Any]) -> report.Table:
    found = result["listing"]
    entities = found["entities"]
    table = report.Table(
        f"Listing {entities:,} entities through the official client; aim {LISTING_AIM_SECONDS:.0f}"
        f" s (the broker started with {3 * entities:,} in {found['startup_seconds']:.1f} s)",
        ["", "seconds", "broker, an entity", "client, an entity", "client's share"],
    )
    for kind, figure in found["kinds"].items():
        table.rows.append(
            [
                kind,
                f"{figure['seconds']:.2f}",
                f"{figure['broker_us']:.0f} us",
                f"{figure['generator_us']:.0f} us",
                f"{figure['generator_share']:.0%}",
            ]
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
