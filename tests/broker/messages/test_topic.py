"""Fan-out: which subscription gets a copy, and what the copy is like."""

import sqlite3
from datetime import UTC, datetime, timedelta

import pytest

from pairbus.broker.entities.descriptions import QueueDescription, RuleDescription, Status
from pairbus.broker.messages import topic as topic_module
from pairbus.broker.messages.lifecycle import MailboxKind, Settlement
from pairbus.broker.rules import SqlAction, filters
from pairbus.testing import ManualClock
from tests.broker.messages.topic_world import (
    at,
    bodies,
    check_file,
    create,
    rule,
    stored,
    sub,
    topic,
)
from tests.broker.world import application_properties, encoded, ping

pytestmark = pytest.mark.req("B-08")

DEAD = MailboxKind.DEAD_LETTER
DIVIDES = rule("10 / n > 1")


def test_the_topic_itself_keeps_nothing_but_its_count(make_world):
    world = make_world(topic(), sub("a"))
    world.send(encoded(), to="t")

    world.restart()

    assert world.rows(of="t") == {}
    assert world.send(encoded(), to="t") == [2]


def test_a_topic_without_subscriptions_accepts_messages_and_keeps_none(make_world):
    world = make_world(topic())

    assert world.send(encoded(), to="t") == [1]
    create(world, sub("late"))

    assert bodies(world, at("late")) == []
    check_file(world)


def test_a_batch_is_fanned_out_whole_or_not_at_all(make_world):
    world = make_world(topic(max_message_size_in_kilobytes=1), sub("a"), sub("b"))

    refused = world.send(encoded(b"small"), encoded(bytes(2000)), to="t")

    assert refused.condition == "amqp:link:message-size-exceeded"
    assert bodies(world, at("a")) == bodies(world, at("b")) == []


@pytest.mark.req("B-11")
def test_a_ping_reaches_no_subscription(make_world):
    world = make_world(topic(), sub("a"), sub("s", requires_session=True))

    world.send(ping(), ping(session="x"), to="t")

    for name in "as":
        assert bodies(world, at(name)) == bodies(world, at(name), DEAD) == []
    check_file(world)


# evaluation errors


def test_a_message_whose_action_fails_is_dead_lettered_too(make_world):
    world = make_world(topic(), sub("a", rule("n = 0", "SET x = 10 / n")))

    world.send(encoded(b"0", properties={"n": 0}), to="t")

    assert bodies(world, at("a")) == []
    assert bodies(world, at("a"), DEAD) == [b"0"]


def test_rules_that_need_too_much_work_fail_and_the_others_go_on(make_world):
    slow = " OR ".join(["t LIKE '%a_b%'"] * 50)
    rules = [rule(slow, name=f"slow-{number}") for number in range(40)]
    world = make_world(topic(), sub("slow", *rules), sub("quick", rule("size > 1")), sub("all"))

    world.send(encoded(b"long", properties={"t": "a" * 60_000, "size": 2}), to="t")

    assert bodies(world, at("slow")) == []
    [dead] = stored(world, at("slow"), DEAD)
    assert "more than 300,000 steps" in application_properties(dead)["DeadLetterErrorDescription"]
    assert bodies(world, at("quick")) == bodies(world, at("all")) == [b"long"]
    check_file(world)


def test_the_work_of_joining_and_of_actions_counts_too(make_world):
    joins = " + ".join(["text"] * 20)
    joining = [rule(f"{joins} = 'a'", name=f"r-{number}") for number in range(400)]
    acting = [rule("text != ''", "SET x = 1", name=f"r-{number}") for number in range(100)]
    world = make_world(topic(), sub("joins", *joining), sub("acts", *acting))

    properties = {"text": "a" * 3_000} | {f"p{number}": 1 for number in range(400)}
    world.send(encoded(b"long", properties=properties), to="t")

    assert bodies(world, at("joins")) == bodies(world, at("acts")) == []
    assert bodies(world, at("joins"), DEAD) == bodies(world, at("acts"), DEAD) == [b"long"]


@pytest.mark.parametrize(
    "expression", ["+".join(["n"] * 100) + " > 0", " OR ".join(["n = 0"] * 100)], ids=["sum", "or"]
)
def test_many_rules_are_too_much_work_even_if_each_is_little(make_world, monkeypatch, expression):
    monkeypatch.setattr(filters, "WORK_MAX", 1000)
    rules = [rule(expression, name=f"r-{number}") for number in range(30)]
    world = make_world(topic(), sub("many", *rules), sub("one", rule("n = 1")))

    world.send(encoded(b"short", properties={"n": 1}), to="t")

    assert bodies(world, at("many"), DEAD) == bodies(world, at("one")) == [b"short"]


