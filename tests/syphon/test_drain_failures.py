"""A task while something fails, against real brokers, at a chosen moment.

The same holds each time: no message is lost, duplicates are counted in the receipts, the order
within a destination is kept, other destinations are not held up, and nothing stays locked.
"""

import threading
import time
from contextlib import ExitStack

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.amqp.codec.types import Int, Symbol
from pairbus.broker import Broker, QueueDescription
from pairbus.broker.entities.policies import Policy, Right
from pairbus.client.sdk.messages import diverted
from pairbus.fast.address import Address
from pairbus.syphon.drain import drain
from pairbus.syphon.job import Job
from pairbus.syphon.policy import Condition
from pairbus.syphon.receipts import ReceiptOutcome
from pairbus.syphon.runner import InProcessRunner
from pairbus.testing import ManualClock
from tests.syphon.backlog import by_hand, encoded
from tests.syphon.stage import (
    Stage,
    after_sends,
    backlog_names,
    copies,
    count,
    firsts,
    numbered,
    possible_duplicates,
)

SENDER = Policy(name="sender", key="c2VuZA==", rights=frozenset({Right.SEND}))
BACKLOGS = backlog_names(2)


@pytest.fixture
def clock():
    return ManualClock(runs=True)


@pytest.fixture
def stage(tmp_path, clock):
    """Durable brokers, so that one that restarts has its messages."""
    described = [
        "orders",
        "invoices",
        QueueDescription(name="unique", requires_duplicate_detection=True),
    ]
    with (
        Broker(queues=described, data=tmp_path / "primary") as primary,
        Broker(queues=BACKLOGS, data=tmp_path / "secondary", clock=clock) as secondary,
    ):
        yield Stage(primary, secondary, BACKLOGS)


def manager(broker):
    return ServiceBusAdministrationClient.from_connection_string(
        broker.connection_string, connection_verify=str(broker.ca_file)
    )


def set_status(broker, queue, status):
    with manager(broker) as administration:
        found = administration.get_queue(queue)
        found.status = status
        administration.update_queue(found)


# --- a destination ----------------------------------------------------------------------------

FAILURES = {
    "throttling": (lambda faults: faults.throttle(entity="orders"), Condition.THROTTLED),
    "full": (
        lambda faults: faults.error(entity="orders", condition="amqp:resource-limit-exceeded"),
        Condition.FULL,
    ),
    "disabled": (
        lambda faults: faults.error(entity="orders", condition="com.microsoft:entity-disabled"),
        Condition.DISABLED,
    ),
    "failing": (lambda faults: faults.cannot_send(entity="orders"), Condition.DOWN),
    "closing its links": (lambda faults: faults.unreachable(entity="orders"), Condition.DOWN),
}


@pytest.mark.req("S-04")
@pytest.mark.parametrize("kind", FAILURES)
def test_messages_for_a_failing_destination_wait_in_order_and_unlocked_and_others_go_home(
    stage, kind
):
    fail, condition = FAILURES[kind]
    ids = numbered(25)
    stage.divert(ids)
    stage.divert(numbered(25, "i"), "invoices")

    with fail(stage.primary.faults):
        first = stage.drain()

    [orders] = [one for one in first.destinations if one.path == "orders"]
    assert orders.condition is condition
    assert orders.until > time.time() - 5
    assert count(first.receipts, ReceiptOutcome.WAITING) == 25
    assert count(first.receipts, ReceiptOutcome.BROUGHT_HOME) == 25
    assert stage.home("invoices") == numbered(25, "i")
    assert stage.home() == []
    second = stage.drain()  # at once: a message that was still locked would be missing
    assert count(second.receipts, ReceiptOutcome.BROUGHT_HOME) == 25
    assert stage.home() == ids
    assert second.emptied == tuple(BACKLOGS)


@pytest.mark.req("S-04")
def test_a_disabled_queue_and_a_missing_queue_are_distinguished(stage):
    set_status(stage.primary, "orders", "SendDisabled")
    stage.divert(numbered(5))
    stage.divert(numbered(5, "g"), "gone")

    drained = stage.drain()

    found = {one.path: one.condition for one in drained.destinations}
    assert found == {"orders": Condition.DISABLED, "gone": Condition.NOT_FOUND}
    assert count(drained.receipts, ReceiptOutcome.WAITING) == 5
    assert sorted(stage.dead_lettered()) == numbered(5, "g")
    set_status(stage.primary, "orders", "Active")
    assert count(stage.drain().receipts, ReceiptOutcome.BROUGHT_HOME) == 5


