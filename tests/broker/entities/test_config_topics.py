"""Topics, subscriptions and rules of a Config.json."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from pairbus.broker.entities.descriptions import (
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.rules import CorrelationFilter, FalseFilter, SqlAction, SqlFilter, TrueFilter
from pairbus.errors import ConfigError

# The topic of the file that the official emulator ships: one subscription for each way to filter.
SUBSCRIPTION = {
    "DeadLetteringOnMessageExpiration": False,
    "DefaultMessageTimeToLive": "PT1H",
    "LockDuration": "PT1M",
    "MaxDeliveryCount": 3,
    "ForwardDeadLetteredMessagesTo": "",
    "ForwardTo": "",
    "RequiresSession": False,
}
EVERY_SYSTEM_PROPERTY = {
    "ContentType": "application/text",
    "CorrelationId": "id1",
    "Label": "subject1",
    "MessageId": "msgid1",
    "ReplyTo": "someQueue",
    "ReplyToSessionId": "sessionId",
    "SessionId": "session1",
    "To": "xyz",
}
EMULATOR_TOPIC = {
    "Name": "topic.1",
    "Properties": {
        "DefaultMessageTimeToLive": "PT1H",
        "DuplicateDetectionHistoryTimeWindow": "PT20S",
        "RequiresDuplicateDetection": False,
    },
    "Subscriptions": [
        {
            "Name": "subscription.1",
            "Properties": SUBSCRIPTION,
            "Rules": [
                {
                    "Name": "app-prop-filter-1",
                    "Properties": {
                        "FilterType": "Correlation",
                        "CorrelationFilter": EVERY_SYSTEM_PROPERTY,
                    },
                }
            ],
        },
        {
            "Name": "subscription.2",
            "Properties": SUBSCRIPTION,
            "Rules": [
                {
                    "Name": "user-prop-filter-1",
                    "Properties": {
                        "FilterType": "Correlation",
                        "CorrelationFilter": {"Properties": {"prop1": "value1"}},
                    },
                }
            ],
        },
        {"Name": "subscription.3", "Properties": SUBSCRIPTION},
        {
            "Name": "subscription.4",
            "Properties": SUBSCRIPTION,
            "Rules": [
                {
                    "Name": "sql-filter-1",
                    "Properties": {
                        "FilterType": "Sql",
                        "SqlFilter": {
                            "SqlExpression": "sys.MessageId = '123456' AND userProp1 = 'value1'"
                        },
                        "Action": {"SqlExpression": "SET sys.To = 'Entity'"},
                    },
                }
            ],
        },
    ],
}


@pytest.fixture
def load_topics(load):
    def load_these(*topics, queues=()):
        namespace = {"Name": "n", "Queues": list(queues), "Topics": list(topics)}
        [loaded] = load(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))
        return loaded.topics

    return load_these


@pytest.fixture
def load_rules(load_topics):
    def load_these(*rules):
        subscription = {"Name": "s", "Rules": list(rules)}
        return load_topics({"Name": "t", "Subscriptions": [subscription]})[1].rules

    return load_these


def sql(expression, **more):
    filter_ = {"SqlExpression": expression, **more}
    return {"Name": "r", "Properties": {"FilterType": "Sql", "SqlFilter": filter_}}


def correlation(**values):
    properties = {"FilterType": "Correlation", "CorrelationFilter": values}
    return {"Name": "r", "Properties": properties}


@pytest.mark.req("B-08")
def test_the_emulators_own_topic_is_read(load_topics):
    topic, first, second, third, fourth = load_topics(EMULATOR_TOPIC)

    assert topic == TopicDescription(
        name="topic.1",
        default_message_time_to_live=timedelta(hours=1),
        duplicate_detection_history_time_window=timedelta(seconds=20),
    )
    assert third == SubscriptionDescription(
        name="topic.1/Subscriptions/subscription.3",
        default_message_time_to_live=timedelta(hours=1),
        max_delivery_count=3,
    )
    assert first.rules == (
        RuleDescription(
            name="app-prop-filter-1",
            filter=CorrelationFilter(
                content_type="application/text",
                correlation_id="id1",
                label="subject1",
                message_id="msgid1",
                reply_to="someQueue",
                reply_to_session_id="sessionId",
                session_id="session1",
                to="xyz",
            ),
        ),
    )
    assert second.rules[0].filter == CorrelationFilter(properties={"prop1": "value1"})
    assert fourth.rules == (
        RuleDescription(
            name="sql-filter-1",
            filter=SqlFilter("sys.MessageId = '123456' AND userProp1 = 'value1'"),
            action=SqlAction("SET sys.To = 'Entity'"),
        ),
    )


@pytest.mark.parametrize("subscription", [{"Name": "s"}, {"Name": "s", "Rules": []}])
def test_a_subscription_without_rules_in_the_file_gets_everything(load_topics, subscription):
    _, described = load_topics({"Name": "t", "Subscriptions": [subscription]})

    assert described.rules == (RuleDescription(name="$Default", filter=TrueFilter()),)


def test_a_subscription_with_rules_has_those_only(load_rules):
    assert [rule.name for rule in load_rules(sql("a = 1"))] == ["r"]


@pytest.mark.parametrize(("expression", "filter_"), [("1=1", TrueFilter()), ("1=0", FalseFilter())])
def test_the_expressions_of_all_and_nothing_are_what_they_mean(load_rules, expression, filter_):
    assert load_rules(sql(expression))[0].filter == filter_


def test_a_topic_needs_no_subscription(load_topics):
    assert load_topics({"Name": "t"}) == (TopicDescription(name="t"),)
    assert load_topics({"Name": "t", "Subscriptions": []}) == (TopicDescription(name="t"),)


def test_settings_that_only_the_service_has_are_read_too(load_topics):
    topic, subscription = load_topics(
        {
            "Name": "t",
            "Properties": {
                "MaxSizeInMegabytes": 2048,
                "Status": "SendDisabled",
                "SupportOrdering": False,
            },
            "Subscriptions": [
                {
                    "Name": "s",
                    "Properties": {
                        "AutoDeleteOnIdle": "PT5M",
                        "DeadLetteringOnFilterEvaluationExceptions": False,
                        "Status": "ReceiveDisabled",
                        "UserMetadata": "of the web shop",
                    },
                }
            ],
        }
    )

    assert topic.max_size_in_megabytes == 2048
    assert topic.status == "SendDisabled"
    assert topic.support_ordering is False
    assert subscription.auto_delete_on_idle == timedelta(minutes=5)
    assert subscription.dead_lettering_on_filter_evaluation_exceptions is False
    assert subscription.status == "ReceiveDisabled"
    assert subscription.user_metadata == "of the web shop"


def test_values_to_compare_with_keep_their_types(load_rules):
    values = {
        "text": "5",
        "number": 5,
        "fraction": 0.5,
        "truth": True,
        "time": {"Type": "dateTime", "Value": "2030-12-31T23:59:59Z"},
        "duration": {"Type": "duration", "Value": "PT1M"},
    }

    [rule] = load_rules(correlation(Properties=values))

    assert rule.filter.properties == {
        "text": "5",
        "number": 5,
        "fraction": 0.5,
        "truth": True,
        "time": datetime(2030, 12, 31, 23, 59, 59, tzinfo=UTC),
        "duration": timedelta(minutes=1),
    }


def test_an_expression_may_have_parameters(load_rules):
    [rule] = load_rules(sql("amount > @least", Parameters={"@least": 5}))

    assert rule.filter == SqlFilter("amount > @least", {"@least": 5})


def test_queues_and_subscriptions_forward_to_queues_and_topics_of_the_file(load_topics):
    _, subscription, _ = load_topics(
        {"Name": "a", "Subscriptions": [{"Name": "s", "Properties": {"ForwardTo": "B"}}]},
        {"Name": "b"},
        queues=[{"Name": "q", "Properties": {"ForwardTo": "a"}}],
    )

    assert subscription.forward_to == "B"


def test_the_same_subscription_name_may_be_on_several_topics(load_topics):
    topics = [{"Name": name, "Subscriptions": [{"Name": "s"}]} for name in "ab"]

    assert [entity.name for entity in load_topics(*topics)] == [
        "a",
        "a/Subscriptions/s",
        "b",
        "b/Subscriptions/s",
    ]


def in_lines(*lines):
    """A file with one topic `t` and one subscription `s`; what is given starts in line 3."""
    return (
        '{"UserConfig": {"Namespaces": [{"Name": "n", "Topics": [{"Name": "t", "Subscriptions": [\n'
        '{"Name": "s",\n' + "\n".join(lines) + "}]}]}]}}"
    )


OF = "rule 'r' of subscription 't/Subscriptions/s'"
RULE = '"Rules": [{"Name": "r", "Properties": {'
SQL = RULE + '"FilterType": "Sql", '
CORRELATION = RULE + '"FilterType": "Correlation", "CorrelationFilter": '

MISTAKES = {
    "a setting out of its range": (
        ['"Properties": {', '"LockDuration": "PT10M"}'],
        4,
        "subscription 't/Subscriptions/s': LockDuration is PT10M, but must be between PT1S "
        "and PT5M",
    ),
    "a setting that subscriptions do not have": (
        ['"Properties": {', '"RequiresDuplicateDetection": true}'],
        4,
        "Properties of subscription 't/Subscriptions/s' has no \"RequiresDuplicateDetection\"",
    ),
    "a target that there is not": (
        ['"Properties": {"ForwardTo": "elsewhere"}'],
        2,
        "subscription 't/Subscriptions/s' forwards to 'elsewhere', which this file does not define",
    ),
    "rules that are no list": (
        ['"Rules": {}'],
        3,
        "Rules of subscription 't/Subscriptions/s' must be a list, not an object",
    ),
    "a rule without name": (['"Rules": [', "{}]"], 4, "this rule has no Name"),
    "a rule's name with a slash": (
        ['"Rules": [', '{"Name": "a/b", "Properties": {}}]'],
        4,
        "rule 'a/b' of subscription 't/Subscriptions/s': rule name 'a/b' is not valid",
    ),
    "a rule of nothing": (['"Rules": [', '{"Name": "r"}]'], 4, f"{OF} has no Properties"),
    "no type": (
        ['"Rules": [{"Name": "r",', '"Properties": {}}]'],
        4,
        f"{OF} has no FilterType: Correlation or Sql",
    ),
    "the type that people guess": (
        [RULE, '"FilterType": "SqlFilter"}}]'],
        4,
        f'FilterType of {OF} must be one of Correlation, Sql, not "SqlFilter": did you mean Sql?',
    ),
    "a type without its filter": (
        [RULE, '"FilterType": "Sql"}}]'],
        4,
        f"{OF} is of type Sql, but has no SqlFilter",
    ),
    "an expression in the wrong place": (
        [SQL, '"SqlExpression": "1=1"}}]'],
        4,
        f'Properties of {OF} has no "SqlExpression": ',
    ),
    "a filter without expression": (
        [SQL, '"SqlFilter": {}}}]'],
        4,
        f"SqlFilter of {OF} has no SqlExpression",
    ),
    "a filter that is no SQL": (
        [SQL + '"SqlFilter": {', '"SqlExpression": "color = "}}}]'],
        4,
        f"{OF}: the expression 'color = ' is not valid at line 1, column",
    ),
    "an action that is no SQL": (
        [
            SQL + '"SqlFilter": {',
            '"SqlExpression": "1=1"}, "Action": {',
            '"SqlExpression": "DROP it"}}}]',
        ],
        5,
        f"{OF}: the expression 'DROP it' is not valid at line 1, column 1",
    ),
    "a property that messages do not have": (
        [CORRELATION + "{", '"Subject": "x"}}}]'],
        4,
        f'CorrelationFilter of {OF} has no "Subject"',
    ),
    "a number for a text": (
        [CORRELATION + "{", '"Label": 5}}}]'],
        4,
        f"Label of {OF} must be a string, not 5",
    ),
    "a list to compare with": (
        [CORRELATION + '{"Properties": {', '"colors": ["red"]}}}}]'],
        4,
        f"'colors' in the Properties of {OF} must be a string, a number, true or false, not a list",
    ),
    "a value that is not a time": (
        [CORRELATION + '{"Properties": {', '"due": {"Type": "dateTime", "Value": "soon"}}}}}]'],
        4,
        f"'due' in the Properties of {OF} must be a time such as",
    ),
    "a time before the first": (
        [
            CORRELATION + '{"Properties": {',
            '"due": {"Type": "dateTime", "Value": "0001-01-01T00:00:00+01:00"}}}}}]',
        ],
        4,
        f"'due' in the Properties of {OF} must be a time such as",
    ),
    "a rule given twice": (
        [
            '"Rules": [',
            '{"Name": "r", "Properties": {"FilterType": "Sql",'
            ' "SqlFilter": {"SqlExpression": "1=1"}}},',
            '{"Name": "R"}]',
        ],
        5,
        "rule 'R' is defined twice, first in line 4",
    ),
}


@pytest.mark.parametrize(("lines", "line", "why"), MISTAKES.values(), ids=MISTAKES)
def test_an_invalid_setting_is_reported_with_its_line(load, lines, line, why):
    with pytest.raises(ConfigError) as caught:
        load(in_lines(*lines))

    _, found, reason = str(caught.value).split(":", 2)
    assert (int(found), reason.strip()[: len(why)]) == (line, why)
