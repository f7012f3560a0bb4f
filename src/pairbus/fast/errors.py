"""What the fast client raises: the SDK's exceptions, made of what the service said.

`servicebus.failures.kind_of` knows the SDK's errors by their class, by their condition, and by the
name of the class inside of them; hence the names of those here. Two are ours, for calls of which
a part may have happened: SendFailed and SettleFailed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from azure.core.exceptions import AzureError
from azure.servicebus import exceptions as sdk

from pairbus.amqp.client.connection import ClientError, ConnectionLost, LinkLost, PeerSilent
from pairbus.amqp.outcomes import AmqpError
from pairbus.fast.message import Received


class AMQPException(Exception):
    """What the service said, as the SDK's own inner exceptions tell it."""

    def __init__(self, condition: str, description: str = "") -> None:
        super().__init__(f"{condition}: {description}" if description else condition)
        self.condition = condition
        self.description = description


class AMQPConnectionError(AMQPException):
    """... about a connection"""


class AMQPLinkError(AMQPException):
    """... about a link"""


class MessageException(AMQPException):
    """... about a message"""


class TokenAuthFailure(AMQPException):
    """... about a token"""

    def __init__(self, status_code: int | None, description: str) -> None:
        super().__init__("amqp:client-error", description)
        self.status_code = status_code


# What the SDK makes of a condition; of any other it makes a plain ServiceBusError.
BY_CONDITION: Final[dict[str, type[sdk.ServiceBusError]]] = {
    "amqp:not-found": sdk.MessagingEntityNotFoundError,
    "amqp:unauthorized-access": sdk.ServiceBusAuthorizationError,
    "com.microsoft:auth-failed": sdk.ServiceBusAuthorizationError,
    "amqp:resource-limit-exceeded": sdk.ServiceBusQuotaExceededError,
    "amqp:link:message-size-exceeded": sdk.MessageSizeExceededError,
    "amqp:link:detach-forced": sdk.ServiceBusConnectionError,
    "com.microsoft:message-lock-lost": sdk.MessageLockLostError,
    "com.microsoft:session-lock-lost": sdk.SessionLockLostError,
    "com.microsoft:session-cannot-be-locked": sdk.SessionCannotBeLockedError,
    "com.microsoft:message-not-found": sdk.MessageNotFoundError,
    "com.microsoft:timeout": sdk.OperationTimeoutError,
    "com.microsoft:server-busy": sdk.ServiceBusServerBusyError,
    "com.microsoft:entity-disabled": sdk.MessagingEntityDisabledError,
    "com.microsoft:entity-already-exists": sdk.MessagingEntityAlreadyExistsError,
}


class SendFailed(sdk.ServiceBusError):
    """Not all messages of a `send` were taken. `error` says why, and is what `kind_of` is for.

    Indexes are of the sequence that was given to `send`.
    """

    def __init__(
        self,
        path: str,
        *,
        error: AzureError,
        accepted: Sequence[range],
        refused: Sequence[range],
        doubtful: Sequence[range],
    ) -> None:
        self.path = path
        self.error = error
        self.accepted = sum(map(len, accepted))
        """How many the service has taken for certain."""
        self.accepted_ranges = tuple(accepted)
        self.refused_ranges = tuple(refused)
        """Which it has not taken: refused, or never sent."""
        self.doubtful_ranges = tuple(doubtful)
        """Which were sent, and no answer came."""
        total = sum(map(len, (*accepted, *refused, *doubtful)))
        super().__init__(f"{path!r} took {self.accepted} of {total} messages: {error}", error=error)


class SettleFailed(sdk.ServiceBusError):
    """Some messages could not be settled; all others of the call are."""

    def __init__(self, path: str, failed: Sequence[tuple[Received, sdk.ServiceBusError]]) -> None:
        self.path = path
        self.failed = tuple(failed)
        self.error = failed[0][1]
        """Why, of the first of them."""
        super().__init__(
            f"{len(failed)} messages of {path!r} could not be settled: {self.error}",
            error=self.error,
        )


def of_message(error: AmqpError | None, what: str) -> sdk.ServiceBusError:
    """The service refused a message or a settlement."""
    return _made(error or AmqpError("amqp:unknown-error"), what, MessageException)


def of_client(error: ClientError, what: str) -> sdk.ServiceBusError:
    """A link or a connection failed, or an answer did not come."""
    said = error.error
    if isinstance(error, PeerSilent):
        return sdk.OperationTimeoutError(message=f"{what}: {error}", error=error)
    if isinstance(error, LinkLost):
        if said is not None:
            return _made(said, what, AMQPLinkError)
        inner = AMQPLinkError("amqp:link:detach-forced", str(error))
        return sdk.ServiceBusConnectionError(message=f"{what}: {error}", error=inner)
    if isinstance(error, ConnectionLost) and said is not None:
        lost: Any = AMQPConnectionError(said.condition, said.description)
    else:
        lost = error.__cause__ or AMQPConnectionError("amqp:socket-error", str(error))
    return sdk.ServiceBusConnectionError(message=f"{what}: {error}", error=lost)


def of_answer(
    status: int | None, error: AmqpError | None, description: str, what: str
) -> sdk.ServiceBusError:
    """An answer of $management that is not a success."""
    if error is None:
        return sdk.ServiceBusError(f"{what}: {description}", status_code=status)
    return _made(error, what, MessageException, status_code=status)


def of_token(status: int | None, description: str, audience: str) -> sdk.ServiceBusError:
    said = f"the token for {audience!r} was refused with status {status}: {description}"
    inner = TokenAuthFailure(status, description)
    return sdk.ServiceBusAuthenticationError(message=said, error=inner)


def _made(
    error: AmqpError, what: str, kind: type[AMQPException], **more: Any
) -> sdk.ServiceBusError:
    made_of: Any = BY_CONDITION.get(error.condition, sdk.ServiceBusError)
    inner = kind(error.condition, error.description)
    said = f"{what}: {error.description or error.condition}."
    made: sdk.ServiceBusError = made_of(
        message=said, error=inner, condition=error.condition, **more
    )
    return made
