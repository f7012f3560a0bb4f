"""The errors of the fast client: the SDK's exceptions, made from the answers of the service.

`client.sdk.failures.kind_of` recognises the SDK's errors by their class, by their condition, and by
the class name of their inner exception, so the inner exceptions here have the same names. Two
errors are ours, for calls that may have succeeded in part: SendIncomplete and SettleFailed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from azure.core.exceptions import AzureError
from azure.servicebus import exceptions as sdk

from pairbus.amqp.client.blocking import ClientError, ConnectionLost, LinkLost, PeerSilent
from pairbus.amqp.client.requests import RequestRefused
from pairbus.amqp.outcomes import AmqpError
from pairbus.fast.identity import requirement
from pairbus.fast.message import ReceivedMessage


class AMQPException(Exception):
    """The answer of the service, with the fields of the SDK's own inner exceptions."""

    def __init__(self, condition: str, description: str = "") -> None:
        super().__init__(f"{condition}: {description}" if description else condition)
        self.condition = condition
        self.description = description


class AMQPConnectionError(AMQPException):
    """The service has ended a connection."""


class AMQPLinkError(AMQPException):
    """The service has refused or ended a link."""


class MessageException(AMQPException):
    """The service has refused a message, a settlement or a request."""


class TokenAuthFailure(AMQPException):
    """The service has refused a token."""

    def __init__(self, status_code: int | None, description: str) -> None:
        super().__init__("amqp:client-error", description)
        self.status_code = status_code


# The SDK's class for a condition; for any other it is a plain ServiceBusError.
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


# Azure's and the broker's text for a missing right names the claim of a policy, not the role.
_CLAIM: Final = re.compile(r"\b(Send|Listen|Manage)\b.{0,3} claim")


class SendIncomplete(sdk.ServiceBusError):
    """The service did not accept all messages of a `send`. `error` says why; `kind_of` takes it.

    The ranges are indexes of the sequence that was given to `send`.
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
        """The number of messages that the service has certainly accepted."""
        self.accepted_ranges = tuple(accepted)
        self.refused_ranges = tuple(refused)
        """Refused, or never sent."""
        self.doubtful_ranges = tuple(doubtful)
        """Sent, but not answered."""
        total = sum(map(len, (*accepted, *refused, *doubtful)))
        super().__init__(
            f"{path!r} accepted {self.accepted} of {total} messages: {error}", error=error
        )


class SettleFailed(sdk.ServiceBusError):
    """Some messages could not be settled; all others of the call were."""

    def __init__(
        self, path: str, failed: Sequence[tuple[ReceivedMessage, sdk.ServiceBusError]]
    ) -> None:
        self.path = path
        self.failed = tuple(failed)
        self.error = failed[0][1]
        """The reason of the first failure."""
        super().__init__(
            f"{len(failed)} messages of {path!r} could not be settled: {self.error}",
            error=self.error,
        )


def from_refusal(error: AmqpError, what: str) -> sdk.ServiceBusError:
    """The service refused a message, a settlement or a request."""
    return _made(error, what, MessageException)


def from_client_error(error: ClientError, what: str) -> sdk.ServiceBusError:
    """A link or a connection failed, a request was refused, or an answer did not come."""
    peer_error = error.error
    if isinstance(error, PeerSilent):
        return sdk.OperationTimeoutError(message=f"{what}: {error}", error=error)
    if isinstance(error, RequestRefused):
        return from_refusal(peer_error or AmqpError("amqp:unknown-error", str(error)), what)
    if isinstance(error, LinkLost):
        if peer_error is not None:
            return _made(peer_error, what, AMQPLinkError)
        inner = AMQPLinkError("amqp:link:detach-forced", str(error))
        return sdk.ServiceBusConnectionError(message=f"{what}: {error}", error=inner)
    if isinstance(error, ConnectionLost) and peer_error is not None:
        lost: Any = AMQPConnectionError(peer_error.condition, peer_error.description)
    else:
        lost = error.__cause__ or AMQPConnectionError("amqp:socket-error", str(error))
    return sdk.ServiceBusConnectionError(message=f"{what}: {error}", error=lost)


def from_response(
    status: int | None, error: AmqpError | None, description: str, what: str
) -> sdk.ServiceBusError:
    """A response of $management that is not a success."""
    if error is None:
        return sdk.ServiceBusError(f"{what}: {description}", status_code=status)
    return _made(error, what, MessageException, status_code=status)


def from_token_status(status: int | None, description: str, audience: str) -> sdk.ServiceBusError:
    text = f"the token for {audience!r} was refused with status {status}: {description}"
    inner = TokenAuthFailure(status, description)
    return sdk.ServiceBusAuthenticationError(message=text, error=inner)


def _made(
    error: AmqpError, what: str, kind: type[AMQPException], **more: Any
) -> sdk.ServiceBusError:
    made_of: Any = BY_CONDITION.get(error.condition, sdk.ServiceBusError)
    inner = kind(error.condition, error.description)
    hint = ""
    if made_of is sdk.ServiceBusAuthorizationError and (claim := _CLAIM.search(error.description)):
        hint = f"; an identity needs {requirement(claim[1])}"
    made: sdk.ServiceBusError = made_of(
        message=f"{what}: {error.description or error.condition}{hint}.",
        error=inner,
        condition=error.condition,
        **more,
    )
    return made
