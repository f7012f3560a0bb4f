"""Descriptions of topics, subscriptions and rules: what they may say."""

from datetime import timedelta

import pytest

from pairbus.broker.entities.descriptions import (
    DEFAULT_RULE,
    RULES_MAX,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    default_rules,
    subscription_path,
    topics_from_names,
)
from pairbus.broker.rules import CorrelationFilter, FalseFilter, SqlAction, SqlFilter, TrueFilter
from pairbus.errors import ConfigError

pytestmark = pytest.mark.req("B-08")


def subscription(name="t/Subscriptions/s", **settings):
    return SubscriptionDescription(name=name, **settings)


def test_a_subscription_knows_its_topic_and_its_own_name():
    described = subscription(subscription_path("a/b", "S.1"))

    assert described.name == "a/b/Subscriptions/S.1"
    assert (described.topic_name, described.own_name) == ("a/b", "S.1")
    assert str(described) == "subscription 'a/b/Subscriptions/S.1'"


def test_a_subscription_gets_every_message_by_default():
    [rule] = subscription().rules

    assert rule == RuleDescription(name=DEFAULT_RULE, filter=TrueFilter())
    assert default_rules() == (rule,)


def test_a_topic_always_reads_the_ids_because_a_subscription_may_need_them():
    assert TopicDescription(name="t").reads_identifiers


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("orders", "at most 50"),
        ("t/Subscriptions/", "starting and ending"),
        ("t/Subscriptions/a/b", "no '/'"),
        ("t/Subscriptions/" + "s" * 51, "at most 50"),
        ("/Subscriptions/s", "starting and ending"),
        ("t/Subscriptions/ü", "letters"),
    ],
)
def test_a_subscription_name_that_is_none_is_refused(name, reason):
    with pytest.raises(ConfigError, match=reason):
        subscription(name)


def test_the_longest_names_are_taken():
    assert len(subscription("t/Subscriptions/" + "s" * 50).own_name) == 50
    assert RuleDescription(name="r" * 50).name == "r" * 50


@pytest.mark.parametrize("name", ["", "r" * 51, "a/b", "$other", "-x"])
def test_a_rule_name_that_is_none_is_refused(name):
    with pytest.raises(ConfigError, match="rule name"):
        RuleDescription(name=name)


def test_two_rules_of_one_name_are_refused_whatever_their_case():
    with pytest.raises(ConfigError, match=r"subscription 't/Subscriptions/s': two of its rules"):
        subscription(rules=[RuleDescription(name="a"), RuleDescription(name="A")])


def test_too_many_rules_are_refused():
    rules = [RuleDescription(name=f"r{n}", filter=FalseFilter()) for n in range(RULES_MAX + 1)]

    assert len(subscription(rules=rules[1:]).rules) == RULES_MAX
    with pytest.raises(ConfigError, match=f"{RULES_MAX + 1} rules, but at most {RULES_MAX}"):
        subscription(rules=rules)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"filter": SqlFilter("color ==")}, id="a filter that cannot be parsed"),
        pytest.param({"filter": SqlFilter("n > @limit")}, id="a parameter that is not given"),
        pytest.param({"action": SqlAction("SET = 1")}, id="an action that cannot be parsed"),
        pytest.param({"action": SqlAction("SET sys.Size = 1")}, id="a property that is read-only"),
        pytest.param(
            {"filter": CorrelationFilter(properties={"a": object()})}, id="a value of no type"
        ),
    ],
)
def test_a_rule_that_cannot_work_is_refused_when_it_is_made(settings):
    with pytest.raises(ConfigError):
        RuleDescription(name="r", **settings)


@pytest.mark.parametrize(
    ("kind", "setting", "value"),
    [
        (TopicDescription, "lock_duration", timedelta(seconds=5)),
        (TopicDescription, "requires_session", True),
        (TopicDescription, "max_delivery_count", 3),
        (TopicDescription, "dead_lettering_on_message_expiration", True),
        (TopicDescription, "forward_to", "q"),
        (TopicDescription, "forward_dead_lettered_messages_to", "q"),
        (SubscriptionDescription, "requires_duplicate_detection", True),
        (SubscriptionDescription, "duplicate_detection_history_time_window", timedelta(minutes=1)),
        (SubscriptionDescription, "enable_partitioning", True),
        (SubscriptionDescription, "max_size_in_megabytes", 5),
        (SubscriptionDescription, "max_message_size_in_kilobytes", 5),
    ],
)
def test_a_setting_that_the_kind_does_not_have_is_refused(kind, setting, value):
    name = "t" if kind is TopicDescription else "t/Subscriptions/s"

    with pytest.raises(ConfigError, match=f"{kind.noun} '{name}'.*{setting}"):
        kind(name=name, **{setting: value})


def names(given):
    return [entity.name for entity in topics_from_names(given)]


def test_a_name_is_a_topic_and_a_path_its_subscription():
    topic, subscription = topics_from_names(["events", "events/Subscriptions/audit"])

    assert topic == TopicDescription(name="events")
    assert subscription == SubscriptionDescription(name="events/Subscriptions/audit")


def test_topics_come_first_in_whatever_order_they_are_given():
    given = [SubscriptionDescription(name="b/Subscriptions/s", max_delivery_count=3), "a", "b"]

    assert names(given) == ["a", "b", "b/Subscriptions/s"]
    assert topics_from_names(given)[2].max_delivery_count == 3


def test_a_subscription_stands_for_its_topic_too():
    assert names(["events/subscriptions/a", "Events/Subscriptions/b"]) == [
        "events",
        "events/Subscriptions/a",
        "Events/Subscriptions/b",
    ]


def test_a_topic_that_is_described_is_not_made_up():
    described = TopicDescription(name="Events", max_size_in_megabytes=5)

    assert topics_from_names(["events/Subscriptions/a", described])[0] is described


@pytest.mark.parametrize("name", ["", "no good", "events/Subscriptions/", "t/Subscriptions/a/b"])
def test_a_name_that_cannot_be_is_refused(name):
    with pytest.raises(ConfigError, match="is not valid"):
        topics_from_names([name])
