"""The official `ServiceBusAdministrationClient`, blocking and asyncio, unmodified, over TLS."""

from __future__ import annotations

import ssl
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import azure.servicebus.aio.management as aio
import azure.servicebus.management as blocking
import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthorizationError, ServiceBusError
from azure.servicebus.management import (
    ApiVersion,
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from pairbus.broker import (
    Broker,
    RuleDescription,
    SubscriptionDescription,
)
from pairbus.broker.entities.policies import default_policy
from pairbus.broker.links.tokens import make_token
from tests.interop.bus import POLICIES, take
from tests.interop.shells import AsyncioShell, Blocking, Shell, both_clients

NEVER = datetime(1, 1, 1, tzinfo=UTC)


def connect(shell: Shell, broker: Broker, text: str | None = None, **options: Any) -> Any:
    """A client of the shell, always over TLS, whatever the connection string says."""
    text = text or broker.connection_string
    options = {"connection_verify": str(broker.ca_file), "retry_total": 0, **options}
    if not isinstance(shell, AsyncioShell):
        return blocking.ServiceBusAdministrationClient.from_connection_string(text, **options)
    make = aio.ServiceBusAdministrationClient.from_connection_string
    return Blocking(shell.call(make, text, **options), shell)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(policies=POLICIES) as running:
        yield running


@pytest.fixture
def admin(shell: Shell, broker: Broker) -> Iterator[Any]:
    """An administration client for an empty namespace."""
    with connect(shell, broker) as client:
        yield client
        for queue in list(client.list_queues()):
            client.delete_queue(queue.name)
        for topic in list(client.list_topics()):
            client.delete_topic(topic.name)


@pytest.fixture
def subscription(admin: Any) -> tuple[str, str]:
    admin.create_topic("news")
    admin.create_subscription("news", "desk")
    return "news", "desk"


def refusal(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(HttpResponseError) as raised:
        call(*args, **kwargs)
    assert raised.value.status_code == 400
    return str(raised.value.message)


# -- queues ---------------------------------------------------------------------------------------

QUEUE = {
    "auto_delete_on_idle": timedelta(minutes=10),
    "dead_lettering_on_message_expiration": True,
    "default_message_time_to_live": timedelta(minutes=11),
    "duplicate_detection_history_time_window": timedelta(minutes=12),
    "enable_batched_operations": False,
    "lock_duration": timedelta(seconds=13),
    "max_delivery_count": 14,
    "max_size_in_megabytes": 3072,
    "user_metadata": "a <b> & 'ü'",
}
"""What may be changed later, too; with values that are not the default."""
FIXED_AT_BIRTH = ("requires_session", "requires_duplicate_detection", "enable_partitioning")


@pytest.mark.req("B-02")
@pytest.mark.parametrize("name", ["txt/.-_123", "UPPER/lower/0"])
def test_names_with_slashes_work_everywhere(admin: Any, name: str) -> None:
    queue = admin.create_queue(name)
    admin.update_queue(queue, max_delivery_count=3)
    admin.create_topic(f"topic/{name}")
    admin.create_subscription(f"topic/{name}", "s")
    admin.create_rule(f"topic/{name}", "s", "r", filter=SqlRuleFilter("a = 1"))

    assert admin.get_queue(name.upper()).max_delivery_count == 3
    assert [one.name for one in admin.list_queues()] == [name]
    assert [one.name for one in admin.list_subscriptions(f"topic/{name}")] == ["s"]
    assert [one.name for one in admin.list_rules(f"topic/{name}", "s")] == ["$Default", "r"]
    admin.delete_queue(name)
    admin.delete_topic(f"topic/{name}")
    assert list(admin.list_queues()) == list(admin.list_topics()) == []


@pytest.mark.req("B-02")
def test_lists_of_250_come_page_by_page(shell: Shell) -> None:
    names = [f"q{number:03}" for number in range(250)]
    rules = [RuleDescription(name=f"r{number:03}") for number in range(250)]
    desk = SubscriptionDescription(name="news/Subscriptions/desk", rules=rules)
    with Broker(names, topics=["news", desk]) as broker, connect(shell, broker) as admin:
        assert [queue.name for queue in admin.list_queues()] == names
        assert [queue.name for queue in admin.list_queues_runtime_properties()] == names
        late = admin.list_queues(start_index=95, max_page_size=10)
        assert [queue.name for queue in late] == names[95:]
        found = [rule.name for rule in admin.list_rules("news", "desk")]
        assert found == [rule.name for rule in rules]
        assert admin.get_topic_runtime_properties("news").sql_filter_count == 250


# -- topics and subscriptions ---------------------------------------------------------------------

TOPIC = {
    "auto_delete_on_idle": timedelta(minutes=10),
    "default_message_time_to_live": timedelta(minutes=11),
    "duplicate_detection_history_time_window": timedelta(minutes=12),
    "enable_batched_operations": False,
    "enable_express": True,
    "max_size_in_megabytes": 3072,
    "support_ordering": False,
    "user_metadata": "meta",
}


SUBSCRIPTION = {
    "auto_delete_on_idle": timedelta(minutes=10),
    "dead_lettering_on_filter_evaluation_exceptions": False,
    "dead_lettering_on_message_expiration": True,
    "default_message_time_to_live": timedelta(minutes=11),
    "enable_batched_operations": False,
    "lock_duration": timedelta(seconds=13),
    "max_delivery_count": 14,
    "user_metadata": "meta",
}


# kind -> names, what may be changed, what is fixed at birth
KINDS: dict[str, tuple[tuple[str, ...], dict[str, Any], tuple[str, ...]]] = {
    "queue": (
        ("orders",),
        {**QUEUE, "status": "SendDisabled", "enable_express": True},
        FIXED_AT_BIRTH,
    ),
    "topic": (
        ("news",),
        {**TOPIC, "status": "Disabled"},
        ("requires_duplicate_detection", "enable_partitioning"),
    ),
    "subscription": (
        ("news", "desk"),
        {**SUBSCRIPTION, "status": "ReceiveDisabled"},
        ("requires_session",),
    ),
}


@both_clients
@pytest.mark.req("B-02")
@pytest.mark.parametrize("kind", KINDS)
def test_an_entity_is_what_it_was_made_as(admin: Any, kind: str) -> None:
    names, settings, fixed = KINDS[kind]
    wanted = {**settings, **dict.fromkeys(fixed, True), "enable_express": False}
    if kind == "subscription":
        admin.create_topic("news")
        del wanted["enable_express"]
    getattr(admin, f"create_{kind}")(*names, **wanted)

    found = getattr(admin, f"get_{kind}")(*names)

    assert {name: found[name] for name in wanted} == wanted


@pytest.mark.req("B-02")
@pytest.mark.parametrize("kind", KINDS)
def test_properties_are_updated_and_changed_back_except_for_fixed_ones(
    admin: Any, kind: str
) -> None:
    names, settings, fixed = KINDS[kind]
    if kind == "subscription":
        admin.create_topic("news")
    made = getattr(admin, f"create_{kind}")(*names)
    get, update = getattr(admin, f"get_{kind}"), getattr(admin, f"update_{kind}")

    update(*names[:-1], made, **settings)
    changed = get(*names)
    update(*names[:-1], changed, **{name: made[name] for name in settings})

    assert {name: changed[name] for name in settings} == settings
    assert dict(get(*names).items()) == dict(made.items())
    for name in fixed:
        reason = refusal(update, *names[:-1], get(*names), **{name: True})
        assert "cannot be changed" in reason
    assert dict(get(*names).items()) == dict(made.items())


# -- rules ----------------------------------------------------------------------------------------

VALUES = {
    "text": "str1",
    "int": 2,
    "long": 2147483650,
    "yes": True,
    "double": 1.5,
    "moment": datetime(2020, 7, 5, 11, 12, 13),
    "span": timedelta(days=1, hours=2, minutes=3),
}
FILTERS = {
    "true": TrueRuleFilter(),
    "false": FalseRuleFilter(),
    "sql": SqlRuleFilter("Priority = @p AND a LIKE '<%'", {"@p": "low"}),
    "sql with every type": SqlRuleFilter(
        " AND ".join(f"x = @{name}" for name in VALUES),
        {f"@{name}": value for name, value in VALUES.items()},
    ),
    "correlation": CorrelationRuleFilter(
        correlation_id="c",
        message_id="m",
        to="t",
        reply_to="r",
        label="l",
        session_id="s",
        reply_to_session_id="rs",
        content_type="ct",
        properties=VALUES,
    ),
}


@pytest.mark.req("B-08")
@pytest.mark.parametrize("filter_", FILTERS.values(), ids=FILTERS)
def test_a_rule_has_the_filter_it_was_made_with(
    admin: Any, subscription: tuple[str, str], filter_: Any
) -> None:
    action = SqlRuleAction("SET a = @p; REMOVE b", {"@p": datetime(2020, 7, 5, 11, 12, 13)})
    admin.create_rule(*subscription, "mine", filter=filter_, action=action)

    rule = admin.get_rule(*subscription, "mine")

    assert type(rule.filter) is type(filter_)
    expected, found = vars(filter_), vars(rule.filter)
    if not isinstance(filter_, FalseRuleFilter):  # whose expression the service writes its own way
        assert {key: value for key, value in found.items() if value} == {
            key: value for key, value in expected.items() if value
        }
    assert rule.action.sql_expression == action.sql_expression
    assert rule.action.parameters == action.parameters


@both_clients
@pytest.mark.req("B-08")
def test_a_rule_is_updated_and_removed(admin: Any, subscription: tuple[str, str]) -> None:
    rule = admin.create_rule(*subscription, "mine", filter=SqlRuleFilter("a = 1"))
    rule.filter = CorrelationRuleFilter(correlation_id="x")
    rule.action = SqlRuleAction("SET b = 2")

    admin.update_rule(*subscription, rule)

    changed = admin.get_rule(*subscription, "mine")
    assert changed.filter.correlation_id == "x"
    assert changed.action.sql_expression == "SET b = 2"
    assert changed.created_at_utc == rule.created_at_utc
    for name in ("mine", "$Default"):
        admin.delete_rule(*subscription, name)
    assert list(admin.list_rules(*subscription)) == []


@pytest.mark.req("B-02")
@pytest.mark.req("B-08")
def test_refusals_are_exceptions_of_the_sdk(
    admin: Any, subscription: tuple[str, str], shell: Shell, broker: Broker
) -> None:
    """What is refused, and with which words: tests/broker/admin."""
    queue = admin.create_queue("Orders")
    rule = admin.create_rule(*subscription, "mine", filter=SqlRuleFilter("a = 1"))
    for call, arguments in (
        (admin.create_queue, ("orders",)),
        (admin.create_topic, ("orders",)),
        (admin.create_queue, ("News",)),
        (admin.create_subscription, ("news", "DESK")),
        (admin.create_rule, (*subscription, "MINE")),
    ):
        with pytest.raises(ResourceExistsError):
            call(*arguments)

    queue.name = "nobody"
    for call, arguments in (
        (admin.get_queue, ("nobody",)),
        (admin.get_queue_runtime_properties, ("nobody",)),
        (admin.update_queue, (queue,)),
        (admin.delete_topic, ("nobody",)),
        (admin.get_subscription, ("news", "nobody")),
        (admin.create_subscription, ("nobody", "s")),
        (admin.update_rule, ("news", "nobody", rule)),
        (admin.delete_rule, (*subscription, "nobody")),
    ):
        with pytest.raises(ResourceNotFoundError):
            call(*arguments)

    long_lock = {"lock_duration": timedelta(minutes=6)}
    assert "LockDuration is PT6M" in refusal(admin.create_queue, "other", **long_lock)
    bad = SqlRuleFilter("a = = 1")
    assert "line 1, column" in refusal(admin.create_rule, *subscription, "bad", filter=bad)
    assert "line 1, column" in refusal(admin.update_rule, *subscription, rule, filter=bad)
    assert [one.name for one in admin.list_rules(*subscription)] == ["$Default", "mine"]

    text = broker.connection_string.replace(default_policy().key, "wrong")
    with connect(shell, broker, text) as client, pytest.raises(ClientAuthenticationError):
        client.get_queue("orders")


# -- forwarding and keys --------------------------------------------------------------------------


@pytest.mark.req("B-02")
def test_forwarding_is_set_shown_in_full_and_taken_back(admin: Any, broker: Broker) -> None:
    admin.create_topic("target/of/all")
    admin.create_topic("news")
    names = {"forward_to": "target/of/all", "forward_dead_lettered_messages_to": "target/of/all"}
    full = f"sb://localhost:{broker.port}/target/of/all"

    queue = admin.create_queue("orders", **names)
    admin.create_subscription("news", "desk", **names)
    found = admin.get_subscription("news", "desk")

    for one in (queue, admin.get_queue("orders"), found):
        assert (one.forward_to, one.forward_dead_lettered_messages_to) == (full, full)
    admin.update_queue(queue, forward_to=None, forward_dead_lettered_messages_to="orders")
    changed = admin.get_queue("orders")
    assert changed.forward_to is None
    assert changed.forward_dead_lettered_messages_to.endswith("/orders")
    assert "no such queue or topic" in refusal(admin.create_queue, "x", forward_to="nobody")
    assert "of this namespace" in refusal(
        admin.create_queue, "x", forward_to="sb://other.example/target"
    )


KEY = AuthorizationRule(
    type="SharedAccessAuthorizationRule",
    claim_type="SharedAccessKey",
    claim_value="None",
    rights=["Send"],
    key_name="shop",
    primary_key="cHJpbWFyeQ==",
    secondary_key="c2Vjb25kYXJ5",
)


@pytest.mark.req("B-02")
def test_keys_of_a_queue_open_it_and_nothing_else(admin: Any, shell: Shell, broker: Broker) -> None:
    admin.create_queue("orders", authorization_rules=[KEY])
    admin.create_queue("other")
    admin.create_queue("orders/urgent")
    [shown] = admin.get_queue("orders").authorization_rules
    assert (shown.key_name, shown.rights) == ("shop", ["Send"])
    assert (shown.primary_key, shown.secondary_key) == (KEY.primary_key, KEY.secondary_key)

    for key in (KEY.primary_key, KEY.secondary_key):
        text = (
            f"Endpoint=sb://localhost:{broker.port};SharedAccessKeyName=shop;"
            f"SharedAccessKey={key};UseDevelopmentEmulator=true"
        )
        with (
            shell.client(text, retry_total=0) as client,
            client.get_queue_sender("orders") as sender,
        ):
            sender.send_messages(ServiceBusMessage("by its own key"))
    with shell.client(text, retry_total=0) as client:
        with pytest.raises(ServiceBusError):
            client.get_queue_sender("other").send_messages(ServiceBusMessage("no"))
        with pytest.raises(ServiceBusError):
            client.get_queue_sender("orders/urgent").send_messages(ServiceBusMessage("no"))
        with pytest.raises(ServiceBusAuthorizationError):
            client.get_queue_receiver("orders").receive_messages(max_wait_time=30)

    assert admin.get_queue_runtime_properties("orders").active_message_count == 2
    queue = admin.get_queue("orders")
    with (
        shell.client(text, retry_total=0) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage("its key is still there"))
        admin.update_queue(queue, authorization_rules=[])
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("its key is gone"))
    assert admin.get_queue("orders").authorization_rules is None
    assert admin.get_queue_runtime_properties("orders").active_message_count == 3


# -- what happens meanwhile -----------------------------------------------------------------------


@pytest.mark.req("B-02")
def test_counts_sizes_and_times_are_true(admin: Any, shell: Shell, broker: Broker) -> None:
    before = datetime.now(UTC)
    admin.create_queue("orders")
    fresh = admin.get_queue_runtime_properties("orders")
    later = datetime.now(UTC) + timedelta(minutes=5)
    with shell.client(broker.connection_string) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages([ServiceBusMessage(f"{number}") for number in range(5)])
            sender.schedule_messages(ServiceBusMessage("later"), later)
        with client.get_queue_receiver("orders") as receiver:
            first, second = take(receiver, 2)
            receiver.dead_letter_message(first)
            receiver.defer_message(second)

    used = admin.get_queue_runtime_properties("orders")
    [listed] = admin.list_queues_runtime_properties()

    assert (fresh.total_message_count, fresh.size_in_bytes) == (0, 0)
    assert fresh.accessed_at_utc == NEVER
    assert abs(fresh.created_at_utc - before) < timedelta(seconds=10)
    for found in (used, listed):
        assert found.active_message_count == 4
        assert found.dead_letter_message_count == 1
        assert found.scheduled_message_count == 1
        assert found.transfer_message_count == found.transfer_dead_letter_message_count == 0
        assert found.total_message_count == 6
        assert found.size_in_bytes > 100
        assert found.accessed_at_utc >= fresh.created_at_utc
        assert found.updated_at_utc == fresh.updated_at_utc


@pytest.mark.req("B-08")
def test_counts_of_topics_and_subscriptions_are_true(
    admin: Any, subscription: tuple[str, str], shell: Shell, broker: Broker
) -> None:
    later = datetime.now(UTC) + timedelta(minutes=5)
    with (
        shell.client(broker.connection_string) as client,
        client.get_topic_sender("news") as sender,
    ):
        sender.send_messages([ServiceBusMessage("one"), ServiceBusMessage("two")])
        sender.schedule_messages(ServiceBusMessage("later"), later)

    topic = admin.get_topic_runtime_properties("news")
    desk = admin.get_subscription_runtime_properties(*subscription)
    [listed] = admin.list_subscriptions_runtime_properties("news")

    assert (topic.subscription_count, topic.scheduled_message_count) == (1, 1)
    assert topic.size_in_bytes > 0
    for found in (desk, listed):
        assert (found.active_message_count, found.total_message_count) == (2, 2)


@pytest.mark.req("B-02")
def test_a_deleted_queue_closes_its_links_and_is_unknown_at_once(
    admin: Any, shell: Shell, broker: Broker
) -> None:
    admin.create_queue("orders")
    with shell.client(broker.connection_string, retry_total=0) as client:
        sender = client.get_queue_sender("orders")
        sender.send_messages(ServiceBusMessage("lost with its queue"))
        admin.delete_queue("orders")
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("too late"))
        sender.close()
    admin.create_queue("orders")

    assert admin.get_queue_runtime_properties("orders").total_message_count == 0


