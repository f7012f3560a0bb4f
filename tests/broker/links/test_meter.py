"""What a namespace counts as billed, and how it is read."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.codec.types import Array, Long, Timestamp
from pairbus.broker.entities.descriptions import QueueDescription
from pairbus.broker.links.links import Poll
from pairbus.broker.messages.lifecycle import Settlement
from pairbus.cost.meter import Tally
from tests.broker.admin.site import SENDER, Site, token
from tests.broker.links.test_management import defer
from tests.broker.links.test_management import token as lock_token
from tests.broker.world import encoded, ping

LARGE = b"x" * (64 * 1024)


def tally(world, name="q"):
    return world.namespace.meter.read().of(name)


@pytest.fixture
def counted():
    tally = Tally()
    return Poll(tally), lambda: tally.empty_receive


# -- polls


@pytest.mark.req("M-01")
def test_a_poll_that_is_taken_back_without_a_message_is_one_receive(counted):
    poll, empties = counted
    poll.granted(1, delivered=False, drain=False)
    poll.granted(1, delivered=False, drain=True)
    poll.end(delivered=False)
    assert empties() == 1

    poll.end(delivered=False)  # the link is detached as well
    assert empties() == 1


def test_a_poll_that_is_taken_back_by_granting_nothing_is_one_too(counted):
    poll, empties = counted
    poll.granted(10, delivered=False, drain=False)
    poll.granted(0, delivered=False, drain=False)

    assert empties() == 1


def test_a_poll_that_was_answered_costs_nothing_but_its_messages(counted):
    poll, empties = counted
    poll.granted(10, delivered=False, drain=False)
    poll.end(delivered=True)

    assert empties() == 0


def test_asking_again_without_an_answer_is_another_receive(counted):
    poll, empties = counted
    for _ in range(4):
        poll.granted(1, delivered=False, drain=False)
    poll.end(delivered=False)

    assert empties() == 4


def test_asking_for_the_same_again_counts_after_an_answer_too(counted):
    poll, empties = counted
    poll.granted(10, delivered=False, drain=False)
    poll.granted(10, delivered=True, drain=False)
    poll.granted(10, delivered=False, drain=False)

    assert empties() == 1


def test_more_credit_after_an_answer_is_the_same_poll(counted):
    poll, empties = counted
    poll.granted(100, delivered=False, drain=False)
    for credit in (125, 150, 175):  # each granted when messages that were given earlier arrived
        poll.granted(credit, delivered=credit == 125, drain=False)
    poll.end(delivered=False)

    assert empties() == 0


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=20), st.booleans())
def test_a_receiver_that_only_tops_up_can_tell_the_number_itself(grants, gave_at_end):
    """What the broker and a receiver agree upon: was anything given between begin and end?"""
    tally = Tally()
    poll = Poll(tally)
    limit, has_given, is_first = 0, False, True
    for more, gave in grants:
        gave = gave and not is_first
        if not is_first and not (gave or has_given):
            continue  # without a message there is nothing to top up
        has_given |= gave
        limit += more
        poll.granted(limit, delivered=gave, drain=False)
        is_first = False
    gave_at_end = gave_at_end and bool(grants)
    poll.end(delivered=gave_at_end)

    assert tally.empty_receive == int(bool(grants) and not has_given and not gave_at_end)


# -- operations


@pytest.mark.req("M-01")
def test_sends_are_counted_by_message_and_by_begun_64_kb(world):
    world.send(encoded())
    world.send(*[encoded(b"x" * 10_000)] * 20)  # a batch of more than 64 KB, of small messages
    world.send(encoded(), encoded(LARGE))

    assert tally(world) == Tally(send=1 + 20 + 1 + 2)


@pytest.mark.req("M-01")
def test_a_ping_is_counted_as_one_and_not_as_a_send(world):
    world.send(ping())

    assert tally(world) == Tally(ping=1)


def test_what_is_refused_is_not_counted_and_a_duplicate_is(make_world):
    world = make_world(
        QueueDescription(
            name="q", requires_duplicate_detection=True, max_message_size_in_kilobytes=1024
        )
    )
    world.send(encoded(message_id="a"))
    world.send(encoded(message_id="a"))
    assert tally(world) == Tally(send=2)

    assert world.send(encoded(b"x" * 2_000_000)).condition
    assert tally(world) == Tally(send=2)


def test_settlements_and_renewals_are_counted_by_message(world):
    world.send(*[encoded()] * 4)
    locks = world.receive(4)
    tokens = Array([lock_token(lock) for lock in locks])
    world.ask("renew-lock", {"lock-tokens": tokens})
    world.settle(locks[0], Settlement.COMPLETE)
    world.settle(locks[1], Settlement.ABANDON)
    world.settle(locks[2], Settlement.DEAD_LETTER)
    world.settle(locks[3], Settlement.RELEASE)

    assert tally(world) == Tally(send=4, renew=4, settle=4)


def test_a_peek_is_one_for_each_64_kb_that_it_shows(world):
    peek = {"from-sequence-number": 0, "message-count": 10}
    world.ask("peek-message", peek)
    assert tally(world).peek == 1

    world.send(encoded(LARGE), encoded(LARGE))
    world.ask("peek-message", peek)
    assert tally(world).peek == 1 + 3


def test_deferred_messages_are_received_by_number_at_their_size(world):
    world.send(encoded(), encoded(LARGE))
    defer(world, count=2)
    numbers = {"sequence-numbers": Array([Long(1), Long(2)])}
    world.ask("receive-by-sequence-number", {**numbers, "receiver-settle-mode": 1})

    assert tally(world).receive == 1 + 2


def test_a_scheduled_message_is_a_send_and_its_cancelling_one_operation(world):
    due = encoded(due_ms=world.now_ms + 60_000)
    world.ask("schedule-message", {"messages": [{"message": due}]})
    world.ask("cancel-scheduled-message", {"sequence-numbers": Array([Long(1)])})

    assert tally(world) == Tally(send=1, manage=1)


def test_requests_that_are_refused_are_not_counted(world):
    world.ask("peek-message", {})
    world.ask("cancel-scheduled-message", {"sequence-numbers": Array([Long(7)])})

    assert tally(world) == Tally()


def test_sessions_are_renewed_and_their_state_is_got_and_set(make_world):
    world = make_world(QueueDescription(name="q", requires_session=True))
    world.send(encoded(session="a"))
    holder = world.accept("a")
    for operation in ("renew-session-lock", "get-session-state", "set-session-state"):
        world.ask(operation, {"session-id": "a", "session-state": None}, holder=holder)
    begin = Timestamp(0)
    world.ask("get-message-sessions", {"last-updated-time": begin, "skip": 0, "top": 1})

    assert tally(world) == Tally(send=1, renew=1, session=3)


def test_forwarding_is_counted_where_it_arrives(make_world):
    world = make_world(QueueDescription(name="end"), QueueDescription(name="q", forward_to="end"))
    world.send(encoded(), encoded(LARGE))

    assert tally(world) == Tally(send=3)
    assert tally(world, "end") == Tally(forward=3)


def test_what_was_counted_outlives_the_entity(world):
    world.send(encoded())
    world.namespace.delete(world.queue())
    world.flush()
    world.namespace.create(QueueDescription(name="q"))
    world.send(encoded())

    assert tally(world) == Tally(send=2)


# -- how it is read


@pytest.fixture
def site():
    site = Site()
    yield site
    site.close()


@pytest.mark.req("M-01")
def test_the_meter_is_json_and_needs_the_manage_claim(site):
    site.namespace.meter.of("orders").send += 3

    answer = site.ask("GET", "/$meter")
    told = json.loads(answer.body)

    assert answer.status == 200
    assert told["namespace"] == "local"
    orders = told["entities"]["orders"]
    assert {kind: count for kind, count in orders.items() if count} == {"send": 3, "total": 3}
    assert orders["emptyReceive"] == 0
    assert told["total"]["total"] == 3


@pytest.mark.parametrize("authorization", [None, "nonsense", token(SENDER)])
def test_the_meter_is_refused_without_the_manage_claim(site, authorization):
    answer = site.ask("GET", "/$meter", authorization=authorization)

    assert answer.status == 401
    assert "error" in json.loads(answer.body)


def test_administration_is_counted_by_entity_if_it_was_done(site):
    site.put("orders", "<QueueDescription/>")
    site.get("orders")
    site.get("$Resources/queues")
    assert site.get("unknown").status == 404

    reading = site.namespace.meter.read()

    assert reading.entities == {"$namespace": Tally(manage=1), "orders": Tally(manage=2)}


def test_metrics_are_refused_to_other_machines_without_a_token(site):
    assert site.ask("GET", "/metrics", authorization=None).status == 401
    assert site.ask("GET", "/$metrics", authorization=token(SENDER)).status == 401


@pytest.mark.parametrize("path", ["/metrics", "/$metrics"])
def test_metrics_have_the_format_of_prometheus(site, path):
    site.put("orders", "<QueueDescription/>")
    site.namespace.meter.of("orders").send += 3

    answer = site.ask("GET", path)
    lines = answer.body.decode().splitlines()

    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    labels = 'entity="orders",namespace="local"'
    assert f'pairbus_broker_operations_total{{{labels},operation="send"}} 3.0' in lines
    assert f'pairbus_broker_messages{{{labels},state="active"}} 0.0' in lines
    assert f"pairbus_broker_size_bytes{{{labels}}} 0.0" in lines
    assert 'pairbus_broker_connections{namespace="local"} 0.0' in lines
    assert 'pairbus_broker_faults{namespace="local"} 0.0' in lines


def test_a_queue_may_be_called_metrics(site):
    site.put("metrics", "<QueueDescription/>")

    assert site.get("metrics").status == 200
    assert b"QueueDescription" in site.get("metrics").body


def test_without_prometheus_client_the_answer_says_what_to_install(site, monkeypatch):
    monkeypatch.delitem(sys.modules, "pairbus.broker.port.metrics", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    answer = site.ask("GET", "/metrics")

    assert answer.status == 501
    assert b"pip install pairbus[prometheus]" in answer.body
