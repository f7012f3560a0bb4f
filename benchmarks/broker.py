"""How fast the broker is, next to RabbitMQ on the same machine in the same run.

    python benchmarks/broker.py            the whole table (about five minutes)
    python benchmarks/broker.py --deep     also a queue of a million messages
    python benchmarks/broker.py --quick    some seconds; figures without meaning

Every broker is a process of its own, durable, with each send acknowledged and each receipt
settled. All brokers run from the start and take turns, so that a busy moment of the machine hits
each of them. Everything that was started is stopped and deleted at the end, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import command
import floors
import native
import ours
import rabbitmq
import report
import rows
from command import Progress
from loop import LoadError

FULL = rows.Counts(single=40_000, batch=120_000, both=40_000)
QUICK = rows.Counts(single=300, batch=500, both=300)
DEPTHS = [10_000, 100_000, 1_000_000]
SIZE = 500
STARTS = 5
DEEP_SIZE = 1_000
# Batches of 50 fit into one frame.
FILL = rows.Row("fill", "fill the queue", flight=1_000, batch=50)
SEND, RECEIVE = rows.ROWS[0], rows.ROWS[2]


def main() -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--deep", action="store_true", help="also a queue of a million messages")
    parser.add_argument("--only-deep", action="store_true", help="nothing but that")
    parser.add_argument("--alone", action="store_true", help="without RabbitMQ")
    return command.main(parser, _run, report.tables)


def _run(options: argparse.Namespace, base: Path, progress: Progress) -> dict[str, Any]:
    result = command.blank(options, base, SIZE)
    result |= {"subjects": [], "rows": [], "process": {}, "floors": [], "deep": None}
    if not options.only_deep:
        progress("the floor")
        scale = 1_000 if options.quick else 50_000
        found = floors.sqlite_floor(base / "floor", messages=scale, size=SIZE)
        found += floors.amqp_floor(messages=scale, size=SIZE)
        result["floors"] = [asdict(floor) for floor in found]
        _compare(options, base, progress, result)
    if options.deep or options.only_deep:
        depths, probe = ([1_000, 3_000], 300) if options.quick else (DEPTHS, 10_000)
        result["deep"] = _run_deep(base / "deep", depths, probe, progress)
    return result


def _compare(
    options: argparse.Namespace, base: Path, progress: Progress, result: dict[str, Any]
) -> None:
    counts = QUICK if options.quick else FULL
    progress("starting pairbus")
    startups = _startups(base, 1 if options.quick else STARTS)
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(ours.broker(base / "pairbus", [rows.QUEUE]))
        idle = rows.resident_mb(broker.pid)
        seconds = statistics.median([*startups, broker.startup_seconds])
        result["process"]["pairbus"] = {"startup_seconds": seconds, "idle_mb": idle}
        subjects = [_our_subject(broker)]
        if not options.alone:
            try:
                progress("starting RabbitMQ")
                subjects += stack.enter_context(_peers(base / "rabbitmq", result))
            except rabbitmq.PeerMissing as missing:
                result["notes"].append(f"measured without a peer. {missing}")
        samples = _rounds(subjects, counts, options.rounds, progress)
    result["subjects"] = [subject.name for subject in subjects]
    result["rows"] = [_row(row, subjects, samples) for row in rows.ROWS]


def _startups(base: Path, count: int) -> list[float]:
    """Starts on fresh folders, before anything else runs. The first may have to compile."""
    seconds = []
    for number in range(count):
        with ours.broker(base / f"start-{number}", [rows.QUEUE]) as broker:
            seconds.append(broker.startup_seconds)
    return seconds


@contextlib.contextmanager
def _peers(folder: Path, result: dict[str, Any]) -> Iterator[list[rows.Subject]]:
    rabbitmq.install()
    with rabbitmq.node(folder) as node:
        result["machine"]["RabbitMQ"] = node.version
        result["process"]["RabbitMQ"] = {
            "startup_seconds": node.startup_seconds,
            "idle_mb": rows.resident_mb(node.pid),
        }
        yield [subject for kind in rabbitmq.QUEUE_KINDS for subject in _peer_subjects(node, kind)]


def _remake(node: rabbitmq.Node, kind: str) -> None:
    channel = native.Channel(node.port, rabbitmq.USER, rabbitmq.PASSWORD)
    channel.delete(kind.encode())
    channel.declare(kind.encode(), kind.encode())
    channel.close()


def _peer_subjects(node: rabbitmq.Node, kind: str) -> Iterator[rows.Subject]:
    login = ("--user", rabbitmq.USER, "--password", rabbitmq.PASSWORD)
    for protocol, script, queue in (
        ("1.0", "load.py", ("--address", f"/amq/queue/{kind}")),
        ("0-9-1", "native.py", ("--queue", kind)),
    ):
        yield rows.Subject(
            name=f"RabbitMQ {protocol}, {kind} queue",
            script=script,
            pid=node.pid,
            arguments=("--port", str(node.port), *login, *queue),
            batches=False,
            empty=partial(_remake, node, kind),
        )


def _rounds(
    subjects: list[rows.Subject], counts: rows.Counts, rounds: int, progress: Progress
) -> dict[tuple[str, str], list[rows.Sample]]:
    samples: dict[tuple[str, str], list[rows.Sample]] = {}
    for number in range(rounds):
        for subject in subjects:
            for row in rows.ROWS:
                progress(f"round {number + 1} of {rounds}: {subject.name}, {row.title}")
                sample = rows.measure(subject, row, counts.of(row), SIZE)
                samples.setdefault((subject.name, row.key), []).append(sample)
    return samples


def _row(
    row: rows.Row,
    subjects: list[rows.Subject],
    samples: dict[tuple[str, str], list[rows.Sample]],
) -> dict[str, Any]:
    figures = {subject.name: rows.summary(samples[subject.name, row.key]) for subject in subjects}
    us = figures["pairbus"].rate
    return {
        "key": row.key,
        "title": row.title,
        "aim": row.aim,
        "figures": {
            name: asdict(figure) | {"generator_share": figure.generator_share}
            for name, figure in figures.items()
        },
        "ratios": {name: us / f.rate for name, f in figures.items() if name != "pairbus"},
    }


def _our_subject(broker: ours.Ours) -> rows.Subject:
    return rows.Subject(
        name="pairbus",
        script="load.py",
        pid=broker.pid,
        arguments=(
            *("--port", str(broker.port), "--user", broker.user, "--password", broker.password),
            *("--address", rows.QUEUE, "--two-phase"),
        ),
        batches=True,
    )


# --- a deep queue ---------------------------------------------------------------------------------


def _run_deep(folder: Path, depths: list[int], probe: int, progress: Progress) -> dict[str, Any]:
    """Whether a message costs the same in a queue of ten thousand and of a million.

    The queue is filled step by step; at each depth some messages are sent and as many received, so
    that the depth stays. At the end the broker is stopped and started again on its full data file.
    Bodies belong on disk, so memory is noted at each depth as well.
    """
    if depths != sorted(depths) or any(depth % 100 for depth in depths):
        raise ValueError(f"depths must rise and be multiples of 100: {depths}")
    steps, filled = [], 0
    with ours.broker(folder, [rows.QUEUE]) as broker:
        subject = _our_subject(broker)
        for depth in depths:
            progress(f"a queue of {depth:,}")
            rows.measure(subject, FILL, depth - filled, DEEP_SIZE)
            filled = depth
            send = rows.summary([rows.measure(subject, SEND, probe, DEEP_SIZE)])
            receive = rows.summary([rows.measure(subject, RECEIVE, probe, DEEP_SIZE)])
            memory = rows.resident_mb(broker.pid)
            steps.append(
                {
                    "depth": depth,
                    "send": asdict(send),
                    "receive": asdict(receive),
                    "memory_mb": memory,
                }
            )
    progress("starting again on the full file")
    with ours.broker(folder, [rows.QUEUE]) as broker:
        memory = rows.resident_mb(broker.pid)
        receive = rows.summary([rows.measure(_our_subject(broker), RECEIVE, probe, DEEP_SIZE)])
        restart = {
            "startup_seconds": broker.startup_seconds,
            "memory_mb": memory,
            "receive": asdict(receive),
        }
    if not steps:
        raise LoadError("no depth was measured")
    return {"size": DEEP_SIZE, "probe": probe, "steps": steps, "restart": restart}


if __name__ == "__main__":
    sys.exit(main())
