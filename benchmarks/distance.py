"""What a distance costs: the syphon, diverted sends and the data source, a round trip away.

    python benchmarks/distance.py            all of it (about 15 minutes)
    python benchmarks/distance.py --quick    one minute; the figures mean nothing
    python benchmarks/distance.py --only sizes

Both namespaces are brokers in processes of their own, durable, each behind a proxy that adds the
same round trip (delay.py). RabbitMQ's Shovel and the loops on the official SDK go through the same
kind of proxy. Every drain is checked: each message must have come home exactly once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import command
import ours
import pairing_ends
import rabbitmq
import report
import syphon_shovel
from command import Progress
from delay import line
from loop import LoadError
from pairing_ends import DISABLED, QUEUE, SHELLS, Ends
from syphon_movers import READY_SECONDS_MAX, Mover
from syphon_stage import BACKLOGS, SIZE, TARGETS, Stage

ROUND_TRIPS_MS = (0, 30, 100, 300)
COUNT = 240_000
"""Enough that the time to open the connections does not count for much."""
# The loop completes one message after the other, a round trip each.
SDK_COUNTS = {0: 2_000, 30: 200, 100: 100, 300: 40}
SHOVEL_PREFETCH = {30: 1_000, 100: 5_000, 300: 5_000}
"""Over a distance, for both kinds of queues: the best of 1,000, 5,000 and 20,000, or as good."""
SEND_ROUND_TRIP_MS = 60
SENDERS = 50
SENDS = 40
SIZES = {"1 KB": 1_000, "64 KB": 64_000, "256 KB": 256_000, "1 MB": 1_000_000}
SIZES_BYTES = 256_000_000
COPY_BYTES = 1_000_000
KILOBYTES_MAX = 2_048
SOURCE_ROUND_TRIPS_MS = (0, 30)
SOURCE_COUNT = 40_000
PARTS = ("syphon", "sends", "sizes", "source")
WAYS = {
    "plain": "syphon",
    "tls": "syphon, TLS",
    "sdk": "loop on the SDK",
    "classic": "Shovel, classic queues",
    "quorum": "Shovel, quorum queues",
}


def main() -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="may be repeated")
    parser.add_argument("--alone", action="store_true", help="without RabbitMQ")
    return command.main(parser, _run, tables)


def _run(options: argparse.Namespace, base: Path, progress: Progress) -> dict[str, Any]:
    result = command.blank(options, base, SIZE)
    result |= {"count": 500 if options.quick else COUNT} | dict.fromkeys(PARTS)
    parts = options.only or PARTS
    with (
        ours.broker(
            base / "primary", (*TARGETS, QUEUE), message_kilobytes_max=KILOBYTES_MAX
        ) as one,
        ours.broker(
            base / "secondary", (*BACKLOGS, QUEUE), message_kilobytes_max=KILOBYTES_MAX
        ) as two,
    ):
        stage = Stage(one, two, base / "movers")
        if "syphon" in parts or "sizes" in parts:
            with stage.mover("spark") as spark:
                progress("starting Spark")
                spark.answer(READY_SECONDS_MAX)
                if "syphon" in parts:
                    result["syphon"] = _syphon(options, base, result, stage, spark, progress)
                if "sizes" in parts:
                    result["sizes"] = _sizes(options, base, stage, spark, progress)
        if "sends" in parts:
            with _noted(result, "diverted sends"):
                result["sends"] = _sends(options, one, two, progress)
        if "source" in parts:
            with _noted(result, "the data source"):
                result["source"] = _source(options, base / "source", two, progress)
    return result


@contextlib.contextmanager
def _noted(result: dict[str, Any], what: str) -> Iterator[None]:
    """If a part fails, the figures of the parts before it are worth keeping."""
    try:
        yield
    except LoadError as error:
        result["notes"].append(f"{what}: not measured, because of this error: {error}")


# --- the syphon and its peers ---------------------------------------------------------------------


def _syphon(
    options: argparse.Namespace,
    base: Path,
    result: dict[str, Any],
    stage: Stage,
    spark: Mover,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Each distance, by each way: they take turns, so that a busy moment affects all of them."""
    with contextlib.ExitStack() as stack:
        shovels = None
        if not options.alone:
            progress("starting RabbitMQ")
            try:
                shovels, version = stack.enter_context(syphon_shovel.shovels(base / "rabbitmq"))
                result["machine"]["RabbitMQ"] = version
            except rabbitmq.PeerMissing as missing:
                result["notes"].append(f"measured without RabbitMQ's Shovel. {missing}")
        samples: dict[tuple[str, int], list[float]] = {}
        for number in range(options.rounds):
            for ms in ROUND_TRIPS_MS[: 2 if options.quick else None]:
                for way, drain in _ways(options, stage, spark, shovels, result["count"], ms):
                    said = f"{WAYS[way]}, {ms} ms away"
                    progress(f"round {number + 1} of {options.rounds}: {said}")
                    samples.setdefault((way, ms), []).append(drain()["rate"])
    return [{"way": way, "ms": ms, **_spread(rates)} for (way, ms), rates in samples.items()]