@pytest.mark.req("S-04", "X-02")
def test_a_temporary_error_loses_neither_messages_nor_their_order(stage):
    ids = numbered(40)
    stage.divert(ids)

    with stage.primary.faults.error(entity="orders", times=2):
        drained = stage.drain()

    assert count(drained.receipts, ReceiptOutcome.BROUGHT_HOME) == 40
    assert possible_duplicates(drained.receipts) == 0
    assert stage.home() == ids


@pytest.mark.req("S-04", "X-02")
def test_the_wait_for_a_destination_that_does_not_answer_is_bounded(stage, monkeypatch):
    monkeypatch.setattr("pairbus.syphon.task_clients.ANSWER_SECONDS_MAX", 5.0)
    ids = numbered(15)
    stage.divert(ids)
    stage.divert(numbered(15, "i"), "invoices")
    began = time.monotonic()

    with stage.primary.faults.hang(entity="orders"):
        first = stage.drain()

    assert time.monotonic() - began < 40
    assert count(first.receipts, ReceiptOutcome.WAITING) == 15
    assert stage.home("invoices") == numbered(15, "i")
    second = stage.drain()
    home = stage.home()
    assert firsts(home) == ids
    assert copies(home) <= possible_duplicates([*first.receipts, *second.receipts])
    assert stage.left() == 0


@pytest.mark.req("S-03", "S-04", "X-02")
@pytest.mark.parametrize("fault", ["throttle", "cut_after_accept", "cut_in_transfer"])
def test_order_is_kept_through_intermittent_failures(stage, fault):
    settings = {"rate": 0.7} if fault == "throttle" else {"probability": 0.3}
    ids = numbered(200)
    stage.divert(ids)
    stage.divert(numbered(20, "i"), "invoices")
    receipts = []

    with getattr(stage.primary.faults, fault)(entity="orders", seed=5, **settings):
        for _ in range(60):
            drained = stage.drain()  # it does not know of earlier failures, so it tries
            receipts += drained.receipts
            if BACKLOGS[0] in drained.emptied:
                break

    home = stage.home()
    assert firsts(home) == ids
    assert copies(home) <= possible_duplicates(receipts)
    assert count(receipts, ReceiptOutcome.BROUGHT_HOME) == 220
    assert stage.left() == 0


def mixed(stage, ids, paths):
    """Messages for each path in turn, so that every chunk has some for each."""
    stage.put(
        [
            encoded(diverted(ServiceBusMessage(b"x", message_id=f"{path}-{one}"), path))
            for one in ids
            for path in paths
        ]
    )


@pytest.mark.req("S-04", "S-05")
def test_other_destinations_accept_their_messages_of_a_chunk_that_one_refuses(stage):
    ids = numbered(40)
    mixed(stage, ids, ["orders", "gone", "invoices", "unique"])

    with stage.primary.faults.cannot_send(entity="orders"):
        first = stage.drain()

    assert stage.home("invoices") == [f"invoices-{one}" for one in ids]
    assert stage.home("unique") == [f"unique-{one}" for one in ids]
    assert stage.dead_lettered() == [f"gone-{one}" for one in ids]
    assert count(first.receipts, ReceiptOutcome.WAITING) == 40
    assert possible_duplicates(first.receipts) == 0
    assert count(stage.drain().receipts, ReceiptOutcome.BROUGHT_HOME) == 40
    assert stage.home() == [f"orders-{one}" for one in ids]
    assert stage.left() == 0


@pytest.mark.req("S-02", "S-04", "X-02")
def test_messages_without_an_answer_are_possible_duplicates_and_are_released(stage, monkeypatch):
    ids = numbered(40)
    mixed(stage, ids, ["orders", "invoices"])
    with ExitStack() as faults:
        hang = stage.primary.faults.hang
        after_sends(monkeypatch, 1, lambda: faults.enter_context(hang(entity="orders")))
        began = time.monotonic()

        first = stage.drain(seconds=1.5)

        assert time.monotonic() - began < 30
    assert 1 <= possible_duplicates(first.receipts) <= 20
    home_count = count(first.receipts, ReceiptOutcome.BROUGHT_HOME)
    assert home_count >= 15  # the first batch, and those for others in the next
    second = stage.drain()  # at once: a message that was still locked would be missing
    assert count(second.receipts, ReceiptOutcome.BROUGHT_HOME) == 80 - home_count
    home = stage.home()
    assert firsts(home) == [f"orders-{one}" for one in ids]
    assert copies(home) <= possible_duplicates(first.receipts)
    assert stage.home("invoices") == [f"invoices-{one}" for one in ids]
    assert stage.left() == 0


