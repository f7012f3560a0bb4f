"""The rule operations of a subscription's `$management`: what they change, list and refuse."""

from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest

from pairbus.amqp.codec.types import Described, Float, Symbol, Timestamp, UInt, ULong
from pairbus.amqp.codec.values import decode, encode
from pairbus.broker.entities.descriptions import RULES_MAX, QueueDescription
from pairbus.broker.messages.lifecycle import MailboxKind
from pairbus.broker.rules import CorrelationFilter, FalseFilter, SqlAction, SqlFilter, TrueFilter
from pairbus.broker.rules.values import decimal_128
from tests.broker.messages.topic_world import at, bodies, rule, sub, topic
from tests.broker.world import encoded

pytestmark = pytest.mark.req("B-08")

SUB = at("a")


@pytest.fixture
def world(make_world):
    return make_world(topic(), sub("a"), QueueDescription(name="q"))


def add(world, name, described, *, of=SUB, **more):
    return world.ask("add-rule", {"rule-name": name, "rule-description": described}, of=of, **more)


def remove(world, name, *, of=SUB):
    return world.ask("remove-rule", {"rule-name": name}, of=of)


def enumerate_rules(world, *, skip=0, top=100, of=SUB):
    return world.ask("enumerate-rules", {"skip": skip, "top": top}, of=of)


def listed(answer):
    return [entry["rule-description"] for entry in answer.body["rules"]]


def names(world):
    return [one.name for one in world.queue(SUB).description.rules]


def sql(expression):
    return {"sql-filter": {"expression": expression}}


def condition(answer):
    return answer.error.condition


@pytest.mark.parametrize(
    ("described", "filter"),
    [
        pytest.param(sql("n > 1"), SqlFilter("n > 1"), id="SQL"),
        pytest.param({"true-filter": {}}, TrueFilter(), id="true"),
        pytest.param({"false-filter": {}}, FalseFilter(), id="false"),
        pytest.param(
            {
                "correlation-filter": {
                    "correlation-id": "1",
                    "message-id": "2",
                    "to": "3",
                    "reply-to": "4",
                    "label": "5",
                    "session-id": "6",
                    "reply-to-session-id": "7",
                    "content-type": "8",
                    "properties": {"n": 9},
                }
            },
            CorrelationFilter("1", "2", "3", "4", "5", "6", "7", "8", {"n": 9}),
            id="correlation",
        ),
        pytest.param(
            {"correlation-filter": {"label": "x", "to": None, "properties": None}},
            CorrelationFilter(label="x"),
            id="correlation with nulls",
        ),
    ],
)
def test_a_rule_of_each_kind_can_be_added(world, described, filter):
    answer = add(world, "new", described)

    assert answer.status == 200
    new = world.queue(SUB).description.rules[1]
    assert (new.name, new.filter, new.action, new.created_ms) == ("new", filter, None, world.now_ms)


def test_an_added_rule_counts_at_once_and_outlives_a_crash(world):
    remove(world, "$Default")
    add(world, "red", {**sql("color = 'red'"), "sql-rule-action": {"expression": "SET seen = 1"}})
    world.queues = ()

    world.crash()
    world.send(encoded(b"red", properties={"color": "red"}), encoded(b"none"), to="t")

    assert bodies(world, SUB) == [b"red"]
    assert world.queue(SUB).description.rules[0].action == SqlAction("SET seen = 1")


