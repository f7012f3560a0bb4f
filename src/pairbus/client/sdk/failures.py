"""What each error of the SDK means. This is the one place that reads them.

An error is looked up by its class, then by what the service said (an AMQP condition or a status),
then by what the SDK wrapped as "Handler failed". An error of a send that is in no table is an
outage: a messaging failure that the SDK's own retries did not cure. This module knows nothing of
entities, of intervals, or of what follows from a kind.
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import Iterator
from enum import Enum
from typing import Final

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.servicebus import exceptions as sdk

from pairbus.client.sdk import private
from pairbus.client.sdk.pairing_errors import EnvelopeTooLarge
from pairbus.errors import PairbusError


class Kind(Enum):
    OUTAGE = "outage"
    """The namespace or the entity fails. Counts towards failing over."""
    THROTTLED = "throttled"
    """The service is busy and asks to be tried again later."""
    MESSAGE = "message"
    """The message is at fault: any namespace would refuse it at any time."""
    SETUP = "setup"
    """The client is set up wrong: its credentials, its rights, or an entity that does not exist."""
    OTHER = "other"
    """A mistake of the caller, a bug, or a cancellation. pairbus does nothing about it."""


# By class, the most derived first. For a class of the SDK that is missing here, `_of_wrapper` looks
# at what is inside the error.
BY_CLASS: Final[dict[type[BaseException], Kind]] = {
    sdk.OperationTimeoutError: Kind.OUTAGE,
    sdk.MessagingEntityDisabledError: Kind.OUTAGE,
    sdk.ServiceBusQuotaExceededError: Kind.OUTAGE,
    sdk.ServiceBusServerBusyError: Kind.THROTTLED,
    sdk.MessageSizeExceededError: Kind.MESSAGE,
    EnvelopeTooLarge: Kind.MESSAGE,
    sdk.ServiceBusAuthorizationError: Kind.SETUP,
    sdk.MessagingEntityNotFoundError: Kind.SETUP,
    # Receivers, administration and cancelling raise these; no send does.
    sdk.MessagingEntityAlreadyExistsError: Kind.OTHER,
    sdk.MessageNotFoundError: Kind.OTHER,
    sdk.MessageLockLostError: Kind.OTHER,
    sdk.SessionLockLostError: Kind.OTHER,
    sdk.SessionCannotBeLockedError: Kind.OTHER,
    sdk.AutoLockRenewFailed: Kind.OTHER,
    sdk.AutoLockRenewTimeout: Kind.OTHER,
    # Ours: their cause has been counted already.
    PairbusError: Kind.OTHER,
}

# By what the service says, independent of the SDK's class for it: all that comes with the end of a
# connection is a ServiceBusConnectionError, and what it does not know a plain ServiceBusError.
BY_CONDITION: Final[dict[str, Kind]] = {
    "com.microsoft:server-busy": Kind.THROTTLED,
    "amqp:unauthorized-access": Kind.SETUP,
    "com.microsoft:auth-failed": Kind.SETUP,
    "amqp:resource-deleted": Kind.SETUP,  # the next attempt gets not-found
    "amqp:link:message-size-exceeded": Kind.MESSAGE,
    "amqp:decode-error": Kind.MESSAGE,
    "com.microsoft:argument-error": Kind.MESSAGE,
    "com.microsoft:argument-out-of-range": Kind.MESSAGE,
}

# In an answer to a message these mean that the message is at fault; in a refused link, that the
# client is set up wrong; at the end of a connection, neither.
REFUSALS: Final = frozenset(
    {
        "amqp:not-allowed",
        "amqp:not-implemented",
        "amqp:invalid-field",
        "amqp:precondition-failed",
        "com.microsoft:precondition-failed",
    }
)

# For an answer of $management (schedule_messages) without a condition.
BY_STATUS: Final[dict[int, Kind]] = {
    400: Kind.MESSAGE,
    401: Kind.SETUP,
    403: Kind.SETUP,
    404: Kind.SETUP,
    410: Kind.SETUP,
    413: Kind.MESSAGE,
    429: Kind.THROTTLED,
}

# For an error that comes neither from the SDK nor from the service: by its class.
BY_CAUSE: Final[dict[type[BaseException], Kind]] = {
    FileNotFoundError: Kind.SETUP,  # the file that connection_verify names
    ImportError: Kind.SETUP,  # a WebSocket library
    OSError: Kind.OUTAGE,  # with time-outs, TLS, name resolution
    ClientAuthenticationError: Kind.SETUP,
    AzureError: Kind.OUTAGE,  # a token's issuer is out of reach
    UnicodeError: Kind.MESSAGE,
}

# The SDK's encoder raises these. Its other parts raise the same when a connection breaks, so this
# counts only where no traceback distinguishes the two.
_ENCODING: Final = (TypeError, ValueError, OverflowError, struct.error)

# The statuses of an HTTP or CBS answer that are not the client's fault.
_TRANSIENT: Final = frozenset({0, 408, 429})


UNTRUSTED_HINT: Final = (
    "if it has a certificate authority of its own, give the authority's file to {} as "
    "connection_verify"
)


def is_untrusted(error: BaseException) -> bool:
    """Whether no authority that the client trusts has signed the namespace's certificate."""
    return "certificate verify failed" in str(error).lower()


def is_unreachable(error: BaseException) -> bool:
    """Whether the whole namespace cannot be reached: its address is unknown, there is no route, or
    it refuses or resets connections. Silence is no proof of that.
    """
    inner = getattr(error, "inner_exception", None)
    cause = private.wrapped_by(inner) or inner or error
    return isinstance(cause, OSError) and not isinstance(cause, TimeoutError | ssl.SSLError)


def kind_of(error: BaseException) -> Kind:
    if (kind := _listed(BY_CLASS, error)) is not None:
        return kind
    if isinstance(error, sdk.ServiceBusError):
        return _of_wrapper(error)
    return _of_cause(error, unknown=Kind.OTHER)


def _of_wrapper(error: sdk.ServiceBusError) -> Kind:
    inner = error.inner_exception
    names = private.class_names(inner)
    if "TokenAuthFailure" in names:
        return _of_token_status(private.token_status_of(inner))
    if isinstance(private.wrapped_by(inner), FileNotFoundError):
        return Kind.SETUP
    condition = private.condition_of(error)
    if condition in BY_CONDITION:
        return BY_CONDITION[condition]
    status = private.status_of(error)
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


def _of_token_status(status: object) -> Kind:
    """The service's answer to a token.

    The SDK drops the status of an answer with an error condition, and None is left; Azure sends one
    with 401 and 404. A condition instead of a status means that the token's link broke.
    """
    if status is None:
        return Kind.SETUP
    return Kind.SETUP if isinstance(status, int) and _blames_client(status) else Kind.OUTAGE


def _of_cause(error: BaseException, *, unknown: Kind) -> Kind:
    if not isinstance(error, Exception):
        return Kind.OTHER
    if any(name in private.ENCODING_FUNCTIONS for name in _functions(error)):
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


def _functions(error: BaseException) -> Iterator[str]:
    """The functions that the error passed through."""
    step = error.__traceback__
    while step is not None:
        yield step.tb_frame.f_code.co_name
        step = step.tb_next
