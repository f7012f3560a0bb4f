"""`pairbus entities create`: queues, topics, subscriptions and rules.

The settings are options with the SDK's names. A setting that is not given gets the service's
default.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from pairbus.cli.administration import EntityKind, administration, describe
from pairbus.cli.entities.views import entity_name
from pairbus.cli.messages.message_json import parse_property
from pairbus.cli.output import print_json
from pairbus.cli.parse import parse_duration
from pairbus.cli.shared_options import (
    AS_JSON,
    ConnectionOptions,
    argument,
    command_group,
    flag,
    flatten_options,
    option,
    option_group,
)
from pairbus.errors import UsageError

create_app = command_group(
    "create",
    "Create a queue, a topic, a subscription or a rule.\n\n"
    "A setting that you omit gets the service's default. The policy needs the Manage right.\n\n"
    "Exit codes: 0 success, 1 the namespace refused or did not answer, 2 usage error, 130 "
    "interrupted.\n\n"
    "\b\n"
    "Examples:\n"
    "  pairbus entities create queue orders\n"
    "  pairbus entities create subscription events audit",
)

NAME = argument("NAME", "Name of the new entity.")
TOPIC = argument("TOPIC", "Topic that it belongs to.")


def _duration(name: str, help: str) -> Any:
    parse = partial(parse_duration, option=name)
    return option("DURATION", help, name, parser=parse)


@option_group
class EntitySettings:
    default_message_time_to_live: timedelta | None = _duration(
        "--default-message-time-to-live",
        "Time to live of messages that have none of their own, as in 14d.",
    )
    auto_delete_on_idle: timedelta | None = _duration(
        "--auto-delete-on-idle", "Delete the entity after this time without use, as in 1h."
    )
    enable_batched_operations: bool | None = flag("Let the service batch operations.", default=None)
    user_metadata: str | None = option("TEXT", "Note of your own.")


@option_group
class StorageSettings(EntitySettings):
    """Of queues and topics."""

    requires_duplicate_detection: bool | None = flag(
        "Drop messages whose message id was seen before.", default=None
    )
    duplicate_detection_history_time_window: timedelta | None = _duration(
        "--duplicate-detection-history-time-window",
        "How long message ids are remembered, as in 10m.",
    )
    max_size_in_megabytes: int | None = option("MB", "Maximum size of the entity.")
    max_message_size_in_kilobytes: int | None = option(
        "KB", "Maximum size of a message; Premium only."
    )
    enable_partitioning: bool | None = flag(
        "Partition the entity over several message stores.", default=None
    )
    enable_express: bool | None = flag(
        "Let the service keep messages in memory for a while.", default=None
    )


@option_group
class DeliverySettings(EntitySettings):
    """Settings of queues and subscriptions."""

    lock_duration: timedelta | None = _duration(
        "--lock-duration", "How long a receiver holds the lock on a message, as in 30s."
    )
    requires_session: bool | None = flag(
        "Deliver messages in sessions, each to one receiver.", default=None
    )
    max_delivery_count: int | None = option(
        "N", "Number of deliveries before a message is dead-lettered."
    )
    dead_lettering_on_message_expiration: bool | None = flag(
        "Dead-letter messages that expire.", default=None
    )
    forward_to: str | None = option("ENTITY", "Forward all messages to this entity.")
    forward_dead_lettered_messages_to: str | None = option(
        "ENTITY", "Forward dead letters to this entity."
    )


@option_group
class QueueSettings(StorageSettings, DeliverySettings):
    pass


@option_group
class TopicSettings(StorageSettings):
    support_ordering: bool | None = flag(
        "Deliver messages to subscriptions in order.", default=None
    )


@option_group
class SubscriptionSettings(DeliverySettings):
    dead_lettering_on_filter_evaluation_exceptions: bool | None = flag(
        "Dead-letter messages for which a filter fails.", default=None
    )


@create_app.command()
@flatten_options
def queue(
    name: str = NAME,
    *,
    settings: QueueSettings,
    connection: ConnectionOptions,
    as_json: bool = AS_JSON,
) -> None:
    """Create a queue.

    \b
    Example:
      pairbus entities create queue orders --lock-duration 30s --requires-session
    """
    _create(EntityKind.QUEUE, (name,), settings, connection, as_json=as_json)


@create_app.command()
@flatten_options
def topic(
    name: str = NAME,
    *,
    settings: TopicSettings,
    connection: ConnectionOptions,
    as_json: bool = AS_JSON,
) -> None:
    """Create a topic.

    \b
    Example:
      pairbus entities create topic events --requires-duplicate-detection
    """
    _create(EntityKind.TOPIC, (name,), settings, connection, as_json=as_json)


@create_app.command()
@flatten_options
def subscription(
    topic: str = TOPIC,
    name: str = NAME,
    *,
    settings: SubscriptionSettings,
    connection: ConnectionOptions,
    as_json: bool = AS_JSON,
) -> None:
    """Create a subscription. It receives all messages until you create other rules.

    \b
    Example:
      pairbus entities create subscription events audit --max-delivery-count 5
    """
    _create(EntityKind.SUBSCRIPTION, (topic, name), settings, connection, as_json=as_json)


def _create(
    kind: EntityKind,
    path: tuple[str, ...],
    settings: EntitySettings,
    connection: ConnectionOptions,
    *,
    as_json: bool,
) -> None:
    with administration(connection.target) as admin:
        admin.create(kind, path, **asdict(settings))
    if as_json:
        print_json({"created": entity_name(kind, path)})
    else:
        print(f"created {describe(kind, path)}")


# -- rules: an expression, or values that must match; and maybe an action -------------------------


DEFAULT_RULE: Final = "$Default"

Value = str | int | float | bool | datetime
"""The types that the SDK can compare a property with."""
_VALUES: Final[dict[str, Any]] = {
    "string": str,
    "boolean": lambda text: text.lower() == "true",
    "int": int,
    "long": int,
    "double": float,
    "timestamp": datetime.fromisoformat,
}


def _matching(what: str) -> Any:
    return option("TEXT", f"Match messages with this {what}.")


@option_group
class CorrelationOptions:
    """Values that a message must have."""

    subject: str | None = _matching("subject (label)")
    correlation_id: str | None = _matching("correlation id")
    message_id: str | None = _matching("message id")
    to: str | None = _matching("address of the receiver")
    reply_to: str | None = _matching("address for replies")
    session_id: str | None = _matching("session")
    reply_to_session_id: str | None = _matching("session for replies")
    content_type: str | None = _matching("content type")
    property_: list[str] | None = option(
        "NAME[:TYPE]=VALUE",
        "Match messages with this application property; may be repeated. TYPE is "
        "int, long, double, boolean, timestamp or string (default).",
        "--property",
        "-p",
    )

    def parse(self) -> dict[str, Any]:
        """Returns the arguments of the SDK's CorrelationRuleFilter, if there are any. Raises
        UsageError.
        """
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if "subject" in given:
            given["label"] = given.pop("subject")
        if properties := given.pop("property_", None):
            given["properties"] = dict(map(_parse_value, properties))
        return given


def _parse_value(text: str) -> tuple[str, Value]:
    name, typed = parse_property(text)
    kind, value = str(typed["type"]), typed["value"]
    if kind not in _VALUES:
        allowed = ", ".join(_VALUES)
        raise UsageError(f"--property {text!r}: a rule can compare only {allowed}")
    try:
        return name, _VALUES[kind](value)
    except ValueError:  # a timestamp in milliseconds, which is one for `send`
        raise UsageError(f"--property {text!r}: use a time such as 2030-12-31T23:59:59Z") from None


@create_app.command()
@flatten_options
def rule(
    topic: str = argument("TOPIC", "Topic of the subscription."),
    subscription: str = argument("SUBSCRIPTION", "Subscription that gets the rule."),
    name: str = argument("NAME", "Name of the new rule."),
    *,
    sql: str | None = option("EXPRESSION", "Match messages for which this expression is true."),
    correlation: CorrelationOptions,
    action: str | None = option(
        "STATEMENTS", "Change a matching message, as in \"SET priority = 'high'\"."
    ),
    replace_default: bool = flag(
        "Then delete the rule $Default, which matches every message.", "--replace-default"
    ),
    connection: ConnectionOptions,
    as_json: bool = AS_JSON,
) -> None:
    """Create a rule with an expression, or with values that must match.

    Without either, the rule matches every message.

    \b
    Examples:
      pairbus entities create rule events audit big --sql "amount > 1000"
      pairbus entities create rule events audit eu -p region=eu --replace-default
    """
    matching = correlation.parse()
    if sql is not None and matching:
        raise UsageError("--sql and values that must match cannot be combined")
    target, path = connection.target, (topic, subscription, name)
    from azure.servicebus.management import (
        CorrelationRuleFilter,
        SqlRuleAction,
        SqlRuleFilter,
        TrueRuleFilter,
    )

    filter: CorrelationRuleFilter | SqlRuleFilter = TrueRuleFilter()
    if sql is not None:
        filter = SqlRuleFilter(sql)
    elif matching:
        filter = CorrelationRuleFilter(**matching)
    done = {"created": path}
    with administration(target) as admin:
        admin.create(
            EntityKind.RULE,
            path,
            filter=filter,
            action=None if action is None else SqlRuleAction(action),
        )
        if not as_json:
            print(f"created {describe(EntityKind.RULE, path)}")
        if replace_default:
            # Delete it last: the subscription must not miss a message in between.
            done["deleted"] = (topic, subscription, DEFAULT_RULE)
            admin.delete(EntityKind.RULE, done["deleted"])
            if not as_json:
                print(f"deleted {describe(EntityKind.RULE, done['deleted'])}")
    if as_json:
        print_json({what: entity_name(EntityKind.RULE, which) for what, which in done.items()})