@pytest.mark.req("B-12")
def test_what_was_made_outlives_the_broker(shell: Shell, tmp_path: Any) -> None:
    broker = Broker(data=tmp_path)
    with broker, connect(shell, broker) as admin:
        admin.create_queue("orders", **QUEUE, authorization_rules=[KEY])
        admin.create_topic("news", **TOPIC)
        admin.create_subscription("news", "desk", **SUBSCRIPTION, forward_to="orders")
        admin.create_rule("news", "desk", "mine", filter=FILTERS["correlation"])
        admin.create_queue("gone")
        admin.delete_queue("gone")
        created = admin.get_queue_runtime_properties("orders").created_at_utc
        born = admin.get_namespace_properties().created_at_utc

    with broker, connect(shell, broker) as admin:
        queue, topic = admin.get_queue("orders"), admin.get_topic("news")
        subscription = admin.get_subscription("news", "desk")
        rule = admin.get_rule("news", "desk", "mine")
        runtime = admin.get_queue_runtime_properties("orders")
        assert [one.name for one in admin.list_queues()] == ["orders"]
        assert admin.get_namespace_properties().created_at_utc == born

    assert {name: queue[name] for name in QUEUE} == QUEUE
    assert {name: topic[name] for name in TOPIC} == TOPIC
    assert {name: subscription[name] for name in SUBSCRIPTION} == SUBSCRIPTION
    assert subscription.forward_to.endswith("/orders")
    assert rule.filter.properties == VALUES
    assert queue.authorization_rules[0].secondary_key == KEY.secondary_key
    assert (runtime.created_at_utc, runtime.accessed_at_utc) == (created, NEVER)


