"""Which of the SDK's errors is what: the one place that reads them.

An error is looked up by its class, then by what the service said (an AMQP condition or a status),
then by what the SDK wrapped as "Handler failed". Whatever the tables do not know, and the SDK
reports of a send, is an outage: a messaging failure that its own retries did not cure. Knows
nothing of entities, of intervals, or of what follows from a kind.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.servicebus import exceptions as sdk

from pairbus.client.sdk.errors import EnvelopeTooLarge
from pairbus.errors import PairbusError


class Kind(Enum):
    OUTAGE = "outage"
    """The namespace or the entity fails. Counts towards failing over."""
    THROTTLED = "throttled"
    """The service is busy and asks for patience."""
    MESSAGE = "message"
    """The message's own fault: any namespace would say the same, any time."""
    SETUP = "setup"
    """The client is configured wrong: its credentials, its rights, an entity that is not there."""
    OTHER = "other"
    """A mistake of the caller, a bug, a cancellation: not ours to act on."""


# By class, the most derived first. What an SDK's class means that is missing depends on its inside.
BY_CLASS: Final[dict[type[BaseException], Kind]] = {
    sdk.OperationTimeoutError: Kind.OUTAGE,
    sdk.MessagingEntityDisabledError: Kind.OUTAGE,
    sdk.ServiceBusQuotaExceededError: Kind.OUTAGE,
    sdk.ServiceBusServerBusyError: Kind.THROTTLED,
    sdk.MessageSizeExceededError: Kind.MESSAGE,
    EnvelopeTooLarge: Kind.MESSAGE,
    sdk.ServiceBusAuthorizationError: Kind.SETUP,
    sdk.MessagingEntityNotFoundError: Kind.SETUP,
    # What receivers, administration and cancelling get; no send does.
    sdk.MessagingEntityAlreadyExistsError: Kind.OTHER,
    sdk.MessageNotFoundError: Kind.OTHER,
    sdk.MessageLockLostError: Kind.OTHER,
    sdk.SessionLockLostError: Kind.OTHER,
    sdk.SessionCannotBeLockedError: Kind.OTHER,
    sdk.AutoLockRenewFailed: Kind.OTHER,
    sdk.AutoLockRenewTimeout: Kind.OTHER,
    # Ours: what they tell of has been counted.
    PairbusError: Kind.OTHER,
}

# By what the service says, whatever class the SDK makes of it: all that comes with the end of a
# connection is a ServiceBusConnectionError, and what it does not know a plain ServiceBusError.
BY_CONDITION: Final[dict[str, Kind]] = {
    "com.microsoft:server-busy": Kind.THROTTLED,
    "amqp:unauthorized-access": Kind.SETUP,
    "com.microsoft:auth-failed": Kind.SETUP,
    "amqp:resource-deleted": Kind.SETUP,  # the next attempt hears not-found
    "amqp:link:message-size-exceeded": Kind.MESSAGE,
    "amqp:decode-error": Kind.MESSAGE,
    "com.microsoft:argument-error": Kind.MESSAGE,
    "com.microsoft:argument-out-of-range": Kind.MESSAGE,
}

# These blame the message where they answer a message, the client where they refuse its link, and
# nobody who sends where they end a connection.
REFUSALS: Final = frozenset(
    {
        "amqp:not-allowed",
        "amqp:not-implemented",
        "amqp:invalid-field",
        "amqp:precondition-failed",
        "com.microsoft:precondition-failed",
    }
)

# Of an answer of $management (schedule_messages) that came without a condition.
BY_STATUS: Final[dict[int, Kind]] = {
    400: Kind.MESSAGE,
    401: Kind.SETUP,
    403: Kind.SETUP,
    404: Kind.SETUP,
    410: Kind.SETUP,
    413: Kind.MESSAGE,
    429: Kind.THROTTLED,
}

