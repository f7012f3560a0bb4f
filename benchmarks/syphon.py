"""How fast diverted messages come home, next to a loop on the official SDK and RabbitMQ's Shovel.

    python benchmarks/syphon.py            drains of 100,000 messages (about five minutes)
    python benchmarks/syphon.py --counts 10000,100000,1000000 --memory
                                           also cost and memory up to a million (four minutes more)
    python benchmarks/syphon.py --quick    one minute; the figures mean nothing

All brokers are processes of their own, durable, without TLS. After each drain the queues are
checked: every message must have come home exactly once. Everything is stopped and deleted at the
end, even after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import command
import ours
import rabbitmq
import report
import syphon_shovel
from command import Progress
from syphon_movers import READY_SECONDS_MAX, Mover
from syphon_stage import BACKLOGS, CORES, SIZE, TARGETS, Stage

COUNT = 100_000
MEMORY_COUNT = 1_000_000
QUICK_COUNT = 1_000
QUICK_COUNTS = [500]
# The loop on the SDK is slow, so it gets fewer messages. The rate is the same.
SDK_SHARE = 20
SDK_COUNT_MIN = 100
WARM_COUNT = 2_000
WAKES = 10
WAYS = {
    "spark": "pairbus syphon, Spark local[5]",
    "here": "the same tasks in one process, without Spark",
    "sdk": f"a loop on the official SDK, {CORES} processes",
}

SDK_AIM = 10.0
WAKE_AIM_SECONDS = 1.0
MOVERS = {"driver": "driver, Python", "java": "driver, Java", "workers": "workers"}
BROKERS = {"primary": "primary", "secondary": "secondary"}


def main() -> int:
    parser = command.parser(__doc__)
    parser.add_argument(
        "--count", type=_count, default=0, help=f"messages of a drain (default {COUNT:,})"
    )
    parser.add_argument(
        "--counts",
        type=lambda text: [_count(part) for part in text.split(",")],
        default=[],
        metavar="COUNT,...",
        help="also measure the cost of a message in one drain of each of these sizes",
    )
    parser.add_argument(
        "--memory",
        action="store_true",
        help=f"also measure the memory in those drains (without --counts: one of {MEMORY_COUNT:,})",
    )
    parser.add_argument("--alone", action="store_true", help="without RabbitMQ")
    return command.main(parser, _run, tables)


def _count(text: str) -> int:
    count = int(text.replace("_", ""))
    if count < len(BACKLOGS) or count % len(BACKLOGS):
        raise argparse.ArgumentTypeError(
            f"{count} is not a multiple of {len(BACKLOGS)}, the number of backlog queues"
        )
    return count


def _run(options: argparse.Namespace, base: Path, progress: Progress) -> dict[str, Any]:
    result = command.blank(options, base, SIZE)
    count = options.count or (QUICK_COUNT if options.quick else COUNT)
    sdk_count = max(count // SDK_SHARE // len(BACKLOGS) * len(BACKLOGS), SDK_COUNT_MIN)
    result |= {"count": count, "sdk_count": min(sdk_count, count)}
    with contextlib.ExitStack() as stack:
        progress("starting two namespaces")
        primary = stack.enter_context(ours.broker(base / "primary", TARGETS))
        secondary = stack.enter_context(ours.broker(base / "secondary", BACKLOGS))
        stage = Stage(primary, secondary, base / "movers")
        shovels = None
        if not options.alone:
            shovels = _shovels(stack, base / "rabbitmq", result, progress)
        progress("starting Spark")
        movers = {way: stack.enter_context(stage.mover(way)) for way in ("spark", "here")}
        ready = {way: each.answer(READY_SECONDS_MAX) for way, each in movers.items()}
        result["first_seconds"] = ready["spark"]["first_seconds"]
        samples = _rounds(options, stage, movers, shovels, result, progress)
        result["ways"] = [_figure(way, samples) for way in samples]
        result["counts"] = []
        for some in _counts(options):
            progress(f"a drain of {some:,} messages")
            result["counts"].append(stage.drain(movers["spark"], some))
        result["memory"] = options.memory or options.quick
        progress("the latency of single messages while the syphon is idle")
        result["wakes"] = stage.wakes(movers["spark"], 1 if options.quick else WAKES)
    return result


def _counts(options: argparse.Namespace) -> list[int]:
    if options.counts:
        return list(options.counts)
    if options.quick:
        return QUICK_COUNTS
    return [MEMORY_COUNT] if options.memory else []


def _shovels(
    stack: contextlib.ExitStack, folder: Path, result: dict[str, Any], progress: Progress
) -> syphon_shovel.Shovels | None:
    progress("starting RabbitMQ")
    try:
        found, version = stack.enter_context(syphon_shovel.shovels(folder))
    except rabbitmq.PeerMissing as missing:
        result["notes"].append(f"measured without RabbitMQ's Shovel. {missing}")
        return None
    result["machine"]["RabbitMQ"] = version
    return found


def _rounds(
    options: argparse.Namespace,
    stage: Stage,
    movers: dict[str, Mover],
    shovels: syphon_shovel.Shovels | None,
    result: dict[str, Any],
    progress: Progress,
) -> dict[str, list[dict[str, Any]]]:
    """All ways take turns, so that a busy moment of the machine affects each of them."""
    samples: dict[str, list[dict[str, Any]]] = {}
    kinds = syphon_shovel.KINDS if shovels else {}
    for kind in kinds.values():
        if not options.quick:
            assert shovels is not None
            progress(f"warming up: {kind.title}")
            shovels.drain(kind, WARM_COUNT, SIZE)
    for number in range(options.rounds):
        say = f"round {number + 1} of {options.rounds}: {{}}".format
        for way, title in WAYS.items():
            progress(say(title))
            if way == "sdk":
                sample = stage.drain_with_the_sdk(result["sdk_count"])
            else:
                sample = stage.drain(movers[way], result["count"])
            samples.setdefault(title, []).append(sample)
        for kind in kinds.values():
            assert shovels is not None
            progress(say(kind.title))
            samples.setdefault(kind.title, []).append(shovels.drain(kind, result["count"], SIZE))
    return samples


def _figure(title: str, samples: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The medians of one way, and how the syphon compares with it in each round."""
    ours_, theirs = samples[WAYS["spark"]], samples[title]
    ratios = [one["rate"] / other["rate"] for one, other in zip(ours_, theirs, strict=True)]
    return {
        "title": title,
        "rate": statistics.median(sample["rate"] for sample in theirs),
        "rates": [sample["rate"] for sample in theirs],
        "ratio": statistics.median(ratios),
        "cost_us": {
            kind: statistics.median(sample["cost_us"].get(kind, 0.0) for sample in theirs)
            for kind in theirs[0]["cost_us"]
        },
    }


