"""What becomes of messages, and when a destination is tried again."""

from __future__ import annotations

import pickle

import pytest
from azure.servicebus import exceptions as sdk
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pairbus.client.route.envelope import EnvelopeError
from pairbus.fast.errors import TokenAuthFailure
from pairbus.syphon.policy import (
    DESCRIPTION_MAX,
    POLICY,
    Condition,
    Destination,
    Destinations,
    Failure,
    NextStep,
    ToDeadLetter,
    after_failure,
    failure_of,
    next_step,
    unreadable,
)
from pairbus.syphon.restore import Restored

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


def fail(destination, failure, *, count=1, now=T0, detail="said the primary"):
    """What becomes of the messages of a failed send."""
    return after_failure(destination, failure, count=count, now=now, detail=detail)


def failed(failure, *, now=T0, destination=None):
    destination = destination or Destination("orders")
    fail(destination, failure, now=now)
    return destination


def test_the_policy_covers_every_failure_and_every_condition():
    assert set(POLICY) == set(Failure)
    conditions = {rule.condition for rule in POLICY.values()}
    assert conditions == {*Condition, None} - {Condition.UNKNOWN, Condition.UP}
    for failure, rule_ in POLICY.items():
        assert rule_.first_seconds <= rule_.seconds_max, failure
        assert (rule_.condition is None) == (rule_.first_seconds == 0), failure


# --- before a send ------------------------------------------------------------------------------


@pytest.mark.req("S-01")
@pytest.mark.parametrize("condition", [Condition.UNKNOWN, Condition.UP])
def test_a_message_for_a_destination_that_is_up_or_unknown_is_sent(condition):
    assert next_step(message(), Destination("orders", condition), now=T0) is NextStep.SEND


@pytest.mark.req("S-04")
@pytest.mark.parametrize(("failure", "condition"), WAITING.items())
def test_a_message_for_a_failing_destination_waits_until_the_next_attempt(failure, condition):
    destination = failed(failure)
    assert destination.condition is condition

    assert next_step(message(), destination, now=T0) is NextStep.WAIT
    assert destination.until == T0 + POLICY[failure].first_seconds
    assert destination.detail == "said the primary"
    assert next_step(message(), destination, now=destination.until) is NextStep.SEND


@pytest.mark.req("S-05")
def test_a_message_that_cannot_be_restored_is_dead_lettered_with_the_reason():
    error = EnvelopeError("the property x-ms-path is missing")
    assert unreadable(error) == ToDeadLetter(
        "EnvelopeUnreadable", "the property x-ms-path is missing"
    )


@pytest.mark.req("S-05")
def test_messages_are_dead_lettered_only_after_the_primary_said_that_there_is_no_such_entity():
    destination = Destination("orders")
    assert next_step(message(), destination, now=T0) is NextStep.SEND

    failed(Failure.NOT_FOUND, destination=destination)

    step = next_step(message(), destination, now=T0 + 1)
    assert isinstance(step, ToDeadLetter)
    assert step.reason == "DestinationNotFound"
    assert "'orders'" in step.description
    assert "said the primary" in step.description


@pytest.mark.req("S-05")
def test_a_destination_that_did_not_exist_is_tried_again_after_a_minute():
    destination = failed(Failure.NOT_FOUND)
    assert next_step(message(), destination, now=T0 + 60) is NextStep.SEND
    failed(Failure.NOT_FOUND, destination=destination, now=T0 + 60)
    assert isinstance(next_step(message(), destination, now=T0 + 61), ToDeadLetter)
    assert next_step(message(), destination, now=T0 + 120) is NextStep.SEND
    destination.sent(now=T0 + 120)
    assert destination.condition is Condition.UP


@pytest.mark.req("X-06")
@pytest.mark.parametrize("failure", [None, *Failure])
def test_an_expired_message_is_dropped_even_if_its_destination_fails(failure):
    destination = Destination("orders") if failure is None else failed(failure)
    assert next_step(message(is_expired=True), destination, now=T0) is NextStep.DROP


