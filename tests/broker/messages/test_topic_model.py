"""A real topic on a real file against a plain one, with rules that come and go.

The plain one knows nothing of files: a subscription is a list of copies. After each step the file,
the counters and the references of shared bodies must say what it says.
"""

from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from pairbus.broker.entities.descriptions import QueueDescription
from pairbus.broker.messages.lifecycle import MailboxKind, Settlement
from pairbus.broker.rules import CorrelationFilter, FalseFilter
from pairbus.broker.storage import store as store_module
from tests.broker.messages import topic_world
from tests.broker.messages.machine import WorldMachine
from tests.broker.messages.topic_world import at, body_of, check_file, shared_bodies, sub, topic
from tests.broker.world import application_properties, encoded

pytestmark = pytest.mark.req("B-08")

NAMES = ("a", "b", "c", "d")
PADDING = bytes(300)  # beyond this, bodies are shared

# name -> the rule, and the same in Python: properties -> matches (raises: it fails), new properties
RULES = {
    "all": (topic_world.rule(name="all"), lambda p: True, {}),
    "none": (topic_world.rule(FalseFilter(), name="none"), lambda p: False, {}),
    "red": (topic_world.rule("color = 'red'", name="red"), lambda p: p["color"] == "red", {}),
    "equal": (
        topic_world.rule(CorrelationFilter(properties={"color": "blue"}), name="equal"),
        lambda p: p["color"] == "blue",
        {},
    ),
    "big": (
        topic_world.rule("n > 1", "SET size = 'big'", name="big"),
        lambda p: p["n"] > 1,
        {"size": "big", "RuleName": "big"},
    ),
    "marks": (
        topic_world.rule(None, "SET mark = 1", name="marks"),
        lambda p: True,
        {"mark": 1, "RuleName": "marks"},
    ),
    "fails": (
        topic_world.rule("10 / n > 100", name="fails"),
        lambda p: 10 // p["n"] > 100,
        {},
    ),
}
# Mostly such that several subscriptions take the same.
RULE_SETS = st.sampled_from([["all"], ["all"], ["marks"], ["marks", "red"], ["red", "equal"]]) | (
    st.lists(st.sampled_from(list(RULES)), max_size=3, unique=True)
)
SETTINGS = st.fixed_dictionaries(
    {
        "dead_letters_expired": st.booleans(),
        "dead_letters_failures": st.booleans(),
        "ttl_s": st.sampled_from([None, None, 20]),
        "forwards": st.sampled_from([False, False, False, True]),
    }
)
MESSAGES = st.fixed_dictionaries(
    {
        "color": st.sampled_from(["red", "blue"]),
        "n": st.integers(0, 2),
        "ttl_s": st.sampled_from([None, None, None, 10, 40]),
        "due_s": st.sampled_from([None, None, None, 15]),
        "is_large": st.sampled_from([True, True, False]),
    }
)
SETTLEMENTS = [
    (Settlement.COMPLETE, None),
    (Settlement.ABANDON, None),
    (Settlement.ABANDON, {"tried": 1}),
    (Settlement.DEFER, None),
    (Settlement.DEFER, {"later": 1}),
    (Settlement.DEAD_LETTER, None),
    (Settlement.RELEASE, None),
]
KINDS = {"main": MailboxKind.MAIN, "dead": MailboxKind.DEAD_LETTER}


@dataclass
class Plain:
    """A copy of a message."""

    tag: bytes
    properties: dict
    expires_ms: int | None = None
    ttl_ms: int | None = None
    due_ms: int | None = None
    is_deferred: bool = False

    def is_expired(self, now_ms):
        return self.expires_ms is not None and self.expires_ms <= now_ms


@dataclass
class PlainSubscription:
    rules: list
    settings: dict
    main: list = field(default_factory=list)
    dead: list = field(default_factory=list)

    def matching(self, message):
        """The properties of each copy; raises ZeroDivisionError."""
        found = []
        for name in self.rules:
            _, matches, adds = RULES[name]
            if matches(message.properties) and not (not adds and {} in found):
                found.append(adds)
        found.sort(key=bool)  # the plain one comes first
        return [{**message.properties, **adds} for adds in found]

    def dead_letter(self, message, why):
        properties = {**message.properties, "DeadLetterReason": why}
        self.dead.append(Plain(message.tag, {k: v for k, v in properties.items() if v is not None}))