# --- the tables -----------------------------------------------------------------------------------


def tables(result: dict[str, Any]) -> Iterator[report.Table]:
    yield _rates(result)
    if result["counts"]:
        yield _costs(result)
    if result["counts"] and result["memory"]:
        yield _memory(result)
    yield _wakes(result)
    yield report.measured_on(result)


def _rates(result: dict[str, Any]) -> report.Table:
    table = report.Table(
        f"From {len(BACKLOGS)} backlog queues to {len(TARGETS)} queues: {result['count']:,} "
        f"messages of {result['size']} bytes (the loop on the SDK: {result['sdk_count']:,}), the "
        f"median of {result['rounds']} rounds (in brackets the slowest and the fastest), and "
        f"processor time per message; aims: {SDK_AIM:g} x the loop, and ahead of the Shovel",
        ["", "messages a second", "the syphon is", "moving", "primary", "secondary", "total"],
    )
    for number, figure in enumerate(result["ways"]):
        cost = figure["cost_us"]
        moving = sum(cost.get(kind, 0.0) for kind in MOVERS)
        parts = [moving, *(cost.get(kind, 0.0) for kind in BROKERS)]
        table.rows.append(
            [
                figure["title"],
                report.rate(figure),
                f"{figure['ratio']:.2f} x" if number else "",
                *(f"{part:.0f} us" if part else "" for part in parts),
                f"{sum(cost.values()):.0f} us",
            ]
        )
    return table


def _costs(result: dict[str, Any]) -> report.Table:
    kinds = MOVERS | BROKERS
    table = report.Table(
        "The syphon on Spark by the number of messages: processor time per message",
        ["messages", "a second", *kinds.values(), "total"],
    )
    for sample in result["counts"]:
        cost = sample["cost_us"]
        table.rows.append(
            [
                f"{sample['count']:,}",
                f"{sample['rate']:,.0f}",
                *(f"{cost[kind]:.1f} us" for kind in kinds),
                f"{sum(cost.values()):.0f} us",
            ]
        )
    return table


def _memory(result: dict[str, Any]) -> report.Table:
    kinds = MOVERS | BROKERS
    table = report.Table(
        "Resident memory: peak during such a drain (in brackets: just before it)",
        ["messages", *kinds.values()],
    )
    for sample in result["counts"]:
        before, peak = sample["before_mb"], sample["peak_mb"]
        table.rows.append(
            [
                f"{sample['count']:,}",
                *(f"{peak[kind]:.0f} MB ({before[kind]:.0f})" for kind in kinds),
            ]
        )
    return table


def _wakes(result: dict[str, Any]) -> report.Table:
    found = result["wakes"]
    return report.Table(
        "Time from sending a message to a backlog queue to its arrival, while the syphon waits "
        f"(aim {WAKE_AIM_SECONDS:g} s; a new session's first round: "
        f"{result['first_seconds']:.1f} s)",
        ["", "median", "shortest", "longest"],
        [
            [
                f"{len(found)} messages",
                *(f"{value:.2f} s" for value in (statistics.median(found), min(found), max(found))),
            ]
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
