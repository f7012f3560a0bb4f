"""The router compared with a plain one: many entities, sends that end late, failing queues, and
time.

The rules are coarse, because a failover takes several steps, and the interesting cases come after
the second one.
"""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.client.route.router_driver import RouterDriver

QUEUES = tuple(f"contoso/x-servicebus-transfer/{index}" for index in range(4))
# Quarters, so that sums are exact and moments are met to the point.
SECONDS = (0.25, 0.5, 1.0, 2.0, 3.75, 4.0, 5.0, 10.0, 30.0, 100.0)
PATHS = ("orders", "Orders", "invoices", "topic/eu")
PAIRS = {
    "failover": (0.0, 1.0, 4.0, 10.0),
    "ping": (1.0, 4.0, 10.0),
    "rest": (1.0, 5.0),
    "pings": (1, 1, 2),
    "seed": tuple(range(10)),
}
paths = st.sampled_from(PATHS)
some = st.integers(0, 3)

pytestmark = pytest.mark.req(
    "A-05", "A-11", "F-03", "F-04", "F-05", "F-06", "F-07", "F-08", "G-01", "G-03", "X-11"
)


class RouterMachine(RuleBasedStateMachine):
    @initialize(
        queues=st.integers(1, len(QUEUES)),
        numbers=st.fixed_dictionaries({name: st.sampled_from(v) for name, v in PAIRS.items()}),
        is_watched=st.booleans(),
    )
    def pair(self, queues, numbers, is_watched):
        self.driver = RouterDriver(QUEUES[:queues], **numbers)
        # Who asks for the status has the entities pick their queues. What happens when nobody
        # asks for long must be right, too.
        self.is_watched = is_watched

    @rule(path=paths, fate=st.sampled_from(["sent", "fails", "is stuck"]), copies=st.integers(1, 3))
    def send(self, path, fate, copies):
        for _ in range(copies):
            before = len(self.driver.sends)
            self.driver.begin(path)
            if len(self.driver.sends) == before or fate == "is stuck":
                continue
            if fate == "sent":
                self.driver.succeed(-1, 1)
            else:
                self.driver.fail(-1)

    @precondition(lambda self: self.driver.sends)
    @rule(oldest=st.booleans(), fate=st.sampled_from(["sent", "fails", "busy"]), times=some)
    def end_sends(self, oldest, fate, times):
        for _ in range(min(times + 1, len(self.driver.sends))):
            index = 0 if oldest else -1
            if fate == "sent":
                self.driver.succeed(index, times)
            elif fate == "fails":
                self.driver.fail(index)
            else:
                self.driver.throttle(index)

    @rule(path=paths, stuck=some, early=st.sampled_from([0.0, 0.0, 0.25]), looks=st.booleans())
    def outage(self, path, stuck, early, looks):
        """One entity fails for the whole interval, or almost."""
        self.send(path, "is stuck", stuck)
        self.send(path, "fails", 1)
        self.driver.wait(max(0.0, self.driver.model.failover - early))
        if looks:
            self.driver.look()

    @rule(rounds=st.integers(1, 4), answers=st.lists(st.sampled_from([True, False, None])))
    def background(self, rounds, answers):
        """Tasks run when they are due. None: the outcome is not known yet."""
        for _ in range(rounds):
            self.driver.wait_until_due()
            self.driver.look()
            for answer in answers:
                if answer is not None and self.driver.tasks:
                    self.driver.end_task(-1, answered=answer)

    @precondition(lambda self: self.driver.tasks)
    @rule(answered=st.booleans())
    def end_oldest_task(self, answered):
        self.driver.end_task(0, answered=answered)

    @precondition(lambda self: self.driver.tasks)
    @rule()
    def drop_unwanted_pings(self):
        self.driver.drop_unwanted_pings()

    @rule(seconds=st.sampled_from(SECONDS), looks=st.booleans())
    def wait(self, seconds, looks):
        self.driver.wait(seconds)
        if looks:
            self.driver.look()

    @rule(path=paths, what=st.sampled_from(["mark_healthy", "register", "begin_rest"]))
    def do_something_else(self, path, what):
        getattr(self.driver, what)(path)

    @precondition(lambda self: not self.driver.model.is_closed and self.driver.now > 100)
    @rule()
    def close(self):
        self.driver.close()

    @invariant()
    def what_must_hold_holds(self):
        if self.is_watched:
            self.driver.look_at_everything()

    def teardown(self):
        if hasattr(self, "driver"):
            self.driver.look_at_everything()


@pytest.mark.timeout(900)  # hypothesis takes up to five minutes to make a failure small
def test_the_router_does_what_the_plain_one_does():
    run_state_machine_as_test(RouterMachine, settings=settings(stateful_step_count=60))


ODDS = {
    "begin": 30,
    "sent": 12,
    "fails": 12,
    "busy": 3,
    "wait": 8,
    "wait until due": 6,
    "look": 10,
    "task": 10,
    "other": 4,
    "drop": 1,
}


def step(driver, dice):
    """One random action, with the odds of a bad day."""
    action = dice.choices([*ODDS], [*ODDS.values()])[0]
    if action == "begin":
        driver.begin(dice.choice(PATHS))
    elif action in ("sent", "fails", "busy") and driver.sends:
        index = dice.randrange(len(driver.sends))
        if action == "sent":
            driver.succeed(index, dice.randint(1, 9))
        elif action == "fails":
            driver.fail(index)
        else:
            driver.throttle(index)
    elif action == "wait":
        driver.wait(dice.choice(SECONDS[:-2]))
    elif action == "wait until due":
        driver.wait_until_due()
    elif action == "look":
        driver.look()
    elif action == "task" and driver.tasks:
        driver.end_task(dice.randrange(len(driver.tasks)), answered=dice.random() < 0.4)
    elif action == "other":
        ask = dice.choice([driver.mark_healthy, driver.register, driver.begin_rest])
        ask(dice.choice(PATHS))
    elif action == "drop":
        driver.drop_unwanted_pings()


@pytest.mark.parametrize("seed", range(12))
def test_a_long_life_with_many_outages(seed):
    dice = random.Random(seed)
    numbers = {name: dice.choice(values) for name, values in PAIRS.items()}
    driver = RouterDriver(QUEUES[: dice.randint(1, len(QUEUES))], **numbers)
    for number in range(2000):
        step(driver, dice)
        if seed % 2 or number % 50 == 0:
            driver.look_at_everything()

    enough = 3 if driver.model.pings == 1 else 1
    assert all(entity.ways_back > enough for entity in driver.model.entities.values())
    driver.close()
    for _ in range(200):
        step(driver, dice)
        assert driver.router.take_due_tasks(now=driver.now) == []
    driver.look_at_everything()