class PlainTopic:
    def __init__(self):
        self.subscriptions = {}
        self.scheduled = []
        self.forwarded = []

    def send(self, message, *, now_ms):
        if message.due_ms is not None:
            self.scheduled.append(message)
            return
        for one in self.subscriptions.values():
            try:
                copies = one.matching(message)
            except ZeroDivisionError:
                if one.settings["dead_letters_failures"]:
                    one.dead_letter(message, "FilterEvaluationException")
                continue
            for properties in copies:
                # What is forwarded passes the subscription by: its time to live does not count.
                own_s = None if one.settings["forwards"] else one.settings["ttl_s"]
                limits = [message.ttl_ms, None if own_s is None else own_s * 1000]
                ttl_ms = min((ttl for ttl in limits if ttl is not None), default=None)
                ends = None if ttl_ms is None else now_ms + ttl_ms
                box = self.forwarded if one.settings["forwards"] else one.main
                box.append(Plain(message.tag, properties, ends))

    def pass_time(self, *, now_ms):
        due = [message for message in self.scheduled if message.due_ms <= now_ms]
        self.scheduled = [message for message in self.scheduled if message.due_ms > now_ms]
        for message in due:
            self.send(replace(message, due_ms=None), now_ms=now_ms)
        self.expire(now_ms=now_ms)

    def expire(self, *, now_ms):
        self.forwarded = [m for m in self.forwarded if not m.is_expired(now_ms)]
        for one in self.subscriptions.values():
            for message in [m for m in one.main if m.is_expired(now_ms)]:
                one.main.remove(message)
                if one.settings["dead_letters_expired"]:
                    one.dead_letter(message, "TTLExpiredException")


