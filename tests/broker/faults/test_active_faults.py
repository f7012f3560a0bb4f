"""What active faults decide: their dice, and what they hit."""

import pytest

from pairbus.broker.faults import (
    CannotContact,
    CannotManage,
    CannotReceive,
    CannotSend,
    ClockJump,
    DelayedVisibility,
    DiskFull,
    Error,
    Hang,
    Operation,
    Restart,
    Slow,
    Throttle,
    Unreachable,
)
from pairbus.broker.faults.active_faults import Silence
from tests.broker.faults.examples import active

pytestmark = pytest.mark.req("B-13")

SEND, RECEIVE, ATTACH = Operation.SEND, Operation.RECEIVE, Operation.ATTACH


def refusals(faults, count, *operations, seed=1, entity="orders"):
    those = active(*faults, seed=seed)
    return [those.refusal(entity, *operations) is not None for _ in range(count)]


def test_the_same_seed_refuses_the_same_requests():
    faults = [Throttle(rate=0.5), Error(probability=0.3)]

    assert refusals(faults, 100, SEND, seed=7) == refusals(faults, 100, SEND, seed=7)
    assert refusals(faults, 100, SEND, seed=7) != refusals(faults, 100, SEND, seed=8)


def test_a_seed_of_its_own_outweighs_the_scripts():
    faults = [Throttle(rate=0.5, seed=3)]

    assert refusals(faults, 100, SEND, seed=7) == refusals(faults, 100, SEND, seed=8)


def test_faults_that_are_alike_do_not_hit_alike():
    one = refusals([Error(probability=0.5)], 100, SEND)
    both = active(Error("a", probability=0.5), Error("b", probability=0.5), seed=1)

    assert [both.refusal("a", SEND) is not None for _ in range(100)] == one
    assert [both.refusal("b", SEND) is not None for _ in range(100)] != one


def test_a_rate_is_the_share_that_gets_through():
    refused = refusals([Throttle(rate=0.2)], 2000, SEND)

    assert 0.77 < sum(refused) / len(refused) < 0.83


@pytest.mark.parametrize(("rate", "refused"), [(0, 50), (1, 0)])
def test_a_rate_of_nothing_and_of_all_is_exact(rate, refused):
    assert sum(refusals([Throttle(rate=rate)], 50, SEND)) == refused


@pytest.mark.parametrize(
    ("distribution", "low", "high"),
    [("constant", 2.0, 2.0), ("uniform", 0.0, 4.0), ("exponential", 0.0, 40.0)],
)
def test_a_latency_has_the_mean_that_was_asked_for(distribution, low, high):
    those = active(Slow(latency_seconds=2, distribution=distribution))

    drawn = [those.latency_seconds(None) for _ in range(3000)]

    assert low <= min(drawn) <= max(drawn) <= high
    assert 1.85 < sum(drawn) / len(drawn) < 2.15
    assert (len(set(drawn)) == 1) is (distribution == "constant")


@pytest.mark.parametrize(
    ("scope", "entity", "is_hit"),
    [
        (None, "orders", True),
        ("orders", "orders", True),
        ("ORDERS", "Orders", True),
        ("/orders/", "orders", True),
        ("orders", "orders2", False),
        ("orders", "orders/2", False),
        ("events", "events/Subscriptions/audit", True),
        ("events/Subscriptions/audit", "Events/subscriptions/Audit", True),
        ("events/Subscriptions/audit", "events", False),
        ("events/Subscriptions/audit", "events/Subscriptions/other", False),
    ],
)
def test_a_fault_hits_its_entity_only(scope, entity, is_hit):
    those = active(CannotSend(scope))

    assert (those.refusal(entity, SEND) is not None) is is_hit


@pytest.mark.parametrize(
    ("fault", "hit"),
    [
        (CannotSend(), {"send"}),
        (CannotReceive(), {"receive"}),
        (CannotManage(), {"manage"}),
        (CannotContact(), set()),
        (Throttle(), {"send", "management", "manage"}),
        (Error(), {"send"}),
        (Error(on=list(Operation)), {str(operation) for operation in Operation}),
        (DiskFull(), set()),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_a_fault_refuses_what_it_is_for(fault, hit):
    assert {str(one) for one in Operation if active(fault).refusal("orders", one)} == hit


def test_a_request_that_counts_twice_is_thrown_for_once():
    those = active(Error(on=["send", "management"], times=1))

    assert those.refusal("orders", Operation.MANAGEMENT, SEND) is not None
    assert those.refusal("orders", Operation.MANAGEMENT, SEND) is None


def test_an_error_says_that_it_was_asked_for():
    error = active(Error(condition="amqp:not-found", description="gone")).refusal("q", SEND)

    assert (error.condition, error.description) == (
        "amqp:not-found",
        "gone (fault 1 on demand: error)",
    )


@pytest.mark.parametrize("make", [Restart, Unreachable, CannotContact])
def test_what_closes_an_entity_bars_its_links_and_no_others(make):
    those = active(make("orders"))

    assert those.refusal_of_link("orders", receives=False).condition == "amqp:link:detach-forced"
    assert those.refusal_of_link("other", receives=True) is None
    assert not those.is_refusing
    assert not those.is_cut_off


def test_cannot_receive_closes_only_receivers():
    those = active(CannotReceive("orders", condition="amqp:not-found"))

    assert those.refusal_of_link("orders", receives=True).condition == "amqp:not-found"
    assert those.refusal_of_link("orders", receives=False) is None


def test_what_closes_the_namespace_closes_its_port():
    assert active(Restart()).is_refusing
    assert active(Unreachable()).is_refusing
    assert not active(Unreachable(mode="drop")).is_refusing
    assert not active(CannotContact()).is_refusing
    assert active(CannotContact()).is_cut_off


def test_silence_is_of_the_namespace_or_of_an_entity():
    everywhere, there = active(Hang()), active(Unreachable("orders", mode="drop"))

    assert (everywhere.silence(None), everywhere.silence("orders")) == (Silence.HANG, None)
    assert (there.silence(None), there.silence("orders")) == (None, Silence.DROP)
    assert active(Hang(), Unreachable(mode="drop")).silence(None) is Silence.DROP


def test_messages_are_seen_after_the_longest_delay():
    those = active(DelayedVisibility(delay_seconds=1), DelayedVisibility("q", delay_seconds=9))

    assert those.visible_at_ms("q", now_ms=1000) == 10_000
    assert those.visible_at_ms("other", now_ms=1000) == 2000
    assert active(Hang()).visible_at_ms("q", now_ms=1000) is None


def test_the_narrowest_line_counts():
    those = active(Slow(bytes_per_second=100), Slow(bytes_per_second=50), Slow(latency_seconds=1))

    assert those.transmission_seconds(None, 100) == 2.0
    assert those.transmission_seconds("orders", 100) == 0.0


def test_jumps_of_the_clock_add_up():
    those = active(ClockJump(offset_seconds=60), ClockJump(offset_seconds=-20))

    assert those.clock_offset_seconds == 40
