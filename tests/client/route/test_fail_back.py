"""Ordered failback: when the backlog is peeked at, when sends wait, and when an entity is home."""

import pytest

from pairbus import events
from pairbus.client.route.health import HOLD_SECONDS
from pairbus.client.route.own_backlog import (
    HOLD_POLL_SECONDS,
    NEAR_SECONDS,
    PEEK_SECONDS_MAX,
    PEEK_SECONDS_NEAR,
    STALL_SECONDS,
    PeekedPage,
)
from pairbus.client.route.plans import Hold, Nowhere, PeekBacklog, Ping, ToBacklog, ToPrimary
from tests.client.route.client import DOWN, FULL, QUEUES, TOO_BUSY, Client

pytestmark = pytest.mark.req("X-03")

NONE_LEFT = PeekedPage(first=None, is_end=True)


class Call:
    """A call of a sender."""


CALL, ANOTHER = Call(), Call()


def first_at(sequence, diverted_at):
    return PeekedPage(first=sequence, diverted_at=diverted_at, last=sequence, is_end=False)


class Ordered(Client):
    def __init__(self, **settings):
        super().__init__(**{"failover": 0.0, "ping": 10.0, "ordered": True, **settings})

    def begin(self, call=CALL):
        plan = self.plan()
        assert isinstance(plan, ToBacklog)
        assert self.router.ordered.backlog_begins("orders", plan, call, now=self.now)
        return plan

    def end(self, plan=None, call=CALL):
        """A send to the backlog ends; without a plan, nothing was stored."""
        if plan is not None:
            self.router.sent("orders", plan, count=1, now=self.now)
        self.router.ordered.backlog_attempt_ended("orders", call, now=self.now)
        self.router.ordered.backlog_call_ended("orders", call, now=self.now)

    def divert(self):
        self.end(self.begin(ANOTHER), ANOTHER)

    def away(self):
        """Failed over with one message in the backlog, and the primary answers at 10."""
        self.fail()
        self.divert()
        [ping] = self.at(10).due()
        self.answer(ping)
        return self

    def peek(self, page):
        """The peek that is due now shows this."""
        [peek] = [task for task in self.due() if isinstance(task, PeekBacklog)]
        self.router.ordered.peeked(peek, page, now=self.now)
        return peek


def test_an_answered_ping_does_not_bring_it_home_while_its_messages_are_in_the_backlog():
    client = Ordered().away()

    assert client.state() == "returning"
    assert client.plan() == ToBacklog(QUEUES[0])
    assert client.status().failed_over == ("orders",)
    assert client.events()[-1] == events.Returning(
        namespace="contoso", path="orders", backlog_queue=QUEUES[0], after_seconds=10.0
    )


def test_a_peek_that_finds_none_of_its_own_brings_it_home():
    client = Ordered().away()
    peek = client.peek(NONE_LEFT)

    assert peek == PeekBacklog(path="orders", queue=QUEUES[0], epoch=0, from_sequence=0, diverted=1)
    assert client.plan() == ToPrimary(1)
    assert client.events()[-1] == events.FailedBack(
        namespace="contoso", path="orders", reason="backlog home", after_seconds=10.0
    )
    assert client.next_due() is None


def test_an_entity_that_diverted_nothing_goes_home_with_the_ping():
    client = Ordered()
    client.fail()
    [ping] = client.at(10).due()

    assert client.answer(ping) is True
    assert client.events()[-1].reason == "ping"


def test_a_send_that_is_under_way_to_the_backlog_is_not_home():
    client = Ordered().away()
    plan = client.begin()
    client.peek(NONE_LEFT)

    assert client.state() == "holding"
    client.end(plan)
    client.at(10.5).peek(first_at(2, 10.0))
    assert client.state() == "holding"
    client.at(11).peek(NONE_LEFT)
    assert client.state() == "healthy"


def test_one_that_ends_without_having_stored_anything_does_not_hold_it_up():
    client = Ordered().away()
    client.begin()
    client.peek(NONE_LEFT)
    assert client.state() == "holding"

    client.end()

    assert client.state() == "healthy"


def test_a_message_that_was_diverted_after_the_peek_began_is_not_home():
    client = Ordered().away()
    [peek] = client.due()
    client.divert()
    client.router.ordered.peeked(peek, NONE_LEFT, now=client.now)

    assert client.state() == "holding"


def test_a_plan_from_before_the_way_home_is_not_followed():
    client = Ordered().away()
    old = client.plan()
    client.peek(NONE_LEFT)

    assert not client.router.ordered.backlog_begins("orders", old, CALL, now=client.now)


