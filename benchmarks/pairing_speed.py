"""A paired sender of the SDK next to a plain one, in turns, every call timed. Prints nothing.

The calls are made by a process of its own, this file as a program. The turns are short and their
order is shuffled, so that whatever else the machine does affects all alike. A turn of one sender is
compared with the turn of the plain one that was next to it, and the median of those ratios counts.
A second plain sender takes part: its difference from the first shows how precise the measurement
is. Messages are made before the clock starts; filling a batch counts, because a paired sender
fills a diverted one itself. At the end, the same with an SDK that stops short of the wire: the
additional processor time of the paired sender is then that of our own code, in a loop that keeps it
in the processor's caches.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import azure.servicebus._base_handler
import azure.servicebus.aio._base_handler_async
from azure.servicebus import ServiceBusMessage

import pairing_ends
from loop import LoadError
from pairing_ends import DISABLED, QUEUE, Ends

BUDGETS_US = {"healthy": 40.0, "diverted": 120.0}
"""By situation: the most processor time that our own part of a call with one message may take."""
SUBJECTS = ("plain", "paired", "plain again")
TURNS_MIN = 1
BARE_TURNS = 30


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    title: str
    per_call: int  # messages
    calls: int  # in a turn, which takes ten milliseconds or two
    bare_calls: int  # in a turn in which the SDK does nothing
    is_batch: bool = False


ROWS = (
    Row("single", "one message a call", 1, 20, 200),
    Row("list-10", "lists of 10", 10, 10, 20),
    Row("list-100", "lists of 100", 100, 3, 2),
    Row("batch-100", "batches of 100", 100, 3, 2, is_batch=True),
)
SITUATIONS = {"healthy": QUEUE, "diverted": DISABLED}
"""And the queue of the primary that the paired sender sends to."""


# --- the figures ----------------------------------------------------------------------------------


def run(
    ask: Callable[[str, Sequence[str], Sequence[Any]], dict[str, Any]],
    turns: Sequence[Sequence[str]],
    *,
    rounds: int,
    seconds: float,
    size: int,
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """`turns`: the shells that are asked at once, one after the other."""
    samples: dict[str, list[dict[str, Any]]] = {}
    for number in range(rounds):
        for shells in turns:
            progress(f"round {number + 1} of {rounds}: paired and plain, {', '.join(shells)}")
            options = ("--seconds", seconds, "--size", size)
            for shell, found in ask("pairing_speed.py", shells, options).items():
                samples.setdefault(shell, []).append(found)
    return [
        _figures(situation, shell, row, [found[situation][row.key] for found in each])
        for situation in BUDGETS_US
        for row in ROWS
        for shell, each in samples.items()
    ]


def _figures(situation: str, shell: str, row: Row, samples: list[dict[str, Any]]) -> dict[str, Any]:
    turns = {s: _Turns(row, [sample["subjects"][s] for sample in samples]) for s in SUBJECTS}
    plain = turns[SUBJECTS[0]]
    bare = [sample["bare"] for sample in samples if sample["bare"] is not None]
    least_us = {s: min(each[s] for each in bare) * 1e6 for s in (bare[0] if bare else ())}
    return {
        "situation": situation,
        "shell": shell,
        "key": row.key,
        "title": row.title,
        "turns": len(plain.seconds),
        "bare_us": least_us["paired"] - least_us["plain"] if bare else None,
        "figures": {subject: each.figure(plain) for subject, each in turns.items()},
    }


class _Turns:
    """All turns of one sender in one row, those of all rounds."""

    def __init__(self, row: Row, samples: list[dict[str, Any]]) -> None:
        turns = [turn for sample in samples for turn in sample["calls"]]
        self._row = row
        self._calls = sorted(call for turn in turns for call in turn)
        self._cpu = [cpu for sample in samples for cpu in sample["cpu"]]
        self.seconds = [sum(turn) for turn in turns]

    def figure(self, plain: _Turns) -> dict[str, Any]:
        calls = self._row.calls
        ratios = sorted(p / s for p, s in zip(plain.seconds, self.seconds, strict=True))
        extra = [(s - p) / calls for p, s in zip(plain.seconds, self.seconds, strict=True)]
        cpu = [(s - p) / calls for p, s in zip(plain._cpu, self._cpu, strict=True)]
        percentile = quantile(self._calls, 0.99)
        return {
            "rate": self._row.per_call * calls / statistics.median(self.seconds),
            "ratio": statistics.median(ratios),
            "ratio_interval": interval(ratios),
            "extra_us": statistics.median(extra) * 1e6,
            "extra_cpu_us": statistics.median(cpu) * 1e6,
            "call_us": quantile(self._calls, 0.5) * 1e6,
            "p99_us": percentile * 1e6,
            "p99_ratio": percentile / quantile(plain._calls, 0.99),
        }


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value that a share of all values does not exceed: of 100 values, the 99th for 0.99."""
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


