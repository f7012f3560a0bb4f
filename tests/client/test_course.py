"""The course of one call: where it goes, how long it waits, and which error its caller gets."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from pairbus.client.course import Course, is_stale, leaves_usable
from pairbus.client.errand import Errand, TurnTaken
from pairbus.client.pairing import Pair
from pairbus.client.pool import AllBusy
from pairbus.client.route.router import Nowhere, ToBacklog, ToPrimary
from pairbus.client.sdk import private as internals
from pairbus.client.sdk.errors import BacklogExhausted, EnvelopeTooLarge
from pairbus.client.sdk.messages import diverted_all
from pairbus.events import BacklogWithdrawn, Diverted, SendFailed, Throttled
from tests.client.fakes import Clock, busy, outage, pair_of, plain_client

PATH = "orders"
MESSAGES = [ServiceBusMessage(b"x" * 300) for _ in range(10)]


def errand(messages: list[ServiceBusMessage]) -> Errand[None, str]:
    return Errand(
        count=len(messages),
        on_primary=lambda timeout: None,
        diverted=lambda: diverted_all(messages, PATH),
        when_diverted=str,
    )


def course_of(
    pair: Pair, *, messages: list[ServiceBusMessage] | None = None, timeout: float | None = None
) -> Course[None, str]:
    return Course(pair, PATH, errand(MESSAGES[:1] if messages is None else messages), timeout)


def lane(limit: int = 100_000) -> Any:
    sender = plain_client().get_queue_sender("q")
    internals.lend_limits(sender, (limit, limit))
    return sender


def to_primary(course: Course[None, str]) -> ToPrimary:
    plan = course.plan()
    assert isinstance(plan, ToPrimary)
    return plan


def to_backlog(course: Course[None, str]) -> ToBacklog:
    plan = course.plan()
    assert isinstance(plan, ToBacklog)
    return plan


def failed_over(course: Course[None, str]) -> ToBacklog:
    assert course.primary_failed(to_primary(course), outage()) == 0.0
    return to_backlog(course)


def refused(
    ask: Callable[[Any, Exception], float], way: ToPrimary | ToBacklog, error: Exception
) -> BaseException:
    """What the caller gets for it."""
    with pytest.raises(type(error)) as caught:
        ask(way, error)
    return caught.value


def state_of(pair: Pair) -> str:
    return pair.status().entity(PATH).state


# --- the primary


@pytest.mark.req("A-05")
def test_with_an_interval_of_zero_the_first_failure_diverts_that_very_call(clock: Clock) -> None:
    pair, _ = pair_of(clock)
    course = course_of(pair)

    assert course.primary_failed(to_primary(course), outage()) == 0.0
    assert isinstance(course.plan(), ToBacklog)


@pytest.mark.req("A-05")
@pytest.mark.req("A-10")
def test_within_the_interval_the_caller_gets_the_very_error_of_the_sdk(clock: Clock) -> None:
    pair, _ = pair_of(clock, failover_interval=timedelta(seconds=10))
    course = course_of(pair)
    error = outage()

    assert refused(course.primary_failed, to_primary(course), error) is error
    assert state_of(pair) == "suspect"


@pytest.mark.req("F-03")
def test_when_the_interval_is_over_a_failing_call_is_diverted(clock: Clock) -> None:
    pair, _ = pair_of(clock, failover_interval=timedelta(seconds=10))
    course = course_of(pair)
    plan = to_primary(course)
    refused(course.primary_failed, plan, outage())

    late = course_of(pair)
    plan = to_primary(late)
    clock.advance(10)

    assert late.primary_failed(plan, outage()) == 0.0
    assert isinstance(late.plan(), ToBacklog)


@pytest.mark.req("F-01")
@pytest.mark.parametrize(
    "error",
    [
        OperationTimeoutError(message="too slow"),
        MessagingEntityDisabledError(message="disabled"),
        ServiceBusError("internal"),
    ],
)
def test_a_failure_that_counts_diverts(clock: Clock, error: Exception) -> None:
    course = course_of(pair_of(clock)[0])

    assert course.primary_failed(to_primary(course), error) == 0.0


@pytest.mark.req("F-02")
@pytest.mark.parametrize(
    "error",
    [
        ServiceBusAuthorizationError(message="no Send claim"),
        MessageSizeExceededError(message="too large"),
        ValueError("a mistake of the caller"),
        TypeError("no message"),
    ],
)
def test_what_is_not_the_namespaces_fault_never_does(clock: Clock, error: Exception) -> None:
    pair, _ = pair_of(clock)
    course = course_of(pair)

    assert refused(course.primary_failed, to_primary(course), error) is error
    assert state_of(pair) == "healthy"


def test_a_call_that_waited_while_the_entity_failed_over_just_goes_on(clock: Clock) -> None:
    pair, _ = pair_of(clock)
    course = course_of(pair)
    way = failed_over(course)

    assert course.primary_failed(way, outage()) == 0.0
    assert course.primary_failed(Nowhere(None, None), outage()) == 0.0


@pytest.mark.parametrize(("is_stuck", "state"), [(True, "suspect"), (False, "healthy")])
def test_a_turn_that_never_came_counts_only_if_one_call_was_stuck(
    clock: Clock, is_stuck: bool, state: str
) -> None:
    pair, _ = pair_of(clock, failover_interval=timedelta(seconds=10))
    course = course_of(pair)

    refused(course.primary_failed, to_primary(course), TurnTaken(PATH, 1.0, is_stuck=is_stuck))

    assert state_of(pair) == state


def test_a_diverted_call_that_comes_back_to_the_primary_has_its_time_again(clock: Clock) -> None:
    pair, _ = pair_of(clock)
    course = course_of(pair, timeout=5.0)
    assert course.time.on_primary(now=clock.now) == 5.0
    clock.advance(5)

    failed_over(course)
    pair.mark_path_healthy(PATH)

    assert isinstance(course.plan(), ToPrimary)
    assert course.time.on_primary(now=clock.now) == 5.0


# --- a busy service


@pytest.mark.req("R-03")
@pytest.mark.req("F-02")
def test_a_busy_primary_is_waited_for_and_nothing_is_diverted(clock: Clock) -> None:
    pair, told = pair_of(clock, retry_total=2)
    course = course_of(pair)

    assert course.primary_failed(to_primary(course), busy()) == 10.0
    clock.advance(10)
    assert course.primary_failed(to_primary(course), busy()) == 10.0

    assert [type(event) for event in told] == [Throttled, Throttled]
    assert state_of(pair) == "healthy"


@pytest.mark.req("R-03")
@pytest.mark.parametrize(("retry_total", "laps"), [(0, 1), (1, 1), (3, 3)])
def test_a_busy_primary_is_waited_for_as_often_as_the_sdk_retries(
    clock: Clock, retry_total: int, laps: int
) -> None:
    pair, told = pair_of(clock, retry_total=retry_total)
    course = course_of(pair)
    for _ in range(laps):
        assert course.primary_failed(to_primary(course), busy()) == 10.0
        clock.advance(10)

    error = busy()

    assert refused(course.primary_failed, to_primary(course), error) is error
    assert len(told) == laps


@pytest.mark.req("R-03")
def test_a_call_without_the_time_to_wait_gets_the_error_at_once(clock: Clock) -> None:
    pair, told = pair_of(clock)
    course = course_of(pair, timeout=10.0)

    assert isinstance(
        refused(course.primary_failed, to_primary(course), busy()), ServiceBusServerBusyError
    )
    assert told == []


@pytest.mark.req("R-03")
def test_a_call_waits_as_long_as_its_own_time_allows(clock: Clock) -> None:
    pair, _ = pair_of(clock)
    course = course_of(pair, timeout=15.0)
    course.time.on_primary(now=clock.now)

    assert course.primary_failed(to_primary(course), busy()) == 10.0
    clock.advance(10)
    refused(course.primary_failed, to_primary(course), busy())


@pytest.mark.req("R-03")
def test_a_busy_backlog_queue_is_waited_for_as_well_and_stays_in_the_rotation(
    clock: Clock,
) -> None:
    pair, told = pair_of(clock, retry_total=1)
    course = course_of(pair, timeout=15.0)
    way = failed_over(course)
    told.clear()

    assert course.backlog_failed(way, busy()) == 10.0
    assert [(type(event), event.backlog_queue) for event in told] == [  # type: ignore[attr-defined]
        (Throttled, way.queue)
    ]
    assert to_backlog(course).queue == way.queue
    refused(course.backlog_failed, way, busy())


# --- the backlog


def test_a_call_is_packed_once_and_counted_parcel_by_parcel(clock: Clock) -> None:
    pair, told = pair_of(clock)
    course = course_of(pair, messages=MESSAGES)
    way = failed_over(course)
    told.clear()

    parcels = course.pack(lane(3_000), way)
    assert len(parcels) == 2
    assert course.pack(lane(3_000), way) is parcels
    while parcels:
        course.diverted(way, seconds=0.25)

    assert sum(event.count for event in told if isinstance(event, Diverted)) == 10
    assert {event.seconds for event in told if isinstance(event, Diverted)} == {0.25}


@pytest.mark.req("F-06")
@pytest.mark.parametrize("error", [outage(), ServiceBusAuthorizationError(message="no Send claim")])
def test_a_backlog_queue_that_fails_is_left_for_another(clock: Clock, error: Exception) -> None:
    pair, told = pair_of(clock)
    course = course_of(pair)
    way = failed_over(course)

    assert course.backlog_failed(way, error) == 0.0

    assert to_backlog(course).queue != way.queue
    assert isinstance(told[-1], BacklogWithdrawn)


def test_what_is_left_of_a_split_call_follows_to_another_queue(clock: Clock) -> None:
    pair, _ = pair_of(clock)
    course = course_of(pair, messages=MESSAGES)
    way = failed_over(course)
    course.pack(lane(2_000), way)
    course.diverted(way, seconds=0.1)

    course.backlog_failed(way, outage())

    another = to_backlog(course)
    assert another.queue != way.queue
    assert len(course.pack(lane(2_000), another)) == len(course.parcels or ())


@pytest.mark.req("X-02")
@pytest.mark.parametrize("has_failed", [False, True])
def test_what_is_left_of_a_split_call_stays_in_the_backlog_although_the_primary_is_back(
    clock: Clock, has_failed: bool
) -> None:
    pair, _ = pair_of(clock)
    course = course_of(pair, messages=MESSAGES)
    way = failed_over(course)
    course.pack(lane(2_000), way)
    course.diverted(way, seconds=0.1)

    pair.mark_path_healthy(PATH)
    if has_failed:
        course.backlog_failed(way, outage())

    assert isinstance(course.plan(), ToBacklog)
    assert isinstance(course_of(pair).plan(), ToPrimary)


def test_a_call_of_which_nothing_was_diverted_goes_to_the_primary_that_is_back(
    clock: Clock,
) -> None:
    pair, _ = pair_of(clock)
    course = course_of(pair, messages=MESSAGES)
    way = failed_over(course)
    course.pack(lane(2_000), way)

    course.backlog_failed(way, outage())
    pair.mark_path_healthy(PATH)

    assert isinstance(course.plan(), ToPrimary)


@pytest.mark.req("F-07")
def test_when_no_queue_is_left_the_caller_gets_both_causes(clock: Clock) -> None:
    pair, told = pair_of(clock, queues=2)
    primary_error, backlog_error = outage(), outage()
    course = course_of(pair)
    course.primary_failed(to_primary(course), primary_error)
    course.backlog_failed(to_backlog(course), outage())
    course.backlog_failed(to_backlog(course), backlog_error)

    with pytest.raises(BacklogExhausted) as caught:
        course.plan()

    error = caught.value
    assert (error.entity, error.diverted_count, error.queue_count) == (PATH, 0, 2)
    assert error.primary_error is primary_error
    assert error.backlog_error is backlog_error
    assert error.__cause__ is backlog_error
    assert isinstance(told[-1], SendFailed)
    assert pair.status().entity(PATH).refused == 1


@pytest.mark.req("F-07")
def test_it_says_how_many_of_the_call_are_safe(clock: Clock) -> None:
    pair, _ = pair_of(clock, queues=1)
    course = course_of(pair, messages=MESSAGES)
    way = failed_over(course)
    first = course.pack(lane(2_000), way)[0].count
    course.diverted(way, seconds=0.1)
    course.backlog_failed(way, outage())

    with pytest.raises(
        BacklogExhausted, match=f"The first {first} of this call are safe"
    ) as caught:
        course.plan()
    assert caught.value.diverted_count == first


@pytest.mark.req("A-04")
def test_with_one_queue_it_says_that_there_is_no_other_to_turn_to(clock: Clock) -> None:
    pair, _ = pair_of(clock, queues=1)
    course = course_of(pair)
    course.backlog_failed(failed_over(course), outage())

    with pytest.raises(BacklogExhausted, match="only one backlog queue"):
        course.plan()


@pytest.mark.req("F-07")
def test_when_the_time_is_over_no_further_queue_is_tried(clock: Clock) -> None:
    pair, told = pair_of(clock, queues=5)
    course = course_of(pair, timeout=2.0)
    way = failed_over(course)
    course.time.in_backlog(now=clock.now)
    clock.advance(2)

    with pytest.raises(BacklogExhausted) as caught:
        course.backlog_failed(way, OperationTimeoutError(message="too slow"))

    assert isinstance(caught.value.backlog_error, OperationTimeoutError)
    assert isinstance(told[-1], SendFailed)


def test_that_all_connections_are_busy_says_nothing_of_the_queue(clock: Clock) -> None:
    pair, _ = pair_of(clock)
    course = course_of(pair)
    way = failed_over(course)
    error = AllBusy(way.queue, 1.0)

    assert refused(course.backlog_failed, way, error) is error
    assert to_backlog(course).queue == way.queue


@pytest.mark.req("E-05")
def test_what_the_backlog_finds_too_large_is_told_with_the_reason(clock: Clock) -> None:
    pair, _ = pair_of(clock)
    course = course_of(pair)
    way = failed_over(course)
    error = MessageSizeExceededError(message="too large")
    error._condition = "amqp:link:message-size-exceeded"  # type: ignore[attr-defined]

    with pytest.raises(EnvelopeTooLarge, match="'orders', which is failed over") as caught:
        course.backlog_failed(way, error)

    assert caught.value.backlog_queue == way.queue
    assert caught.value.__cause__ is error
    assert to_backlog(course).queue == way.queue


@pytest.mark.parametrize(
    "error",
    [
        EnvelopeTooLarge(entity=PATH, backlog_queue="q", size=2, limit=1),
        MessageSizeExceededError(message="too large for any namespace"),
        TypeError("no message"),
    ],
)
def test_a_fault_of_the_message_in_the_backlog_is_its_callers(
    clock: Clock, error: Exception
) -> None:
    pair, _ = pair_of(clock)
    course = course_of(pair)
    way = failed_over(course)

    assert refused(course.backlog_failed, way, error) is error
    assert to_backlog(course).queue == way.queue


@pytest.mark.req("F-07")
@pytest.mark.parametrize(
    "error", [busy(), AllBusy("q", 1.0), ValueError("the paired client has been closed")]
)
def test_whatever_ends_a_call_of_which_a_part_is_diverted_its_caller_is_told_how_much(
    clock: Clock, error: Exception
) -> None:
    pair, told = pair_of(clock)
    course = course_of(pair, messages=MESSAGES)
    way = failed_over(course)
    assert course.told(error) is error
    first = course.pack(lane(2_000), way)[0].count
    course.diverted(way, seconds=0.1)

    exhausted = course.told(error)

    assert isinstance(exhausted, BacklogExhausted)
    assert exhausted.diverted_count == first
    assert exhausted.backlog_error is error
    assert isinstance(exhausted.primary_error, ServiceBusError)
    assert isinstance(told[-1], SendFailed)
    assert course.told(exhausted) is exhausted


# --- opening a link


def test_where_nothing_is_to_be_sent_no_queue_is_missed(clock: Clock) -> None:
    pair, told = pair_of(clock, queues=1)
    course = course_of(pair)
    course.backlog_failed(failed_over(course), outage())
    told.clear()

    opening: Errand[None, str] = Errand(count=0, on_primary=lambda timeout: None, when_diverted=str)

    assert isinstance(Course(pair, PATH, opening, None).plan(), Nowhere)
    assert told == []


# --- links


@pytest.mark.parametrize(
    ("error", "stale", "usable"),
    [
        pytest.param(outage(), True, False, id="a connection that is gone"),
        pytest.param(OperationTimeoutError(message="late"), False, False, id="a time-out"),
        pytest.param(busy(), False, True, id="a busy service"),
        pytest.param(MessageSizeExceededError(message="large"), False, True, id="a large message"),
        pytest.param(ServiceBusAuthorizationError(message="no"), False, False, id="no right"),
        pytest.param(ValueError("a mistake"), False, False, id="a mistake"),
    ],
)
def test_a_kept_link_is_judged_by_how_it_failed(
    error: Exception, stale: bool, usable: bool
) -> None:
    assert is_stale(error) is stale
    assert leaves_usable(error) is usable
