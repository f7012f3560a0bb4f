"""What a pair costs, part by part; and what would make it cheaper."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.cost.estimate import LedgerTotals, account_of, account_of_ledger, as_dict, savings_of
from pairbus.cost.prices import load, parse
from pairbus.cost.usage import LOOK_MESSAGES, Usage
from pairbus.errors import OptionsError

KB = 1024
PRICES = load()
FREE_SETTLEMENTS = replace(PRICES, unbilled=frozenset({"settle"}))
FLAT = parse(
    'name = "flat"\nas_of = 2026-01-31\ncurrency = "EUR"\n[[operations]]\nper_million = 1.0\n', "it"
)


def parts(usage, prices=PRICES):
    """Those with any operations."""
    found = account_of(usage, prices).parts
    return {part.name: part.operations for part in found if part.operations}


# -- the figures of the documents


@pytest.mark.req("S-02", "M-03")
def test_ten_idle_backlog_queues_take_40_receives_an_hour_960_a_day_28800_in_30_days():
    usage = Usage(backlog_queues=10)

    assert usage.polls_an_hour == 40
    assert parts(replace(usage, days=1)) == {"polls": 960}
    assert parts(usage) == {"polls": 28_800}


@pytest.mark.req("M-02", "M-03")
def test_a_message_that_takes_the_detour_costs_four_operations():
    # All of a day's messages, in an outage of that day, and a syphon that comes afterwards.
    usage = Usage(messages_a_day=1, outage_hours=24, days=1, syphons_wait=False, ping_seconds=1800)
    account = account_of(usage, FREE_SETTLEMENTS)
    found = parts(usage)
    pings = found.pop("pings")

    assert account.operations - pings == 4
    assert found == {
        "backlog_sends": 1,
        "backlog_receives": 1,
        "backlog_settlements": 1,
        "home_sends": 1,
        "home_receives": 1,
        "home_settlements": 1,
    }


@pytest.mark.req("M-03")
def test_an_outage_meets_its_share_of_the_messages():
    usage = Usage(messages_a_day=24_000, outage_hours=2, syphons_wait=False)
    found = parts(usage)

    assert found["backlog_sends"] == found["home_receives"] == 2_000
    assert found["sends"] == found["receives"] == 24_000 * 30 - 2_000


@pytest.mark.req("M-03")
def test_each_client_pings_each_entity():
    usage = Usage(outage_hours=1, entities=5, clients=20, ping_seconds=60)

    assert parts(usage)["pings"] == 60 * 5 * 20


@pytest.mark.req("M-03")
def test_each_syphon_polls_each_queue():
    assert parts(Usage(backlog_queues=3, syphons=4))["polls"] == 3 * 4 * 4 * 24 * 30


@pytest.mark.req("M-03")
@pytest.mark.parametrize(("size", "units"), [(1, 1), (64 * KB, 1), (65 * KB, 2), (256 * KB, 4)])
def test_large_messages_count_several_times_but_are_settled_once(size, units):
    found = parts(Usage(messages_a_day=10, days=1, message_bytes=size))

    assert found["sends"] == found["receives"] == 10 * units
    assert found["settlements"] == 10


def test_an_envelope_may_be_what_makes_it_more_than_64_kb():
    found = parts(
        Usage(messages_a_day=24, outage_hours=1, message_bytes=64 * KB, syphons_wait=False)
    )

    assert found["backlog_sends"] == 2
    assert found["home_sends"] == 1


def test_what_waits_is_looked_at_each_minute_up_to_a_bound_and_by_each_syphon():
    usage = Usage(messages_a_day=24 * 50_000, outage_hours=1, backlog_queues=4)

    assert parts(usage)["looks"] == parts(usage)["put_back"] == 60 * 4 * LOOK_MESSAGES
    assert parts(replace(usage, syphons=3))["looks"] == 3 * 60 * 4 * LOOK_MESSAGES


def test_no_more_is_looked_at_than_waits():
    assert parts(Usage(messages_a_day=240, outage_hours=1))["looks"] == 60 * 5  # half of ten


def test_without_a_syphon_nothing_comes_home():
    found = parts(Usage(messages_a_day=24, outage_hours=24, syphons=0, days=1))

    assert set(found) == {"backlog_sends", "pings"}


# -- money


@pytest.mark.req("M-03")
def test_parts_share_the_bill_of_operations():
    account = account_of(Usage(messages_a_day=10**6, outage_hours=4), PRICES)

    assert sum(cost.money for cost in account.costs) == pytest.approx(account.money_for_operations)
    assert account.money_for_operations == PRICES.for_operations(account.operations)
    assert account.money == pytest.approx(
        account.money_for_operations + account.money_for_connections + 0.0135 * 720
    )


@pytest.mark.req("M-03")
def test_what_is_not_billed_costs_nothing_and_is_shown():
    usage = Usage(messages_a_day=10**6)
    with_all, without = account_of(usage, PRICES), account_of(usage, FREE_SETTLEMENTS)

    assert with_all.operations - without.operations == 30 * 10**6
    [settled] = [
        cost for cost in without.costs if cost.part.kind == "settle" and cost.part.operations
    ]
    assert not settled.is_billed
    assert settled.money == 0


def test_a_pair_costs_what_there_would_not_be_without_it():
    usage = Usage(messages_a_day=24_000, outage_hours=2, syphons_wait=False)
    account = account_of(usage, FLAT)

    # Into the backlog, out of it, settled there; and the pings.
    assert account.pairing_operations == 3 * 2_000 + 120
    assert account.operations - account.pairing_operations == 3 * 24_000 * 30
    assert account.money_for_pairing == pytest.approx(account.pairing_operations / 10**6)


def test_what_others_use_makes_it_dearer():
    usage = Usage(messages_a_day=1000)

    assert account_of(usage, PRICES).money_for_operations == 0
    dear = account_of(replace(usage, other_operations=20 * 10**6), PRICES)
    assert dear.money_for_operations == pytest.approx(dear.operations * 0.80 / 10**6)


usages = st.builds(
    Usage,
    backlog_queues=st.integers(1, 100),
    syphons=st.integers(0, 5),
    messages_a_day=st.integers(0, 10**8),
    message_bytes=st.integers(0, 256 * KB),
    outage_hours=st.floats(0, 100),
    ping_seconds=st.floats(1, 1800),
    entities=st.integers(1, 100),
    clients=st.integers(1, 1000),
)


@given(usages)
def test_whatever_is_asked_adds_up(usage):
    account = account_of(usage, PRICES)

    assert all(part.operations >= 0 for part in account.parts)
    assert account.operations == sum(part.operations for part in account.parts)
    assert 0 <= account.pairing_operations <= account.operations
    assert 0 <= account.money_for_pairing <= account.money_for_operations + 1e-9
    assert json.loads(json.dumps(as_dict(account, usage, savings_of(usage, PRICES))))


@given(usages)
def test_savings_save_and_the_best_comes_first(usage):
    found = savings_of(usage, FLAT)

    assert all(saving.operations > 0 and saving.money > 0 for saving in found)
    assert [one.operations for one in found] == sorted((s.operations for s in found), reverse=True)


# -- cheaper


@pytest.mark.req("M-03")
def test_what_would_make_it_cheaper_is_told_with_its_saving():
    usage = Usage(
        backlog_queues=10, syphons=2, messages_a_day=1000, message_bytes=100 * KB, outage_hours=10
    )
    found = {saving.change.split(" ")[0]: saving.operations for saving in savings_of(usage, PRICES)}

    polls = parts(usage)["polls"]
    looks = parts(usage)["looks"] + parts(usage)["put_back"]
    assert found["1"] == (polls + looks) // 2  # syphon
    assert found["5"] == polls // 2  # backlog queues: as many messages wait in fewer
    assert found["pings"] == 600 - 120
    assert found["messages"] > 2 * 1000 * 29  # once less for each send and receive
    assert found["`pairbus"] == polls + looks


def test_what_cannot_be_less_is_not_suggested():
    assert savings_of(Usage(backlog_queues=1, syphons=0), PRICES) == ()


# -- wrong


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"backlog_queues": 0}, "0 backlog queues: must be from 1 to 100"),
        ({"backlog_queues": 101}, "101 backlog queues: must be from 1 to 100"),
        ({"messages_a_day": -1}, "-1 messages a day: must be from 0"),
        ({"ping_seconds": 0.5}, "0.5 seconds between pings: must be from 1 to 1,800"),
        ({"outage_hours": float("nan")}, "nan hours of outage: must be from 0 to 744"),
        ({"outage_hours": 700, "days": 1}, "700 hours of outage do not fit into 1 days"),
    ],
)
def test_a_number_that_cannot_be_is_refused(wrong, said):
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
def test_a_ledger_tells_what_the_detour_has_cost():
    account = account_of_ledger(TOTALS, FREE_SETTLEMENTS)
    found = {part.name: part.operations for part in account.parts}

    assert found == {
        "polls": 2 * 4 * 24,
        "backlog_sends": 105,
        "backlog_receives": 105,
        "backlog_settlements": 105,
        "home_sends": 100,
        "home_receives": 100,
        "home_settlements": 100,
        "looks": 300,
        "put_back": 300,
    }
    assert account.operations == 2 * 4 * 24 + 4 * 100 + 2 * 5 + 300


def test_a_ledger_of_large_messages_counts_their_bytes():
    account = account_of_ledger(replace(TOTALS, brought_home_bytes=100 * 100 * KB), PRICES)
    found = {part.name: part.operations for part in account.parts}

    assert found["home_sends"] == 157  # 10,000 KB in units of 64: no more is known


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

    assert account_of_ledger(nothing, PRICES).money == 0