def test_sends_wait_when_the_syphon_is_close_behind_and_no_longer_than_ten_seconds():
    client = Ordered().away()
    client.peek(first_at(1, client.now - NEAR_SECONDS))

    assert client.plan() == Hold(HOLD_POLL_SECONDS)
    assert client.router.plan("orders", now=client.now, can_hold=False) == ToBacklog(QUEUES[0])
    for _ in range(int(HOLD_SECONDS / PEEK_SECONDS_NEAR) - 1):
        client.at(client.now + PEEK_SECONDS_NEAR).peek(first_at(1, client.now - NEAR_SECONDS))
        assert client.plan() == Hold(HOLD_POLL_SECONDS)
    assert client.at(20).plan() == ToBacklog(QUEUES[0])
    assert client.state() == "returning"
    # And not again for a while, although the syphon is still close.
    client.at(20.5).due()
    assert isinstance(client.plan(), ToBacklog)


def test_peeks_are_rare_while_the_backlog_is_deep_and_go_on_where_the_last_one_ended():
    client = Ordered(ping=1800.0)
    client.fail()
    client.divert()
    [ping] = client.at(1800).due()
    client.answer(ping)
    moments, froms = [], []
    for number in range(5):
        froms.append(client.peek(first_at(number * 100 + 7, 0.0)).from_sequence)
        moments.append(client.next_due() - client.now)
        client.at(client.next_due())

    assert moments == [PEEK_SECONDS_MAX] * 5
    assert froms == [0, 7, 107, 207, 307]


def test_a_page_without_own_messages_is_followed_by_the_next_at_once():
    client = Ordered().away()
    client.peek(PeekedPage(first=None, last=50, is_end=False))
    assert client.next_due() == client.now
    assert client.state() == "returning"

    assert client.peek(PeekedPage(first=None, last=99, is_end=False)).from_sequence == 51
    assert client.peek(NONE_LEFT).from_sequence == 100
    assert client.state() == "healthy"


def test_the_primary_may_fail_again_on_the_way_back():
    client = Ordered().away()
    client.peek(first_at(1, 10.0))
    assert client.state() == "holding"
    [ping] = [task for task in client.at(20).due() if isinstance(task, Ping)]
    client.refuse(ping)

    assert client.state() == "failed over"
    assert client.plan() == ToBacklog(QUEUES[0])
    assert client.next_due() == 30.0
    [ping] = client.at(30).due()
    client.answer(ping)
    assert client.state() == "returning"


def test_a_peek_that_is_answered_after_the_primary_failed_again_changes_nothing():
    client = Ordered().away()
    tasks = client.due()
    [ping] = client.at(20).due()
    client.refuse(ping)
    client.router.ordered.peeked(tasks[0], NONE_LEFT, now=client.now)

    assert client.state() == "failed over"


def test_it_warns_when_nothing_comes_home_and_then_less_and_less_often():
    client = Ordered(ping=1800.0)
    client.fail()
    client.divert()
    client.answer(*client.at(1800).due())
    client.events()
    warned = []
    while client.now < 1800 + 10 * STALL_SECONDS:
        client.at(client.next_due())
        for task in client.due():
            if isinstance(task, PeekBacklog):
                client.router.ordered.peek_failed(task, DOWN, now=client.now)
        warned += [(client.now - 1800, event) for event in client.events()]

    assert [at for at, _ in warned] == [60.0, 120.0, 240.0, 480.0]
    assert warned[0][1] == events.FailBackDelayed(
        namespace="contoso", path="orders", backlog_queue=QUEUES[0], seconds=60.0, error=DOWN
    )


def test_progress_is_no_reason_for_a_warning():
    client = Ordered(ping=1800.0)
    client.fail()
    client.divert()
    client.answer(*client.at(1800).due())
    client.events()
    for number in range(20):
        client.at(client.next_due()).peek(first_at(number, 0.0))

    assert client.events() == []


def test_it_gives_up_order_after_the_time_that_it_may_wait():
    client = Ordered(ping=1800.0, wait_max=100.0)
    client.fail()
    client.divert()
    client.answer(*client.at(1800).due())
    client.peek(first_at(1, 0.0))
    client.events()

    client.at(1899.9).due()
    assert client.state() == "returning"
    client.at(1900).due()
    assert client.plan() == ToPrimary(1)
    [failed_back] = client.events()
    assert failed_back.reason == "wait over"
    # The next outage does not wait for what was left.
    client.fail()
    client.answer(*client.at(3700).due())
    assert client.state() == "healthy"


