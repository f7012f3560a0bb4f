"""A namespace written as a Config.json, and read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker import (
    Broker,
    CorrelationFilter,
    FalseFilter,
    NamespaceOptions,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    Status,
    SubscriptionDescription,
    TopicDescription,
    load_config,
)
from pairbus.cli.administration import EntityKind
from pairbus.cli.entities.config_json import entity_json, rules_json
from tests.cli.conftest import Run

QUEUES = (
    QueueDescription(name="bills"),
    QueueDescription(
        name="web/orders",
        auto_delete_on_idle=timedelta(hours=2),
        dead_lettering_on_message_expiration=True,
        default_message_time_to_live=timedelta(days=3, seconds=1),
        duplicate_detection_history_time_window=timedelta(minutes=1),
        enable_batched_operations=False,
        forward_dead_lettered_messages_to="bills",
        lock_duration=timedelta(seconds=45),
        max_delivery_count=3,
        max_size_in_megabytes=2048,
        requires_duplicate_detection=True,
        requires_session=True,
        user_metadata='of the "web shop" äöü',
    ),
)
TOPICS = (
    TopicDescription(name="events", default_message_time_to_live=timedelta(days=1)),
    SubscriptionDescription(name="events/Subscriptions/all"),
    SubscriptionDescription(
        name="events/Subscriptions/big",
        dead_lettering_on_filter_evaluation_exceptions=False,
        forward_to="bills",
        max_delivery_count=7,
        rules=(
            RuleDescription(
                name="eu",
                filter=CorrelationFilter(
                    label="order", properties={"region": "eu", "n": 5, "x": 0.5, "ok": True}
                ),
            ),
            RuleDescription(
                name="large",
                filter=SqlFilter("amount > @least", {"@least": 1000}),
                action=SqlAction("SET class = 'large'"),
            ),
            RuleDescription(name="none", filter=FalseFilter()),
        ),
    ),
    TopicDescription(
        name="quiet", status=Status.SEND_DISABLED, support_ordering=False, enable_express=True
    ),
)


def exported(broker: Broker, pairbus: Run, file: Path) -> NamespaceOptions:
    done = pairbus("entities", "export", "--output", str(file), "-c", broker.connection_string)
    assert done == (0, "", f"wrote {file}\n")
    [namespace] = load_config(file)
    return namespace


@pytest.mark.req("B-02")
def test_an_exported_file_makes_the_same_broker(pairbus: Run, tmp_path: Path) -> None:
    file = tmp_path / "Config.json"
    with Broker(namespaces=[NamespaceOptions(name="shop", queues=QUEUES, topics=TOPICS)]) as one:
        read = exported(one, pairbus, file)
    text = file.read_text("utf-8")

    assert read.name == "shop"
    assert read.queues == QUEUES
    assert read.topics == TOPICS
    with Broker(namespaces=[read]) as other:
        exported(other, pairbus, file)
    assert file.read_text("utf-8") == text


def test_a_file_that_cannot_be_written_is_a_failure(pairbus: Run, broker: Broker) -> None:
    done = pairbus("entities", "export", "--output", "absent/Config.json")

    error = "cannot write --output absent/Config.json: No such file or directory"
    assert done == (1, "", f"pairbus: {error}\n")


def test_a_terminal_shows_progress(
    pairbus: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairbus("entities", "create", "topic", "more")
    monkeypatch.setenv("FORCE_COLOR", "1")  # what makes rich take this for a terminal

    done = pairbus("entities", "export")

    assert ("Topics" in done.err, "2/2" in done.err) == (True, True)
    assert len(json.loads(done.out)["UserConfig"]["Namespaces"][0]["Topics"]) == 2


def test_an_exported_file_satisfies_the_schema_of_microsofts_emulator(
    pairbus: Run, broker: Broker
) -> None:
    done = pairbus("entities", "export", "--name", "sbemulatorns")

    config = json.loads(done.out)["UserConfig"]
    [namespace] = config["Namespaces"]
    assert config["Logging"] == {"Type": "File"}
    assert namespace["Name"] == "sbemulatorns"
    assert namespace["Queues"] == [
        {
            "Name": "orders",
            "Properties": {
                "DeadLetteringOnMessageExpiration": False,
                "DuplicateDetectionHistoryTimeWindow": "PT10M",
                "LockDuration": "PT1M",
                "MaxDeliveryCount": 10,
                "RequiresDuplicateDetection": False,
                "RequiresSession": False,
            },
        }
    ]
    assert namespace["Topics"][0]["Subscriptions"][0]["Rules"] == []


def test_a_subscription_without_rules_is_exported_as_one_that_receives_nothing(
    pairbus: Run, broker: Broker, tmp_path: Path
) -> None:
    pairbus("entities", "delete", "rule", "events", "audit", "$Default")

    namespace = exported(broker, pairbus, tmp_path / "Config.json")

    assert [rule.filter for rule in namespace.topics[1].rules] == [FalseFilter()]


def test_the_exported_namespace_keeps_its_name(
    pairbus: Run, use: Callable[[Broker], Broker]
) -> None:
    with Broker(name="east") as running:
        use(running)
        [namespace] = json.loads(pairbus("entities", "export").out)["UserConfig"]["Namespaces"]

    assert namespace["Name"] == "east"


# -- the form by itself

seconds = st.integers(1, 300).map(lambda number: timedelta(seconds=number))
values = (
    st.text(max_size=8)
    | st.integers(-(2**63), 2**63 - 1)
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)).map(lambda d: d.replace(tzinfo=UTC))
    | st.timedeltas(timedelta(0), timedelta(days=1000))
)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
texts = st.none() | st.text(min_size=1, max_size=8)


def reread(topic: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    file = tmp_path_factory.mktemp("config") / "Config.json"
    namespace = {"Name": "n", "Topics": [topic]}
    file.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}), "utf-8")
    return list(load_config(file)[0].topics)


@given(st.builds(dict, label=texts, to=texts, session_id=texts), st.dictionaries(names, values))
def test_every_value_of_a_correlation_filter_comes_back(
    tmp_path_factory: pytest.TempPathFactory, system: dict[str, Any], own: dict[str, Any]
) -> None:
    system["message_id"] = "so that there is something to match"
    filter_ = CorrelationRuleFilter(**system, properties=own)
    rule = SimpleNamespace(name="r", filter=filter_, action=SqlRuleAction("SET a = 1"))

    form = {"Name": "s", "Rules": rules_json([rule])}
    _, subscription = reread({"Name": "t", "Subscriptions": [form]}, tmp_path_factory)

    [read] = subscription.rules
    assert read.filter == CorrelationFilter(**system, properties=own)
    assert {key: type(value) for key, value in read.filter.properties.items()} == {
        key: type(value) for key, value in own.items()
    }
    assert read.action == SqlAction("SET a = 1")


@given(seconds, st.integers(1, 2000), st.booleans(), texts)
def test_every_setting_of_a_subscription_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    lock: timedelta,
    deliveries: int,
    flag: bool,
    note: str | None,
) -> None:
    description = SubscriptionDescription(
        name="t/Subscriptions/s",
        lock_duration=lock,
        max_delivery_count=deliveries,
        requires_session=flag,
        dead_lettering_on_message_expiration=not flag,
        enable_batched_operations=flag,
        default_message_time_to_live=lock * 1000,
        user_metadata=note,
    )
    fields = {name: getattr(description, name) for name in description.__dataclass_fields__}
    properties = SimpleNamespace(**fields | {"name": "s"})

    form = entity_json(EntityKind.SUBSCRIPTION, properties)
    _, read = reread({"Name": "t", "Subscriptions": [form]}, tmp_path_factory)

    assert read == description


@pytest.mark.parametrize(
    "target", ["orders", "sb://localhost:5672/orders", "https://x.servicebus.windows.net/orders"]
)
def test_the_target_of_forwarding_is_a_name_even_if_the_service_answers_with_a_url(
    target: str,
) -> None:
    properties = SimpleNamespace(name="q", forward_to=target)

    assert entity_json(EntityKind.QUEUE, properties)["Properties"] == {"ForwardTo": "orders"}


def test_only_the_default_rule_is_left_out() -> None:
    everything = SimpleNamespace(name="$Default", filter=TrueRuleFilter(), action=None)
    renamed = SimpleNamespace(name="all", filter=TrueRuleFilter(), action=None)
    nothing = SimpleNamespace(name="$Default", filter=FalseRuleFilter(), action=None)
    other = SimpleNamespace(name="$Default", filter=SqlRuleFilter("a = 1"), action=None)

    assert rules_json([everything]) == []
    assert [form["Name"] for form in rules_json([renamed])] == ["all"]
    assert [form["Name"] for form in rules_json([everything, renamed])] == ["$Default", "all"]
    for rule in (nothing, other):
        assert [form["Name"] for form in rules_json([rule])] == ["$Default"]