class TopicMachine(WorldMachine):
    def __init__(self):
        super().__init__()
        self.patch.setattr(store_module, "GARBAGE_ROWS", 2)
        self.open_world(topic(), QueueDescription(name="q"))
        self.world.queues = ()  # from now on the file alone knows
        self.model = PlainTopic()

    def teardown(self):
        try:
            self.check_that_nothing_is_left()
        finally:
            super().teardown()

    def draw_name(self, data):
        return data.draw(st.sampled_from(sorted(self.model.subscriptions)))

    def description(self, name, rules, chosen):
        more = {}
        if chosen["ttl_s"] is not None:
            more["default_message_time_to_live"] = timedelta(seconds=chosen["ttl_s"])
        if chosen["forwards"]:
            more["forward_to"] = "q"
        return sub(
            name,
            rules=tuple(RULES[rule][0] for rule in rules),
            dead_lettering_on_message_expiration=chosen["dead_letters_expired"],
            dead_lettering_on_filter_evaluation_exceptions=chosen["dead_letters_failures"],
            max_delivery_count=1_000_000,
            **more,
        )

    def compose(self, specs):
        composed = []
        for spec in specs:
            tag = b"tag-%d" % next(self.tags) + (PADDING if spec["is_large"] else b"")
            facts = {
                "ttl_ms": None if spec["ttl_s"] is None else spec["ttl_s"] * 1000,
                "due_ms": None if spec["due_s"] is None else self.now_ms + spec["due_s"] * 1000,
            }
            properties = {"color": spec["color"], "n": spec["n"]}
            composed.append(
                (encoded(tag, properties=properties, **facts), Plain(tag, properties, **facts))
            )
        return composed

    # entities

    @initialize(first=st.lists(st.tuples(RULE_SETS, SETTINGS), min_size=3, max_size=3))
    def start(self, first):
        for name, (rules, chosen) in zip(NAMES, first, strict=False):
            self.make_or_change(name, rules, chosen)

    @rule(name=st.sampled_from(NAMES), rules=RULE_SETS, chosen=SETTINGS)
    def make_or_change(self, name, rules, chosen):
        namespace, known = self.world.namespace, self.model.subscriptions.get(name)
        if known is None:
            namespace.create(self.description(name, rules, chosen))
            self.model.subscriptions[name] = PlainSubscription(rules, chosen)
        elif not chosen["forwards"] or not known.main:  # who could receive them then?
            namespace.update(self.world.queue(at(name)), self.description(name, rules, chosen))
            known.rules, known.settings = rules, chosen
        self.world.flush()

    @precondition(lambda self: len(self.model.subscriptions) > 2)
    @rule(data=st.data())
    def delete(self, data):
        name = self.draw_name(data)
        topic_world.delete(self.world, at(name))
        del self.model.subscriptions[name]

    # messages

    @rule(specs=st.lists(MESSAGES, min_size=1, max_size=3))
    def send(self, specs):
        composed = self.compose(specs)

        self.world.send(*(data for data, _ in composed), to="t")

        for _, message in composed:
            self.model.send(message, now_ms=self.now_ms)

    @precondition(lambda self: self.model.subscriptions)
    @rule(data=st.data(), how=st.sampled_from(SETTLEMENTS), most=st.integers(1, 3))
    def receive_and_settle(self, data, how, most):
        name, (settlement, properties) = self.draw_name(data), how
        known = self.model.subscriptions[name]
        self.tick()
        expected = [message for message in known.main if not message.is_deferred][:most]

        locks = self.world.receive(most, of=at(name))

        assert [body_of(lock.message) for lock in locks] == [m.tag for m in expected]
        for lock, message in zip(locks, expected, strict=True):
            reported = self.world.settle(lock, settlement, of=at(name), properties=properties)
            assert reported is None
            self.settled(known, message, settlement, properties)

    def settled(self, known, message, settlement, properties):
        message.properties = {**message.properties, **(properties or {})}
        if settlement is Settlement.COMPLETE:
            known.main.remove(message)
        elif settlement is Settlement.DEFER:
            message.is_deferred = True
        elif settlement is Settlement.DEAD_LETTER:
            known.main.remove(message)
            known.dead_letter(message, None)

    @precondition(lambda self: self.model.subscriptions)
    @rule(data=st.data(), most=st.integers(1, 3))
    def receive_and_delete(self, data, most):
        name = self.draw_name(data)
        known = self.model.subscriptions[name]
        self.tick()
        expected = [message for message in known.main if not message.is_deferred][:most]

        got = self.world.receive_and_delete(most, of=at(name))

        assert [body_of(message) for message in got] == [message.tag for message in expected]
        for message in expected:
            known.main.remove(message)

    # time and failures

    @rule(seconds=st.sampled_from([1, 5, 10, 20]))
    def wait(self, seconds):
        self.world.clock.advance(seconds)
        self.tick()

    def tick(self):
        """Twice: what comes from the schedule may have expired."""
        self.world.tick()
        self.world.tick()
        self.model.pass_time(now_ms=self.now_ms)

    @rule(ending=st.sampled_from(["restart", "crash"]))
    def come_back(self, ending):
        getattr(self.world, ending)()

    @rule(specs=st.lists(MESSAGES, min_size=1, max_size=2), moment=st.sampled_from("abc"))
    def crash_while_sending(self, specs, moment):
        composed = self.compose(specs)
        _, reported = self.world.submit(*(data for data, _ in composed), to="t")
        store = self.world.namespace.store
        if moment == "b":
            store.apply()
        elif moment == "c":
            store.save()
            for _, message in composed:
                self.model.send(message, now_ms=self.now_ms)

        self.world.crash()

        assert reported == []

    @precondition(lambda self: self.model.subscriptions)
    @rule(
        data=st.data(),
        specs=st.lists(MESSAGES, min_size=1, max_size=2),
        how=st.sampled_from(SETTLEMENTS[:-1]),
        tries_again=st.booleans(),
    )
    def work_on_a_broken_disk(self, data, specs, how, tries_again):
        """Everybody gets the error, and nothing has changed: the lock is good for another try."""
        name, (settlement, properties) = self.draw_name(data), how
        self.tick()
        locks = self.world.receive(1, of=at(name))
        reported = []
        with self.world.broken_disk():
            reported.append(self.world.submit(*(d for d, _ in self.compose(specs)), to="t")[1])
            for lock in locks:
                reported.append(
                    self.world.start_settling(lock, settlement, of=at(name), properties=properties)
                )
        assert {error.condition for [error] in reported} == {"amqp:internal-error"}
        if not tries_again:
            settlement, properties = Settlement.RELEASE, None
        known = self.model.subscriptions[name]
        active = [message for message in known.main if not message.is_deferred]
        for lock, message in zip(locks, active[:1], strict=True):
            reported = self.world.settle(lock, settlement, of=at(name), properties=properties)
            assert reported is None
            self.settled(known, message, settlement, properties)

    # what must hold

    @invariant()
    def the_file_says_what_the_model_says(self):
        for name, known in self.model.subscriptions.items():
            for box, kind in KINDS.items():
                found = self.found(at(name), kind)
                expected = [
                    (m.tag, m.properties, int(m.is_deferred), m.expires_ms)
                    for m in getattr(known, box)
                ]
                if box == "dead":  # in the order of their numbers, not of their deaths
                    found, expected = sorted(found, key=str), sorted(expected, key=str)
                assert (name, box, found) == (name, box, expected)
        waiting = sorted(body_of(m) for m in topic_world.stored(self.world, "t"))
        assert waiting == sorted(m.tag for m in self.model.scheduled)
        forwarded = [(m.tag, m.properties, 0, m.expires_ms) for m in self.model.forwarded]
        assert self.found("q", MailboxKind.MAIN) == forwarded

    def found(self, path, kind):
        found = []
        for message in topic_world.stored(self.world, path, kind):
            properties = application_properties(message)
            properties.pop("DeadLetterErrorDescription", None)
            found.append((body_of(message), properties, message.state, message.expires_ms))
        return found

    @invariant()
    def counters_and_references_are_true(self):
        check_file(self.world)
        for entity in self.world.namespace.directory:
            for mailbox in entity.mailboxes.values():
                assert mailbox.locks == {}
                assert not any(message.busy for message in mailbox.held.values())

    def check_that_nothing_is_left(self):
        """When the topic goes, its messages and their bodies follow in portions."""
        self.world.namespace.delete(self.world.queue("t"))
        for _ in range(500):
            self.world.pass_time(6)
            if not self.world.look("SELECT * FROM garbage"):
                break
        assert shared_bodies(self.world) == {}
        q = self.world.queue("q").main.counters
        assert self.world.look("SELECT count(*) FROM message") == [(q.active,)]


TestTopicAgainstAPlainOne = TopicMachine.TestCase
# A share of what the profile asks for: `night` tries harder.
TestTopicAgainstAPlainOne.settings = settings(
    max_examples=settings().max_examples * 3 // 5, stateful_step_count=40
)