def _ways(
    options: argparse.Namespace,
    stage: Stage,
    spark: Mover,
    shovels: syphon_shovel.Shovels | None,
    count: int,
    ms: int,
) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    with stage.away(ms) as ends, stage.away(ms, tls=True) as tls_ends:
        yield "plain", partial(stage.drain, spark, count, ends=ends)
        yield "tls", partial(stage.drain, spark, count, ends=tls_ends)
        sdk_count = 20 if options.quick else SDK_COUNTS[ms]
        yield "sdk", partial(stage.drain_with_the_sdk, sdk_count, ends)
    if shovels is not None:
        for kind in syphon_shovel.KINDS.values():
            with shovels.away(ms):
                settings = kind.with_prefetch(SHOVEL_PREFETCH[ms]) if ms else kind
                yield kind.name, partial(shovels.drain, settings, count, SIZE)


def _spread(values: list[float]) -> dict[str, Any]:
    return {"rate": _median(values), "rates": values}


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


# --- large messages -------------------------------------------------------------------------------


def _sizes(
    options: argparse.Namespace, base: Path, stage: Stage, spark: Mover, progress: Progress
) -> list[dict[str, Any]]:
    found = []
    for title, size in SIZES.items():
        total = 2_000_000 if options.quick else SIZES_BYTES
        count = max(len(BACKLOGS), min(total // size, COUNT) // len(BACKLOGS) * len(BACKLOGS))
        progress(f"messages of {title}: the syphon, and a plain copy")
        rates = [
            stage.drain(spark, count, size=size)["rate"] * size / 1e6 for _ in range(options.rounds)
        ]
        copies = [copy_mb_a_second(base / "copy", count * size) for _ in range(options.rounds)]
        found.append(
            {"title": title, "bytes": size, "syphon": _spread(rates), "copy": _spread(copies)}
        )
    return found


def copy_mb_a_second(folder: Path, total: int) -> float:
    """What no mover of messages can beat on this disk: read a piece, write it to another file and
    sync that, then note in the first file that the piece is gone, and sync that, too.
    """
    folder.mkdir(exist_ok=True)
    source, target = folder / "source", folder / "target"
    source.write_bytes(bytes(total))
    begun = time.perf_counter()
    with source.open("r+b", buffering=0) as old, target.open("wb", buffering=0) as new:
        for at in range(0, total, COPY_BYTES):
            new.write(os.pread(old.fileno(), COPY_BYTES, at))
            os.fsync(new.fileno())
            os.pwrite(old.fileno(), at.to_bytes(8, "big"), 0)
            os.fsync(old.fileno())
    seconds = time.perf_counter() - begun
    source.unlink()
    target.unlink()
    return total / seconds / 1e6


# --- diverted sends -------------------------------------------------------------------------------


def _sends(
    options: argparse.Namespace, primary: ours.Ours, secondary: ours.Ours, progress: Progress
) -> list[dict[str, Any]]:
    near = Ends.of(primary, secondary)
    with near.administration() as administration:
        administration.create_queue(DISABLED, status="Disabled")
    with line(secondary.port, SEND_ROUND_TRIP_MS) as port:
        ends = near.with_secondary_port(port)
        found = []
        for shell in SHELLS:
            progress(f"{SENDERS} senders of {shell}, {SEND_ROUND_TRIP_MS} ms away")
            given = ("--senders", 3 if options.quick else SENDERS)
            given += ("--sends", 5 if options.quick else SENDS)
            found.append(
                {
                    "shell": shell,
                    **pairing_ends.ask("distance_sends.py", {shell: ends}, given)[shell],
                }
            )
    return found


# --- the data source ------------------------------------------------------------------------------


def _source(
    options: argparse.Namespace, folder: Path, broker: ours.Ours, progress: Progress
) -> list[dict[str, Any]]:
    from syphon_movers import mover

    count = 400 if options.quick else SOURCE_COUNT
    sdk_counts = {ms: 20 if options.quick else SDK_COUNTS[ms] for ms in SOURCE_ROUND_TRIPS_MS}
    near, found = _text(broker, broker.port), []
    with mover("source", primary=near, secondary=near, queues=[QUEUE], folder=folder) as spark:
        progress("starting Spark")
        spark.answer(READY_SECONDS_MAX)
        for ms in SOURCE_ROUND_TRIPS_MS:
            with line(broker.port, ms) as port:
                progress(f"the data source and a loop on the SDK, {ms} ms away")
                spark.tell(text=_text(broker, port), count=count, sdk_count=sdk_counts[ms])
                found.append({"ms": ms, **spark.answer(600.0)})
    return found


def _text(broker: ours.Ours, port: int) -> str:
    text = broker.connection_string.replace(f":{broker.port}/", f":{port}/")
    return f"{text};UseDevelopmentEmulator=true"


# --- the tables -----------------------------------------------------------------------------------


def tables(result: dict[str, Any]) -> Iterator[report.Table]:
    if result["syphon"]:
        yield _syphon_table(result)
    if result["sends"]:
        yield _sends_table(result)
    if result["sizes"]:
        yield _sizes_table(result)
    if result["source"]:
        yield _source_table(result)
    yield report.measured_on(result)


def _syphon_table(result: dict[str, Any]) -> report.Table:
    distances = sorted({row["ms"] for row in result["syphon"]})
    table = report.Table(
        f"The syphon over a distance: {result['count']:,} messages of {result['size']} bytes, "
        "messages a second, and the ratio to 0 ms in the same round (median, lowest, highest)",
        ["", *(f"{ms} ms" for ms in distances)],
    )
    samples = {(row["way"], row["ms"]): row["rates"] for row in result["syphon"]}
    for way, title in WAYS.items():
        if (way, 0) in samples:
            cells = [f"{_median(samples[way, 0]):,.0f}"]
            for ms in distances[1:]:
                ratios = _ratios(samples[way, ms], samples[way, 0])
                spread = f"{_median(ratios):.2f}; {min(ratios):.2f} - {max(ratios):.2f}"
                cells.append(f"{_median(samples[way, ms]):,.0f} ({spread})")
            table.rows.append([title, *cells])
    for way, title in list(WAYS.items())[2:]:
        if (way, 0) in samples:
            over = [_median(_ratios(samples["plain", ms], samples[way, ms])) for ms in distances]
            table.rows.append([f"the syphon over: {title}", *(f"{one:,.2f} x" for one in over)])
    return table


def _ratios(rates: list[float], others: list[float]) -> list[float]:
    """Round by round, because a machine may be slower in one round than in another."""
    return [rate / other for rate, other in zip(rates, others, strict=True)]


def _sends_table(result: dict[str, Any]) -> report.Table:
    table = report.Table(
        f"Diverted sends, {SEND_ROUND_TRIP_MS} ms away: {SENDERS} senders that send one message "
        "after the other, next to plain ones that send to a queue of the same namespace",
        ["", "", "messages a second", "median", "99 % of calls"],
        is_grouped=True,
    )
    for row in result["sends"]:
        unit = "threads" if row["shell"] == "blocking" else "tasks"
        for number, subject in enumerate(("paired", "plain")):
            found = row[subject]
            table.rows.append(
                [
                    "" if number else f"{row['senders']} {unit}",
                    "diverted" if subject == "paired" else "plain SDK",
                    f"{found['rate']:,.0f}",
                    f"{found['median_ms']:.0f} ms",
                    f"{found['p99_ms']:.0f} ms",
                ]
            )
    return table


def _sizes_table(result: dict[str, Any]) -> report.Table:
    table = report.Table(
        "Large messages: MB a second that come home, next to a plain copy of a file in pieces of "
        "1 MB, with two syncs for each piece",
        ["", "syphon", "plain copy", "the syphon is"],
    )
    for row in result["sizes"]:
        ours_, copy = row["syphon"]["rate"], row["copy"]["rate"]
        table.rows.append([row["title"], f"{ours_:,.0f}", f"{copy:,.0f}", f"{ours_ / copy:.2f} x"])
    return table


def _source_table(result: dict[str, Any]) -> report.Table:
    table = report.Table(
        f"The data source: messages of {result['size']} bytes a second, next to a loop on the SDK "
        "that receives and completes, or sends, up to 100 at a time",
        ["", *(f"{ms} ms" for ms in SOURCE_ROUND_TRIPS_MS)],
    )
    for key, title in (
        ("read", "read (peek)"),
        ("stream", "stream (peekLock)"),
        ("sdk_receive", "loop on the SDK, receive"),
        ("write", "write"),
        ("sdk_send", "loop on the SDK, send"),
    ):
        table.rows.append([title, *(f"{row[key]:,.0f}" for row in result["source"])])
    return table


if __name__ == "__main__":
    sys.exit(main())