# --- after a failure ----------------------------------------------------------------------------


@pytest.mark.req("S-04", "S-05")
@pytest.mark.parametrize("count", [1, 2, 100])
@pytest.mark.parametrize("failure", Failure)
def test_the_policy_decides_about_the_messages_of_a_failed_send(failure, count):
    destination = Destination("orders")
    what = fail(destination, failure, count=count, now=T0, detail="no")
    if count > 1 and failure in (Failure.ERROR, Failure.REFUSED):
        assert what is NextStep.SPLIT
    elif failure in (Failure.NOT_FOUND, Failure.REFUSED):
        assert isinstance(what, ToDeadLetter)
    else:
        assert what is NextStep.WAIT


@pytest.mark.req("S-05")
def test_a_refused_batch_is_split_and_only_the_message_at_fault_is_dead_lettered():
    destination = Destination("orders")
    assert fail(destination, Failure.REFUSED, count=8, now=T0) is NextStep.SPLIT
    what = fail(destination, Failure.REFUSED, count=1, now=T0, detail="too large")
    assert what == ToDeadLetter("RefusedByDestination", "'orders' refuses the message: too large")
    assert destination.condition is Condition.UNKNOWN
    assert next_step(message(), destination, now=T0) is NextStep.SEND


@pytest.mark.req("S-04")
def test_a_message_that_the_primary_cannot_process_delays_only_itself():
    destination = Destination("orders")
    for _ in range(5):
        assert fail(destination, Failure.ERROR, count=10, now=T0) is NextStep.SPLIT
        for _ in range(2):
            assert fail(destination, Failure.ERROR, count=1, now=T0) is NextStep.WAIT
            assert destination.is_open(now=T0), "others are sent"
        destination.sent(now=T0)


@pytest.mark.req("S-04")
def test_a_destination_that_fails_for_three_messages_in_a_row_is_down():
    destination = Destination("orders")
    for _ in range(3):
        assert destination.is_open(now=T0)
        failed(Failure.ERROR, destination=destination)
    assert (destination.condition, destination.until) == (Condition.DOWN, T0 + 1)
    failed(Failure.ERROR, destination=destination, now=T0 + 1)
    assert destination.until == T0 + 3, "one more failure is enough to know that it still is"


@pytest.mark.req("S-05")
def test_a_long_description_is_shortened_to_what_the_service_accepts():
    step = unreadable(EnvelopeError("x" * 5000))
    assert len(step.description) == DESCRIPTION_MAX
    assert step.description.endswith("x…")


# --- backing off --------------------------------------------------------------------------------


def waits(failure, count):
    """How long nothing is sent after each of `count` failures in a row."""
    destination, now = Destination("orders"), T0
    for _ in range(count):
        failed(failure, destination=destination, now=now)
        yield destination.until - now
        now = destination.until


@pytest.mark.req("S-04")
def test_waits_double_up_to_their_limit():
    assert [*waits(Failure.UNREACHABLE, 5)] == [15, 30, 60, 60, 60]
    assert [*waits(Failure.THROTTLED, 3)] == [10, 10, 10]
    assert [*waits(Failure.DISABLED, 4)] == [60, 120, 240, 300]
    assert [*waits(Failure.NOT_FOUND, 3)] == [60, 60, 60]
    assert max(waits(Failure.UNREACHABLE, 2000)) == 60


def test_after_ten_minutes_messages_are_tried_less_often():
    """Each attempt is a message that is received and billed."""
    pauses = [*waits(Failure.QUOTA_EXCEEDED, 130)]
    assert pauses == [5] * 121 + [30] * 9


