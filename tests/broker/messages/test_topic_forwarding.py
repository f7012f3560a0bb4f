"""Where subscriptions pass messages on to, and what topics get from elsewhere."""

from datetime import timedelta

import pytest

from pairbus.broker.entities.descriptions import Status
from pairbus.broker.messages.lifecycle import FORWARD_HOPS_MAX, MailboxKind, Settlement
from pairbus.broker.rules import FalseFilter, SqlFilter
from tests.broker.messages.topic_world import (
    at,
    bodies,
    check_file,
    delete,
    rule,
    stored,
    sub,
    topic,
)
from tests.broker.world import application_properties, encoded, queue

pytestmark = pytest.mark.req("B-08")

DEAD, TRANSFER = MailboxKind.DEAD_LETTER, MailboxKind.TRANSFER_DEAD_LETTER


def test_a_subscription_forwards_to_another_topic_whose_rules_see_its_changes(make_world):
    world = make_world(
        topic(),
        topic("t2"),
        sub("a", rule(action="SET hops = 1"), forward_to="t2"),
        sub("changed", rule("hops = 1"), of="t2"),
        sub("unchanged", rule("hops IS NULL"), of="t2"),
    )

    world.send(encoded(b"x"), to="t")

    assert bodies(world, at("changed", of="t2")) == [b"x"]
    assert bodies(world, at("unchanged", of="t2")) == []
    check_file(world)


@pytest.mark.req("B-05")
def test_the_time_to_live_of_a_topic_is_not_that_of_the_topic_that_forwards_to_it(make_world):
    world = make_world(
        topic(),
        topic("brief", default_message_time_to_live=timedelta(minutes=1)),
        sub("a", forward_to="brief"),
        sub("b"),
        sub("c", rule(SqlFilter("sys.TimeToLive > @hour", {"hour": timedelta(hours=1)}))),
        sub("there", of="brief"),
    )

    world.send(encoded(b"x"), to="t")
    world.pass_time(60)

    assert bodies(world, at("there", of="brief")) == []
    for path in (at("b"), at("c")):
        assert bodies(world, path) == [b"x"]


def test_a_queue_forwards_to_a_topic_and_the_copies_remember_the_first_number(make_world):
    world = make_world(topic(), queue(forward_to="t"), sub("a"))
    world.send(encoded(b"1"), encoded(b"2"), to="t")

    assert world.send(encoded(b"3")) == [1]

    assert [(m.sequence, m.enqueued_sequence) for m in stored(world, at("a"))] == [
        (1, 1),
        (2, 2),
        (3, 1),
    ]
    check_file(world)


@pytest.mark.req("B-06")
def test_sessions_survive_the_way_over_queues_and_topics(make_world):
    world = make_world(
        queue(forward_to="t"),
        topic(),
        topic("t2"),
        sub("on", forward_to="t2"),
        sub("s", requires_session=True),
        sub("s", of="t2", requires_session=True),
    )

    world.send(encoded(b"x", session="one"))

    for path in (at("s"), at("s", of="t2")):
        assert [m.session_id for m in stored(world, path)] == ["one"]


@pytest.mark.req("B-07")
def test_the_queue_behind_two_subscriptions_drops_the_second_copy_as_a_duplicate(make_world):
    world = make_world(
        topic(),
        sub("a", forward_to="q"),
        sub("b", forward_to="q"),
        queue(requires_duplicate_detection=True),
    )

    world.send(encoded(b"x", message_id="m"), to="t")

    assert bodies(world, "q") == [b"x"]


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(None, id="it does not exist"),
        pytest.param(queue(status=Status.SEND_DISABLED), id="it is disabled"),
        pytest.param(queue(requires_session=True), id="it requires sessions"),
        pytest.param(queue(max_message_size_in_kilobytes=1), id="the message is too large for it"),
    ],
)
def test_a_message_that_cannot_be_forwarded_goes_to_the_transfer_dead_letter_queue(
    make_world, target
):
    world = make_world(topic(), sub("a", forward_to="q"), sub("b"), *([target] if target else []))

    assert world.send(encoded(bytes(2000)), to="t") == [1]

    assert bodies(world, at("b")) == [bytes(2000)]
    [dead] = stored(world, at("a"), TRANSFER)
    assert "'q'" in application_properties(dead)["DeadLetterErrorDescription"]
    check_file(world)