# -- the namespace --------------------------------------------------------------------------------


def test_an_older_api_version_is_spoken_as_well(shell: Shell, broker: Broker) -> None:
    with connect(shell, broker, api_version=ApiVersion.V2017_04) as admin:
        queue = admin.create_queue("old")
        assert queue.max_message_size_in_kilobytes is None
        assert refusal(admin.create_queue, "x", max_message_size_in_kilobytes=1024)
        admin.update_queue(queue, max_delivery_count=2)
        assert admin.get_queue("old").max_delivery_count == 2
        admin.delete_queue("old")


# -- who may --------------------------------------------------------------------------------------


@pytest.mark.req("B-02")
def test_a_signature_in_the_connection_string_is_enough(
    admin: Any, shell: Shell, broker: Broker
) -> None:
    admin.create_queue("orders")
    endpoint = f"localhost:{broker.port}"

    def text(audience: str, seconds: float) -> str:
        expires_at = time.time() + seconds
        signature = make_token(default_policy(), audience=audience, expires_at=expires_at)
        return f"Endpoint=sb://{endpoint};SharedAccessSignature={signature}"

    with connect(shell, broker, text(f"https://{endpoint}", 600)) as client:
        assert [one.name for one in client.list_queues()] == ["orders"]
    with connect(shell, broker, text(f"https://{endpoint}/orders", 600)) as client:
        assert client.get_queue("orders").name == "orders"
        with pytest.raises(ClientAuthenticationError):
            list(client.list_queues())
    with (
        connect(shell, broker, text(f"https://{endpoint}", -600)) as client,
        pytest.raises(ClientAuthenticationError),
    ):
        client.get_queue("orders")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_api_is_there_with_and_without_tls(broker: Broker, scheme: str) -> None:
    """The official clients insist on TLS; curl does not."""
    address = f"{scheme}://localhost:{broker.port}"
    token = make_token(default_policy(), audience=address, expires_at=time.time() + 60)
    request = urllib.request.Request(
        f"{address}/$Resources/queues?api-version=2021-05", headers={"Authorization": token}
    )
    context = ssl.create_default_context(cafile=str(broker.ca_file))

    with urllib.request.urlopen(request, context=context, timeout=60) as response:
        body = response.read()

    assert response.headers["Content-Type"] == "application/atom+xml;type=feed;charset=utf-8"
    assert f'href="{address}/$Resources/Queues?'.encode() in body
