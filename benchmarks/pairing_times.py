"""How long the turns of an outage take, once each: pairing, failing over, failing back.

Run by pairing.py as a process of its own, with a primary that may be killed. An application's
sender sends in a loop meanwhile, as fast as it can; what is timed is what that application notices.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

import pairing_ends
from loop import LoadError
from pairbus.events import Diverted, Event, FailedBack, FailedOver
from pairing_ends import QUEUE, Ends

BEFORE_KILL_SECONDS = 0.2
PAUSE_SECONDS = 0.001  # while a queue is failed over for a second, which is many messages
OVER_SECONDS_MAX = 60.0
SIZE = 500


def main() -> None:
    parser = pairing_ends.parser(__doc__)
    parser.add_argument("--what", choices=list(MEASURES), required=True)
    parser.add_argument("--retries", type=int, help="retry_total of the SDK; its own if not given")
    parser.add_argument("--name", help="for backlog paths: one that is new")
    options = parser.parse_args()
    blocking, aio = MEASURES[options.what]
    if options.shell == "blocking":
        blocking(options, Ends.given(options))
    else:
        asyncio.run(aio(options, Ends.given(options)))


# --- pairing --------------------------------------------------------------------------------------


# The first finds no backlog queues and makes them.
PAIRINGS = {"made": "ready", "found": "ready", "lazy": "lazy"}


def _pair(options: argparse.Namespace, ends: Ends) -> None:
    found, name = {}, f"bench-{options.name}-{options.shell}"
    for key, connections in PAIRINGS.items():
        names = {"primary_namespace_name": name, "secondary_connections": connections}
        client, settings = ends.unpaired(), ends.options(**names)
        begun = time.monotonic()
        client.pair_namespace(settings)
        found[key] = time.monotonic() - begun
    pairing_ends.answer(found)


async def _pair_asyncio(options: argparse.Namespace, ends: Ends) -> None:
    found, name = {}, f"bench-{options.name}-{options.shell}"
    for key, connections in PAIRINGS.items():
        names = {"primary_namespace_name": name, "secondary_connections": connections}
        client, settings = ends.aio_unpaired(), ends.aio_options(**names)
        begun = time.monotonic()
        await client.pair_namespace(settings)
        found[key] = time.monotonic() - begun
    pairing_ends.answer(found)


# --- from `kill -9` of the primary to the first diverted message, or to the plain sender's error --


class Kill:
    """Takes the time from it to what the application notices."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._killed_at = 0.0
        self._noticed_at: float | None = None
        self._until = time.monotonic() + OVER_SECONDS_MAX

    def begin(self) -> None:
        threading.Timer(BEFORE_KILL_SECONDS, self._kill).start()

    def _kill(self) -> None:
        self._killed_at = time.monotonic()
        os.kill(self._pid, signal.SIGKILL)

    def notice(self) -> None:
        if self._noticed_at is None:
            self._noticed_at = time.monotonic()

    def observe(self, event: Event) -> None:
        if isinstance(event, Diverted):
            self.notice()

    @property
    def goes_on(self) -> bool:
        if time.monotonic() > self._until:
            raise LoadError("the primary was killed, and the sender did not notice")
        return self._noticed_at is None

    def answer(self) -> None:
        assert self._noticed_at is not None
        pairing_ends.answer({"noticed": self._noticed_at - self._killed_at})


def _retries(options: argparse.Namespace) -> dict[str, int]:
    return {} if options.retries is None else {"retry_total": options.retries}


def _kill_paired(options: argparse.Namespace, ends: Ends) -> None:
    kill, client = Kill(ends.primary_pid), ends.unpaired(**_retries(options))
    client.pair_namespace(ends.options(observers=[kill.observe]))
    with client.get_queue_sender(QUEUE) as sender:
        kill.begin()
        while kill.goes_on:
            sender.send_messages(_message())
        kill.answer()


async def _kill_paired_asyncio(options: argparse.Namespace, ends: Ends) -> None:
    kill, client = Kill(ends.primary_pid), ends.aio_unpaired(**_retries(options))
    await client.pair_namespace(ends.aio_options(observers=[kill.observe]))
    async with client.get_queue_sender(QUEUE) as sender:
        kill.begin()
        while kill.goes_on:
            await sender.send_messages(_message())
        kill.answer()


