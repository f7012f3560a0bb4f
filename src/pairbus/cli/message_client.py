"""The message client of a command, and its errors in one line.

Messages are sent, peeked at and copied as bytes, by the client that the syphon uses: the SDK cannot
set a property's AMQP type, so its copies would differ from the original. Sessions use the SDK. Both
raise the SDK's errors. This module turns them into NamespaceError or UsageError, with the entity
and the namespace in the text.

The SDK takes half a second to load, so it is imported when a command connects, not for `--help`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from pairbus.cli.administration import EntityKind, names_within_timeout, queues_and_topics
from pairbus.cli.entity_path import EntityPath
from pairbus.cli.loading import interrupt_ends_process
from pairbus.cli.output import did_you_mean
from pairbus.cli.target import Target, bearer_token, cannot_reach, login_failure, why_unreachable
from pairbus.errors import MissingExtra, NamespaceError, UsageError
from pairbus.fast.address import Address
from pairbus.fast.rows import MessageView, UnreadableMessage, read

if TYPE_CHECKING:
    from azure.core.exceptions import AzureError

    from pairbus.fast.client import FastClient
    from pairbus.fast.sender import Sender

ANSWER_SECONDS_MAX: Final = 30.0
_PEEK_COUNT: Final = 250
_SEQUENCE_NUMBER_MAX: Final = 2**63 - 1
_HINT_SECONDS_MAX: Final = 10.0


@contextmanager
def connect(target: Target, *, seconds: float = ANSWER_SECONDS_MAX) -> Iterator[FastClient]:
    """A client for one command. Its first call opens the connection."""
    with interrupt_ends_process():
        import pairbus.fast.client  # noqa: F401  # loads the SDK, which takes half a second

    ca_file = None if target.ca_file is None else str(target.ca_file)
    try:
        client = Address(target, ca_file, target.port).client(timeout_seconds=seconds)
    except ValueError as error:
        raise UsageError(str(error)) from error
    try:
        yield client
    finally:
        client.close()


def sdk_client(target: Target, kind: Any = None) -> Any:
    """The SDK's client, or another `kind` of client. The SDK ignores a port in a connection string,
    except in that of an emulator.
    """
    if kind is None:
        from azure.servicebus import ServiceBusClient as kind

    settings: dict[str, Any] = {}
    if target.is_local:
        settings["retry_total"] = 0  # a fault of a local broker should show at once
    if not target.is_emulator:
        if target.port is not None:
            # With this setting, the SDK connects over WebSocket.
            settings["custom_endpoint_address"] = f"sb://{target.address}"
            if find_spec("websocket") is None:
                what = "receiving from a session over TLS to a port"
                raise MissingExtra(what, package="websocket-client", extra="cli")
        if isinstance(target.verify, str):
            settings["connection_verify"] = target.verify
    if target.identity is not None:
        bearer_token(target)  # raises first: the SDK would log a traceback
        return kind(target.host, target.credential(), **settings)
    return kind.from_connection_string(target.text.reveal(), **settings)


def peek_messages(
    client: FastClient,
    target: Target,
    entity: EntityPath,
    *,
    start: int = 0,
    limit: int | None = None,
) -> Iterator[MessageView]:
    """Messages in order, from a sequence number on, without locking them.

    Raises the SDK's errors, and UnreadableMessage.
    """
    from pairbus.fast.peek import with_retries

    management = client.management(entity.path)
    at, left = start, limit
    while at <= _SEQUENCE_NUMBER_MAX and (left is None or left > 0):
        count = _PEEK_COUNT if left is None else min(_PEEK_COUNT, left)
        ask = partial(management.peek, at, count)
        # Do not retry: a fault of a local broker should show at once, not after four attempts.
        found = ask() if target.is_local else with_retries(ask)
        for data in found:
            message = read(data, entity=entity.path)
            yield message
            number = message.annotation("x-opt-sequence-number")
            at = max(at, int(number) if isinstance(number, int) else at) + 1
        if not found:
            return
        left = None if left is None else left - len(found)


class BatchFailed(Exception):
    """The namespace did not accept all messages of a batch. The text has the reason."""

    def __init__(self, reason: str, *, accepted: set[int], unanswered: int) -> None:
        super().__init__(reason)
        self.accepted = accepted
        """The accepted messages, by their index in the batch."""
        self.unanswered = unanswered
        """The number of messages that were sent without an answer. They may have arrived."""

    def text(self, before: str) -> str:
        """The error for the user. It includes what was done before."""
        parts = [before, str(self)]
        if self.unanswered:
            parts.append(f"({self.unanswered} more may have arrived: no answer came)")
        return " ".join(filter(None, parts))


def send_batch(
    sender: Sender, batch: Sequence[bytes], *, target: Target, entity: EntityPath
) -> None:
    """Sends one batch at a time, so that the outcome of earlier batches is always known.

    Raises BatchFailed.
    """
    from pairbus.fast.errors import SendIncomplete

    try:
        sender.send(batch, window=1)
    except SendIncomplete as failed:
        raise BatchFailed(
            error_text(failed, target, entity, right="Send"),
            accepted={index for some in failed.accepted_ranges for index in some},
            unanswered=sum(map(len, failed.doubtful_ranges)),
        ) from failed


# -- errors --------------------------------------------------------------------------------------


@contextmanager
def explain_errors(target: Target, entity: EntityPath, *, right: str) -> Iterator[None]:
    """Turns the SDK's errors into NamespaceError. `right` is the right that the policy needs."""
    from azure.core.exceptions import AzureError

    try:
        yield
    except AzureError as error:
        raise NamespaceError(error_text(error, target, entity, right=right)) from error
    except UnreadableMessage as error:
        raise NamespaceError(str(error)) from error
    except ValueError as error:  # the SDK raises this for an EntityPath of another entity
        if "EntityPath" not in str(error):
            raise
        raise UsageError(" ".join(str(error).split())) from error