@pytest.mark.parametrize("topics", [1, 2], ids=["onto itself", "two topics to each other"])
def test_a_circle_of_topics_ends_after_the_hops_allowed(make_world, topics):
    names = ["t", "t2"][:topics]
    world = make_world(
        *(topic(name) for name in names),
        *(sub("on", of=a, forward_to=b) for a, b in zip(names, names[::-1], strict=True)),
        *(sub("all", of=name) for name in names),
    )

    assert world.send(encoded(b"x"), to="t") == [1]

    copies = sum(len(bodies(world, at("all", of=name))) for name in names)
    lost = [
        message
        for name in names
        for kind in (DEAD, TRANSFER)
        for message in stored(world, at("on", of=name), kind)
    ]
    assert copies == 1 + FORWARD_HOPS_MAX
    [dead] = lost
    assert application_properties(dead)["DeadLetterReason"] == "MaxTransferHopCountExceeded"
    check_file(world)


def test_a_subscription_is_not_a_forwarding_target(make_world):
    world = make_world(topic(), sub("a", rule(FalseFilter())), queue(forward_to=at("a")))

    world.send(encoded(b"x"))

    assert bodies(world, at("a")) == []
    assert bodies(world, "q", TRANSFER) == [b"x"]


# dead letters


@pytest.mark.req("B-04")
def test_dead_letters_may_be_forwarded_to_a_topic(make_world):
    world = make_world(
        topic(), sub("bad"), sub("good", rule("DeadLetterReason IS NULL")),
        queue(forward_dead_lettered_messages_to="t"),
    )  # fmt: skip
    world.send(encoded(b"x"))
    [lock] = world.receive()

    world.settle(lock, Settlement.DEAD_LETTER, reason="why")

    [message] = stored(world, at("bad"))
    assert message.dead_letter_source == "q"
    assert application_properties(message)["DeadLetterReason"] == "why"
    assert bodies(world, at("good")) == []


@pytest.mark.req("B-04")
@pytest.mark.parametrize("cause", ["evaluation", "session", "expiry", "deliveries"])
def test_every_kind_of_dead_letter_is_forwarded(make_world, cause):
    settings = {
        "evaluation": {"rules": [rule("10 / n > 1")]},
        "session": {"requires_session": True},
        "expiry": {"dead_lettering_on_message_expiration": True},
        "deliveries": {"max_delivery_count": 1},
    }[cause]
    world = make_world(
        topic(), queue(), sub("a", forward_dead_lettered_messages_to="q", **settings)
    )

    world.send(encoded(b"x", ttl_ms=60_000, properties={"n": 0}), to="t")
    if cause == "deliveries":
        [lock] = world.receive(of=at("a"))
        world.settle(lock, Settlement.ABANDON, of=at("a"))
    if cause == "expiry":
        world.pass_time(60)

    assert bodies(world, "q") == [b"x"]
    assert bodies(world, at("a"), DEAD) == []
    check_file(world)


@pytest.mark.req("B-04")
@pytest.mark.parametrize(
    "settings",
    [{"rules": [rule("10 / n > 1")]}, {"requires_session": True}],
    ids=["rule", "session"],
)
def test_a_dead_letter_that_comes_back_to_its_topic_does_not_go_round_again(make_world, settings):
    world = make_world(topic(), sub("a", forward_dead_lettered_messages_to="t", **settings))

    assert world.send(encoded(b"x", properties={"n": 0}), to="t") == [1]

    [dead] = stored(world, at("a"), TRANSFER)
    assert application_properties(dead)["DeadLetterReason"] == "MaxTransferHopCountExceeded"
    assert world.queue("t").main.counters.last_sequence == 2
    check_file(world)


def test_dead_letters_of_many_subscriptions_to_their_own_topic_are_few(make_world):
    names = [f"s{number}" for number in range(10)]
    settings = {"requires_session": True, "forward_dead_lettered_messages_to": "t"}
    world = make_world(topic(), *(sub(name, **settings) for name in names))

    world.send(encoded(b"x"), to="t")

    assert world.queue("t").main.counters.last_sequence == 1 + len(names)
    assert sum(len(stored(world, at(name), TRANSFER)) for name in names) == len(names) ** 2
    check_file(world)


def test_messages_for_a_deleted_topic_are_dead_lettered_where_they_were_forwarded(make_world):
    world = make_world(topic(), sub("a"), queue(forward_to="t"))

    delete(world, "t")
    world.send(encoded(b"x"))

    assert bodies(world, "q", TRANSFER) == [b"x"]
