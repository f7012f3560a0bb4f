"""What becomes of messages, and when a destination is tried again: an outage in microseconds."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pairbus.client.route.envelope import EnvelopeError
from pairbus.syphon.policy import (
    POLICY,
    Condition,
    Destination,
    Destinations,
    Failure,
    Reaction,
)
from pairbus.syphon.restore import Restored
from pairbus.syphon.step import (
    DESCRIPTION_MAX,
    Bury,
    Drop,
    Send,
    Split,
    Wait,
    after_failure,
    next_step,
)

T0 = 1_800_000_000.0
WAITING = {
    Failure.UNREACHABLE: Condition.DOWN,
    Failure.THROTTLED: Condition.THROTTLED,
    Failure.QUOTA_EXCEEDED: Condition.FULL,
    Failure.DISABLED: Condition.DISABLED,
    Failure.UNAUTHORIZED: Condition.FORBIDDEN,
}


def message(*, is_expired=False):
    return Restored("orders", b"", 0, is_expired, None)


def tell(destination, failure, *, count=1, now=T0, detail="said the primary"):
    """As a task does; what becomes of the messages."""
    rule_ = POLICY[failure]
    if (rule_.of_many if count > 1 else rule_.of_one) is not Reaction.SPLIT:
        destination.failed(failure, now=now, detail=detail)
    return after_failure(destination, failure, count=count, now=now, detail=detail)


def failed(failure, *, now=T0, destination=None):
    destination = destination or Destination("orders")
    tell(destination, failure, now=now)
    return destination


def test_every_failure_and_every_condition_has_its_place_in_the_policy():
    assert set(POLICY) == set(Failure)
    told = {rule.condition for rule in POLICY.values()}
    assert told == {*Condition, None} - {Condition.UNKNOWN, Condition.UP}
    for failure, rule_ in POLICY.items():
        assert rule_.first_seconds <= rule_.seconds_max, failure
        assert (rule_.condition is None) == (rule_.first_seconds == 0), failure


# --- before a send ------------------------------------------------------------------------------


@pytest.mark.req("S-01")
@pytest.mark.parametrize("condition", [Condition.UNKNOWN, Condition.UP])
def test_a_message_for_a_destination_that_is_up_or_unknown_is_sent(condition):
    assert next_step(message(), Destination("orders", condition), now=T0) == Send()


@pytest.mark.req("S-04")
@pytest.mark.parametrize(("failure", "condition"), WAITING.items())
def test_a_message_for_a_destination_in_trouble_waits_until_that_may_be_over(failure, condition):
    destination = failed(failure)
    assert destination.condition is condition

    step = next_step(message(), destination, now=T0)

    assert isinstance(step, Wait)
    assert step.until == destination.until == T0 + POLICY[failure].first_seconds
    assert step.because == f"'orders' is {condition.value}: said the primary"
    assert next_step(message(), destination, now=step.until) == Send()


@pytest.mark.req("S-05")
def test_a_message_that_cannot_be_restored_is_buried_with_the_reason():
    error = EnvelopeError("the property x-ms-path is missing")
    step = next_step(error, None, now=T0)
    assert step == Bury("EnvelopeUnreadable", "the property x-ms-path is missing")


@pytest.mark.req("S-05")
def test_messages_are_buried_only_once_the_primary_has_said_that_the_destination_is_gone():
    destination = Destination("orders")
    assert next_step(message(), destination, now=T0) == Send()

    failed(Failure.NOT_FOUND, destination=destination)

    step = next_step(message(), destination, now=T0 + 1)
    assert isinstance(step, Bury)
    assert step.reason == "DestinationNotFound"
    assert "'orders'" in step.description
    assert "said the primary" in step.description


@pytest.mark.req("S-05")
def test_a_destination_that_was_gone_is_asked_again_after_a_minute():
    destination = failed(Failure.NOT_FOUND)
    assert next_step(message(), destination, now=T0 + 60) == Send()
    failed(Failure.NOT_FOUND, destination=destination, now=T0 + 60)
    assert isinstance(next_step(message(), destination, now=T0 + 61), Bury)
    assert next_step(message(), destination, now=T0 + 120) == Send()
    destination.sent(now=T0 + 120)
    assert destination.condition is Condition.UP


@pytest.mark.req("X-06")
@pytest.mark.parametrize("failure", [None, *Failure])
def test_what_has_expired_is_dropped_whatever_its_destination_does(failure):
    destination = Destination("orders") if failure is None else failed(failure)
    assert next_step(message(is_expired=True), destination, now=T0) == Drop()


# --- after a failure ----------------------------------------------------------------------------


@pytest.mark.req("S-04", "S-05")
@pytest.mark.parametrize("count", [1, 2, 100])
@pytest.mark.parametrize("failure", Failure)
def test_messages_of_a_failed_send_become_what_the_policy_says(failure, count):
    destination = Destination("orders")
    what = tell(destination, failure, count=count, now=T0, detail="no")
    expected = POLICY[failure].of_many if count > 1 else POLICY[failure].of_one
    assert type(what) is {Reaction.WAIT: Wait, Reaction.SPLIT: Split, Reaction.BURY: Bury}[expected]


@pytest.mark.req("S-05")
def test_a_refused_batch_is_taken_apart_and_the_one_at_fault_buried_alone():
    destination = Destination("orders")
    assert tell(destination, Failure.REFUSED, count=8, now=T0) == Split()
    what = tell(destination, Failure.REFUSED, count=1, now=T0, detail="too large")
    assert what == Bury("RefusedByDestination", "'orders' refuses the message: too large")
    assert destination.condition is Condition.UNKNOWN
    assert next_step(message(), destination, now=T0) == Send()


@pytest.mark.req("S-04")
@pytest.mark.parametrize("failure", WAITING)
def test_nothing_is_buried_because_a_destination_is_in_trouble(failure):
    for count in (1, 10):
        what = tell(Destination("orders"), failure, count=count, now=T0, detail="no")
        assert what == Wait(T0 + POLICY[failure].first_seconds, "'orders' did not take it: no")


@pytest.mark.req("S-04")
def test_a_message_that_upsets_the_primary_holds_up_nobody_but_itself():
    destination = Destination("orders")
    for _ in range(5):
        assert tell(destination, Failure.ERROR, count=10, now=T0) == Split()
        for _ in range(2):
            what = tell(destination, Failure.ERROR, count=1, now=T0)
            assert isinstance(what, Wait)
            assert what.until == T0 + 1, "it is not tried again at once"
            assert destination.is_open(now=T0), "the others are"
        destination.sent(now=T0)


@pytest.mark.req("S-04")
def test_a_destination_that_errs_for_three_messages_in_a_row_is_down():
    destination = Destination("orders")
    for _ in range(3):
        assert destination.is_open(now=T0)
        failed(Failure.ERROR, destination=destination)
    assert (destination.condition, destination.until) == (Condition.DOWN, T0 + 1)
    failed(Failure.ERROR, destination=destination, now=T0 + 1)
    assert destination.until == T0 + 3, "one more is enough to know that it still is"


@pytest.mark.req("S-05")
def test_a_long_description_is_cut_to_what_the_service_takes():
    step = next_step(EnvelopeError("x" * 5000), None, now=T0)
    assert len(step.description) == DESCRIPTION_MAX
    assert step.description.endswith("x…")


# --- backing off --------------------------------------------------------------------------------


def waits(failure, count):
    """How long each of so many failures in a row leaves the destination alone."""
    destination, now = Destination("orders"), T0
    for _ in range(count):
        failed(failure, destination=destination, now=now)
        yield destination.until - now
        now = destination.until


@pytest.mark.req("S-04")
def test_waits_double_up_to_their_limit():
    assert [*waits(Failure.UNREACHABLE, 9)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert [*waits(Failure.THROTTLED, 5)] == [10, 20, 40, 60, 60]
    assert [*waits(Failure.QUOTA_EXCEEDED, 8)] == [5, 10, 20, 40, 80, 160, 300, 300]
    assert [*waits(Failure.NOT_FOUND, 3)] == [60, 60, 60]
    assert max(waits(Failure.UNREACHABLE, 2000)) == 60


@pytest.mark.req("S-04")
@pytest.mark.parametrize("failure", [*WAITING, Failure.NOT_FOUND])
def test_a_success_ends_the_wait_and_starts_the_count_anew(failure):
    destination, now = Destination("orders"), T0
    for _ in range(4):
        failed(failure, destination=destination, now=now)
        now = destination.until
    destination.sent(now=now)
    assert (destination.condition, destination.failures) == (Condition.UP, 0)
    assert (destination.detail, destination.since) == ("", now)
    assert next_step(message(), destination, now=now) == Send()
    failed(failure, destination=destination, now=now)
    assert destination.until == now + POLICY[failure].first_seconds


def test_failures_of_sends_that_were_under_way_together_count_once():
    destination = Destination("orders")
    for late in (0.0, 0.1, 0.2):
        failed(Failure.UNREACHABLE, destination=destination, now=T0 + late)
    assert destination.failures == 1
    assert destination.until == T0 + 1.2


def test_another_kind_of_trouble_is_counted_from_its_beginning():
    destination = Destination("orders")
    for now in (T0, T0 + 1, T0 + 3):
        failed(Failure.UNREACHABLE, destination=destination, now=now)
    failed(Failure.QUOTA_EXCEEDED, destination=destination, now=T0 + 7)
    assert (destination.condition, destination.failures) == (Condition.FULL, 1)
    assert (destination.since, destination.until) == (T0 + 7, T0 + 12)


@pytest.mark.req("R-03")
def test_after_throttling_no_success_of_another_send_shortens_the_ten_seconds():
    destination = failed(Failure.THROTTLED)
    destination.sent(now=T0 + 1)
    assert isinstance(next_step(message(), destination, now=T0 + 9.9), Wait)
    assert next_step(message(), destination, now=T0 + 10) == Send()
    destination.sent(now=T0 + 10)
    assert destination.condition is Condition.UP


@pytest.mark.req("R-03")
def test_nor_does_another_failure_and_its_end():
    destination = failed(Failure.THROTTLED)
    failed(Failure.UNREACHABLE, destination=destination, now=T0 + 1)
    destination.sent(now=T0 + 2)
    assert (destination.condition, destination.until) == (Condition.THROTTLED, T0 + 10)


@pytest.mark.req("R-03")
def test_throttling_while_the_destination_waits_for_something_else_still_counts_ten_seconds():
    destination = failed(Failure.UNREACHABLE)
    failed(Failure.THROTTLED, destination=destination, now=T0 + 0.5)
    assert destination.until == T0 + 10.5


# --- all destinations of a task -----------------------------------------------------------------


@pytest.mark.req("S-04")
def test_one_destinations_trouble_is_not_anothers():
    destinations = Destinations()
    failed(Failure.UNREACHABLE, destination=destinations["orders"])
    assert isinstance(next_step(message(), destinations["orders"], now=T0), Wait)
    assert next_step(message(), destinations["events"], now=T0) == Send()
    assert destinations.opens_next(now=T0) == T0 + 1
    assert destinations.opens_next(now=T0 + 1) is None


def test_a_destination_is_the_same_however_it_is_spelled():
    destinations = Destinations()
    assert destinations["Orders"] is destinations["oRDERS"] is destinations["Orders"]
    assert [one.path for one in destinations] == ["Orders"]


def test_what_one_task_has_learned_another_one_knows():
    first, second = Destinations(), Destinations()
    failed(Failure.DISABLED, destination=first["orders"])
    failed(Failure.NOT_FOUND, destination=first["events"])
    second["ORDERS"].sent(now=T0 - 1)
    second["events"].sent(now=T0 + 1)

    for told in pickle.loads(pickle.dumps(list(first))):
        second.learn(told)
    third = Destinations(second)

    assert second["orders"].condition is third["orders"].condition is Condition.DISABLED
    assert [one.path for one in third] == ["ORDERS", "events"]
    assert third["events"].condition is Condition.UP, "which was heard later"
    third["orders"].sent(now=T0 + 5)
    assert first["orders"].condition is Condition.DISABLED, "each has its own"


def test_wrong_credentials_end_the_run_unless_some_destination_is_up():
    destinations = Destinations()
    destinations["events"]
    assert destinations.stopper is None
    failed(Failure.UNAUTHORIZED, destination=destinations["orders"])
    assert destinations.stopper is destinations["orders"]
    destinations["events"].sent(now=T0)
    assert destinations.stopper is None
    assert isinstance(next_step(message(), destinations["orders"], now=T0), Wait)


class Syphoning(RuleBasedStateMachine):
    """Any course of events, beside the plainest account of what has been said."""

    def __init__(self):
        super().__init__()
        self.now = T0
        self.destinations = Destinations()
        self.said = {}  # path: (when, what) was last said, None for a success
        self.throttled = {}

    paths = st.sampled_from(["a", "b"])

    @rule(seconds=st.floats(0, 400))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(path=paths)
    def a_send_succeeds(self, path):
        self.destinations[path].sent(now=self.now)
        self.said[path] = (self.now, None)

    @rule(path=paths, failure=st.sampled_from(Failure), count=st.integers(1, 3))
    def a_send_fails(self, path, failure, count):
        destination = self.destinations[path]
        before = destination.until
        what = tell(destination, failure, count=count, now=self.now, detail="d")
        if isinstance(what, Bury):
            assert failure in (Failure.NOT_FOUND, Failure.REFUSED)
            assert count == 1 or failure is Failure.NOT_FOUND
        if isinstance(what, Wait):
            assert what.until >= self.now + POLICY[failure].first_seconds
            assert what.until <= max(self.now + POLICY[failure].seconds_max, before)
        if not isinstance(what, Split) and failure is not Failure.REFUSED:
            self.said[path] = (self.now, failure)
        if failure is Failure.THROTTLED:
            self.throttled[path] = self.now

    @invariant()
    def steps_follow_from_what_was_said(self):
        for path in ("a", "b"):
            step = next_step(message(), self.destinations[path], now=self.now)
            when, what = self.said.get(path, (T0, None))
            if self.now - self.throttled.get(path, T0 - 10) < 10:
                assert not isinstance(step, Send)
            elif what is None and self.destinations[path].condition is not Condition.THROTTLED:
                assert step == Send()
            if isinstance(step, Bury):
                assert self.destinations[path].condition is Condition.GONE
            if isinstance(step, Wait):
                assert self.now < step.until <= self.now + 300
            if self.now >= when + 300:
                assert step == Send(), "nothing waits for ever"


TestSyphoning = Syphoning.TestCase


@given(st.lists(st.sampled_from([None, *Failure]), max_size=30))
def test_whatever_happened_a_destination_is_tried_again_in_bounded_time(history):
    destination, now = Destination("orders"), T0
    for failure in history:
        if failure is None:
            destination.sent(now=now)
        else:
            failed(failure, destination=destination, now=now)
        assert 0 <= max(destination.until - now, 0) <= 300
        now = max(destination.until, now)
        assert next_step(message(), destination, now=now) == Send()
