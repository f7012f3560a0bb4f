"""What the dashboard shows, from readings alone: no browser, no network, no clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pairbus.dashboard.alerts import Severity
from pairbus.dashboard.bodies import BodyForm, body_text
from pairbus.dashboard.costs import cost_of
from pairbus.dashboard.history import History
from pairbus.dashboard.model import Flows, Picture, seconds_to_empty
from pairbus.dashboard.readings import (
    Answer,
    DeadLetterReasons,
    EntityCounts,
    LedgerReading,
    Readings,
    SyphonRun,
    read_broker,
    read_process,
    wanted_lines,
)
from pairbus.dashboard.texts import plain_text, sendable
from pairbus.syphon.ledger import totals_of
from tests.dashboard.worlds import (
    BACKLOG_QUEUE,
    CLIENT,
    PRICES,
    START,
    SYPHON,
    client,
    look,
    pair,
    syphon,
)


def said(picture: Picture) -> str:
    return plain_text(picture.sentence, UTC)


def alerts(picture: Picture) -> str:
    return "\n".join(plain_text(one.text, UTC) for one in picture.alerts)


@pytest.fixture
def history() -> History:
    return History(now=START)


@pytest.mark.req("X-09")
def test_a_healthy_pair_is_summed_up_in_one_sentence(history: History) -> None:
    picture = look(history, pair(processes={CLIENT: client()}), START)
    assert said(picture) == "Both namespaces answer; no entity is failed over; nothing waits."
    assert picture.severity is Severity.INFO
    assert picture.alerts == ()


@pytest.mark.req("X-09")
def test_a_failover_is_summed_up_with_its_time_its_backlog_and_its_end(history: History) -> None:
    calm = {CLIENT: client()}
    look(history, pair(processes=calm), START)
    over = {CLIENT: client("orders", "payments", at=START + 2)}
    look(history, pair(waiting=48_210, primary_up=False, processes=over), START + 2)
    for second in range(4, 34, 2):
        waiting = 48_210 - 130 * (second - 2)
        picture = look(history, pair(waiting=waiting, processes=over), START + second)
    assert said(picture) == (
        "orders and payments are failed over since 13:46:42; 44,310 messages wait; home in about 6 "
        "minutes."
    )
    assert picture.seconds_to_empty == pytest.approx(44_310 / 130)


def test_an_outage_without_clients_names_the_namespace(history: History) -> None:
    look(history, pair(), START)
    picture = look(history, pair(waiting=7, primary_up=False), START + 1)
    assert said(picture) == (
        "The primary does not answer since 13:46:41; 7 messages wait for the primary."
    )
    assert picture.severity is Severity.CRITICAL


def test_what_was_so_from_the_beginning_has_begun_before(history: History) -> None:
    picture = look(history, pair(primary_up=False), START)
    assert said(picture).startswith("The primary does not answer since before 13:46:40;")


def test_nothing_is_claimed_before_the_first_answer(history: History) -> None:
    silent = Readings(namespaces={"primary": Answer(), "secondary": Answer()})
    picture = look(history, silent, START)
    assert said(picture) == "Asking both namespaces."
    assert picture.severity is None
    assert picture.waiting is None
    assert history.outages == {}


def test_a_probe_without_an_answer_for_two_seconds_counts_as_down(history: History) -> None:
    readings = pair()
    hanging = replace(readings.namespaces["primary"], asked_at=START)
    readings = replace(readings, namespaces=dict(readings.namespaces) | {"primary": hanging})
    assert readings.is_up("primary", START + 1.9) is True
    assert readings.is_up("primary", START + 2.1) is False


def test_the_number_that_waits_stays_when_the_secondary_stops_answering(history: History) -> None:
    look(history, pair(waiting=5), START)
    readings = pair(waiting=5, secondary_up=False)
    stale = replace(readings.entities["secondary"], error="no answer within 5s")
    readings = replace(readings, entities=dict(readings.entities) | {"secondary": stale})
    picture = look(history, readings, START + 2)
    assert picture.waiting == 5
    assert picture.backlog_error == "no answer within 5s"


@pytest.mark.parametrize(
    ("waiting", "home", "diverted", "slope", "seconds"),
    [
        (0, None, None, None, 0.0),
        (None, 10.0, 0.0, -10.0, None),
        (100, None, None, None, None),
        (100, 10.0, 0.0, None, 10.0),
        (100, 10.0, 10.0, None, None),
        (100, None, None, -4.0, 25.0),
        (100, 50.0, 0.0, 3.0, None),
    ],
)
def test_the_time_to_empty(
    waiting: int | None,
    home: float | None,
    diverted: float | None,
    slope: float | None,
    seconds: float | None,
) -> None:
    flows = Flows(sends=None, diverted=diverted, brought_home=home)
    assert seconds_to_empty(waiting, flows, slope) == seconds


def test_flows_are_the_increase_of_counters_and_survive_a_restart(history: History) -> None:
    for second, diverted, home in ((0, 100, 10), (5, 150, 110), (10, 200, 210)):
        now = START + second
        processes = {
            CLIENT: client("orders", diverted=diverted, at=now),
            SYPHON: syphon(brought_home=home, at=now),
        }
        picture = look(history, pair(processes=processes), now)
    assert picture.flows == Flows(sends=None, diverted=10.0, brought_home=20.0)
    for second, diverted in ((15, 0), (20, 40)):  # the client has started again
        now = START + second
        picture = look(history, pair(processes={CLIENT: client(diverted=diverted, at=now)}), now)
    assert picture.flows.diverted == pytest.approx(8.0)


def test_sends_to_the_primary_do_not_include_what_the_syphon_sends(history: History) -> None:
    for second, sends, home in ((0, 0, 0), (10, 500, 200)):
        now = START + second
        broker = Answer(value={"send": sends}, at=now)
        processes = {SYPHON: syphon(brought_home=home, at=now)}
        picture = look(history, pair(brokers={"primary": broker}, processes=processes), now)
    assert picture.flows.sends == pytest.approx(30.0)


@pytest.mark.parametrize(
    ("readings", "text"),
    [
        (pair(primary_up=False), "The primary does not answer"),
        (pair(secondary_up=False), "The secondary does not answer"),
        (pair(processes={CLIENT: client("orders")}), "orders is failed over"),
        (pair(waiting=3, processes={CLIENT: client()}), "Messages wait, and no syphon"),
        (pair(processes={SYPHON: syphon(failing_queues=1)}), "cannot receive from"),
        (pair(processes={CLIENT: client(syphons_down=1)}), "of a client failed"),
        (
            pair(processes={CLIENT: client(outbox={"pairbus_outbox_messages": 2})}),
            "2 messages wait in the outbox",
        ),
        (
            pair(processes={CLIENT: Answer(error="Connection refused")}),
            "No metrics from app-1:9100",
        ),
        (pair(ledger=Answer(error="there is no ledger")), "The ledger cannot be read"),
        (
            pair(entities={"primary": Answer(error="it needs Manage")}, waiting=None),
            "The counts of the primary are unknown",
        ),
        (
            pair(
                entities={
                    "secondary": Answer(
                        value=(EntityCounts(kind="queue", path=BACKLOG_QUEUE, dead_letters=2),),
                        at=START,
                    )
                }
            ),
            "2 messages could not be brought home",
        ),
    ],
)
def test_an_alert_is_there_while_it_is_true_and_says_what_to_do(
    history: History, readings: Readings, text: str
) -> None:
    picture = look(history, readings, START)
    assert text in alerts(picture)
    assert all(one.remedy for one in picture.alerts)
    assert text not in alerts(look(history, pair(), START + 1))


def test_failed_sends_are_the_worst_alert_of_all_for_a_minute(history: History) -> None:
    for second, failures in ((0, 0), (2, 4)):
        now = START + second
        processes = {CLIENT: client("orders", send_failures=failures, at=now)}
        picture = look(history, pair(processes=processes), now)
    assert alerts(picture).startswith("Neither namespace accepted")
    later = START + 120
    calm = {CLIENT: client("orders", send_failures=4, at=later)}
    assert "Neither namespace" not in alerts(look(history, pair(processes=calm), later))


def test_a_backlog_that_does_not_go_down_is_an_alert_after_a_minute(history: History) -> None:
    processes = {CLIENT: client(), SYPHON: syphon()}
    for second in range(0, 70, 2):
        picture = look(history, pair(waiting=5, processes=processes), START + second)
        assert ("the number does not go down" in alerts(picture)) == (second >= 60)


def test_cost_comes_from_counted_operations_and_grows_at_their_rate(history: History) -> None:
    for second, sends in ((0, 1_000_000), (600, 1_006_000)):
        now = START + second
        broker = Answer(value={"send": sends}, at=now)
        readings = pair(brokers={"primary": broker})
        history.add(readings, now=now, operations=float(sends))
    cost = cost_of(readings, history, PRICES, now=START + 600)
    assert cost is not None
    assert cost.month_operations == pytest.approx(10 * 30 * 86_400)
    assert cost.money == PRICES.for_operations(cost.operations)


def test_cost_is_unknown_if_nobody_counts(history: History) -> None:
    assert look(history, pair(), START).cost is None


def test_the_clients_metrics_are_read_as_they_are_published() -> None:
    text = """
