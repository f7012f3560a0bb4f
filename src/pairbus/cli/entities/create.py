"""`pairbus entities create`: a command for queues, topics and subscriptions each.

Their settings are options. What is not given is left to the service, whose defaults are its own.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer

from pairbus.cli.administration import EntityKind
from pairbus.cli.options import AS_JSON, CA_FILE, CONNECTION_STRING, command_group
from pairbus.cli.target import parse_target
from pairbus.errors import UsageError

create_app = command_group("create", "Create a queue, a topic, a subscription or a rule.")


def _duration(text: str) -> timedelta:
    from pairbus.broker.entities.durations import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _duration_option(help: str) -> Any:
    return typer.Option(parser=_duration, metavar="DURATION", help=help, show_default=False)


def _flag(help: str) -> Any:
    return typer.Option(help=help, show_default=False)


NAME = Annotated[str, typer.Argument(metavar="NAME")]
TOPIC = Annotated[str, typer.Argument(metavar="TOPIC")]
LOCK_DURATION = Annotated[
    timedelta | None,
    _duration_option("How long a receiver keeps a message to itself, such as PT30S."),
]
TIME_TO_LIVE = Annotated[
    timedelta | None,
    _duration_option("How long a message lasts that says nothing itself, such as P14D."),
]
WINDOW = Annotated[
    timedelta | None, _duration_option("How long message ids are remembered; PT10M.")
]
AUTO_DELETE = Annotated[
    timedelta | None, _duration_option("Unused for so long, it is deleted, such as PT1H.")
]
DELIVERIES = Annotated[
    int | None,
    typer.Option(metavar="COUNT", help="So many, then to the dead letters.", show_default=False),
]
SIZE = Annotated[
    int | None, typer.Option(metavar="MB", help="How much it may hold.", show_default=False)
]
MESSAGE_SIZE = Annotated[
    int | None,
    typer.Option(metavar="KB", help="Of one message; on Premium only.", show_default=False),
]
FORWARD_TO = Annotated[
    str | None,
    typer.Option(metavar="ENTITY", help="Where all messages go on to.", show_default=False),
]
FORWARD_DEAD = Annotated[
    str | None,
    typer.Option(metavar="ENTITY", help="Where dead letters go on to.", show_default=False),
]
METADATA = Annotated[
    str | None, typer.Option(metavar="TEXT", help="A note of your own.", show_default=False)
]
SESSIONS = Annotated[bool | None, _flag("Messages come in sessions, each with one receiver.")]
DUPLICATES = Annotated[bool | None, _flag("Message ids that were seen before are dropped.")]
DEAD_ON_EXPIRY = Annotated[bool | None, _flag("Expired messages become dead letters.")]
DEAD_ON_ERROR = Annotated[
    bool | None, _flag("Messages that a filter fails on become dead letters.")
]
PARTITIONS = Annotated[bool | None, _flag("Spread over several stores.")]
EXPRESS = Annotated[bool | None, _flag("The service may keep messages in memory for a while.")]
ORDERING = Annotated[bool | None, _flag("Subscriptions get messages in their order.")]
BATCHED = Annotated[bool | None, _flag("The service may gather operations.")]


@create_app.command()
def queue(
    name: NAME,
    lock_duration: LOCK_DURATION = None,
    requires_session: SESSIONS = None,
    requires_duplicate_detection: DUPLICATES = None,
    duplicate_detection_history_time_window: WINDOW = None,
    default_message_time_to_live: TIME_TO_LIVE = None,
    dead_lettering_on_message_expiration: DEAD_ON_EXPIRY = None,
    max_delivery_count: DELIVERIES = None,
    max_size_in_megabytes: SIZE = None,
    max_message_size_in_kilobytes: MESSAGE_SIZE = None,
    forward_to: FORWARD_TO = None,
    forward_dead_lettered_messages_to: FORWARD_DEAD = None,
    auto_delete_on_idle: AUTO_DELETE = None,
    enable_partitioning: PARTITIONS = None,
    enable_express: EXPRESS = None,
    enable_batched_operations: BATCHED = None,
    user_metadata: METADATA = None,
    connection_string: CONNECTION_STRING = None,
    ca_file: CA_FILE = None,
    as_json: AS_JSON = False,
) -> None:
    """Create a queue.

    \b
    Example:
      pairbus entities create queue orders --lock-duration PT30S --requires-session
    """
    _create(EntityKind.QUEUE, locals())


@create_app.command()
def topic(
    name: NAME,
    requires_duplicate_detection: DUPLICATES = None,
    duplicate_detection_history_time_window: WINDOW = None,
    default_message_time_to_live: TIME_TO_LIVE = None,
    max_size_in_megabytes: SIZE = None,
    max_message_size_in_kilobytes: MESSAGE_SIZE = None,
    auto_delete_on_idle: AUTO_DELETE = None,
    enable_partitioning: PARTITIONS = None,
    enable_express: EXPRESS = None,
    support_ordering: ORDERING = None,
    enable_batched_operations: BATCHED = None,
    user_metadata: METADATA = None,
    connection_string: CONNECTION_STRING = None,
    ca_file: CA_FILE = None,
    as_json: AS_JSON = False,
) -> None:
    """Create a topic.

    \b
    Example:
      pairbus entities create topic events --requires-duplicate-detection
    """
    _create(EntityKind.TOPIC, locals())


@create_app.command()
def subscription(
    topic: TOPIC,
    name: NAME,
    lock_duration: LOCK_DURATION = None,
    requires_session: SESSIONS = None,
    default_message_time_to_live: TIME_TO_LIVE = None,
    dead_lettering_on_message_expiration: DEAD_ON_EXPIRY = None,
    dead_lettering_on_filter_evaluation_exceptions: DEAD_ON_ERROR = None,
    max_delivery_count: DELIVERIES = None,
    forward_to: FORWARD_TO = None,
    forward_dead_lettered_messages_to: FORWARD_DEAD = None,
    auto_delete_on_idle: AUTO_DELETE = None,
    enable_batched_operations: BATCHED = None,
    user_metadata: METADATA = None,
    connection_string: CONNECTION_STRING = None,
    ca_file: CA_FILE = None,
    as_json: AS_JSON = False,
) -> None:
    """Create a subscription, which takes everything until it has other rules.

    \b
    Example:
      pairbus entities create subscription events audit --max-delivery-count 5
    """
    _create(EntityKind.SUBSCRIPTION, locals())


def _create(kind: EntityKind, given: dict[str, Any]) -> None:
    """The parameters of a command are the settings of the SDK, by the same names."""
    target = parse_target(given.pop("connection_string"), given.pop("ca_file"))
    name, as_json = given.pop("name"), given.pop("as_json")
    path = (given.pop("topic"), name) if kind is EntityKind.SUBSCRIPTION else (name,)
    from pairbus.cli.entities.entity_work import create

    create(target, kind, path, as_json=as_json, **given)
