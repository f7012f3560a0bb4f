"""The tables of the syphon's benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import report
from syphon_stage import BACKLOGS, TARGETS

SDK_AIM = 10.0
WAKE_AIM_SECONDS = 1.0
MOVERS = {"driver": "driver, Python", "java": "driver, Java", "workers": "workers"}
BROKERS = {"primary": "primary", "secondary": "secondary"}


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
        has_parts = "node" not in cost
        parts = [moving, *(cost.get(kind, 0.0) for kind in BROKERS)]
        table.rows.append(
            [
                figure["title"],
                report.rate(figure),
                f"{figure['ratio']:.2f} x" if number else "",
                *(f"{part:.0f} us" if has_parts else "" for part in parts),
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
