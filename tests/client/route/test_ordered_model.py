"""Ordered failback in any interleaving of sends, outages, pings, peeks, and syphon rounds that
die: each thread's messages arrive in the order in which it sent them, and everybody gets home."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.client.route.ordered_world import OrderedWorld

pytestmark = pytest.mark.req("X-03")

clients = st.integers(0, 1)
threads = st.integers(0, 1)
some = st.integers(0, 5)


class OrderedMachine(RuleBasedStateMachine):
    @initialize(
        queues=st.integers(1, 3),
        failover=st.sampled_from([0.0, 1.0]),
        pings=st.sampled_from([1, 2]),
        seed=st.integers(0, 9),
    )
    def pair(self, queues, failover, pings, seed):
        self.world = OrderedWorld(
            clients=2, queues=queues, failover=failover, ping=1.0, pings=pings, seed=seed
        )

    @rule(client=clients, thread=threads, is_answered=st.booleans())
    def send(self, client, thread, is_answered):
        self.world.begin(client, thread)
        self.world.go_on(client, thread, is_answered=is_answered)

    @rule(client=clients, thread=threads)
    def begin(self, client, thread):
        self.world.begin(client, thread)

    @rule(client=clients, thread=threads, is_answered=st.booleans(), can_wait=st.booleans())
    def go_on(self, client, thread, is_answered, can_wait):
        self.world.go_on(client, thread, is_answered=is_answered, can_wait=can_wait)

    @rule(client=clients, thread=threads)
    def give_up(self, client, thread):
        self.world.give_up(client, thread)

    @rule(seconds=st.sampled_from([0.25, 1.0, 2.0, 12.0]))
    def wait(self, seconds):
        self.world.wait(seconds)

    @rule(client=clients, index=some)
    def run_task(self, client, index):
        self.world.run_task(client, index)

    @rule(client=clients, index=some)
    def report_peek(self, client, index):
        self.world.report_peek(client, index)

    @rule(is_up=st.booleans())
    def primary(self, is_up):
        self.world.is_up = is_up

    @rule(queue=some, is_up=st.booleans())
    def queue(self, queue, is_up):
        name = f"q{queue % len(self.world.queues)}"
        (self.world.up_queues.add if is_up else self.world.up_queues.discard)(name)

    @rule(queue=some, count=st.integers(1, 4), dies=st.booleans())
    def syphon(self, queue, count, dies):
        name = f"q{queue % len(self.world.queues)}"
        self.world.syphon(name, count=count, dies_after=count if dies else None)

    @invariant()
    def every_thread_keeps_its_order(self):
        if hasattr(self, "world"):
            self.world.check_order()

    def teardown(self):
        if hasattr(self, "world"):
            self.world.settle_down()
            self.world.check_order()


def test_order_is_kept_in_any_interleaving():
    run_state_machine_as_test(OrderedMachine, settings=settings(stateful_step_count=60))


@pytest.mark.parametrize("seed", range(20))
def test_order_is_kept_in_a_long_life_with_many_outages(seed):
    dice = random.Random(seed)
    world = OrderedWorld(
        clients=2,
        queues=dice.randint(1, 3),
        failover=dice.choice([0.0, 1.0]),
        ping=1.0,
        pings=dice.choice([1, 2]),
        seed=seed,
    )
    for _ in range(6000):
        client, thread = dice.randrange(2), dice.randrange(3)
        match dice.choices(range(8), weights=[15, 30, 1, 25, 30, 25, 3, 20])[0]:
            case 0:
                world.begin(client, thread)
            case 1:
                is_answered, can_wait = dice.random() < 0.9, dice.random() < 0.9
                world.go_on(client, thread, is_answered=is_answered, can_wait=can_wait)
            case 2:
                world.give_up(client, thread)
            case 3:
                world.wait(dice.choice([0.1, 0.5, 1.0]))
            case 4:
                world.run_task(client, dice.randrange(4))
            case 5:
                world.report_peek(client, dice.randrange(4))
            case 6 if not world.is_up:
                world.is_up = True
            case 6 if dice.random() < 0.4:
                world.is_up = False
            case 6:
                queue = dice.choice([*world.queues])
                is_up = dice.random() < 0.7
                (world.up_queues.add if is_up else world.up_queues.discard)(queue)
            case 7:
                dies_after = dice.randint(1, 6) if dice.random() < 0.2 else None
                world.syphon(dice.choice([*world.queues]), count=6, dies_after=dies_after)
    world.check_order()
    world.settle_down()
    world.check_order()
    ways_back = [one.router.plan("orders", now=world.now).epoch for one in world.clients]
    assert sum(ways_back) > 5, ways_back
