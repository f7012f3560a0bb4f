"""Invalid descriptions cannot be made, and the error says what would be right."""

from dataclasses import fields
from datetime import timedelta

import pytest

from pairbus.broker.entities.descriptions import (
    DEFAULT_RULE,
    RULES_MAX,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    check_name,
    default_rules,
    settings_of,
    subscription_path,
    topics_from_names,
)
from pairbus.broker.entities.policies import Policy, Right
from pairbus.broker.entities.settings import in_service_names
from pairbus.broker.rules import CorrelationFilter, FalseFilter, SqlAction, SqlFilter, TrueFilter
from pairbus.errors import BrokerError, ConfigError


@pytest.mark.parametrize("name", ["q", "Orders", "a/b", "a.b-c_d", "x" * 260, "9", "a/b/c.d"])
def test_a_valid_name_is_accepted(name):
    check_name(name)


@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", "-a", "a.", "a b", "ä", "a\n", "$cbs", "x" * 261, "a?b"]
)
def test_a_bad_name_is_refused_with_the_rule(name):
    with pytest.raises(ConfigError, match="1 to 260 letters") as caught:
        check_name(name)

    assert repr(name) in str(caught.value)


BEYOND = {
    "a lock of six minutes": ({"lock_duration": timedelta(minutes=6)}, "PT1S and PT5M"),
    "a lock of no time": ({"lock_duration": timedelta()}, "PT1S and PT5M"),
    "a lock that is a number": ({"lock_duration": 60}, "60"),
    "a life of less than a second": (
        {"default_message_time_to_live": timedelta(milliseconds=999)},
        "PT1S",
    ),
    "a window of ten seconds": (
        {"duplicate_detection_history_time_window": timedelta(seconds=10)},
        "PT20S and P7D",
    ),
    "idle for a minute": ({"auto_delete_on_idle": timedelta(minutes=1)}, "PT5M"),
    "no delivery at all": ({"max_delivery_count": 0}, "1 and 2147483647"),
    "more than int32": ({"max_delivery_count": 2**31}, "1 and 2147483647"),
    "a count that is a string": ({"max_delivery_count": "10"}, "'10'"),
    "a count that is a boolean": ({"max_delivery_count": True}, "True"),
    "no room": ({"max_size_in_megabytes": 0}, "1 and 81920"),
    "too much room": ({"max_size_in_megabytes": 81_921}, "1 and 81920"),
    "messages beyond 100 MB": ({"max_message_size_in_kilobytes": 102_401}, "1 and 102400"),
    "both express and without duplicates": (
        {"enable_express": True, "requires_duplicate_detection": True},
        "cannot be combined",
    ),
    "metadata without end": ({"user_metadata": "x" * 1025}, "1025 characters, but at most 1024"),
}


@pytest.mark.parametrize(("settings", "said"), BEYOND.values(), ids=BEYOND)
def test_an_impossible_queue_cannot_be_described(settings, said):
    with pytest.raises(ConfigError) as caught:
        QueueDescription(name="q", **settings)

    assert "queue 'q'" in str(caught.value)
    assert said in str(caught.value)
    assert any(name in str(caught.value) for name in settings)


def test_the_ranges_include_their_ends():
    QueueDescription(
        name="q",
        lock_duration=timedelta(minutes=5),
        default_message_time_to_live=timedelta(seconds=1),
        duplicate_detection_history_time_window=timedelta(days=7),
        auto_delete_on_idle=timedelta(minutes=5),
        max_delivery_count=2**31 - 1,
        max_size_in_megabytes=81_920,
        max_message_size_in_kilobytes=1,
    )


def test_a_configuration_error_is_a_broker_error_and_a_value_error():
    assert issubclass(ConfigError, BrokerError)
    assert issubclass(ConfigError, ValueError)


# -- topics, subscriptions and rules ----------------------------------------------------------


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


UNWORKABLE = {
    "a filter that cannot be parsed": {"filter": SqlFilter("color ==")},
    "a parameter that is not given": {"filter": SqlFilter("n > @limit")},
    "an action that cannot be parsed": {"action": SqlAction("SET = 1")},
    "a property that is read-only": {"action": SqlAction("SET sys.Size = 1")},
    "a value of no type": {"filter": CorrelationFilter(properties={"a": object()})},
}


@pytest.mark.parametrize("settings", UNWORKABLE.values(), ids=UNWORKABLE)
def test_a_rule_that_cannot_work_is_refused_when_it_is_made(settings):
    with pytest.raises(ConfigError):
        RuleDescription(name="r", **settings)


# A value that is not the default, for each setting that a kind of entity does not have.
OTHER_VALUES = {
    "lock_duration": timedelta(seconds=5),
    "max_delivery_count": 3,
    "requires_session": True,
    "dead_lettering_on_message_expiration": True,
    "requires_duplicate_detection": True,
    "duplicate_detection_history_time_window": timedelta(minutes=1),
    "max_size_in_megabytes": 5,
    "max_message_size_in_kilobytes": 5,
    "enable_partitioning": True,
    "forward_to": "elsewhere",
    "forward_dead_lettered_messages_to": "elsewhere",
    "authorization_rules": (Policy(name="p", key="k", rights=frozenset({Right.SEND})),),
    "enable_express": True,
}


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        (kind, setting)
        for kind in (QueueDescription, TopicDescription, SubscriptionDescription)
        for setting in sorted(kind.lacks)
    ],
)
def test_a_setting_that_a_kind_does_not_have_is_refused(kind, setting):
    name = subscription_path("t", "s") if kind is SubscriptionDescription else "t"

    with pytest.raises(ConfigError, match=f"{kind.noun} has no setting {setting}"):
        kind(name=name, **{setting: OTHER_VALUES[setting]})


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


# -- the table of settings --------------------------------------------------------------------


@pytest.mark.parametrize("kind", [QueueDescription, TopicDescription, SubscriptionDescription])
def test_every_setting_has_a_name_of_the_service(kind):
    elsewhere = {"name", "rules", "authorization_rules"}

    described = {one.field for one in settings_of(kind).values()}

    assert described == {field.name for field in fields(kind)} - kind.lacks - elsewhere


def test_the_names_are_the_fields_in_the_services_spelling():
    for kind in (QueueDescription, TopicDescription, SubscriptionDescription):
        for name, one in settings_of(kind).items():
            assert name.lower() == one.field.replace("_", "")


def test_error_texts_get_the_services_names():
    text = "queue 'a_b': lock_duration and no_setting"

    assert in_service_names(text) == "queue 'a_b': LockDuration and no_setting"
