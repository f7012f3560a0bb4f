"""Connections that outlive a task: clean ones are used again, all others are closed."""

from __future__ import annotations

import pickle
from contextlib import ExitStack
from dataclasses import replace

import pytest

from pairbus.broker import Broker
from pairbus.fast.address import Address
from pairbus.fast.connection import attach_each
from pairbus.fast.connection_cache import CLIENTS_MAX, ConnectionCache
from pairbus.fast.receiver import Receiver
from pairbus.fast.token_cache import TokenCache
from pairbus.syphon.drain import drain
from pairbus.syphon.receipts import ReceiptOutcome
from pairbus.testing import ManualClock
from tests.fast.credentials import Issuer
from tests.fast.world import bearer_broker, messages
from tests.syphon.stage import Stage, after_sends, backlog_names, count, metric, numbered
from tests.waiting import wait_until

BACKLOGS = backlog_names(2)


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def cache(clock):
    made = ConnectionCache(clock=clock)
    yield made
    made.close()


@pytest.fixture
def stage():
    with Broker(queues=["orders"]) as primary, Broker(queues=BACKLOGS) as secondary:
        yield Stage(primary, secondary, BACKLOGS)


def opened(broker):
    """How many connections the broker has accepted so far."""
    return metric(broker, "connections_opened_total")


def lend(cache, stage, run="run"):
    return cache.lend(run, stage.address(stage.secondary), timeout_seconds=60)


def lend_open(cache, stage, run="run"):
    lease = lend(cache, stage, run)
    lease.client.open()
    return lease


def test_the_tasks_of_one_run_share_connections_tokens_and_links(stage, cache):
    seen, usage = [], []
    for number in range(3):
        stage.divert(numbered(30, f"{number}-"))
        before = opened(stage.primary), opened(stage.secondary)
        drained = drain(stage.task(round=number), cache=cache)
        seen.append((opened(stage.primary) - before[0], opened(stage.secondary) - before[1]))
        usage.append(sum(reading.total.send for reading in drained.usage))
        assert count(drained.receipts, ReceiptOutcome.BROUGHT_HOME) == 30
        assert drained.emptied == tuple(BACKLOGS)
        assert drained.errors == ()
    assert seen == [(1, 1), (0, 0), (0, 0)]
    assert usage == [30, 30, 30], "each task counts its own operations"
    assert stage.home() == [f"{number}-{one}" for number in range(3) for one in numbered(30)]


def test_nothing_is_locked_between_tasks_and_released_messages_keep_their_order(stage, cache):
    ids = numbered(200)
    stage.divert(ids)
    after = [0]

    def soon_over(self, *args, **settings):
        after[0] += 1
        return take(self, *args, **settings) if after[0] < 6 else []

    take = Receiver.take
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Receiver, "take", soon_over)  # the rest stays in the buffer
        drain(stage.task(seconds=0.3), cache=cache)
    assert len(cache) == 2
    stage.drain()  # another worker
    assert stage.home() == ids


@pytest.mark.parametrize("which", ["primary", "secondary"])
def test_a_connection_that_was_lost_between_tasks_is_opened_again(stage, cache, which):
    stage.divert(numbered(5))
    drain(stage.task(), cache=cache)
    with getattr(stage, which).faults.unreachable():
        pass
    stage.divert(numbered(5, "again-"))
    drained = drain(stage.task(), cache=cache)
    assert drained.errors == ()
    assert count(drained.receipts, ReceiptOutcome.BROUGHT_HOME) == 5


def test_a_task_in_which_something_went_wrong_gives_no_connection_back(stage, cache, monkeypatch):
    stage.divert(numbered(50))
    after_sends(monkeypatch, 1, lambda: stage.secondary.faults.unreachable(seconds=0.2))
    drain(stage.task(seconds=1.0), cache=cache)
    assert len(cache) == 0


