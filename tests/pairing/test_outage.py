"""Many threads, or many tasks, that keep sending through an outage: `kill -9`, a restart, pings. No
caller gets an error, and the account is exact.

Each shell has its own way of doing many things at once, so this is written twice; the account is
the same.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.events import FailedBack, FailedOver
from tests.pairing.shells import SyncShell, bare
from tests.pairing.world import SECOND, aliases, ids, together
from tests.waiting import wait_until

pytestmark = pytest.mark.alone

JOIN_SECONDS_MAX = 60
THREADS, TASKS = 32, 200


class Account:
    """What was sent and what of it was acknowledged."""

    def __init__(self) -> None:
        self.pause_seconds = 0.05
        self.attempted: set[str] = set()
        self.acknowledged: set[str] = set()
        self.errors: list[str] = []
        self.stopped = threading.Event()

    def ids(self, who: int) -> Callable[[], str]:
        numbers = iter(range(1_000_000))

        def next_id() -> str:
            id_ = f"{who:03d}-{next(numbers):05d}"
            self.attempted.add(id_)
            return id_

        return next_id


def send_blocking(sender: Any, who: int, account: Account) -> None:
    next_id = account.ids(who)
    try:
        while not account.stopped.is_set():
            id_ = next_id()
            sender.send_messages(ServiceBusMessage(id_, message_id=id_), timeout=20)
            account.acknowledged.add(id_)
            account.stopped.wait(account.pause_seconds)
    except Exception as error:
        account.errors.append(repr(error))


async def send_asyncio(sender: Any, who: int, account: Account) -> None:
    next_id = account.ids(who)
    try:
        while not account.stopped.is_set():
            id_ = next_id()
            await sender.send_messages(ServiceBusMessage(id_, message_id=id_), timeout=20)
            account.acknowledged.add(id_)
            await asyncio.sleep(account.pause_seconds)
    except Exception as error:
        account.errors.append(repr(error))


class Crowd:
    """Many senders at work, in the way of their shell."""

    def __init__(self, world: Any, senders: list[Any], account: Account) -> None:
        self._account = account
        # The test is about many senders, and not about speed.
        account.pause_seconds = max(0.05, len(senders) / 1000)
        if isinstance(world.shell, SyncShell):
            self._pool = ThreadPoolExecutor(len(senders))
            self._futures = [
                self._pool.submit(send_blocking, sender, who, account)
                for who, sender in enumerate(senders)
            ]
        else:
            self._pool = None

            async def all_of_them() -> None:
                async with asyncio.TaskGroup() as group:
                    for who, sender in enumerate(senders):
                        group.create_task(send_asyncio(bare(sender), who, account))

            self._futures = [asyncio.run_coroutine_threadsafe(all_of_them(), world.shell._loop)]

    def stop(self) -> None:
        self._account.stopped.set()
        for future in self._futures:
            future.result(JOIN_SECONDS_MAX)
        if self._pool is not None:
            self._pool.shutdown()


def more_acknowledged(account: Account, count: int) -> None:
    goal = len(account.acknowledged) + count
    wait_until(
        lambda: len(account.acknowledged) >= goal or account.errors,
        f"{count} more messages",
        seconds=60,
    )
    assert not account.errors


def check_account(account: Account, on_primary: list[str], diverted: list[str]) -> None:
    assert not account.errors
    found = set(on_primary) | set(diverted)
    assert account.acknowledged - found == set(), "acknowledged and nowhere"
    assert found - account.attempted == set(), "not sent by anybody"
    assert [id_ for id_, count in Counter(on_primary).items() if count > 1] == [], "detected"
    assert [id_ for id_, count in Counter(diverted).items() if count > 1] == []
    assert account.attempted == account.acknowledged, "nobody got an error"


@pytest.mark.req("F-01", "F-03", "F-05", "F-08", "X-02")
@pytest.mark.parametrize("sharing", ["a sender each", "one sender"])
def test_a_crowd_sends_through_an_outage(world, sharing):
    queue = world.queue(requires_duplicate_detection=True)
    client = world.client()
    world.pair(client, ping_primary_interval=SECOND)
    size = THREADS if isinstance(world.shell, SyncShell) else TASKS
    if sharing == "one sender":
        senders = [world.unopened(client, queue)] * size
    elif isinstance(world.shell, SyncShell):
        senders = [world.unopened(client, queue) for _ in range(size)]
    else:  # a task each; a connection for each of 200 tasks is more than anybody would want
        senders = [world.unopened(client, queue) for _ in range(20)] * (size // 20)
    account = Account()
    crowd = Crowd(world, senders, account)
    try:
        more_acknowledged(account, 300)
        world.primary.kill()
        more_acknowledged(account, 300)
        world.primary.start()
        world.wait_for(FailedBack, queue)
        more_acknowledged(account, 300)
    finally:
        crowd.stop()
    diverted = ids(world.backlog(queue))
    check_account(account, ids(world.primary.peek(queue)), diverted)
    assert len(diverted) >= 250
    assert world.events_of(FailedOver, queue)
    world.bring_home(queue)
    home = ids(world.primary.peek(queue))
    assert home == sorted(account.acknowledged), "all of them, once each"


@pytest.mark.req("F-04", "F-05", "Q-06")
def test_many_entities_fail_over_and_back_at_once(world):
    queues = [world.queue(f"{number}", requires_duplicate_detection=True) for number in range(8)]
    client = world.pair(ping_primary_interval=SECOND)
    accounts = [Account() for _ in queues]
    crowds = []
    try:
        for queue, account in zip(queues, accounts, strict=True):
            senders = [world.unopened(client, queue) for _ in range(2)]
            crowds.append(Crowd(world, senders, account))
        for account in accounts:
            more_acknowledged(account, 10)
        world.primary.kill()
        for account in accounts:
            more_acknowledged(account, 10)
        world.primary.start()
        for queue in queues:
            world.wait_for(FailedBack, queue)
        for account in accounts:
            more_acknowledged(account, 10)
    finally:
        for account in accounts:
            account.stopped.set()
        for crowd in crowds:
            crowd.stop()
    pages, diverted = together(world.primary.peek, queues), world.backlog()
    for queue, account, page in zip(queues, accounts, pages, strict=True):
        own = [each for each in diverted if aliases(each)["x-ms-path"] == queue]
        check_account(account, ids(page), ids(own))


@pytest.mark.req("F-05")
def test_a_crowd_is_diverted_soon_after_the_kill(world):
    """From the kill to the first diverted messages: no sender waits for the time-out of another."""
    queue = world.queue(requires_duplicate_detection=True)
    client = world.pair()
    senders = [world.unopened(client, queue) for _ in range(8)]
    account = Account()
    crowd = Crowd(world, senders, account)
    try:
        more_acknowledged(account, 50)
        world.primary.kill()
        began = time.monotonic()
        more_acknowledged(account, 50)
        assert time.monotonic() - began < 40
    finally:
        crowd.stop()
    world.primary.start()
    check_account(account, ids(world.primary.peek(queue)), ids(world.backlog(queue)))
