"""What a topic costs: messages to 1, 10 and 50 subscriptions, next to a queue of the same broker.

Every message is the same, properties and all, also for the queue; so a ratio to the queue is what
copies and filters cost and nothing else. All topics are in one broker and take turns. What is sent
is kept but for one subscription of each topic, which is emptied in the last row.

It also measures how many messages a second a rule's filter checks, in this process, without a
broker. Facts are what a filter sees of a message. They are decoded once per message and serve all
rules of a topic, so there are two figures: the filter alone, as for the second and every further
subscription, and with facts that are read from the message's bytes first, as for the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ours
import rows
from load import described_message
from pairbus.amqp.codec.sections import Parts, slice_message
from pairbus.broker.rules import CorrelationFilter, Facts, Filter, SqlFilter, compile_filter

FIRST = "s0"
TYPICAL = "sys.Label = 'order' AND amount > 100 AND region IN ('eu', 'us')"
"""Matches the message of load.py."""
OTHER = "sys.Label = 'order' AND amount > 100 AND region IN ('r{0}a', 'r{0}b')"
ROWS = (
    rows.Row("single", "sent singly, 64 in flight", flight=64),
    rows.Row("batch", "sent in batches of 100, 10 in flight", flight=1_000, batch=100),
    rows.Row("receive", "received from one of them, credit 500", credit=500),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A queue (no subscriptions), or a topic: how many there are, and how many take a message."""

    name: str
    title: str
    subscriptions: int = 0
    copies: int = 1
    has_filters: bool = False

    @property
    def topic(self) -> ours.Topic:
        return ours.Topic(self.name, {f"s{n}": self._filter(n) for n in range(self.subscriptions)})

    def _filter(self, number: int) -> str | None:
        if not self.has_filters:
            return None
        return TYPICAL if number < self.copies else OTHER.format(number)

    def subject(self, broker: ours.Ours) -> rows.Subject:
        path = f"{self.name}/Subscriptions/{FIRST}" if self.subscriptions else self.name
        return rows.Subject(
            name=self.title,
            script="load.py",
            pid=broker.pid,
            arguments=(
                *("--port", str(broker.port), "--user", broker.user),
                *("--password", broker.password, "--two-phase", "--described"),
                *("--address", self.name, "--receive-from", path),
            ),
            batches=True,
        )


def _shapes() -> list[Shape]:
    shapes = [Shape("queue", "a queue")]
    for count in (1, 10, 50):
        plural = "s" if count > 1 else ""
        shapes.append(Shape(f"plain-{count}", f"{count} subscription{plural}", count, count))
        title = f"{count} with SQL filter{plural}"
        shapes.append(Shape(f"sql-{count}", title, count, count, has_filters=True))
        if count > 1:
            title += ", one matches"
            shapes.append(Shape(f"one-of-{count}", title, count, 1, has_filters=True))
    return shapes


SHAPES = _shapes()


@dataclass(frozen=True, slots=True)
class Counts:
    """How many messages; a topic with many copies gets fewer, or it would take minutes."""

    single: int
    batch: int
    copies_max: int
    """Of one row. Never fewer messages than are in flight at once, though."""

    def of(self, row: rows.Row, shape: Shape) -> int:
        if row.key == "receive":
            return sum(self.of(sent, shape) for sent in ROWS[:2])
        wanted = int(getattr(self, row.key))
        return max(min(wanted, self.copies_max // shape.copies // 100 * 100), row.flight, 100)


FULL = Counts(single=20_000, batch=60_000, copies_max=150_000)
QUICK = Counts(single=100, batch=100, copies_max=100)


def run(
    folder: Path, counts: Counts, rounds: int, size: int, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    samples: dict[tuple[str, str], list[rows.Sample]] = {}
    topics = [shape.topic for shape in SHAPES if shape.subscriptions]
    with ours.broker(folder, [SHAPES[0].name], topics) as broker:
        # A broker that has just started is slower, and the queue, being first, would pay for it.
        for row in (ROWS[0], ROWS[2]):
            rows.measure(SHAPES[0].subject(broker), row, counts.single // 4, size)
        for number in range(rounds):
            for shape in SHAPES:
                subject = shape.subject(broker)
                for row in ROWS:
                    progress(f"round {number + 1} of {rounds}: {shape.title}, {row.title}")
                    sample = rows.measure(subject, row, counts.of(row, shape), size)
                    samples.setdefault((row.key, shape.name), []).append(sample)
    return [_row(row, samples) for row in ROWS]


def _row(row: rows.Row, samples: dict[tuple[str, str], list[rows.Sample]]) -> dict[str, Any]:
    figures = {shape.name: rows.summary(samples[row.key, shape.name]) for shape in SHAPES}
    queue = figures[SHAPES[0].name].rate
    found = []
    for shape in SHAPES:
        figure = figures[shape.name]
        # Of what is received there is one subscription's copy.
        copies = 1 if row.key == "receive" else shape.copies
        found.append(
            {
                "shape": shape.name,
                "title": shape.title,
                "subscriptions": shape.subscriptions,
                "copies": copies,
                "figure": asdict(figure) | {"generator_share": figure.generator_share},
                "ratio": figure.rate / queue,
                "copies_ratio": figure.rate * copies / queue,
            }
        )
    return {"key": row.key, "title": row.title, "figures": found}


# --- filters --------------------------------------------------------------------------------------


ARITHMETIC = "customer LIKE 'c-%' AND NOT (amount * 2 > 500)"
FILTERS: dict[str, Filter] = {
    TYPICAL: SqlFilter(TYPICAL),
    ARITHMETIC: SqlFilter(ARITHMETIC),
    "correlation: label and one property": CorrelationFilter(
        label="order", properties={"region": "us"}
    ),
}
REPEATS = 3


def _rate(work: Callable[[int], None], count: int) -> float:
    """The best of some tries: whatever else the machine does can only make it slower."""
    best = 0.0
    for _ in range(REPEATS):
        begun = time.perf_counter()
        work(count)
        best = max(best, count / (time.perf_counter() - begun))
    return best


def _measure(name: str, description: Filter, parts: Parts, count: int) -> dict[str, object]:
    matches = compile_filter(description)
    facts = Facts.from_parts(parts)
    if not matches(facts):
        raise AssertionError(f"{name!r} does not match the message it is measured with")

    def alone(times: int) -> None:
        for _ in range(times):
            matches(facts)

    def with_decoding(times: int) -> None:
        for number in range(times):
            matches(Facts.from_parts(parts, sequence=number, enqueued_ms=number))

    return {
        "filter": name,
        "rate": _rate(alone, count),
        "rate_with_decoding": _rate(with_decoding, count // 10),
    }


def run_filters(count: int, size: int) -> list[dict[str, object]]:
    parts = slice_message(described_message(size))
    return [_measure(name, each, parts, count) for name, each in FILTERS.items()]
