"""Sends through a plain sender of the SDK and a paired one, in turns, and times every call.

Run by pairing.py as a process of its own. The turns are short and their order is shuffled, so that
whatever else the machine does hits all alike. A second plain sender takes part: what it differs by
from the first is what the measurement is worth. Messages are made before the clock starts; filling
a batch counts, for a paired sender's batch is one of ours. At the end, the same with an SDK that
sends nothing: what is left is our own code, in a loop that keeps it in the processor's caches.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import azure.servicebus
import azure.servicebus.aio
from azure.servicebus import ServiceBusMessage

import pairing_ends
from loop import LoadError
from pairing_ends import DISABLED, QUEUE, Ends

SUBJECTS = ("plain", "paired", "plain again")
TURNS_MIN = 2
BARE_CALLS = {"single": 400, "list-10": 100, "list-100": 10}
BARE_TURNS = 15


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    title: str
    per_call: int  # messages
    calls: int  # in a turn, which takes ten milliseconds or two
    is_batch: bool = False


ROWS = (
    Row("single", "one message a call", 1, 20),
    Row("list-10", "lists of 10", 10, 10),
    Row("list-100", "lists of 100", 100, 3),
    Row("batch-100", "batches of 100", 100, 3, is_batch=True),
)
SITUATIONS = ("healthy", "diverted")


class Record:
    """Every turn of one row, by subject."""

    def __init__(self, row: Row, size: int, seconds: float) -> None:
        self.row = row
        self._size = size
        self._seconds = seconds
        self._calls: dict[str, list[list[float]]] = {subject: [] for subject in SUBJECTS}
        self._cpu: dict[str, list[float]] = {subject: [] for subject in SUBJECTS}
        self._cpu_before = 0.0

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

    def found(self) -> dict[str, Any]:
        return {s: {"calls": self._calls[s][1:], "cpu": self._cpu[s][1:]} for s in SUBJECTS}

    def _message(self) -> ServiceBusMessage:
        return ServiceBusMessage(bytes(self._size))


def main() -> None:
    parser = pairing_ends.parser(__doc__)
    parser.add_argument("--situation", choices=SITUATIONS, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="for each row")
    parser.add_argument("--size", type=int, required=True, help="bytes of a message's body")
    options = parser.parse_args()
    ends = Ends.given(options)
    records = [Record(row, options.size, options.seconds) for row in ROWS]
    if options.shell == "blocking":
        _blocking(ends, options.situation, records)
    else:
        asyncio.run(_asyncio(ends, options.situation, records))


def _whither(ends: Ends, situation: str) -> tuple[str, str]:
    """Where the plain senders send to, and the queue of the primary that the paired one does."""
    return (ends.primary, QUEUE) if situation == "healthy" else (ends.secondary, DISABLED)


def _blocking(ends: Ends, situation: str, records: list[Record]) -> None:
    end, queue = _whither(ends, situation)
    paired = ends.unpaired(retry_total=0)
    paired.pair_namespace(ends.options())
    senders = {
        "plain": ends.plain(end).get_queue_sender(QUEUE),
        "paired": paired.get_queue_sender(queue),
        "plain again": ends.plain(end).get_queue_sender(QUEUE),
    }
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda sender: sender.__enter__(), senders.values()))
    for record in records:
        for subject in record.turns():
            record.took(subject, _turn(senders[subject], record))
    _check(paired.pairing, queue, situation)
    azure.servicebus.ServiceBusSender.send_messages = lambda *_, **__: None
    bare = {key: [] for key in BARE_CALLS}
    for _ in range(BARE_TURNS):
        for record in records[: len(bare)]:
            calls = BARE_CALLS[record.row.key]
            load = record.loads()[0]
            begun = time.perf_counter()
            for _ in range(calls):
                senders["paired"].send_messages(load)
            bare[record.row.key].append((time.perf_counter() - begun) / calls)
    _answer(records, bare)


def _turn(sender: Any, record: Record) -> list[float]:
    is_batch, clock, calls = record.row.is_batch, time.perf_counter, []
    for load in record.loads():
        begun = clock()
        if is_batch:
            batch = sender.create_message_batch()
            for message in load:
                batch.add_message(message)
            sender.send_messages(batch)
        else:
            sender.send_messages(load)
        calls.append(clock() - begun)
    return calls


async def _asyncio(ends: Ends, situation: str, records: list[Record]) -> None:
    end, queue = _whither(ends, situation)
    paired = ends.aio_unpaired(retry_total=0)
    await paired.pair_namespace(ends.aio_options())
    senders = {
        "plain": ends.aio_plain(end).get_queue_sender(QUEUE),
        "paired": paired.get_queue_sender(queue),
        "plain again": ends.aio_plain(end).get_queue_sender(QUEUE),
    }
    await asyncio.gather(*(sender.__aenter__() for sender in senders.values()))
    for record in records:
        for subject in record.turns():
            record.took(subject, await _asyncio_turn(senders[subject], record))
    _check(paired.pairing, queue, situation)

    async def nothing(*_: Any, **__: Any) -> None:
        pass

    azure.servicebus.aio.ServiceBusSender.send_messages = nothing
    bare = {key: [] for key in BARE_CALLS}
    for _ in range(BARE_TURNS):
        for record in records[: len(bare)]:
            calls = BARE_CALLS[record.row.key]
            load = record.loads()[0]
            begun = time.perf_counter()
            for _ in range(calls):
                await senders["paired"].send_messages(load)
            bare[record.row.key].append((time.perf_counter() - begun) / calls)
    _answer(records, bare)


async def _asyncio_turn(sender: Any, record: Record) -> list[float]:
    is_batch, clock, calls = record.row.is_batch, time.perf_counter, []
    for load in record.loads():
        begun = clock()
        if is_batch:
            batch = await sender.create_message_batch()
            for message in load:
                batch.add_message(message)
            await sender.send_messages(batch)
        else:
            await sender.send_messages(load)
        calls.append(clock() - begun)
    return calls


def _answer(records: list[Record], bare: dict[str, list[float]]) -> None:
    rows = {record.row.key: record.found() for record in records}
    pairing_ends.answer({"rows": rows, "bare": {key: min(bare[key]) for key in bare}})


def _check(pairing: Any, queue: str, situation: str) -> None:
    """A figure of the wrong way would be worse than none."""
    [entity] = [each for each in pairing.status().entities if each.path == queue]
    went, stayed = (entity.sent, entity.diverted)[:: 1 if situation == "healthy" else -1]
    if stayed or not went:
        raise LoadError(
            f"{queue}, {situation}: {entity.sent} messages went to the primary and "
            f"{entity.diverted} to the backlog"
        )


if __name__ == "__main__":
    main()
