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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import command
import ours
import report
import rows
from command import Progress
from load import DURABLE, data_section
from loop import LoadError
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
                # Whole hundreds for each queue.
                some = count if way != "sdk" else max(count // SDK_SHARE // 1_000, 1) * 1_000
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
        ids = self._fill(count)
        before = self._cpu()
        groups = [BACKLOGS[n::CORES] for n in range(CORES)] if way == "sdk" else [BACKLOGS]
        answers = self._ask(way, groups, count // len(BACKLOGS))
        seconds = max(answer["seconds"] for answer in answers)
        spent = {name: used - before[name] for name, used in self._cpu().items()}
        self._check(ids)
        return {
            "rate": count / seconds,
            **{f"{name}_us": used / count * 1e6 for name, used in spent.items()},
        }

    def wakes(self, count: int) -> list[float]:
        [answer] = self._ask("wakes", [BACKLOGS], count, "--target", TARGETS[0], share=False)
        return list(answer["seconds"])

    def _cpu(self) -> dict[str, float]:
        return {name: rows.cpu_seconds(broker.pid) for name, broker in self._brokers.items()}

    def _fill(self, count: int) -> set[str]:
        """Each backlog queue with messages for all targets, one after the other."""
        ids: set[str] = set()
        with FastClient.from_connection_string(self._texts["secondary"]) as client:
            for place, queue in enumerate(BACKLOGS):
                named = [f"{place}-{number}" for number in range(count // len(BACKLOGS))]
                ids.update(named)
                client.sender(queue).send(
                    [
                        backlog_message(name, TARGETS[number % len(TARGETS)])
                        for number, name in enumerate(named)
                    ]
                )
        return ids

    def _check(self, ids: set[str]) -> None:
        """Empties the primary: every message once."""
        found = 0
        with FastClient.from_connection_string(self._texts["primary"]) as client:
            for target in TARGETS:
                receiver = client.receiver(target, credit=1_000, mode="receiveAndDelete")
                while received := receiver.receive(1_000, max_wait_seconds=0.3):
                    found += len(received)
                found += len(receiver.close())
        if found != len(ids):
            raise LoadError(f"{found} messages came home where {len(ids)} were sent")

    def _ask(
        self,
        way: str,
        groups: Sequence[Sequence[str]],
        count: int,
        *more: str,
        share: bool = True,
    ) -> list[dict[str, Any]]:
        """All get ready, then all begin."""
        processes = [
            subprocess.Popen(
                [
                    *(sys.executable, str(rows.HERE / "syphon_load.py"), way),
                    *("--primary", self._texts["primary"]),
                    *("--secondary", self._texts["secondary"]),
                    *("--queues", ",".join(group)),
                    *("--count", str(count * len(group) if share else count), *more),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=ours.environment(),
                start_new_session=True,
                text=True,
            )
            for group in groups
        ]
        try:
            for process in processes:
                if _line(process, way).strip() != "ready":
                    raise LoadError(f"{way}: not ready")
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


def _figure(samples: list[dict[str, float]]) -> dict[str, Any]:
    rates = [sample["rate"] for sample in samples]
    return {
        "rate": statistics.median(rates),
        "rates": rates,
        "primary_us": statistics.median(sample["primary_us"] for sample in samples),
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
        f"messages of {result['size']} bytes (the loop on the SDK: a {SDK_SHARE}th of them), the "
        f"median of {result['rounds']} rounds (in brackets the slowest and the fastest)",
        ["", "messages a second", f"the syphon is (aim {AIM:g} x)", "primary", "secondary"],
    )
    for way, title in WAYS.items():
        figure = ways[way]
        table.rows.append(
            [
                title,
                report.rate(figure),
                "" if way == "spark" else f"{ways['spark']['rate'] / figure['rate']:.1f} x",
                f"{figure['primary_us']:.0f} us",
                f"{figure['secondary_us']:.0f} us",
            ]
        )
    return table


def _wakes(result: dict[str, Any]) -> report.Table:
    found = result["wakes"]
    return report.Table(
        "From the backlog's acceptance of a message to its arrival, while the syphon waits "
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