def test_a_batch_that_needs_too_much_work_is_refused_as_a_whole(make_world, monkeypatch):
    monkeypatch.setattr(topic_module.rules, "BATCH_WORK_MAX", 10_000)
    world = make_world(topic(), sub("a"), sub("all"))
    message = encoded(b"x", properties={"p": "a" * 1000})
    assert len(world.send(*[message] * 20, to="t")) == 20
    world.namespace.update(world.queue(at("a")), sub("a", rule("p LIKE '%a_b%'")))

    refused = world.send(*[message] * 20, to="t")

    assert refused.condition == "amqp:link:message-size-exceeded"
    assert "for this batch of 20 messages" in refused.description
    assert bodies(world, at("all")) == [b"x"] * 20
    assert len(world.send(*[message] * 5, to="t")) == 5
    small = encoded(b"x" * 5000, properties={"p": "a"})  # rules do not look at bodies
    assert len(world.send(*[small] * 20, to="t")) == 20
    check_file(world)


def test_a_new_rule_is_compiled_before_a_message_needs_it(make_world):
    world = make_world(topic(), sub("a"))
    subscription = world.queue(at("a"))

    world.namespace.update(subscription, sub("a", rule("n = 1")))

    assert list(subscription.compile_rules()) == []


def test_rules_of_the_data_file_are_compiled_when_a_message_needs_them(make_world):
    rules = [rule(f"n = {n}", name=f"r-{n}") for n in range(300)]
    world = make_world(topic(), sub("a", *rules))
    world.restart(compile_rules=False)

    world.send(encoded(b"yes", properties={"n": 299}), encoded(b"no"), to="t")

    assert bodies(world, at("a")) == [b"yes"]


def test_a_rule_that_was_damaged_in_the_data_file_fails_and_is_logged(make_world, caplog):
    world = make_world(topic(), sub("a", rule("n = 1", name="broken")), sub("all"))
    world.close()
    with sqlite3.connect(world.folder / "local.db") as file:
        file.execute("UPDATE entity SET description = replace(description, 'n = 1', 'n = = 1')")
    file.close()
    world.queues = ()  # otherwise the options would mend it
    world.open()

    world.send(encoded(b"one", properties={"n": 1}), to="t")

    assert bodies(world, at("a"), DEAD) == bodies(world, at("all")) == [b"one"]
    assert "rule 'broken' fails on every message" in caplog.text


# time


@pytest.mark.req("B-05")
@pytest.mark.parametrize(
    ("message", "of_topic", "of_subscription"),
    [(10, 20, 30), (30, 10, 20), (20, 30, 10), (None, 10, 20), (None, 20, 10), (10, None, None)],
)
def test_the_smallest_time_to_live_holds(make_world, message, of_topic, of_subscription):
    def settings(seconds):
        return {"default_message_time_to_live": timedelta(seconds=seconds)} if seconds else {}

    world = make_world(
        topic(**settings(of_topic)),
        sub("a", dead_lettering_on_message_expiration=True, **settings(of_subscription)),
    )
    world.send(encoded(b"short", ttl_ms=None if message is None else message * 1000), to="t")

    assert stored(world, at("a"))[0].ttl_ms == 10_000
    world.pass_time(9.9)
    assert bodies(world, at("a")) == [b"short"]
    world.pass_time(0.1)
    assert bodies(world, at("a")) == []
    assert bodies(world, at("a"), DEAD) == [b"short"]


@pytest.mark.req("B-05")
def test_a_scheduled_message_keeps_its_session(make_world):
    world = make_world(topic(), sub("s", requires_session=True))
    world.send(encoded(b"x", due_ms=world.now_ms + 1000, session="one"), to="t")

    world.pass_time(1)

    assert [m.session_id for m in stored(world, at("s"))] == ["one"]


@pytest.mark.req("B-12")
def test_a_scheduled_message_that_the_disk_refuses_to_fan_out_stays_scheduled(make_world):
    world = make_world(topic(), sub("a"), sub("b"))
    world.send(encoded(bytes(500), due_ms=world.now_ms + 1000), to="t")

    with world.broken_disk():
        world.clock.advance(1)
        world.namespace.tick()
    assert len(bodies(world, "t")) == 1
    assert bodies(world, at("a")) == bodies(world, at("b")) == []
    check_file(world)
    world.tick()

    assert bodies(world, "t") == []
    assert bodies(world, at("a")) == bodies(world, at("b")) == [bytes(500)]
    check_file(world)


# duplicates