def interval(ordered: Sequence[float]) -> tuple[float, float]:
    """Where the median would be in 95 of 100 repetitions, for any distribution."""
    half, reach = len(ordered) / 2, 0.98 * math.sqrt(len(ordered))
    low, high = math.floor(half - reach), math.ceil(half + reach)
    return ordered[max(0, low)], ordered[min(len(ordered) - 1, high)]


# --- the process ----------------------------------------------------------------------------------


class Record:
    """Every turn of one row, by subject."""

    def __init__(self, row: Row, size: int, seconds: float) -> None:
        self.row = row
        self._size = size
        self._seconds = seconds
        self._calls: dict[str, list[list[float]]] = {subject: [] for subject in SUBJECTS}
        self._cpu: dict[str, list[float]] = {subject: [] for subject in SUBJECTS}
        self._cpu_before = 0.0
        self._bare: dict[str, list[float]] = {subject: [] for subject in SUBJECTS[:2]}

    def turns(self) -> Iterator[str]:
        """Whose turn it is. The first of each is for warming up."""
        dice = random.Random(self.row.key)
        yield from SUBJECTS
        end = time.monotonic() + self._seconds
        number = 0
        while number < TURNS_MIN or time.monotonic() < end:
            yield from dice.sample(SUBJECTS, len(SUBJECTS))
            number += 1

    def loads(self) -> list[Any]:
        """What one turn sends, a call each; then the clock starts."""
        per_call = self.row.per_call
        made = [[self._message() for _ in range(per_call)] for _ in range(self.row.calls)]
        self._cpu_before = time.thread_time()
        return [load[0] for load in made] if self.row.key == "single" else made

    def took(self, subject: str, calls: list[float]) -> None:
        self._cpu[subject].append(time.thread_time() - self._cpu_before)
        self._calls[subject].append(calls)

    def bare_turns(self) -> Iterator[tuple[str, Any]]:
        """Whose turn it is, and what each of its calls sends, without reaching the wire."""
        calls = self.row.bare_calls
        for _ in range((BARE_TURNS if self._seconds else 1) if calls else 0):
            for subject, taken in self._bare.items():
                load = self.loads()[0]
                begun = time.thread_time()
                yield subject, load
                taken.append((time.thread_time() - begun) / calls)

    def found(self) -> dict[str, Any]:
        turns = {s: {"calls": self._calls[s][1:], "cpu": self._cpu[s][1:]} for s in SUBJECTS}
        bare = {s: min(taken) for s, taken in self._bare.items()} if self.row.bare_calls else None
        return {"subjects": turns, "bare": bare}

    def _message(self) -> ServiceBusMessage:
        return ServiceBusMessage(bytes(self._size))


Records = dict[str, list[Record]]
"""By situation."""


def main() -> None:
    parser = pairing_ends.parser(__doc__)
    parser.add_argument("--seconds", type=float, required=True, help="for each row")
    parser.add_argument("--size", type=int, required=True, help="bytes of a message's body")
    options = parser.parse_args()
    records = {
        situation: [Record(row, options.size, options.seconds) for row in ROWS]
        for situation in SITUATIONS
    }
    if options.shell == "blocking":
        _blocking(Ends.given(options), records)
    else:
        asyncio.run(_asyncio(Ends.given(options), records))


