"""The entities of a namespace by their paths: made, changed, removed, and loaded again."""

from datetime import timedelta

import pytest

from pairbus.broker.directory import EntityExists
from pairbus.broker.entities.descriptions import Status
from pairbus.broker.messages.lifecycle import MailboxKind, Settlement
from pairbus.broker.messages.queue import Queue
from pairbus.broker.messages.topic import Subscription, Topic
from pairbus.broker.rules import FalseFilter
from pairbus.errors import ConfigError
from tests.broker.messages.topic_world import at, bodies, delete, rule, sub, topic
from tests.broker.world import FakeConnection, Receiver, encoded, queue

pytestmark = pytest.mark.req("B-08")


def names(world):
    return [entity.name for entity in world.namespace.directory]


# making and finding


def test_paths_are_found_in_any_case_and_kept_as_they_were_written(make_world):
    world = make_world(topic("Events"), sub("Audit", of="Events"), queue("Orders/New"))

    for path, kind in [
        ("EVENTS", Topic),
        ("events/subscriptions/AUDIT", Subscription),
        ("orders/NEW", Queue),
    ]:
        assert type(world.queue(path)) is kind
    assert names(world) == ["Events", "Events/Subscriptions/Audit", "Orders/New"]
    assert world.namespace.find("events/audit") is None


def test_topics_and_queues_are_listed_apart_and_by_name(make_world):
    world = make_world(queue("b"), queue("A"), topic("d"), topic("C"), sub("s", of="d"))

    assert [q.name for q in world.namespace.queues] == ["A", "b"]
    assert [t.name for t in world.namespace.topics] == ["C", "d"]
    assert list(world.queue("d").subscriptions) == ["s"]


@pytest.mark.parametrize("description", [queue("T"), topic("T"), sub("A"), queue("t")])
def test_a_second_entity_of_the_same_path_is_refused(make_world, description):
    world = make_world(topic(), sub("a"))

    with pytest.raises(EntityExists, match="exists already"):
        world.namespace.create(description)
    assert names(world) == ["t", at("a")]


@pytest.mark.parametrize("other", [(), (queue("t"),)], ids=["nothing there", "a queue there"])
def test_a_subscription_needs_its_topic(make_world, other):
    world = make_world(queue(), *other)

    with pytest.raises(ConfigError, match="there is no topic 't'"):
        world.namespace.create(sub("a"))


# changing


@pytest.mark.parametrize(
    ("before", "after", "fixed"),
    [
        (sub("a"), sub("a", requires_session=True), "requires_session"),
        (topic("x"), topic("x", requires_duplicate_detection=True), "requires_duplicate_detection"),
        (topic("x"), topic("x", enable_partitioning=True), "enable_partitioning"),
    ],
)
def test_fixed_settings_cannot_be_changed(make_world, before, after, fixed):
    world = make_world(topic(), before)
    entity = world.queue(before.name)

    with pytest.raises(ConfigError, match=f"another {fixed}.*delete the {before.noun} first"):
        world.namespace.update(entity, after)
    assert entity.description == before


def test_an_entity_cannot_become_one_of_another_kind(make_world):
    world = make_world(topic())

    with pytest.raises(ConfigError, match="topic 't' exists, and is not a queue"):
        world.namespace.update(world.queue("t"), queue("t"))


def test_a_start_that_says_nothing_but_the_name_changes_nothing(make_world):
    given = (topic(user_metadata="mine"), sub("a", rule("n = 1")))
    world = make_world(*given)

    world.queues = (topic(), sub("a"))
    world.restart()

    assert [e.description for e in world.namespace.directory] == list(given)


def test_a_start_that_says_more_brings_the_entity_in_line(make_world):
    world = make_world(topic(), sub("a", rule("n = 1")))

    world.queues = (topic(), sub("a", rule("n = 2"), status=Status.RECEIVE_DISABLED))
    world.restart()

    assert world.queue(at("a")).description == world.queues[1]


def test_a_refused_start_changes_nothing(make_world):
    world = make_world(topic(), sub("a"))
    world.close()

    world.queues = (queue("new"), sub("b", of="missing"))
    with pytest.raises(ConfigError, match="there is no topic 'missing'"):
        world.open()
    world.queues = ()
    world.open()

    assert names(world) == ["t", at("a")]