# By the class of what is neither the SDK's own nor the service's word.
BY_CAUSE: Final[dict[type[BaseException], Kind]] = {
    FileNotFoundError: Kind.SETUP,  # the file that connection_verify names
    ImportError: Kind.SETUP,  # a WebSocket library
    OSError: Kind.OUTAGE,  # with time-outs, TLS, name resolution
    ClientAuthenticationError: Kind.SETUP,
    AzureError: Kind.OUTAGE,  # a token's issuer is out of reach
    UnicodeError: Kind.MESSAGE,
}

# What the SDK's encoder raises. Its other parts raise the same when a connection breaks under them,
# so this is asked only where no traceback tells the two apart.
_ENCODING: Final = (TypeError, ValueError, OverflowError, struct.error)

# The SDK's functions that make bytes of messages: what fails inside of them is the message's fault.
_MESSAGE_MAKERS: Final = frozenset({"encode_payload", "transform_outbound_messages"})

# A status of an HTTP or CBS answer with which the client is not at fault.
_TRANSIENT: Final = frozenset({0, 408, 429})


def kind_of(error: BaseException) -> Kind:
    if (kind := _listed(BY_CLASS, error)) is not None:
        return kind
    if isinstance(error, sdk.ServiceBusError):
        return _of_wrapper(error)
    return _of_cause(error, unknown=Kind.OTHER)


def _of_wrapper(error: sdk.ServiceBusError) -> Kind:
    inner = error.inner_exception
    names = set() if inner is None else {kind.__name__ for kind in type(inner).__mro__}
    if "TokenAuthFailure" in names:
        return _of_token_status(getattr(inner, "status_code", None))
    if isinstance(getattr(inner, "inner_error", None), FileNotFoundError):
        return Kind.SETUP
    condition = _condition(error, inner)
    if condition in BY_CONDITION:
        return BY_CONDITION[condition]
    status = getattr(error, "_status_code", None)
    if condition in REFUSALS:
        if "MessageException" in names or status is not None:
            return Kind.MESSAGE
        return Kind.SETUP if "AMQPLinkError" in names else Kind.OUTAGE
    if condition is None and status in BY_STATUS:
        return BY_STATUS[status]
    if inner is not None and "AMQPException" not in names:
        return _of_cause(inner, unknown=Kind.OUTAGE)
    if inner is None and isinstance(error, sdk.ServiceBusAuthenticationError):
        return Kind.SETUP
    return Kind.OUTAGE


def _of_token_status(status: Any) -> Kind:
    """The service's answer to a token.

    None is what the SDK makes of an answer with an error condition, which it drops; Azure gives one
    with 401 and 404. A condition in its place means that the token's link broke.
    """
    if status is None:
        return Kind.SETUP
    return Kind.SETUP if isinstance(status, int) and _blames_client(status) else Kind.OUTAGE


def _of_cause(error: BaseException, *, unknown: Kind) -> Kind:
    if not isinstance(error, Exception):
        return Kind.OTHER
    if _passed_a_maker(error):
        return Kind.MESSAGE
    if isinstance(error, HttpResponseError) and error.status_code is not None:
        return Kind.SETUP if _blames_client(error.status_code) else Kind.OUTAGE
    if (kind := _listed(BY_CAUSE, error)) is not None:
        return kind
    if error.__traceback__ is None and unknown is Kind.OUTAGE and isinstance(error, _ENCODING):
        return Kind.MESSAGE
    return unknown


def _listed(table: dict[type[BaseException], Kind], error: BaseException) -> Kind | None:
    return next((table[kind] for kind in type(error).__mro__ if kind in table), None)


def _blames_client(status: int) -> bool:
    return status < 500 and status not in _TRANSIENT


def _condition(error: sdk.ServiceBusError, inner: BaseException | None) -> str | None:
    found = getattr(error, "_condition", None) or getattr(inner, "condition", None)
    return found.decode() if isinstance(found, bytes) else found


def _passed_a_maker(error: BaseException) -> bool:
    return any(name in _MESSAGE_MAKERS for name in _functions(error))


def _functions(error: BaseException) -> Iterator[str]:
    step = error.__traceback__
    while step is not None:
        yield step.tb_frame.f_code.co_name
        step = step.tb_next