def error_text(error: AzureError, target: Target, entity: EntityPath, *, right: str) -> str:
    from azure.servicebus import exceptions as sdk

    address = target.address
    error = getattr(error, "error", None) or error  # the fast client wraps the first error
    if (failure := login_failure(error, target)) is not None:
        return failure
    # The namespace refused a token. The SDK raises that as a lost connection.
    match getattr(getattr(error, "inner_exception", None), "status_code", None):
        case 401:
            return target.rejection(right, entity.description)
        case 404:
            return _not_found(target, entity, right)
    match error:
        case sdk.MessagingEntityNotFoundError():
            return _not_found(target, entity, right)
        case sdk.ServiceBusAuthorizationError() | sdk.ServiceBusAuthenticationError():
            return target.rejection(right, entity.description)
        case sdk.SessionCannotBeLockedError():
            return f"another receiver holds the session of {entity.description} in {address}"
        case sdk.ServiceBusConnectionError() | sdk.OperationTimeoutError():
            return cannot_reach(target, why_unreachable(error))
        case sdk.MessageSizeExceededError():  # raised by our own client, before it sends
            return error.message
    answer = _answer(error)
    hint = ""
    if "requires session" in answer:
        hint = "; use --session-id" if right == "Send" else "; use --session-id or --next-session"
    return f"{entity.description}: {address} answered: {answer}{hint}"


def _not_found(target: Target, entity: EntityPath, right: str) -> str:
    # Nobody can send to a subscription.
    hint = (entity.hint if right != "Send" else "") or _similar_name(target, entity)
    return f"{entity.description} does not exist in {target.address}{hint}"


def _similar_name(target: Target, entity: EntityPath) -> str:
    """A suggestion of a name, if the policy may list entities and the namespace answers in time."""
    if entity.subscription is None:
        names = names_within_timeout(target, queues_and_topics, seconds=_HINT_SECONDS_MAX)
    else:
        names = names_within_timeout(
            target,
            lambda admin: admin.names(EntityKind.SUBSCRIPTION, entity.entity),
            seconds=_HINT_SECONDS_MAX,
        )
    name = entity.subscription or entity.entity
    # `events/audit` is more like a subscription than like the topic `events`.
    return did_you_mean(name, names) or did_you_mean(name.rpartition("/")[0], names)


def topic_note(target: Target, entity: EntityPath) -> str | None:
    """An explanation, if no message was found because the entity is a topic."""
    topic = entity.entity
    if entity.subscription is not None:
        return None
    names = names_within_timeout(
        target,
        lambda admin: [admin.get(EntityKind.TOPIC, (topic,)).name],
        seconds=_HINT_SECONDS_MAX,
    )
    if not names:
        return None
    return (
        f"{topic!r} is a topic. Its messages are in its subscriptions: name one after it, such as "
        f"{topic} SUBSCRIPTION"
    )


def _answer(error: BaseException) -> str:
    inner = getattr(error, "inner_exception", None)
    description = getattr(inner, "description", None)
    if isinstance(description, bytes):
        description = description.decode("utf-8", "replace")
    return " ".join(str(description or getattr(error, "message", None) or error).split())
