"""How many messages a second a rule's filter looks at, in this process, with no broker around it.

Facts are what a filter sees of a message. They are decoded once per message and serve all rules of
a topic, so there are two figures: the filter alone, as for the second and every further
subscription, and with facts that are read from the message's bytes first, as for the first.
Prints JSON: it is run by topics.py, with this checkout's code, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

from fanout import TYPICAL
from load import described_message
from pairbus.amqp.codec.sections import Parts, slice_message
from pairbus.broker.rules import CorrelationFilter, Facts, Filter, SqlFilter, compile_filter

OTHER = "customer LIKE 'c-%' AND NOT (amount * 2 > 500)"
FILTERS: dict[str, Filter] = {
    TYPICAL: SqlFilter(TYPICAL),
    OTHER: SqlFilter(OTHER),
    "correlation: label and one property": CorrelationFilter(
        label="order", properties={"region": "us"}
    ),
}
REPEATS = 3


def rate(work: Callable[[int], None], count: int) -> float:
    """The best of some tries: whatever else the machine does can only make it slower."""
    best = 0.0
    for _ in range(REPEATS):
        begun = time.perf_counter()
        work(count)
        best = max(best, count / (time.perf_counter() - begun))
    return best


def measure(name: str, description: Filter, parts: Parts, count: int) -> dict[str, object]:
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
        "rate": rate(alone, count),
        "rate_with_decoding": rate(with_decoding, count // 10),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500_000)
    parser.add_argument("--size", type=int, default=500)
    options = parser.parse_args()
    parts = slice_message(described_message(options.size))
    found = [measure(name, each, parts, options.count) for name, each in FILTERS.items()]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
