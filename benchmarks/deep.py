"""Whether a message costs the same in a queue of ten thousand and of a million.

The queue is filled step by step; at each depth some messages are sent and as many received, so that
the depth stays. At the end the broker is stopped and started again on its full data file. Bodies
belong on disk, so memory is noted at each depth as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ours
import rows
from loop import LoadError

SIZE = 1_000
# Batches of 50 fit into one frame.
FILL = rows.Row("fill", "fill the queue", flight=1_000, batch=50)
SEND, RECEIVE = rows.ROWS[0], rows.ROWS[2]


def run(
    folder: Path, depths: list[int], probe: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    if depths != sorted(depths) or any(depth % 100 for depth in depths):
        raise ValueError(f"depths must rise and be multiples of 100: {depths}")
    steps, filled = [], 0
    with ours.broker(folder, [rows.QUEUE]) as broker:
        subject = our_subject(broker)
        for depth in depths:
            progress(f"a queue of {depth:,}")
            rows.measure(subject, FILL, depth - filled, SIZE)
            filled = depth
            send = rows.summary([rows.measure(subject, SEND, probe, SIZE)])
            receive = rows.summary([rows.measure(subject, RECEIVE, probe, SIZE)])
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
        receive = rows.summary([rows.measure(our_subject(broker), RECEIVE, probe, SIZE)])
        restart = {
            "startup_seconds": broker.startup_seconds,
            "memory_mb": memory,
            "receive": asdict(receive),
        }
    if not steps:
        raise LoadError("no depth was measured")
    return {"size": SIZE, "probe": probe, "steps": steps, "restart": restart}


def our_subject(broker: ours.Ours) -> rows.Subject:
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