def _kill_plain(options: argparse.Namespace, ends: Ends) -> None:
    kill, client = Kill(ends.primary_pid), ends.plain(ends.primary, **_retries(options))
    with client.get_queue_sender(QUEUE) as sender:
        kill.begin()
        while kill.goes_on:
            try:
                sender.send_messages(_message())
            except ServiceBusError:
                kill.notice()
        kill.answer()


async def _kill_plain_asyncio(options: argparse.Namespace, ends: Ends) -> None:
    kill, client = Kill(ends.primary_pid), ends.aio_plain(ends.primary, **_retries(options))
    async with client.get_queue_sender(QUEUE) as sender:
        kill.begin()
        while kill.goes_on:
            try:
                await sender.send_messages(_message())
            except ServiceBusError:
                kill.notice()
        kill.answer()


# --- from the answered ping to the first message on the primary -----------------------------------


class Failback:
    """Disables a queue, enables it when it has failed over, and sees when it is back. Each shell
    has a queue of its name."""

    SETTINGS = pairing_ends.AT_ONCE | {"ping_primary_interval": timedelta(seconds=1)}

    def __init__(self, ends: Ends, queue: str) -> None:
        self._administration = ends.administration()
        self._queue = self._administration.get_queue(queue)
        self._back_at: float | None = None
        self._diverted = 0
        self._diverted_before = 0
        self._until = time.monotonic() + OVER_SECONDS_MAX
        self._enabling = threading.Thread(target=self._set, args=("Active",))

    def begin(self) -> None:
        self._set("Disabled")

    def observe(self, event: Event) -> None:
        if isinstance(event, FailedOver):
            self._enabling.start()  # not here: the send that was diverted waits for us
        elif isinstance(event, FailedBack):
            self._back_at = time.monotonic()
        elif isinstance(event, Diverted):
            self._diverted += 1

    def _set(self, status: str) -> None:
        self._queue.status = status
        self._administration.update_queue(self._queue)

    def is_over(self) -> bool:
        """Asked after every send: whether that one went to the primary."""
        if time.monotonic() > self._until:
            raise LoadError("the queue was enabled again, and no message reached the primary")
        before, self._diverted_before = self._diverted_before, self._diverted
        return self._back_at is not None and self._diverted == before

    def answer(self) -> None:
        assert self._back_at is not None
        pairing_ends.answer({"home": time.monotonic() - self._back_at})


def _failback(options: argparse.Namespace, ends: Ends) -> None:
    failback, client = Failback(ends, options.shell), ends.unpaired(retry_total=0)
    client.pair_namespace(ends.options(**Failback.SETTINGS, observers=[failback.observe]))
    with client.get_queue_sender(options.shell) as sender:
        failback.begin()
        while not failback.is_over():
            time.sleep(PAUSE_SECONDS)
            sender.send_messages(_message())
        failback.answer()


async def _failback_asyncio(options: argparse.Namespace, ends: Ends) -> None:
    failback, client = Failback(ends, options.shell), ends.aio_unpaired(retry_total=0)
    await client.pair_namespace(ends.aio_options(**Failback.SETTINGS, observers=[failback.observe]))
    async with client.get_queue_sender(options.shell) as sender:
        failback.begin()
        while not failback.is_over():
            await asyncio.sleep(PAUSE_SECONDS)
            await sender.send_messages(_message())
        failback.answer()


def _message() -> ServiceBusMessage:
    return ServiceBusMessage(bytes(SIZE))


Blocking = Callable[[argparse.Namespace, Ends], None]
Asyncio = Callable[[argparse.Namespace, Ends], Coroutine[Any, Any, None]]
MEASURES: dict[str, tuple[Blocking, Asyncio]] = {
    "pair": (_pair, _pair_asyncio),
    "kill-paired": (_kill_paired, _kill_paired_asyncio),
    "kill-plain": (_kill_plain, _kill_plain_asyncio),
    "failback": (_failback, _failback_asyncio),
}

if __name__ == "__main__":
    main()