def test_a_client_is_lent_to_one_task_at_a_time_and_only_of_its_run(stage, cache):
    one = lend_open(cache, stage)
    cache.give_back(one, is_clean=True)
    other_run = lend(cache, stage, "another")
    assert other_run.client is not one.client
    again, second = lend(cache, stage), lend(cache, stage)
    assert again.client is one.client
    assert second.client is not one.client
    for lease in (other_run, again, second):
        cache.give_back(lease, is_clean=False)
    assert len(cache) == 0
    assert not one.client.is_open


def test_an_idle_client_is_closed(stage, cache, clock):
    lease = lend_open(cache, stage)
    cache.give_back(lease, is_clean=True)
    clock.now += 9
    cache.close_idle()
    assert lease.client.is_open
    clock.now += 2
    cache.close_idle()
    assert not lease.client.is_open
    assert len(cache) == 0


def test_an_idle_client_is_closed_by_itself(stage):
    cache = ConnectionCache(idle_seconds_max=0.02)
    lease = lend_open(cache, stage)
    cache.give_back(lease, is_clean=True)
    wait_until(lambda: not lease.client.is_open)


def test_each_client_is_closed_when_its_own_time_is_over(stage, clock):
    cache = ConnectionCache(idle_seconds_max=600, clock=clock)
    first, second = lend_open(cache, stage, "first"), lend_open(cache, stage, "second")
    cache.give_back(first, is_clean=True)
    clock.now += 0.05
    cache.give_back(second, is_clean=True)
    clock.now += 599.95
    cache.close_idle()
    assert not first.client.is_open
    assert second.client.is_open
    clock.now += 1
    wait_until(lambda: not second.client.is_open)


@pytest.mark.parametrize(("links", "is_kept"), [(64, True), (65, False)])
def test_a_client_with_many_links_is_not_kept(cache, links, is_kept):
    paths = [f"q{number}" for number in range(links)]
    with Broker(queues=paths) as broker:
        lease = lend_open(cache, Stage(broker, broker, []))
        assert attach_each([lease.client.sender(path) for path in paths]) == [None] * links
        cache.give_back(lease, is_clean=True)
        assert len(cache) == is_kept
        cache.close()


def test_tokens_are_renewed_on_a_connection_that_outlives_them():
    """Each task brings a newer token, and no secret to make one."""
    clock = ManualClock(runs=True)
    issuer = Issuer(clock=clock)
    credential = TokenCache(issuer, clock=clock)
    with bearer_broker("orders", clock=clock) as broker, ExitStack() as stack:
        cache = ConnectionCache(idle_seconds_max=3600)
        stack.callback(cache.close)

        class TimedAddress(Address):
            def client(self, **options):
                return super().client(clock=clock, **options)

        for _ in range(9):
            address = TimedAddress.from_credential(
                "localhost", credential, ca_file=broker.ca_file, port=broker.port
            )
            sent = pickle.loads(pickle.dumps(address.source))
            lease = cache.lend("run", replace(address, source=sent), timeout_seconds=60)
            lease.client.sender("orders").send(messages(1))
            cache.give_back(lease, is_clean=True)
            clock.advance(900)
        assert opened(broker) == 1
    assert issuer.count == 3


def test_few_clients_are_kept_and_the_oldest_go_first(stage, cache):
    leases = [lend_open(cache, stage, f"run-{number}") for number in range(CLIENTS_MAX + 1)]
    for lease in leases:
        cache.give_back(lease, is_clean=True)
    assert [lease.client.is_open for lease in leases] == [False, *[True] * CLIENTS_MAX]


def test_a_client_with_locked_messages_is_not_kept(stage, cache):
    stage.divert(numbered(3))
    lease = lend_open(cache, stage)
    receiver = lease.client.receiver(BACKLOGS[0], credit=10)
    assert receiver.receive(1, max_wait_seconds=60)
    cache.give_back(lease, is_clean=True)
    assert len(cache) == 0
    assert not lease.client.is_open


def test_a_forked_process_leaves_the_connections_to_its_parent(stage, cache):
    lease = lend_open(cache, stage)
    cache.give_back(lease, is_clean=True)
    cache.forget()
    assert len(cache) == 0
    assert lease.client.is_open
    lease.client.close()
