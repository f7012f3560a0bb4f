"""The last hour: curves, outages and failovers."""

from __future__ import annotations

from pairbus.dashboard.history import HOUR_SECONDS, POINTS_MAX, FailoverKey, History
from pairbus.dashboard.readings import Answer
from tests.dashboard.worlds import CLIENT, START, SYPHON, client, pair, syphon


def test_an_outage_begins_and_ends_when_it_is_seen() -> None:
    history = History(now=START)
    for second, is_up in ((0, True), (1, False), (2, False), (3, True)):
        history.add(pair(primary_up=is_up), now=START + second)
    (outage,) = history.outages["primary"]
    assert (outage.begin, outage.end) == (START + 1, START + 3)
    assert outage.is_begin_known
    assert history.outages["secondary"] == []


def test_a_failover_is_kept_by_entity_and_by_client() -> None:
    history = History(now=START)
    other = "http://app-2:9100/metrics"
    history.add(pair(processes={CLIENT: client(), other: client()}), now=START)
    history.add(pair(processes={CLIENT: client("orders"), other: client()}), now=START + 1)
    history.add(pair(processes={CLIENT: client(), other: client("orders")}), now=START + 2)
    key = FailoverKey(namespace="contoso", entity="orders", client=CLIENT)
    assert [(one.begin, one.end) for one in history.failovers[key]] == [(START + 1, START + 2)]
    assert len(history.failovers) == 2


def test_a_client_that_stops_answering_leaves_its_failover_as_it_was() -> None:
    history = History(now=START)
    history.add(pair(processes={CLIENT: client("orders")}), now=START)
    history.add(pair(processes={CLIENT: Answer(error="gone")}), now=START + 1)
    ((failover,),) = history.failovers.values()
    assert failover.end is None
    assert not failover.is_begin_known


def test_after_an_hour_it_is_forgotten() -> None:
    history = History(now=START)
    for second, entities in ((0, ()), (1, ("orders",)), (2, ())):
        processes = {CLIENT: client(*entities)}
        is_up = not entities
        history.add(pair(waiting=1, primary_up=is_up, processes=processes), now=START + second)
    later = START + HOUR_SECONDS + 10
    history.add(pair(waiting=2, processes={CLIENT: client()}), now=later)
    assert history.failovers == {}
    assert history.outages["primary"] == []
    assert [value for _, value in history.curve("waiting:", now=later)] == [2]


def test_a_curve_of_an_hour_has_few_points_and_gaps_where_nothing_was_known() -> None:
    history = History(now=START)
    for second in range(0, int(HOUR_SECONDS), 2):
        is_gap = 1000 <= second < 2000
        history.add(pair(waiting=None if is_gap else second), now=START + second)
    curve = history.curve("waiting:", now=START + HOUR_SECONDS)
    assert len(curve) <= POINTS_MAX
    assert any(value is None for _, value in curve)
    assert curve[-1][1] == HOUR_SECONDS - 2


def test_a_curve_of_a_minute_is_as_fine_as_it_was_read() -> None:
    history = History(now=START)
    for second in range(0, 60, 2):
        history.add(pair(waiting=second), now=START + second)
    assert len(history.curve("waiting:", now=START + 60)) == 30


def test_the_backlog_by_destination_is_the_count_shared_out_by_what_was_peeked() -> None:
    history = History(now=START)
    history.add(pair(waiting=1000, destinations={"orders": 75, "payments": 25}), now=START)
    assert history.names("to:") == ["to:orders", "to:payments"]
    assert history.curve("to:orders", now=START)[0][1] == 750
    assert history.curve("to:payments", now=START)[0][1] == 250


def test_many_destinations_are_the_largest_and_the_others() -> None:
    history = History(now=START)
    many = {f"queue-{number:03}": 1000 - number for number in range(100)}
    history.add(pair(waiting=10**6, destinations=many), now=START)
    assert len(history.names("to:")) == 21
    assert "to:(others)" in history.names("to:")


def test_after_a_peak_only_what_came_after_it_counts_for_the_slope() -> None:
    history = History(now=START)
    for second, waiting in ((0, 0), (2, 0), (4, 300), (6, 290), (8, 280)):
        history.add(pair(waiting=waiting), now=START + second)
    assert history.slope("waiting:", now=START + 8) == -5.0
    history.add(pair(waiting=400), now=START + 10)
    slope = history.slope("waiting:", now=START + 10)
    assert slope == 40.0


def test_sends_are_those_of_the_clients_or_else_of_the_broker_without_the_syphons() -> None:
    def broker(sends: int, at: float) -> dict[str, Answer[dict[str, int]]]:
        return {"primary": Answer(value={"send": sends}, at=at)}

    reported, untold = History(now=START), History(now=START)
    for second in (0, 2):
        at = START + second
        home = syphon(brought_home=second * 5, at=at)
        counted = broker(second * 30, at)
        with_sent = client(sent=second * 20, at=at)
        reported.add(pair(brokers=counted, processes={CLIENT: with_sent, SYPHON: home}), now=at)
        silent = client(at=at)
        untold.add(pair(brokers=counted, processes={CLIENT: silent, SYPHON: home}), now=at)
    assert reported.curve("flow:sends", now=START + 2)[-1][1] == 20
    assert untold.curve("flow:sends", now=START + 2)[-1][1] == 25
