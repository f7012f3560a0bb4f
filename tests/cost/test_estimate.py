"""What a pair costs, item by item, and what would make it cheaper."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.cost.estimate import (
    LedgerTotals,
    estimate_ledger,
    estimate_usage,
    find_savings,
)
from pairbus.cost.prices import load, parse
from pairbus.cost.usage import Usage
from pairbus.errors import OptionsError

KB = 1024
PRICES = load()
FREE_SETTLEMENTS = replace(PRICES, unbilled=frozenset({"settle"}))
FLAT = parse(
    'name = "flat"\nas_of = 2026-01-31\ncurrency = "EUR"\n[[operations]]\nper_million = 1.0\n', "it"
)


def items(usage, prices=PRICES):
    """The items with any operations."""
    found = estimate_usage(usage, prices).items
    return {item.name: item.operations for item in found if item.operations}


# -- the figures of the documents


@pytest.mark.req("S-02", "M-03")
def test_ten_idle_backlog_queues_take_40_receives_an_hour_960_a_day_28800_in_30_days():
    usage = Usage(backlog_queues=10)

    assert usage.polls_per_hour == 40
    assert items(replace(usage, days=1)) == {"polls": 960}
    assert items(usage) == {"polls": 28_800}


@pytest.mark.req("M-02", "M-03")
def test_a_diverted_message_costs_four_operations():
    # All of a day's messages, in an outage of that day, and a syphon that comes afterwards.
    usage = Usage(messages_per_day=1, outage_hours=24, days=1, always_on=False, ping_seconds=1800)
    estimate = estimate_usage(usage, FREE_SETTLEMENTS)
    found = items(usage)
    pings = found.pop("pings")

    assert estimate.operations - pings == 4
    assert found == {
        "backlog_sends": 1,
        "backlog_receives": 1,
        "backlog_settlements": 1,
        "home_sends": 1,
        "home_receives": 1,
        "home_settlements": 1,
    }


@pytest.mark.req("M-03")
def test_an_outage_diverts_its_share_of_the_messages():
    usage = Usage(messages_per_day=24_000, outage_hours=2, always_on=False)
    found = items(usage)

    assert found["backlog_sends"] == found["home_receives"] == 2_000
    assert found["sends"] == found["receives"] == 24_000 * 30 - 2_000


@pytest.mark.req("M-03")
def test_each_client_pings_each_entity():
    usage = Usage(outage_hours=1, entities=5, clients=20, ping_seconds=60)

    assert items(usage)["pings"] == 60 * 5 * 20


@pytest.mark.req("M-03")
def test_each_syphon_polls_each_queue():
    assert items(Usage(backlog_queues=3, syphons=4))["polls"] == 3 * 4 * 4 * 24 * 30


@pytest.mark.req("M-03")
@pytest.mark.parametrize(("size", "units"), [(1, 1), (64 * KB, 1), (65 * KB, 2), (256 * KB, 4)])
def test_large_messages_count_several_times_but_are_settled_once(size, units):
    found = items(Usage(messages_per_day=10, days=1, message_bytes=size))

    assert found["sends"] == found["receives"] == 10 * units
    assert found["settlements"] == 10


def test_an_envelope_may_push_a_message_beyond_64_kib():
    found = items(
        Usage(messages_per_day=24, outage_hours=1, message_bytes=64 * KB, always_on=False)
    )

    assert found["backlog_sends"] == 2
    assert found["home_sends"] == 1


@pytest.mark.req("M-02", "M-03")
def test_messages_that_wait_for_the_end_of_an_outage_add_little():
    usage = Usage(messages_per_day=10**6, outage_hours=4, entities=5, clients=20)
    found = items(usage)

    assert found["backlog_receives"] == 166_667
    # For each entity: every 5 s for ten minutes, then every 30 s.
    assert found["probes"] == found["probe_releases"] == 5 * (120 + 460)
    # The size of the messages in units of 64 KiB, and a page a minute for each backlog queue.
    assert found["peeks"] == 2_859 + 240 * 10
    assert found["probes"] + found["peeks"] < 0.05 * found["backlog_receives"]
    assert items(replace(usage, syphons=3))["probes"] == 3 * found["probes"]


def test_nothing_is_probed_if_nothing_was_diverted():
    assert set(items(Usage(outage_hours=1))) == {"polls", "pings"}


def test_without_a_syphon_nothing_comes_home():
    found = items(Usage(messages_per_day=24, outage_hours=24, syphons=0, days=1))

    assert set(found) == {"backlog_sends", "pings"}


@pytest.mark.req("M-03")
@pytest.mark.parametrize(
    ("usage", "connections"),
    [
        pytest.param(Usage(), 2 + 1, id="a client, to each namespace; and a syphon"),
        pytest.param(Usage(entities=4), 4 + 4 + 1, id="an entity uses one backlog queue"),
        pytest.param(Usage(entities=50), 50 + 10 + 1, id="there are ten of them"),
        pytest.param(Usage(clients=20, syphons=2), 20 * 2 + 2, id="many clients"),
        pytest.param(Usage(always_on=False), 2, id="no syphon while the pair is healthy"),
    ],
)
def test_a_client_has_a_connection_for_each_entity_and_for_each_backlog_queue_that_they_use(
    usage, connections
):
    assert estimate_usage(usage, PRICES).connections == connections


# -- money


@pytest.mark.req("M-03")
def test_items_share_the_bill_for_operations():
    estimate = estimate_usage(Usage(messages_per_day=10**6, outage_hours=4), PRICES)

    assert sum(item.money for item in estimate.items) == pytest.approx(
        estimate.money_for_operations
    )
    assert estimate.money_for_operations == PRICES.for_operations(estimate.operations)
    assert estimate.money == pytest.approx(
        estimate.money_for_operations + estimate.money_for_connections + 0.0135 * 720
    )


@pytest.mark.req("M-03")
def test_an_item_that_is_not_billed_is_listed_and_costs_nothing():
    usage = Usage(messages_per_day=10**6)
    with_all, without = estimate_usage(usage, PRICES), estimate_usage(usage, FREE_SETTLEMENTS)

    assert with_all.operations - without.operations == 30 * 10**6
    [settled] = [item for item in without.items if item.kind == "settle" and item.operations]
    assert not settled.is_billed
    assert settled.money == 0


def test_the_cost_of_pairing_leaves_out_what_one_namespace_would_cost():
    usage = Usage(messages_per_day=24_000, outage_hours=2, always_on=False)
    estimate = estimate_usage(usage, FLAT)

    # Into the backlog, out of it, settled there; and the pings.
    assert estimate.pairing_operations == 3 * 2_000 + 120
    assert estimate.operations - estimate.pairing_operations == 3 * 24_000 * 30
    assert estimate.money_for_pairing == pytest.approx(estimate.pairing_operations / 10**6)


def test_other_operations_use_up_the_free_tier():
    usage = Usage(messages_per_day=1000)

    assert estimate_usage(usage, PRICES).money_for_operations == 0
    dear = estimate_usage(replace(usage, other_operations=20 * 10**6), PRICES)
    assert dear.money_for_operations == pytest.approx(dear.operations * 0.80 / 10**6)


usages = st.builds(
    Usage,
    backlog_queues=st.integers(1, 100),
    syphons=st.integers(0, 5),
    messages_per_day=st.integers(0, 10**8),
    message_bytes=st.integers(0, 256 * KB),
    outage_hours=st.floats(0, 100),
    ping_seconds=st.floats(1, 1800),
    entities=st.integers(1, 100),
    clients=st.integers(1, 1000),
)


@given(usages)
def test_every_estimate_adds_up(usage):
    estimate = estimate_usage(usage, PRICES)

    assert all(item.operations >= 0 for item in estimate.items)
    assert estimate.operations == sum(item.operations for item in estimate.items)
    assert 0 <= estimate.pairing_operations <= estimate.operations
    assert 0 <= estimate.money_for_pairing <= estimate.money_for_operations + 1e-9


@given(usages)
def test_the_largest_saving_comes_first(usage):
    found = find_savings(usage, FLAT)

    assert all(saving.operations > 0 and saving.money > 0 for saving in found)
    assert [one.operations for one in found] == sorted((s.operations for s in found), reverse=True)


# -- cheaper


@pytest.mark.req("M-03")
def test_each_possible_saving_is_listed():
    usage = Usage(
        backlog_queues=10, syphons=2, messages_per_day=1000, message_bytes=100 * KB, outage_hours=10
    )
    found = {
        saving.change.split(" ")[0]: saving.operations for saving in find_savings(usage, PRICES)
    }

    polls = items(usage)["polls"]
    looks = sum(items(usage)[name] for name in ("probes", "probe_releases", "peeks"))
    assert found["1"] == (polls + looks) // 2  # syphon
    # Backlog queues: each is polled, and peeked at once a minute by both syphons.
    assert found["5"] == polls // 2 + 5 * 600 * 2
    assert found["a"] == 600 - 120  # a ping
    assert found["messages"] > 2 * 1000 * 29  # once less for each send and receive
    assert found["`pairbus"] == polls + looks


def test_nothing_is_suggested_that_saves_nothing():
    assert find_savings(Usage(backlog_queues=1, syphons=0), PRICES) == ()


# -- wrong


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"backlog_queues": 0}, "0 backlog queues: must be from 1 to 100"),
        ({"backlog_queues": 101}, "101 backlog queues: must be from 1 to 100"),
        ({"messages_per_day": -1}, "-1 messages per day: must be from 0"),
        ({"ping_seconds": 0.5}, "0.5 seconds between pings: must be from 1 to 1,800"),
        ({"outage_hours": float("nan")}, "nan hours of outage: must be from 0 to 744"),
        (
            {"outage_hours": 700, "days": 1},
            "an outage of 700 hours does not fit into a period of 24",
        ),
    ],
)
def test_a_number_out_of_range_is_refused(wrong, said):
    with pytest.raises(OptionsError, match=said):
        Usage(**wrong)


# -- afterwards


TOTALS = LedgerTotals(
    brought_home=100,
    brought_home_bytes=100 * 1000,
    other=5,
    other_bytes=5 * 1000,
    waiting=300,
    waiting_bytes=300 * 1000,
    queues=2,
    days=1.0,
)


@pytest.mark.req("M-03", "M-02")
def test_a_ledger_shows_what_diverting_has_cost():
    estimate = estimate_ledger(TOTALS, FREE_SETTLEMENTS)
    found = {item.name: item.operations for item in estimate.items}

    assert found == {
        "polls": 2 * 4 * 24,
        "backlog_sends": 105,
        "backlog_receives": 105,
        "backlog_settlements": 105,
        "home_sends": 100,
        "home_receives": 100,
        "home_settlements": 100,
        "probes": 300,
        "probe_releases": 300,
    }
    assert estimate.operations == 2 * 4 * 24 + 4 * 100 + 2 * 5 + 300


def test_a_ledger_of_large_messages_counts_their_bytes():
    estimate = estimate_ledger(replace(TOTALS, brought_home_bytes=100 * 100 * KB), PRICES)
    found = {item.name: item.operations for item in estimate.items}

    assert found["home_sends"] == 157  # 10,000 KB in units of 64: no more is known


def test_a_ledger_of_several_primaries_may_have_more_queues_than_a_pair():
    estimate = estimate_ledger(replace(TOTALS, queues=250), PRICES)

    assert estimate.items[0].operations == 250 * 4 * 24


def test_a_ledger_of_nothing_costs_nothing():
    nothing = LedgerTotals(
        brought_home=0,
        brought_home_bytes=0,
        other=0,
        other_bytes=0,
        waiting=0,
        waiting_bytes=0,
        queues=0,
        days=0,
    )

    assert estimate_ledger(nothing, PRICES).money == 0