# removing


def test_deleting_a_topic_deletes_its_subscriptions(make_world):
    world = make_world(topic(), sub("a"), sub("b"), topic("t2"), sub("a", of="t2"))
    world.send(encoded(), to="t")

    delete(world, "T")

    assert names(world) == ["t2", at("a", of="t2")]
    world.queues = ()
    world.restart()
    assert names(world) == ["t2", at("a", of="t2")]


# idle entities (B-05; the service's documents say what counts as use)

FIVE = {"auto_delete_on_idle": timedelta(minutes=5)}


def idle(world, *, seconds=300):
    """Housekeeping comes every five seconds."""
    world.pass_time(seconds)
    world.pass_time(6)


@pytest.mark.req("B-05")
def test_an_idle_subscription_is_deleted_and_its_topic_stays(make_world):
    world = make_world(topic(), sub("a", **FIVE), sub("b"))

    idle(world)

    assert names(world) == ["t", at("b")]
    assert list(world.queue("t").subscriptions) == ["b"]


@pytest.mark.req("B-05")
def test_unreceived_messages_do_not_keep_a_subscription(make_world):
    world = make_world(topic(), sub("a", **FIVE))

    for _ in range(4):
        world.send(encoded(), to="t")
        idle(world, seconds=100)

    assert names(world) == ["t"]


@pytest.mark.req("B-05")
@pytest.mark.parametrize("of_subscription", [{}, FIVE], ids=["kept", "idle as well"])
def test_an_idle_topic_is_deleted_with_its_subscriptions(make_world, of_subscription):
    world = make_world(topic(**FIVE), sub("a", **of_subscription), queue())

    idle(world)

    assert names(world) == ["q"]


def send(world):
    world.send(encoded(), to="t")


def receive(world):
    world.receive(of=at("a"))


def settle(world):
    for lock in world.receive(of=at("a")):
        world.settle(lock, Settlement.COMPLETE, of=at("a"))


def peek(world):
    world.ask("peek-message", {"from-sequence-number": 0, "message-count": 1}, of=at("a"))


def update(world):
    entity = world.queue(at("a"))
    world.namespace.update(entity, sub("a", user_metadata="x", **FIVE))
    world.flush()


def add_rule(world):
    body = {"rule-name": "r", "rule-description": {"sql-filter": {"expression": "1=1"}}}
    world.ask("add-rule", body, of=at("a"))


@pytest.mark.req("B-05")
@pytest.mark.parametrize("use", [receive, settle, peek, update, add_rule], ids=lambda f: f.__name__)
def test_a_subscription_and_its_topic_are_in_use_when_the_subscription_is(make_world, use):
    world = make_world(topic(**FIVE), sub("a", **FIVE))
    world.send(encoded(), to="t")
    idle(world, seconds=200)

    use(world)
    idle(world, seconds=200)

    assert names(world) == ["t", at("a")]


@pytest.mark.req("B-05")
def test_sending_keeps_the_topic_and_not_the_subscription(make_world):
    world = make_world(topic(**FIVE), sub("a", **FIVE))
    idle(world, seconds=200)

    send(world)
    idle(world, seconds=200)

    assert names(world) == ["t"]


@pytest.mark.req("B-05")
def test_a_receiver_keeps_a_subscription_and_its_topic_for_as_long_as_it_stays(make_world):
    world = make_world(topic(**FIVE), sub("a", **FIVE))
    receiver = Receiver(world.queue(at("a")))
    receiver.mailbox.attach()

    idle(world, seconds=1000)
    assert names(world) == ["t", at("a")]
    receiver.mailbox.detach(receiver)
    idle(world)

    assert names(world) == []


@pytest.mark.req("B-05")
@pytest.mark.parametrize("description", [queue("t", **FIVE), topic(**FIVE)], ids=["queue", "topic"])
def test_scheduled_messages_keep_their_entity(make_world, description):
    world = make_world(description)
    world.send(encoded(due_ms=world.now_ms + 1_000_000), to="t")

    idle(world, seconds=900)
    assert names(world) == ["t"]
    idle(world)
    idle(world)

    assert names(world) == []


