"""A topic with very many rules, after a start: its messages wait until the rules are compiled."""

from types import SimpleNamespace

import pytest

from pairbus.broker import namespace as namespace_module
from pairbus.broker.entities.descriptions import QueueDescription
from pairbus.broker.messages import topic as topic_module
from pairbus.broker.messages.lifecycle import MailboxKind, Settlement
from tests.broker.messages.topic_world import at, bodies, check_file, rule, stored, sub, topic
from tests.broker.world import application_properties, encoded

pytestmark = pytest.mark.req("B-08")

# Long enough, with the spaces, to be too many to compile at once.
MANY = [rule(f"n = {n}".ljust(150), name=f"r-{n}") for n in range(100)]
MATCHES = {"n": 99}


@pytest.fixture
def compiled(monkeypatch):
    """The expressions that were compiled. For the broker, each takes a millisecond."""
    found, compile_filter = [], topic_module.rules.compile_filter

    def compile_one(filter):
        found.append(filter.expression)
        return compile_filter(filter)

    monkeypatch.setattr(topic_module.rules, "compile_filter", compile_one)
    clock = SimpleNamespace(thread_time=lambda: len(found) / 1000)
    monkeypatch.setattr(namespace_module, "time", clock)
    return found


@pytest.fixture
def start(make_world, compiled):
    def started(*entities):
        world = make_world(*entities)
        compiled.clear()
        world.restart(compile_rules=False)
        return world

    return started


def compile_all(world):
    while world.compile_some_rules():
        pass
    world.tick()


def test_a_turn_of_the_loop_compiles_only_a_few_rules(start, compiled):
    world = start(topic(), sub("a", *MANY[:50]), sub("b", *MANY[50:]))
    assert len(compiled) <= 12

    turns = 0
    before = len(compiled)
    while world.compile_some_rules():
        assert len(compiled) - before <= 12
        before = len(compiled)
        turns += 1

    assert turns >= 7
    assert len(compiled) == 100


def test_a_message_makes_no_rule_compile_while_the_topic_is_waiting(start, compiled):
    world = start(topic(), sub("a", *MANY))
    before = len(compiled)

    world.send(*[encoded(properties=MATCHES)] * 10, to="t")
    world.tick()

    assert len(compiled) == before
    assert bodies(world, at("a")) == []


def test_a_topic_with_few_rules_does_not_wait_for_another_with_many(start):
    world = start(topic(), sub("a", *MANY), topic("small"), sub("s", *MANY[:30], of="small"))

    world.send(encoded(b"now", properties={"n": 29}), to="small")

    assert world.namespace.must_wait(world.queue("t"))
    assert not world.namespace.must_wait(world.queue("small"))
    assert bodies(world, at("s", of="small")) == [b"now"]


def test_what_arrives_without_credit_is_stored_and_goes_on_in_order(start):
    world = start(topic(), sub("a", *MANY), sub("all"))
    sent = [b"%d" % number for number in range(20)]
    for body in sent:
        world.send(encoded(body, properties=MATCHES), to="t")
    check_file(world)

    compile_all(world)

    assert bodies(world, at("a")) == bodies(world, at("all")) == sent
    assert world.rows(of="t") == {}
    check_file(world)


def test_what_was_stored_while_waiting_survives_a_crash(start):
    world = start(topic(), sub("a", *MANY))
    world.send(encoded(b"kept", properties=MATCHES, ttl_ms=60_000), to="t")

    world.crash(compile_rules=False)
    world.tick()
    assert bodies(world, at("a")) == []
    compile_all(world)

    [message] = stored(world, at("a"))
    assert bodies(world, at("a")) == [b"kept"]
    assert message.ttl_ms == 60_000
    check_file(world)


def test_scheduled_messages_wait_as_well(start):
    world = start(topic(), sub("a", *MANY))
    world.send(encoded(b"due", properties=MATCHES, due_ms=world.now_ms + 1000), to="t")

    world.pass_time(1)
    assert bodies(world, at("a")) == []
    compile_all(world)

    assert bodies(world, at("a")) == [b"due"]


def test_a_dead_letter_that_is_forwarded_waits_and_keeps_its_source(start):
    queue = QueueDescription(name="q", forward_dead_lettered_messages_to="t")
    world = start(queue, topic(), sub("a", *MANY), sub("dead", rule("sys.DeadLetterSource = 'q'")))
    world.send(encoded(b"bad", properties=MATCHES))
    [lock] = world.receive()

    assert world.settle(lock, Settlement.DEAD_LETTER, reason="why") is None
    assert bodies(world, at("a")) == []
    compile_all(world)

    assert bodies(world, at("a")) == bodies(world, at("dead")) == [b"bad"]
    [message] = stored(world, at("a"))
    assert application_properties(message)["DeadLetterReason"] == "why"
    assert message.dead_letter_source == "q"


@pytest.mark.parametrize("to", ["q", "first"])
def test_senders_wait_for_a_topic_behind_a_forward(start, to):
    world = start(
        QueueDescription(name="q", forward_to="first"),
        topic("first"),
        sub("on", of="first", forward_to="t"),
        topic(),
        sub("a", *MANY),
    )
    assert world.namespace.must_wait(world.queue(to))

    world.send(encoded(b"through", properties=MATCHES), to=to)  # not held back by its link
    compile_all(world)

    assert not world.namespace.must_wait(world.queue(to))
    assert bodies(world, at("a")) == [b"through"]
    lost = MailboxKind.TRANSFER_DEAD_LETTER
    assert bodies(world, "q", lost) == bodies(world, at("on", of="first"), lost) == []


def test_a_circle_of_forwards_is_no_endless_search(start):
    world = start(
        topic(), sub("a", *MANY, forward_to="u"), topic("u"), sub("b", of="u", forward_to="t")
    )
    assert world.namespace.must_wait(world.queue("u"))

    world.send(encoded(b"round", properties=MATCHES), to="u")
    compile_all(world)

    assert not world.namespace.must_wait(world.queue("u"))
    lost = bodies(world, at("a"), MailboxKind.TRANSFER_DEAD_LETTER)
    assert lost + bodies(world, at("b", of="u"), MailboxKind.TRANSFER_DEAD_LETTER) == [b"round"]


def test_rules_and_topics_can_change_in_the_meantime(start):
    world = start(topic(), sub("a", *MANY), sub("gone", *MANY), topic("u"), sub("b", *MANY, of="u"))
    world.namespace.update(world.queue(at("a")), sub("a", *MANY[1:], rule("m = 1", name="new")))
    world.namespace.delete(world.queue(at("gone")))
    world.namespace.delete(world.queue("u"))

    compile_all(world)
    world.send(encoded(b"yes", properties={"m": 1}), encoded(b"no", properties={"n": 0}), to="t")

    assert bodies(world, at("a")) == [b"yes"]
    check_file(world)


def test_a_broker_can_stop_before_all_rules_are_compiled(start, compiled):
    world = start(topic(), sub("a", *MANY))
    world.send(encoded(b"kept", properties=MATCHES), to="t")
    world.close()
    before = len(compiled)

    while world.compile_some_rules():  # a timer that fires too late
        pass
    assert len(compiled) <= before + 1

    world.open()
    world.tick()
    assert bodies(world, at("a")) == [b"kept"]
