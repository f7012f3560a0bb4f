"""`pairbus entities create`: queues, topics, subscriptions and rules.

The settings are options with the SDK's names. A setting that is not given gets the service's
default.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any, Final

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

NAME = Annotated[str, argument("NAME", "Name of the new entity.")]
TOPIC = Annotated[str, argument("TOPIC", "Topic that it belongs to.")]


def _duration(name: str, help: str) -> Any:
    parse = partial(parse_duration, option=name)
    return option("DURATION", help, name, parser=parse)


@dataclass(frozen=True, kw_only=True)
class EntitySettings:
    default_message_time_to_live: Annotated[
        timedelta | None,
        _duration(
            "--default-message-time-to-live",
            "Time to live of messages that have none of their own, as in 14d.",
        ),
    ] = None
    auto_delete_on_idle: Annotated[
        timedelta | None,
        _duration(
            "--auto-delete-on-idle", "Delete the entity after this time without use, as in 1h."
        ),
    ] = None
    enable_batched_operations: Annotated[bool | None, flag("Let the service batch operations.")] = (
        None
    )
    user_metadata: Annotated[str | None, option("TEXT", "Note of your own.")] = None


@dataclass(frozen=True, kw_only=True)
class StorageSettings(EntitySettings):
    """Of queues and topics."""

    requires_duplicate_detection: Annotated[
        bool | None, flag("Drop messages whose message id was seen before.")
    ] = None
    duplicate_detection_history_time_window: Annotated[
        timedelta | None,
        _duration(
            "--duplicate-detection-history-time-window",
            "How long message ids are remembered, as in 10m.",
        ),
    ] = None
    max_size_in_megabytes: Annotated[int | None, option("MB", "Maximum size of the entity.")] = None
    max_message_size_in_kilobytes: Annotated[
        int | None, option("KB", "Maximum size of a message; Premium only.")
    ] = None
    enable_partitioning: Annotated[
        bool | None, flag("Partition the entity over several message stores.")
    ] = None
    enable_express: Annotated[
        bool | None, flag("Let the service keep messages in memory for a while.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class DeliverySettings(EntitySettings):
    """Settings of queues and subscriptions."""

    lock_duration: Annotated[
        timedelta | None,
        _duration("--lock-duration", "How long a receiver holds the lock on a message, as in 30s."),
    ] = None
    requires_session: Annotated[
        bool | None, flag("Deliver messages in sessions, each to one receiver.")
    ] = None
    max_delivery_count: Annotated[
        int | None, option("N", "Number of deliveries before a message is dead-lettered.")
    ] = None
    dead_lettering_on_message_expiration: Annotated[
        bool | None, flag("Dead-letter messages that expire.")
    ] = None
    forward_to: Annotated[str | None, option("ENTITY", "Forward all messages to this entity.")] = (
        None
    )
    forward_dead_lettered_messages_to: Annotated[
        str | None, option("ENTITY", "Forward dead letters to this entity.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class QueueSettings(StorageSettings, DeliverySettings):
    pass


@dataclass(frozen=True, kw_only=True)
class TopicSettings(StorageSettings):
    support_ordering: Annotated[
        bool | None, flag("Deliver messages to subscriptions in order.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class SubscriptionSettings(DeliverySettings):
    dead_lettering_on_filter_evaluation_exceptions: Annotated[
        bool | None, flag("Dead-letter messages for which a filter fails.")
    ] = None


@create_app.command()
@flatten_options
def queue(
    name: NAME,
    *,
    settings: QueueSettings,
    connection: ConnectionOptions,
    as_json: AS_JSON = False,
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
    name: NAME,
    *,
    settings: TopicSettings,
    connection: ConnectionOptions,
    as_json: AS_JSON = False,
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
    topic: TOPIC,
    name: NAME,
    *,
    settings: SubscriptionSettings,
    connection: ConnectionOptions,
    as_json: AS_JSON = False,
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
    "boolean": lambda text: {"true": True, "false": False}[text],
    "int": int,
    "long": int,
    "double": float,
    "timestamp": datetime.fromisoformat,
}


def _matching(what: str) -> Any:
    return option("TEXT", f"Match messages with this {what}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationOptions:
    """Values that a message must have."""

    subject: Annotated[str | None, _matching("subject (label)")] = None
    correlation_id: Annotated[str | None, _matching("correlation id")] = None
    message_id: Annotated[str | None, _matching("message id")] = None
    to: Annotated[str | None, _matching("address of the receiver")] = None
    reply_to: Annotated[str | None, _matching("address for replies")] = None
    session_id: Annotated[str | None, _matching("session")] = None
    reply_to_session_id: Annotated[str | None, _matching("session for replies")] = None
    content_type: Annotated[str | None, _matching("content type")] = None
    property_: Annotated[
        list[str] | None,
        option(
            "NAME[:TYPE]=VALUE",
            "Match messages with this application property; may be repeated. TYPE is "
            "int, long, double, boolean, timestamp or string (default).",
            "--property",
            "-p",
        ),
    ] = None

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
    kind, value = typed["type"], typed["value"]
    try:
        return name, _VALUES[str(kind)](value)
    except KeyError:
        if kind not in _VALUES:
            allowed = ", ".join(_VALUES)
            raise UsageError(f"--property {text!r}: a rule can compare only {allowed}") from None
    except ValueError:
        pass
    raise UsageError(f"--property {text!r}: {value!r} is not a valid {kind}")


@create_app.command()
@flatten_options
def rule(
    topic: Annotated[str, argument("TOPIC", "Topic of the subscription.")],
    subscription: Annotated[str, argument("SUBSCRIPTION", "Subscription that gets the rule.")],
    name: Annotated[str, argument("NAME", "Name of the new rule.")],
    *,
    sql: Annotated[
        str | None, option("EXPRESSION", "Match messages for which this expression is true.")
    ] = None,
    correlation: CorrelationOptions,
    action: Annotated[
        str | None,
        option("STATEMENTS", "Change a matching message, as in \"SET priority = 'high'\"."),
    ] = None,
    replace_default: Annotated[
        bool,
        flag("Then delete the rule $Default, which matches every message.", "--replace-default"),
    ] = False,
    connection: ConnectionOptions,
    as_json: AS_JSON = False,
) -> None:
    """Create a rule with an expression, or with values that must match.

    Without either, the rule matches every message.

    \b
    Examples:
      pairbus entities create rule events audit big --sql "amount > 1000" --replace-default
      pairbus entities create rule events audit eu --subject order --property region=eu
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