@pytest.mark.req("B-05")
def test_forwarding_counts_as_a_receiver(make_world):
    world = make_world(queue(), topic(), queue("f", forward_to="q", **FIVE),
                       sub("a", forward_to="q", **FIVE))  # fmt: skip

    idle(world, seconds=1000)

    assert names(world) == ["q", "t", "f", at("a")]


@pytest.mark.req("B-05")
def test_time_that_the_broker_was_down_is_not_idle(make_world):
    world = make_world(topic(**FIVE), sub("a", **FIVE))
    world.queues = ()
    world.close()

    world.clock.advance(1000)
    world.open()
    idle(world, seconds=100)

    assert names(world) == ["t", at("a")]


def test_a_deleted_subscription_lets_go_of_locks_and_schedules(make_world):
    world = make_world(topic(), sub("a"))
    world.send(encoded(b"x", ttl_ms=5000), to="t")
    world.receive(of=at("a"))

    delete(world, at("a"))
    world.pass_time(120)

    assert names(world) == ["t"]
    assert world.look("SELECT count(*) FROM message") == [(0,)]


def test_the_three_mailboxes_of_an_entity_are_found_by_their_ids(make_world):
    world = make_world(topic(), sub("a"))
    entity = world.queue(at("a"))

    for kind in MailboxKind:
        mailbox = entity.mailboxes[kind]
        found = world.namespace.directory.mailbox(mailbox.counters.mailbox_id)
        assert found == (entity, mailbox)
    delete(world, at("a"))
    assert world.namespace.directory.mailbox(entity.main.counters.mailbox_id) is None


# a disk that refuses


def described(world):
    return {entity.name: entity.description for entity in world.namespace.directory}


def fails(world, *changes):
    """All of the changes are in one commit, which the disk refuses."""
    before = described(world)
    with world.broken_disk():
        for change in changes:
            change(world.namespace)
    assert described(world) == before
    world.restart()
    assert described(world) == before


@pytest.mark.req("B-12")
def test_a_new_entity_that_the_disk_refuses_is_undone(make_world):
    world = make_world(topic())

    fails(world, lambda ns: ns.create(sub("a")), lambda ns: ns.create(queue()))

    assert world.queue("t").subscriptions == {}


@pytest.mark.req("B-12")
def test_nobody_stays_attached_to_a_new_entity_that_the_disk_refuses(make_world):
    """What is sent to it later would be acknowledged, and belong to no entity."""
    world = make_world()
    connection = FakeConnection()
    world.namespace.connections.add(connection)

    with world.broken_disk():
        entity = world.namespace.create(queue("new"))
        assert connection.gone == []

    assert connection.gone == [entity]


@pytest.mark.req("B-12")
def test_updates_that_the_disk_refuses_are_undone(make_world):
    world = make_world(topic(), sub("a"))

    fails(
        world,
        lambda ns: ns.update(ns.find(at("a")), sub("a", max_delivery_count=2)),
        lambda ns: ns.update(ns.find(at("a")), sub("a", max_delivery_count=3)),
    )


@pytest.mark.req("B-12")
def test_a_deletion_that_the_disk_refuses_is_undone(make_world):
    world = make_world(topic(), sub("a"))
    world.send(encoded(b"1"), to="t")

    fails(world, lambda ns: ns.delete(ns.find("t")))
    world.send(encoded(b"2"), to="t")

    assert bodies(world, at("a")) == [b"1", b"2"]
    assert len(world.receive(5, of=at("a"))) == 2


@pytest.mark.req("B-12")
def test_a_creation_and_deletion_that_the_disk_refuses_are_undone(make_world):
    world = make_world(topic(), sub("a"))

    fails(
        world,
        lambda ns: ns.create(sub("b")),
        lambda ns: ns.delete(ns.find(at("b"))),
        lambda ns: ns.delete(ns.find(at("a"))),
        lambda ns: ns.create(sub("a", rule(FalseFilter()))),
    )

    world.send(encoded(b"x"), to="t")
    assert bodies(world, at("a")) == [b"x"]
