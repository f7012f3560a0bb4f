"""How fast diverted messages come home, next to the obvious loop on the official SDK.

    python benchmarks/syphon.py            the whole table (about ten minutes)
    python benchmarks/syphon.py --quick    some seconds; figures without meaning

Both namespaces are brokers in processes of their own, durable, without TLS. After each drain the
primary's queues are emptied, and every message must have been there, once. Everything that was
started is stopped and deleted at the end, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import command
import ours
import report
import rows
from command import Progress
from load import DURABLE, data_section
from loop import LoadError
from pairbus.amqp.sections import read_property, slice_message
from pairbus.amqp.values import Int, encode
from pairbus.servicebus.fast import FastClient

SIZE = 500
COUNT = 20_000
# The loop on the SDK is so slow that its share is smaller; a rate is a rate.
SDK_SHARE = 5
BACKLOGS = tuple(f"bench/x-servicebus-transfer/{number}" for number in range(10))
TARGETS = tuple(f"orders-{number}" for number in range(5))
AIM = 10.0
"""Times the loop on the SDK."""
WAKES = 10
WAKE_AIM_SECONDS = 1.0
CORES = os.cpu_count() or 1


def main() -> int:
    parser = command.parser(__doc__)
    parser.add_argument(
        "--count", type=int, default=0, help=f"messages to bring home (default {COUNT:,})"
    )
    return command.main(parser, _run, tables)


def backlog_message(message_id: str, path: str) -> bytes:
    """As a paired sender diverts it."""
    properties = {"n": Int(1), "x-ms-path": path}
    head = b"\x00\x53\x73" + encode([message_id]) + b"\x00\x53\x74" + encode(properties)
    return DURABLE + head + data_section(bytes(SIZE))


# --- measuring ------------------------------------------------------------------------------------

WAYS = {
    "spark": "pairbus syphon, Spark local[2]",
    "here": "the same tasks in one process, without Spark",
    "sdk": f"a loop on the official SDK, {CORES} processes",
}


def _run(options: argparse.Namespace, base: Path, progress: Progress) -> dict[str, Any]:
    result = command.blank(options, base, SIZE)
    count = options.count or (1_000 if options.quick else COUNT)
    result["count"] = count
    result["sdk_count"] = max(count // SDK_SHARE // len(BACKLOGS), 1) * len(BACKLOGS)
    samples: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    progress("starting two namespaces")
    with (
        ours.broker(base / "primary", TARGETS) as primary,
        ours.broker(base / "secondary", BACKLOGS) as secondary,
    ):
        stage = _Stage(primary, secondary)
        for number in range(options.rounds):
            for way, title in WAYS.items():
                progress(f"round {number + 1} of {options.rounds}: {title}")
                some = result["sdk_count"] if way == "sdk" else count
                samples[way].append(stage.measure(way, some))
        progress("how long a message takes while nothing else is to be done")
        result["wakes"] = stage.wakes(2 if options.quick else WAKES)
    result["ways"] = {way: _figure(found) for way, found in samples.items()}
    return result


class _Stage:
    def __init__(self, primary: ours.Ours, secondary: ours.Ours) -> None:
        self._brokers = {"primary": primary, "secondary": secondary}
        self._texts = {
            name: f"{broker.connection_string};UseDevelopmentEmulator=true"
            for name, broker in self._brokers.items()
        }

    def measure(self, way: str, count: int) -> dict[str, float]:
        before: dict[str, float] = {}

        def fill() -> None:
            self._fill(count)
            before.update(self._cpu())

        groups = [BACKLOGS[n::CORES] for n in range(CORES)] if way == "sdk" else [BACKLOGS]
        each = count // len(BACKLOGS)
        counts = [each * len(group) for group in groups]
        answers = self._ask(way, groups, counts, fill)
        seconds = max(answer["seconds"] for answer in answers)
        spent = {name: used - before[name] for name, used in self._cpu().items()}
        self._check(count)
        return {
            "rate": count / seconds,
            "first_seconds": answers[0].get("first_seconds", 0.0),
            **{f"{name}_us": used / count * 1e6 for name, used in spent.items()},
        }

    def wakes(self, count: int) -> list[float]:
        more = ("--target", TARGETS[0])
        [answer] = self._ask("wakes", [BACKLOGS], [count], lambda: None, more)
        return list(answer["seconds"])

    def _cpu(self) -> dict[str, float]:
        return {name: rows.cpu_seconds(broker.pid) for name, broker in self._brokers.items()}

    def _fill(self, count: int) -> None:
        """Each backlog queue with messages for all targets, one after the other."""
        with FastClient.from_connection_string(self._texts["secondary"]) as client:
            for place, queue in enumerate(BACKLOGS):
                client.sender(queue).send(
                    [
                        backlog_message(f"{place}-{number}", TARGETS[number % len(TARGETS)])
                        for number in range(count // len(BACKLOGS))
                    ]
                )

    def _check(self, count: int) -> None:
        """Empties the primary: as many messages as were sent, and no two alike."""
        found: list[str] = []
        with FastClient.from_connection_string(self._texts["primary"]) as client:
            for target in TARGETS:
                receiver = client.receiver(target, credit=1_000, mode="receiveAndDelete")
                while received := receiver.receive(1_000, max_wait_seconds=0.3):
                    found += [_id(one.data) for one in received]
                found += [_id(one.data) for one in receiver.close()]
        if not len(found) == len(set(found)) == count:
            raise LoadError(
                f"{len(found)} messages came home, {len(set(found))} of them different, where "
                f"{count} were sent"
            )

    def _ask(
        self,
        way: str,
        groups: Sequence[Sequence[str]],
        counts: Sequence[int],
        fill: Callable[[], None],
        more: Sequence[str] = (),
    ) -> list[dict[str, Any]]:
        """All get ready, the queues are filled, and all begin."""
        processes = [
            subprocess.Popen(
                [
                    *(sys.executable, str(rows.HERE / "syphon_load.py"), way),
                    *("--primary", self._texts["primary"]),
                    *("--secondary", self._texts["secondary"]),
                    *("--queues", ",".join(group)),
                    *("--count", str(count), *more),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=ours.environment(),
                start_new_session=True,
                text=True,
            )
            for group, count in zip(groups, counts, strict=True)
        ]
        try:
            for process in processes:
                if _line(process, way).strip() != "ready":
                    raise LoadError(f"{way}: not ready")
            fill()
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            return [json.loads(_line(process, way)) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.communicate()


def _line(process: subprocess.Popen[str], what: str) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.kill()
        _, said = process.communicate()
        raise LoadError(f"{what}: {said.strip()[-600:] or 'no answer'}")
    return line


def _id(data: bytes) -> str:
    parts = slice_message(data)
    return str(read_property(parts.bare, parts.properties, 0))


def _figure(samples: list[dict[str, float]]) -> dict[str, Any]:
    rates = [sample["rate"] for sample in samples]
    return {
        "rate": statistics.median(rates),
        "rates": rates,
        "primary_us": statistics.median(sample["primary_us"] for sample in samples),
        "first_seconds": statistics.median(sample["first_seconds"] for sample in samples),
        "secondary_us": statistics.median(sample["secondary_us"] for sample in samples),
    }


# --- the tables -----------------------------------------------------------------------------------


def tables(result: dict[str, Any]) -> Iterator[report.Table]:
    yield _rates(result)
    yield _wakes(result)
    yield report.measured_on(result)


def _rates(result: dict[str, Any]) -> report.Table:
    ways = result["ways"]
    table = report.Table(
        f"Home from {len(BACKLOGS)} backlog queues to {len(TARGETS)} queues: {result['count']:,} "
        f"messages of {result['size']} bytes (the loop on the SDK: {result['sdk_count']:,}), the "
        f"median of {result['rounds']} rounds (in brackets the slowest and the fastest)",
        ["", "messages a second", f"the syphon is (aim {AIM:g} x)", "primary", "secondary",
         "first round"],
    )  # fmt: skip
    for way, title in WAYS.items():
        figure = ways[way]
        table.rows.append(
            [
                title,
                report.rate(figure),
                "" if way == "spark" else f"{ways['spark']['rate'] / figure['rate']:.1f} x",
                f"{figure['primary_us']:.0f} us",
                f"{figure['secondary_us']:.0f} us",
                f"{figure['first_seconds']:.1f} s" if figure["first_seconds"] else "",
            ]
        )
    return table


def _wakes(result: dict[str, Any]) -> report.Table:
    found = result["wakes"]
    return report.Table(
        "From the sending of a message to a backlog queue to its arrival, while the syphon waits "
        f"(aim {WAKE_AIM_SECONDS:g} s)",
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