@pytest.mark.req("S-04")
@pytest.mark.parametrize("failure", [Failure.UNREACHABLE, Failure.DISABLED, Failure.UNAUTHORIZED])
def test_a_link_shows_that_a_destination_may_be_back(failure):
    destination = failed(failure)
    assert destination.is_back_by_link

    destination.reopened(now=T0 + 2)

    assert next_step(message(), destination, now=T0 + 2) is NextStep.SEND
    assert destination.is_failing, "only a message proves it"
    destination.sent(now=T0 + 2)
    assert not destination.is_failing
    assert failed(failure, destination=destination).is_back_by_link


def test_a_link_is_not_trusted_again_if_messages_fail_all_the_same():
    destination, pauses = failed(Failure.UNREACHABLE), []
    destination.reopened(now=T0 + 2)
    now = T0 + 2
    for _ in range(5):
        failed(Failure.UNREACHABLE, destination=destination, now=now)
        pauses.append(destination.until - now)
        now = destination.until

    assert not destination.is_back_by_link
    assert pauses == [2, 4, 5, 5, 5]


@pytest.mark.parametrize("failure", [Failure.ERROR, Failure.THROTTLED, Failure.QUOTA_EXCEEDED])
def test_a_link_does_not_show_that_a_destination_accepts_messages(failure):
    destination = Destination("orders")
    for _ in range(3):
        failed(failure, destination=destination)
    assert destination.is_failing
    assert not destination.is_back_by_link


@pytest.mark.req("S-04")
@pytest.mark.parametrize("failure", [*WAITING, Failure.NOT_FOUND])
def test_a_success_ends_the_wait_and_resets_the_count(failure):
    destination, now = Destination("orders"), T0
    for _ in range(4):
        failed(failure, destination=destination, now=now)
        now = destination.until
    destination.sent(now=now)
    assert (destination.condition, destination.failures) == (Condition.UP, 0)
    assert (destination.detail, destination.since) == ("", now)
    assert next_step(message(), destination, now=now) is NextStep.SEND
    failed(failure, destination=destination, now=now)
    assert destination.until == now + POLICY[failure].first_seconds


def test_failures_of_sends_that_were_under_way_together_count_once():
    destination = Destination("orders")
    for late in (0.0, 0.1, 0.2):
        failed(Failure.UNREACHABLE, destination=destination, now=T0 + late)
    assert destination.failures == 1
    assert destination.until == T0 + 15.2


def test_another_kind_of_failure_starts_a_new_count():
    destination = Destination("orders")
    for now in (T0, T0 + 15, T0 + 45):
        failed(Failure.UNREACHABLE, destination=destination, now=now)
    failed(Failure.QUOTA_EXCEEDED, destination=destination, now=T0 + 105)
    assert (destination.condition, destination.failures) == (Condition.FULL, 1)
    assert (destination.since, destination.until) == (T0 + 105, T0 + 110)


@pytest.mark.req("R-03")
def test_after_throttling_a_success_of_another_send_does_not_shorten_the_ten_seconds():
    destination = failed(Failure.THROTTLED)
    destination.sent(now=T0 + 1)
    assert next_step(message(), destination, now=T0 + 9.9) is NextStep.WAIT
    assert next_step(message(), destination, now=T0 + 10) is NextStep.SEND
    destination.sent(now=T0 + 10)
    assert destination.condition is Condition.UP


@pytest.mark.req("R-03")
def test_after_throttling_neither_does_another_failure():
    destination = failed(Failure.THROTTLED)
    failed(Failure.UNREACHABLE, destination=destination, now=T0 + 1)
    destination.sent(now=T0 + 2)
    assert (destination.condition, destination.until) == (Condition.THROTTLED, T0 + 10)


@pytest.mark.req("R-03")
def test_throttling_while_the_destination_waits_for_something_else_still_counts_ten_seconds():
    destination = failed(Failure.QUOTA_EXCEEDED)
    failed(Failure.THROTTLED, destination=destination, now=T0 + 0.5)
    assert destination.until == T0 + 10.5


# --- all destinations of a task -----------------------------------------------------------------