def test_sends_do_not_wait_for_the_last_messages_beyond_that_time():
    client = Ordered(wait_max=6.0).away()
    client.peek(first_at(1, client.now))
    assert client.state() == "holding"

    assert client.at(15.9).plan() == Hold(HOLD_POLL_SECONDS)
    assert client.at(16).plan() == ToPrimary(1)
    assert client.events()[-1].reason == "wait over"


@pytest.mark.parametrize("outcome", ["answered", "failed", "peeked", "sent", "send failed"])
def test_an_outcome_that_is_the_first_to_show_that_the_wait_is_over_changes_nothing_else(outcome):
    """The background has not looked yet."""
    client = Ordered(ping=90.0, wait_max=100.0)
    on_primary = client.plan()
    client.fail()
    client.divert()
    client.answer(*client.at(90).due())
    ping, peek = client.at(180).due()
    client.events()

    client.at(190.5)
    match outcome:
        case "answered":
            assert client.answer(ping) is True
        case "failed":
            client.refuse(ping)
        case "peeked":
            client.router.ordered.peeked(peek, first_at(1, client.now), now=client.now)
        case "sent":
            client.ok(plan=on_primary)
        case "send failed":
            assert client.fail(plan=on_primary) is True

    assert client.state() == "healthy"
    [failed_back] = [each for each in client.events() if isinstance(each, events.FailedBack)]
    assert failed_back.reason == "wait over"
    assert client.plan() == ToPrimary(1)
    assert client.due() == []


def test_marking_by_hand_does_not_wait():
    client = Ordered().away()

    assert client.mark() is True
    assert client.plan() == ToPrimary(1)
    assert client.events()[-1].reason == "by hand"


def test_a_send_that_is_answered_after_order_was_given_up_is_not_waited_for():
    client = Ordered().away()
    plan = client.begin()
    client.mark()
    client.end(plan)
    client.fail()
    [ping] = client.at(20).due()

    assert client.answer(ping) is True
    assert client.events()[-1].reason == "ping"


# one queue at a time


def test_while_its_messages_are_in_a_queue_it_uses_no_other():
    client = Ordered()
    client.fail()
    plan = client.begin()
    client.end(plan)
    client.router.failed("orders", plan, FULL, now=client.now)

    assert client.plan() == Hold(HOLD_POLL_SECONDS)
    assert isinstance(client.router.plan("orders", now=client.now, can_hold=False), Nowhere)
    client.router.probe_answered(QUEUES[0])
    assert client.plan() == ToBacklog(QUEUES[0])


def test_a_queue_that_is_only_busy_keeps_its_entity():
    client = Ordered()
    client.fail()
    client.divert()
    client.router.throttled("orders", client.plan(), TOO_BUSY, wait_seconds=10.0, now=client.now)

    assert client.plan() == ToBacklog(QUEUES[0])


def test_a_queue_that_never_took_a_message_can_be_left():
    client = Ordered()
    client.fail()
    plan = client.begin()
    client.router.failed("orders", plan, FULL, now=client.now)
    client.router.ordered.backlog_attempt_ended("orders", CALL, now=client.now)

    assert client.plan() == ToBacklog(QUEUES[1])


def test_another_queue_is_peeked_at_from_its_beginning():
    client = Ordered().away()
    client.peek(PeekedPage(first=None, last=50, is_end=False))
    plan = client.begin()
    assert client.peek(NONE_LEFT).from_sequence == 51
    client.router.failed("orders", plan, FULL, now=client.now)
    client.router.ordered.backlog_attempt_ended("orders", CALL, now=client.now)
    other = client.router.plan("orders", now=client.now, can_hold=False)
    assert other == ToBacklog(QUEUES[1])
    assert client.router.ordered.backlog_begins("orders", other, CALL, now=client.now)
    client.end(other)

    assert client.at(11).peek(first_at(3, 10.0)).from_sequence == 0
    assert client.state() == "holding"


def test_an_entity_that_is_used_first_while_others_return_starts_on_the_primary():
    client = Ordered(together=True)
    client.router.failed("orders", client.plan(), DOWN, now=client.now, is_unreachable=True)
    assert isinstance(client.plan("later"), ToBacklog)
    client.divert()
    for ping in client.at(10).due():
        if ping.path == "orders":
            client.answer(ping)

    assert client.state() == "returning"
    assert client.plan("latest") == ToPrimary(0)


def test_a_closed_client_peeks_no_more():
    client = Ordered().away()
    tasks = client.due()
    client.router.close()
    client.router.ordered.peeked(tasks[0], NONE_LEFT, now=client.now)

    assert client.state() == "returning"
    assert client.at(1000).due() == []