# --- a namespace ------------------------------------------------------------------------------


@pytest.mark.req("S-04")
def test_messages_wait_for_a_primary_that_is_down(stage):
    stage.divert(numbered(5))

    with stage.primary.faults.unreachable():
        drained = stage.drain()

    [orders] = drained.destinations
    assert orders.condition is Condition.DOWN
    assert count(drained.receipts, ReceiptOutcome.WAITING) == 5
    stage.drain()
    assert stage.home() == numbered(5)


@pytest.mark.req("S-03", "X-02")
@pytest.mark.parametrize("path", ["orders", "unique"])
def test_a_primary_that_dies_during_a_round_loses_no_message(stage, monkeypatch, path):
    ids = numbered(60)
    stage.divert(ids, path)
    after_sends(monkeypatch, 3, stage.primary.stop)

    first = stage.drain()
    stage.primary.start()
    second = stage.drain()

    assert count(first.receipts, ReceiptOutcome.BROUGHT_HOME) == 30
    home = stage.home(path)
    assert firsts(home) == ids
    assert copies(home) <= possible_duplicates([*first.receipts, *second.receipts])
    if path == "unique":
        assert home == ids
    assert stage.left() == 0


@pytest.mark.req("S-03", "X-02")
@pytest.mark.parametrize("path", ["orders", "unique"])
def test_a_secondary_that_dies_before_the_settlement_delivers_at_most_a_chunk_again(
    stage, monkeypatch, path
):
    ids = numbered(60)
    stage.divert(ids, path)
    after_sends(monkeypatch, 3, stage.secondary.stop)

    first = stage.drain(chunk=20)
    stage.secondary.start()
    second = stage.drain(chunk=20)

    assert BACKLOGS[0] in dict(first.errors)
    assert 10 <= possible_duplicates(first.receipts) <= 20
    again = count([*first.receipts, *second.receipts], ReceiptOutcome.BROUGHT_HOME) - 60
    assert 10 <= again <= possible_duplicates(first.receipts)
    home = stage.home(path)
    assert sorted(firsts(home)) == ids
    assert copies(home) == (again if path == "orders" else 0)
    assert stage.left() == 0


def test_a_lost_connection_to_the_secondary_is_opened_again_and_no_message_arrives_twice(
    stage, monkeypatch, clock
):
    ids = numbered(60)
    stage.divert(ids)
    after_sends(monkeypatch, 2, lambda: stage.secondary.faults.unreachable().clear())

    first = stage.drain()
    assert first.errors == ()
    clock.advance(600)  # what was on the wire at that moment is still locked
    second = stage.drain()

    assert sorted(stage.home()) == ids
    receipts = [*first.receipts, *second.receipts]
    assert count(receipts, ReceiptOutcome.BROUGHT_HOME) == 60
    # The answer to a settlement may be lost.
    assert possible_duplicates(receipts) in (0, 10)
    assert stage.left() == 0


# --- a backlog queue --------------------------------------------------------------------------


def delete(stage):
    with manager(stage.secondary) as administration:
        administration.delete_queue(BACKLOGS[0])


def disable(stage):
    set_status(stage.secondary, BACKLOGS[0], "Disabled")


@pytest.mark.parametrize("end", [delete, disable])
def test_a_backlog_queue_that_is_deleted_or_disabled_is_reported_and_others_are_drained(
    stage, monkeypatch, end
):
    ids = numbered(40)
    stage.divert(ids)
    stage.divert(numbered(40, "i"), "invoices", BACKLOGS[1])
    after_sends(monkeypatch, 1, lambda: end(stage))

    drained = stage.drain()

    [(queue, text)] = drained.errors
    assert queue == BACKLOGS[0]
    assert "Error" in text
    assert drained.emptied == (BACKLOGS[1],)
    assert stage.home("invoices") == numbered(40, "i")
    home = stage.home()
    assert home == ids[: len(home)]
    if end is delete:
        # Acknowledged, but not settled.
        assert possible_duplicates(drained.receipts) in (10, 20)
    else:
        set_status(stage.secondary, BACKLOGS[0], "Active")
        stage.drain()
        assert home + stage.home() == ids