def test_the_case_of_a_path_does_not_matter():
    destinations = Destinations()
    assert destinations["Orders"] is destinations["oRDERS"] is destinations["Orders"]
    assert [one.path for one in destinations] == ["Orders"]


def test_a_task_takes_over_what_another_task_has_learned():
    first, second = Destinations(), Destinations()
    failed(Failure.DISABLED, destination=first["orders"])
    failed(Failure.NOT_FOUND, destination=first["events"])
    second["ORDERS"].sent(now=T0 - 1)
    second["events"].sent(now=T0 + 1)

    for each in pickle.loads(pickle.dumps(list(first))):
        second.learn(each)
    third = Destinations(second)

    assert second["orders"].condition is third["orders"].condition is Condition.DISABLED
    assert [one.path for one in third] == ["ORDERS", "events"]
    assert third["events"].condition is Condition.UP, "its news is newer"
    third["orders"].sent(now=T0 + 5)
    assert first["orders"].condition is Condition.DISABLED, "each has its own"


class Syphoning(RuleBasedStateMachine):
    """Any sequence of successes and failures, compared with a simple model."""

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
        what = fail(destination, failure, count=count, now=self.now, detail="d")
        if isinstance(what, ToDeadLetter):
            assert failure in (Failure.NOT_FOUND, Failure.REFUSED)
            assert count == 1 or failure is Failure.NOT_FOUND
        if what is not NextStep.SPLIT and failure is not Failure.REFUSED:
            self.said[path] = (self.now, failure)
        if failure is Failure.THROTTLED:
            self.throttled[path] = self.now

    @invariant()
    def steps_follow_from_what_was_said(self):
        for path in ("a", "b"):
            step = next_step(message(), self.destinations[path], now=self.now)
            when, what = self.said.get(path, (T0, None))
            if self.now - self.throttled.get(path, T0 - 10) < 10:
                assert step is not NextStep.SEND
            elif what is None and self.destinations[path].condition is not Condition.THROTTLED:
                assert step is NextStep.SEND
            if isinstance(step, ToDeadLetter):
                assert self.destinations[path].condition is Condition.NOT_FOUND
            if step is NextStep.WAIT:
                assert self.now < self.destinations[path].until <= self.now + 300
            if self.now >= when + 300:
                assert step is NextStep.SEND, "nothing waits forever"


TestSyphoning = Syphoning.TestCase


# --- from an exception to a failure ---------------------------------------------------------------

FAILURES = {
    "a time-out": (sdk.OperationTimeoutError(), Failure.UNREACHABLE),
    "a lost connection": (sdk.ServiceBusConnectionError(), Failure.UNREACHABLE),
    "an internal error": (
        sdk.ServiceBusError("no", condition="amqp:internal-error"),
        Failure.ERROR,
    ),
    "server busy": (sdk.ServiceBusServerBusyError(), Failure.THROTTLED),
    "a full entity": (sdk.ServiceBusQuotaExceededError(), Failure.QUOTA_EXCEEDED),
    "a disabled entity": (sdk.MessagingEntityDisabledError(), Failure.DISABLED),
    "no such entity": (sdk.MessagingEntityNotFoundError(), Failure.NOT_FOUND),
    "no such entity, said by the refused token": (
        sdk.ServiceBusAuthenticationError(error=TokenAuthFailure(404, "not found")),
        Failure.NOT_FOUND,
    ),
    "a wrong key": (
        sdk.ServiceBusAuthenticationError(error=TokenAuthFailure(401, "no")),
        Failure.UNAUTHORIZED,
    ),
    "no Send claim": (sdk.ServiceBusAuthorizationError(), Failure.UNAUTHORIZED),
    "a message that is too large": (sdk.MessageSizeExceededError(), Failure.REFUSED),
    "a bug": (KeyError("x"), None),
}


@pytest.mark.parametrize(("error", "failure"), FAILURES.values(), ids=FAILURES)
def test_an_exception_of_the_sdk_is_mapped_to_a_failure(error, failure):
    assert failure_of(error) is failure
