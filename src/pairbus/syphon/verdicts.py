"""What an error of the client says of a destination: the syphon's words for the SDK's errors."""

from __future__ import annotations

from azure.servicebus import exceptions as sdk

from pairbus.client.sdk.failures import Kind, kind_of
from pairbus.syphon.policy import Failure

_LOST = (
    sdk.OperationTimeoutError,
    sdk.ServiceBusConnectionError,
    sdk.ServiceBusCommunicationError,
)


def failure_of(error: BaseException) -> Failure | None:
    """None: it is neither the primary's nor the message's, but a mistake of ours."""
    if isinstance(error, sdk.ServiceBusQuotaExceededError):
        return Failure.QUOTA_EXCEEDED
    if isinstance(error, sdk.MessagingEntityDisabledError):
        return Failure.DISABLED
    match kind_of(error):
        case Kind.THROTTLED:
            return Failure.THROTTLED
        case Kind.MESSAGE:
            return Failure.REFUSED
        case Kind.SETUP:
            return Failure.NOT_FOUND if _is_not_found(error) else Failure.UNAUTHORIZED
        case Kind.OUTAGE:
            return Failure.UNREACHABLE if isinstance(error, _LOST) else Failure.ERROR
        case Kind.OTHER:
            return None


def _is_not_found(error: BaseException) -> bool:
    """An entity that is not there is told by the token's refusal already."""
    if isinstance(error, sdk.MessagingEntityNotFoundError):
        return True
    inner = getattr(error, "inner_exception", None)
    return getattr(inner, "status_code", None) == 404