def test_backlog_queues_without_the_listen_right_are_reported():
    policies = [
        SENDER,
        Policy(name="root", key="cm9vdA==", rights=frozenset(Right)),
    ]
    with (
        Broker(queues=["orders"]) as primary,
        Broker(queues=BACKLOGS, policies=policies) as secondary,
    ):
        stage = Stage(primary, secondary, BACKLOGS)
        root = secondary.connection_string
        parts = dict(part.split("=", 1) for part in root.split(";") if part)
        parts |= {"SharedAccessKeyName": SENDER.name, "SharedAccessKey": SENDER.key}
        address = Address.from_connection_string(";".join("=".join(pair) for pair in parts.items()))

        drained = stage.drain(secondary=address)

    assert [queue for queue, _ in drained.errors] == BACKLOGS
    assert all("Auth" in text for _, text in drained.errors)


BAD = {
    "without a path": {"n": Int(1)},
    "with a path that is a number": {"x-ms-path": Int(5)},
    "with an empty path": {"x-ms-path": ""},
    "with a time to live in words": {"x-ms-path": "orders", "x-ms-timetolive": "soon"},
    "with a session that is a number": {"x-ms-path": "orders", "x-ms-sessionid": Int(1)},
    "with a schedule in words": {"x-ms-path": "orders", "x-ms-scheduledenqueuetimeutc": "noon"},
    "with names that are symbols": {Symbol("x-ms-path"): Int(1)},
    "without properties": None,
}


@pytest.mark.req("S-05")
def test_messages_without_a_valid_envelope_are_dead_lettered_and_hold_up_no_other(stage):
    stage.divert(numbered(3))
    stage.put([by_hand(properties, fields=[f"bad {name}"]) for name, properties in BAD.items()])
    stage.divert(numbered(3, "z"))

    drained = stage.drain()

    assert stage.home() == [*numbered(3), *numbered(3, "z")]
    assert sorted(stage.dead_lettered()) == sorted(f"bad {name}" for name in BAD)
    assert count(drained.receipts, ReceiptOutcome.DEAD_LETTERED) == len(BAD)
    assert count(drained.receipts, ReceiptOutcome.BROUGHT_HOME) == 6
    assert stage.left() == 0


# --- locks, other syphons, and a stop ------------------------------------------------------------


@pytest.mark.req("S-03", "X-02")
@pytest.mark.parametrize("path", ["orders", "unique"])
def test_messages_whose_locks_expire_arrive_twice_and_are_counted(stage, monkeypatch, clock, path):
    ids = numbered(30)
    stage.divert(ids, path)
    after_sends(monkeypatch, 1, lambda: clock.advance(600))

    drained = stage.drain()

    home = stage.home(path)
    assert sorted(firsts(home)) == ids
    expected = possible_duplicates(drained.receipts)
    assert expected >= 10
    assert copies(home) == (expected if path == "orders" else 0)
    assert stage.left() == 0


@pytest.mark.req("S-06")
def test_two_syphons_on_the_same_queues_bring_each_message_home_once(stage):
    ids = numbered(400)
    stage.divert(ids[:200])
    stage.divert(ids[200:], "orders", BACKLOGS[1])
    receipts = []

    def work():
        receipts.extend(drain(stage.task(chunk=20)).receipts)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    # One may have released messages after the other had seen an empty queue.
    receipts += stage.drain().receipts
    assert sorted(stage.home()) == ids
    assert count(receipts, ReceiptOutcome.BROUGHT_HOME) == 400
    assert possible_duplicates(receipts) == 0


@pytest.mark.req("S-02")
def test_after_a_stop_nothing_is_locked_and_the_receipts_add_up(stage, monkeypatch):
    ids = numbered(5_000)
    stage.divert(ids)
    job = Job(stage.options(chunk=20, round_seconds=0.05), InProcessRunner(), lambda: BACKLOGS)
    after_sends(monkeypatch, 4, job.stop)

    receipts = job.run()

    home_count = count(receipts, ReceiptOutcome.BROUGHT_HOME)
    assert 40 <= home_count < 5_000
    assert stage.home() == ids[:home_count]
    assert stage.free() == ids[home_count:]