VALUES = {
    "a text": Symbol("x"),
    "an unsigned integer": UInt(5),
    "a float": Float(0.5),
    "a boolean": True,
    "a time": Timestamp(1_767_225_600_000),
    "a duration": Described(Symbol("com.microsoft:timespan"), 36_000_000_000),
    "a uuid": UUID(int=7),
    "bytes": b"\x00\xff",
    "a decimal": decimal_128(Decimal("1.25")),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_the_values_of_an_added_rule_keep_their_types_after_a_restart(world, value):
    remove(world, "$Default")
    filter = {"correlation-filter": {"properties": {"v": value}}}
    assert add(world, "new", filter).status == 200
    world.send(encoded(b"before", properties={"v": value}), to="t")
    world.queues = ()

    world.restart()
    world.send(encoded(b"after", properties={"v": value}), encoded(b"no"), to="t")

    assert bodies(world, SUB) == [b"before", b"after"]
    [listed_rule] = listed(enumerate_rules(world))
    decode(encode(listed_rule))


def test_a_removed_rule_matches_nothing_more(world):
    assert remove(world, "$default").status == 200

    world.send(encoded(), to="t")

    assert names(world) == []
    assert bodies(world, SUB) == []


def test_a_rule_is_not_durable_before_the_answer(world):
    answers = add(world, "new", sql("n = 1"), wait=False)

    assert answers == []
    world.flush()
    assert [answer.status for answer in answers] == [200]


@pytest.mark.req("B-12")
def test_a_rule_that_the_disk_refuses_is_an_error(world):
    with world.broken_disk():
        answers = add(world, "new", sql("n = 1"), wait=False)

    assert [answer.status for answer in answers] == [500]
    assert names(world) == ["$Default"]


# refusals


@pytest.mark.parametrize(
    ("described", "reason"),
    [
        (None, "'rule-description' is None"),
        ({}, "one of sql-filter, correlation-filter"),
        ({"sql": 1, 2: 3}, "one of sql-filter, correlation-filter"),
        ({"sql-filter": "n > 1"}, "'sql-filter' is 'n > 1', but must be a map"),
        ({"sql-filter": {}}, "'expression' is None"),
        (sql("n >"), "n >"),
        ({"correlation-filter": {"label": 5}}, "'label' is 5, but must be a string"),
        ({"correlation-filter": {"properties": 5}}, "'properties' is 5"),
        ({"correlation-filter": {"properties": {1: 2}}}, "a map whose keys are strings"),
        ({**sql("1=1"), "sql-rule-action": "SET"}, "'sql-rule-action' is 'SET'"),
        ({**sql("1=1"), "sql-rule-action": {"expression": "SET sys.Size = 1"}}, "read-only"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_with_the_reason(world, described, reason):
    answer = add(world, "new", described)

    assert answer.status == 400
    assert condition(answer) == "com.microsoft:argument-error"
    assert reason in answer.description
    assert names(world) == ["$Default"]


@pytest.mark.parametrize("name", [None, 5, "", "a/b", "r" * 51])
def test_an_invalid_rule_name_is_refused(world, name):
    answer = add(world, name, sql("1=1"))

    assert answer.status == 400
    assert names(world) == ["$Default"]


def test_a_second_rule_of_the_same_name_is_refused(world):
    assert add(world, "new", sql("n = 1")).status == 200

    answer = add(world, "NEW", sql("n = 2"))

    assert answer.status == 409
    assert condition(answer) == "com.microsoft:entity-already-exists"
    assert len(names(world)) == 2


def test_an_unknown_rule_cannot_be_removed(world):
    answer = remove(world, "nobody")

    assert answer.status == 404
    assert condition(answer) == "amqp:not-found"


@pytest.mark.parametrize("of", ["q", "t"])
def test_only_subscriptions_have_rules(world, of):
    answers = [add(world, "new", sql("1=1"), of=of), remove(world, "x", of=of)]
    answers.append(enumerate_rules(world, of=of))

    assert {condition(answer) for answer in answers} == {"amqp:not-allowed"}
    assert all("has no rules" in answer.description for answer in answers)


def test_more_rules_than_a_subscription_may_have_are_refused(make_world):
    world = make_world(topic(), sub("a", *(rule(name=f"r{n}") for n in range(RULES_MAX))))

    answer = add(world, "one-more", sql("1=1"))

    assert condition(answer) == "amqp:not-allowed"
    assert str(RULES_MAX) in answer.description
    assert len(names(world)) == RULES_MAX


# listing


def test_rules_are_listed_as_described_lists(make_world):
    world = make_world(
        topic(),
        sub(
            "a",
            rule(name="everything"),
            rule(FalseFilter(), name="nothing"),
            rule("n > 1", "SET big = 1", name="big"),
            rule(CorrelationFilter(label="x", properties={"n": 1}), name="equal"),
        ),
    )

    found = listed(enumerate_rules(world))

    assert all(one.descriptor == ULong(0x13700000004) for one in found)
    filters, actions, named, made = zip(*(one.value for one in found), strict=True)
    assert filters == (
        Described(ULong(0x1370000007), []),
        Described(ULong(0x1370000008), []),
        Described(ULong(0x1370000006), ["n > 1", 20]),
        Described(
            ULong(0x1370000009), [None, None, None, None, "x", None, None, None, {"n": 1}]
        ),
    )  # fmt: skip
    empty = Described(ULong(0x13700000005), [])
    assert actions[:2] == (empty, empty)
    assert actions[2].descriptor == ULong(0x13700000006)
    assert actions[2].value[0] == "SET big = 1"
    assert named == ("everything", "nothing", "big", "equal")
    assert all(type(one) is Timestamp for one in made)


def test_a_listing_can_be_encoded_whatever_the_values_are(world):
    values = {"text": "x", "flag": True, "number": 5, "float": 0.5, "none": None,
              "time": datetime(2026, 1, 1, tzinfo=UTC)}  # fmt: skip
    properties = {key: value for key, value in values.items() if value is not None}
    world.namespace.update(
        world.queue(SUB), sub("a", rule(CorrelationFilter(properties=properties)))
    )

    [one] = listed(enumerate_rules(world))

    decode(encode(one))


def test_a_listing_comes_in_pages(make_world):
    world = make_world(topic(), sub("a", *(rule(name=f"r{n}") for n in range(5))))

    pages = [enumerate_rules(world, skip=skip, top=2) for skip in (0, 2, 4, 6)]

    found = [[one.value[2] for one in listed(page)] for page in pages[:3]]
    assert found == [["r0", "r1"], ["r2", "r3"], ["r4"]]
    assert pages[3].status == 204


def test_a_subscription_without_rules_lists_none(make_world):
    world = make_world(topic(), sub("a", rules=()))

    assert enumerate_rules(world).status == 204


@pytest.mark.parametrize(("skip", "top"), [(-1, 10), (0, 0), (None, 10), (0, "many")])
def test_a_page_that_makes_no_sense_is_refused(world, skip, top):
    assert enumerate_rules(world, skip=skip, top=top).status == 400


def test_rules_can_be_managed_at_the_dead_letters_address_too(world):
    body = {"rule-name": "new", "rule-description": sql("1=1")}

    assert world.ask("add-rule", body, of=SUB, kind=MailboxKind.DEAD_LETTER).status == 200