@pytest.mark.req("B-07")
def test_copies_of_a_partitioned_topic_show_their_partition(make_world):
    world = make_world(topic(enable_partitioning=True), sub("a"), sub("b"))

    numbers = world.send(*(encoded(b"%d" % n, message_id=f"m{n}") for n in range(20)), to="t")

    partitions = [number >> 48 for number in numbers]
    assert len(set(partitions)) > 1
    for name in "ab":
        found = [message.wire_sequence >> 48 for message in stored(world, at(name))]
        assert found == partitions


# sessions


@pytest.mark.req("B-06")
def test_an_action_may_choose_the_session(make_world):
    chooses = rule(action="SET sys.SessionId = 'chosen'")
    world = make_world(topic(), sub("s", chooses, requires_session=True))

    world.send(encoded(b"none"), encoded(b"other", session="other"), to="t")

    assert [m.session_id for m in stored(world, at("s"))] == ["chosen", "chosen"]


# status, quota


@pytest.mark.parametrize(
    ("status", "takes"),
    [(Status.RECEIVE_DISABLED, True), (Status.SEND_DISABLED, False), (Status.DISABLED, False)],
)
def test_a_disabled_subscription_gets_no_copies_and_the_others_do(make_world, status, takes):
    world = make_world(topic(), sub("a", status=status), sub("b"))

    assert world.send(encoded(b"x"), to="t") == [1]

    assert bodies(world, at("a")) == ([b"x"] if takes else [])
    assert bodies(world, at("b")) == [b"x"]


@pytest.mark.req("B-05")
def test_messages_in_the_subscriptions_fill_the_topic(make_world):
    world = make_world(topic(max_size_in_megabytes=1), sub("a"), sub("b"))
    half = encoded(bytes(250_000))

    assert world.send(half, to="t") == [1]
    assert world.send(half, to="t") == [2]
    refused = world.send(half, to="t")
    assert refused.condition == "amqp:resource-limit-exceeded"
    [lock] = world.receive(of=at("a"))
    world.settle(lock, Settlement.COMPLETE, of=at("a"))

    assert world.send(encoded(bytes(200_000)), to="t") == [3]


# disk and restart


@pytest.mark.req("B-12")
def test_a_broken_disk_keeps_a_message_from_all_subscriptions(make_world):
    world = make_world(
        topic(requires_duplicate_detection=True),
        sub("a"),
        sub("b"),
        sub("s", requires_session=True),
        sub("fails", DIVIDES),
        sub("forwards", forward_to="q"),
        QueueDescription(name="q"),
    )
    message = encoded(bytes(500), message_id="m", properties={"n": 0})
    names = [at(name) for name in ("a", "b", "s", "fails", "forwards")] + ["q"]

    with world.broken_disk():
        _, reported = world.submit(message, to="t")

    assert [error.condition for error in reported] == ["amqp:internal-error"]
    assert all(bodies(world, name) == bodies(world, name, DEAD) == [] for name in names)
    check_file(world)

    world.send(message, to="t")
    assert [len(bodies(world, name)) for name in names] == [1, 1, 0, 0, 0, 1]
    assert [len(bodies(world, name, DEAD)) for name in names] == [0, 0, 1, 1, 0, 0]
    check_file(world)


@pytest.mark.parametrize("scheduled", [False, True], ids=["sent", "scheduled"])
def test_an_action_whose_result_fits_no_message_is_an_evaluation_error(make_world, scheduled):
    world = make_world(
        topic(), sub("a", rule(action="SET x = sys.TimeToLive + sys.TimeToLive")), sub("b")
    )
    due_ms = world.now_ms + 1000 if scheduled else None

    world.send(encoded(due_ms=due_ms), to="t")
    world.pass_time(2)

    assert world.namespace.find("t/Subscriptions/b").main.counters.active == 1
    dead = world.namespace.find("t/Subscriptions/a").mailboxes[MailboxKind.DEAD_LETTER]
    assert dead.counters.active == 1


def test_an_action_may_put_its_copy_off(make_world):
    when = datetime.fromtimestamp(ManualClock()() + 60, UTC)
    action = SqlAction("SET sys.ScheduledEnqueueTimeUtc = @when", {"when": when})
    world = make_world(
        topic(), sub("now"), sub("later", RuleDescription(name="rule", action=action))
    )

    world.send(encoded(), to="t")
    later = world.namespace.find("t/Subscriptions/later").main.counters
    waiting = (later.scheduled, later.active)
    world.pass_time(61)

    assert world.namespace.find("t/Subscriptions/now").main.counters.active == 1
    assert waiting == (1, 0)
    assert (later.scheduled, later.active) == (0, 1)
