"""Many senders of one client at once, paired and plain, to a namespace that is a round trip away.

Run by distance.py as a process of its own. Each sender sends one message after the other and times
every call. Links are open and the pool is warm before the clock starts.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from azure.servicebus import ServiceBusMessage

import pairing_ends
from pairing_ends import DISABLED, QUEUE, Ends
from pairing_speed import quantile

SIZE = 500


def main() -> None:
    parser = pairing_ends.parser(__doc__)
    parser.add_argument("--senders", type=int, required=True)
    parser.add_argument("--sends", type=int, required=True, help="of each sender")
    options = parser.parse_args()
    ends, work = Ends.given(options), (options.senders, options.sends)
    measure = _blocking if options.shell == "blocking" else _asyncio_run
    pairing_ends.answer({"senders": options.senders, **measure(ends, *work)})


def _blocking(ends: Ends, count: int, sends: int) -> dict[str, Any]:
    client, plain = ends.unpaired(retry_total=0), ends.plain(ends.secondary)
    client.pair_namespace(ends.options())
    found = {}
    for subject, senders in (
        ("paired", [client.get_queue_sender(DISABLED) for _ in range(count)]),
        ("plain", [plain.get_queue_sender(QUEUE) for _ in range(count)]),
    ):
        with ThreadPoolExecutor(count) as pool:

            def send(sender: Any, times: int) -> list[float]:
                return [_timed(sender) for _ in range(times)]

            list(pool.map(lambda sender: send(sender, 2), senders))
            begun = time.perf_counter()
            calls = list(pool.map(lambda sender: send(sender, sends), senders))
            found[subject] = _figures(calls, time.perf_counter() - begun)
    return found


def _timed(sender: Any) -> float:
    begun = time.perf_counter()
    sender.send_messages(ServiceBusMessage(bytes(SIZE)))
    return time.perf_counter() - begun


def _asyncio_run(ends: Ends, count: int, sends: int) -> dict[str, Any]:
    return asyncio.run(_asyncio(ends, count, sends))


async def _asyncio(ends: Ends, count: int, sends: int) -> dict[str, Any]:
    client, plain = ends.aio_unpaired(retry_total=0), ends.aio_plain(ends.secondary)
    await client.pair_namespace(ends.aio_options())
    found = {}
    for subject, senders in (
        ("paired", [client.get_queue_sender(DISABLED) for _ in range(count)]),
        ("plain", [plain.get_queue_sender(QUEUE) for _ in range(count)]),
    ):

        async def send(sender: Any, times: int) -> list[float]:
            return [await _asyncio_timed(sender) for _ in range(times)]

        await asyncio.gather(*(send(sender, 2) for sender in senders))
        begun = time.perf_counter()
        calls = await asyncio.gather(*(send(sender, sends) for sender in senders))
        found[subject] = _figures(calls, time.perf_counter() - begun)
    return found


async def _asyncio_timed(sender: Any) -> float:
    begun = time.perf_counter()
    await sender.send_messages(ServiceBusMessage(bytes(SIZE)))
    return time.perf_counter() - begun


def _figures(calls: list[list[float]], seconds: float) -> dict[str, float]:
    ordered = sorted(call for each in calls for call in each)
    return {
        "rate": len(ordered) / seconds,
        "median_ms": quantile(ordered, 0.5) * 1000,
        "p99_ms": quantile(ordered, 0.99) * 1000,
    }


if __name__ == "__main__":
    main()