pairbus_pairings{namespace="contoso"} 2
pairbus_failed_over{namespace="contoso",entity="orders"} 1
pairbus_diverted_messages_total{namespace="contoso",entity="orders"} 12
pairbus_send_failures_total{namespace="contoso",entity="orders"} 3
pairbus_outbox_messages{namespace="contoso"} 4
pairbus_syphon_round_seconds_count 7
pairbus_syphon_round_seconds_sum 14
pairbus_syphon_running{namespace="contoso"} 1
pairbus_syphon_operations_total{namespace="west",entity="q",operation="receive"} 9
"""
    samples = [one for some in text_string_to_metric_families(text) for one in some.samples]
    found = read_process(samples)
    assert found.status.failed_over == {("contoso", "orders"): 1}
    assert (found.send_failures, found.rounds, found.round_seconds) == (3, 7, 14.0)
    assert found.running == ("contoso",)
    assert found.operations == {"receive": 9}
    assert found.outbox == {"pairbus_outbox_messages": 4}
    assert read_process([]).rounds is None
    assert read_broker(samples) == {}


def test_an_entity_has_the_reasons_of_its_dead_letters() -> None:
    readings = pair(
        entities={
            "primary": Answer(
                value=(
                    EntityCounts(kind="queue", path="orders", dead_letters=400),
                    EntityCounts(kind="queue", path="bills", dead_letters=1),
                    EntityCounts(kind="queue", path="empty", dead_letters=0),
                ),
                at=START,
            )
        },
        dead_letters={
            "primary": Answer(
                value=(
                    DeadLetterReasons(
                        path="orders",
                        count=400,
                        peeked=100,
                        reasons={"Expired": 70, "x" * 200: 20, "Odd": 9, "Rare": 1},
                    ),
                    DeadLetterReasons(path="bills", count=1, error="it needs Listen"),
                ),
                at=START,
            )
        },
    )
    rows = {one.path: one.reasons for one in look(History(now=START), readings, START).entities}
    cut = f"{'x' * 59}…"
    assert rows == {
        "orders": f"Expired 70, {cut} 20, Odd 9, 1 more reason (of the first 100)",
        "bills": "unknown: it needs Listen",
        "empty": "",
    }


@pytest.mark.parametrize("seconds_ago", [5.0, 600.0])
def test_without_metrics_of_a_syphon_the_ledger_tells_of_it(seconds_ago: float) -> None:
    is_recent = seconds_ago < 60
    run = SyphonRun(
        run="abc", primaries=("contoso",), rounds=4, brought_home=90, last_at=START - seconds_ago
    )
    reading = LedgerReading(
        totals=totals_of([]),
        runs=(run,),
        brought_home_rate=10.0 if is_recent else 0.0,
        last_at=run.last_at,
    )
    ledger = Answer(value=reading, at=START)
    history = History(now=START)
    picture = look(history, pair(waiting=300, ledger=ledger), START)
    node = next(one for one in picture.nodes if one.key == "syphon")
    assert (node.state, picture.flows.brought_home, picture.seconds_to_empty) == (
        ("up", 10.0, 30.0) if is_recent else ("unknown", 0.0, None)
    )
    assert node.detail.startswith("wrote to the ledger ")
    (row,) = picture.syphons
    assert row.cells[1:] == ("contoso", "4", "-", "90")
    assert history.curve("flow:home", now=START)[-1][1] == picture.flows.brought_home

    with_metrics = pair(waiting=300, ledger=ledger, processes={SYPHON: syphon()})
    assert [one.key for one in look(history, with_metrics, START + 1).syphons] == [SYPHON]


@pytest.mark.parametrize(("waiting", "number"), [(0, "nothing"), (7, "7 messages")])
def test_old_numbers_are_not_told_as_new_and_a_second_outage_is_not_hidden(
    history: History, waiting: int, number: str
) -> None:
    look(history, pair(waiting=waiting, processes={CLIENT: client()}), START)
    both_down = pair(
        waiting=waiting,
        primary_up=False,
        secondary_up=False,
        processes={CLIENT: client("orders", at=START + 2)},
    )
    old = replace(both_down.entities["secondary"], error="Connection refused")
    both_down = replace(both_down, entities={**both_down.entities, "secondary": old})
    assert said(look(history, both_down, START + 2)) == (
        "orders is failed over since 13:46:42, and the secondary does not answer; "
        f"{number} waited when the secondary was last counted."
    )


@pytest.mark.parametrize("value", ["NaN", "+Inf"])
@pytest.mark.parametrize("metric", ["pairbus_outbox_messages", "pairbus_pairings"])
def test_a_metric_that_is_no_number_is_an_error_of_its_process_only(
    metric: str, value: str
) -> None:
    """Further on, it would be an error of the whole picture."""
    (family,) = text_string_to_metric_families(f'{metric}{{namespace="contoso"}} {value}\n')
    with pytest.raises((ValueError, OverflowError)):
        read_process(family.samples)


def test_half_of_a_surrogate_pair_can_be_sent_to_the_page() -> None:
    shown, _ = body_text(b'["\\ud800", "\xc3\xa4"]', BodyForm.JSON)
    assert sendable(shown) == '[\n  "\\ud800",\n  "\u00e4"\n]'


def test_sends_of_many_entities_are_one_number() -> None:
    text = """# TYPE pairbus_sent_messages_total counter
pairbus_sent_messages_total{entity="orders",namespace="contoso"} 3.0
pairbus_sent_messages_total{entity="a} 7 b",namespace="contoso"} 4.0 1700000000000
pairbus_divert_seconds_bucket{le="1.0"} 9
"""
    families = text_string_to_metric_families(wanted_lines(text))
    samples = [sample for family in families for sample in family.samples]
    assert [(one.name, one.value) for one in samples] == [("pairbus_sent_messages_total", 7.0)]
    assert read_process(samples).status.sent == 7