def _blocking(ends: Ends, records: Records) -> None:
    client = ends.unpaired(retry_total=0)
    client.pair_namespace(ends.options())
    senders = {
        (situation, subject): (
            client.get_queue_sender(SITUATIONS[situation])
            if subject == "paired"
            else ends.plain(_plain_end(ends, situation)).get_queue_sender(QUEUE)
        )
        for situation in SITUATIONS
        for subject in SUBJECTS
    }
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda sender: sender.__enter__(), senders.values()))
    for situation, each in records.items():
        for record in each:
            for subject in record.turns():
                record.took(subject, _turn(senders[situation, subject], record))
    _check(client.pairing)
    azure.servicebus._base_handler.BaseHandler._do_retryable_operation = lambda *_, **__: None
    for situation, each in records.items():
        for record in each:
            for subject, load in record.bare_turns():
                sender = senders[situation, subject]
                for _ in range(record.row.bare_calls):
                    _send(sender, load, is_batch=record.row.is_batch)
    _answer(records)


def _turn(sender: Any, record: Record) -> list[float]:
    is_batch, clock, calls = record.row.is_batch, time.perf_counter, []
    for load in record.loads():
        begun = clock()
        _send(sender, load, is_batch=is_batch)
        calls.append(clock() - begun)
    return calls


def _send(sender: Any, load: Any, *, is_batch: bool) -> None:
    if is_batch:
        batch = sender.create_message_batch()
        for message in load:
            batch.add_message(message)
        sender.send_messages(batch)
    else:
        sender.send_messages(load)


async def _asyncio(ends: Ends, records: Records) -> None:
    client = ends.aio_unpaired(retry_total=0)
    await client.pair_namespace(ends.aio_options())
    senders = {
        (situation, subject): (
            client.get_queue_sender(SITUATIONS[situation])
            if subject == "paired"
            else ends.aio_plain(_plain_end(ends, situation)).get_queue_sender(QUEUE)
        )
        for situation in SITUATIONS
        for subject in SUBJECTS
    }
    await asyncio.gather(*(sender.__aenter__() for sender in senders.values()))
    for situation, each in records.items():
        for record in each:
            for subject in record.turns():
                record.took(subject, await _asyncio_turn(senders[situation, subject], record))
    _check(client.pairing)

    async def nothing(*_: Any, **__: Any) -> None:
        pass

    azure.servicebus.aio._base_handler_async.BaseHandler._do_retryable_operation = nothing
    for situation, each in records.items():
        for record in each:
            for subject, load in record.bare_turns():
                sender = senders[situation, subject]
                for _ in range(record.row.bare_calls):
                    await _asyncio_send(sender, load, is_batch=record.row.is_batch)
    _answer(records)


async def _asyncio_turn(sender: Any, record: Record) -> list[float]:
    is_batch, clock, calls = record.row.is_batch, time.perf_counter, []
    for load in record.loads():
        begun = clock()
        await _asyncio_send(sender, load, is_batch=is_batch)
        calls.append(clock() - begun)
    return calls


async def _asyncio_send(sender: Any, load: Any, *, is_batch: bool) -> None:
    if is_batch:
        batch = await sender.create_message_batch()
        for message in load:
            batch.add_message(message)
        await sender.send_messages(batch)
    else:
        await sender.send_messages(load)


def _plain_end(ends: Ends, situation: str) -> str:
    return ends.primary if situation == "healthy" else ends.secondary


def _answer(records: Records) -> None:
    pairing_ends.answer(
        {
            situation: {record.row.key: record.found() for record in each}
            for situation, each in records.items()
        }
    )


def _check(pairing: Any) -> None:
    """A figure for messages that went elsewhere would be worse than none."""
    entities = {entity.path: entity for entity in pairing.status().entities}
    healthy, diverted = entities[SITUATIONS["healthy"]], entities[SITUATIONS["diverted"]]
    if healthy.diverted or diverted.sent or not (healthy.sent and diverted.diverted):
        raise LoadError(f"messages went the wrong way: {healthy}, {diverted}")


if __name__ == "__main__":
    main()
