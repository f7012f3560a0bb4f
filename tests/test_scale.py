"""The simulation of docs/scale.md, with a small fleet: what it shows must stay true."""

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def fleet(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("scale_fleet")


@pytest.fixture
def scenario(fleet):
    return fleet.Scenario(
        name="small",
        clients=60,
        entities=50,
        entities_per_client=5,
        outages=((30.0, 360.0),),
        ends_at=600.0,
        failover_seconds=0.0,
        retry_seconds=1.6,
        is_namespace_scope=True,
    )


def test_without_a_random_first_ping_all_clients_ping_and_return_together(fleet, scenario):
    outcome = fleet.simulate(replace(scenario, has_random_phase=False))

    mean = scenario.senders / scenario.ping_seconds
    assert max(outcome.pings.values()) > 10 * mean
    assert max(outcome.failbacks.values()) > 10 * mean


@pytest.mark.req("G-01")
def test_with_it_pings_and_failbacks_are_spread_and_no_sender_pings_more_than_once_an_interval(
    fleet, scenario
):
    outcome = fleet.simulate(scenario)

    mean = scenario.senders / scenario.ping_seconds
    assert max(outcome.pings.values()) < 5 * mean
    assert max(outcome.failbacks.values()) < 5 * mean
    assert sum(outcome.failbacks.values()) == sum(outcome.failovers.values()) == scenario.senders
    assert outcome.pings_of_sender_max <= 330 / scenario.ping_seconds + 1
    assert max(outcome.failbacks) <= 360 + scenario.ping_seconds
    assert outcome.pings_answered == scenario.senders


def test_the_same_seed_gives_the_same_figures(fleet, scenario):
    one, other = fleet.simulate(scenario), fleet.simulate(scenario)

    assert (one.pings, one.diverted) == (other.pings, other.diverted)
    assert one.diverted != fleet.simulate(replace(scenario, seed=2)).diverted


@pytest.mark.req("X-11")
def test_a_fleet_with_calm_fail_back_fails_over_less_often(fleet, scenario):
    flapping = replace(
        scenario,
        outages=tuple((start, start + 120.0) for start in range(30, 1000, 180)),
        ends_at=1800.0,
    )
    failovers = [
        sum(fleet.simulate(replace(flapping, fail_back_pings=pings)).failovers.values())
        for pings in (1, 2)
    ]

    assert failovers[0] >= 5 * failovers[1]


def test_the_syphon_drains_what_was_diverted_at_the_rate_it_has(fleet, scenario):
    drain = importlib.import_module("scale_drain")
    outcome = fleet.simulate(scenario)
    arrivals = {queue: [*outcome.arrivals(queue, 600.0)] for queue in outcome.rates}
    diverted = sum(map(sum, arrivals.values()))
    assert diverted == pytest.approx(sum(outcome.diverted.values()), rel=0.05)

    slow, fast = (
        drain.drain(arrivals, is_down=scenario.is_down, slots=2, rate=rate) for rate in (20, 2000)
    )

    assert len(slow) > len(fast)
    needed = diverted / 20
    assert needed <= len(slow) * drain.ROUND_SECONDS - 360 < 1.5 * needed + 60
