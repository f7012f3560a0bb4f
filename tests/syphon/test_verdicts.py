import pytest
from azure.servicebus import exceptions as sdk

from pairbus.fast.errors import TokenAuthFailure
from pairbus.syphon.policy import Failure
from pairbus.syphon.verdicts import failure_of

VERDICTS = {
    "a time-out": (sdk.OperationTimeoutError(), Failure.UNREACHABLE),
    "a lost connection": (sdk.ServiceBusConnectionError(), Failure.UNREACHABLE),
    "an internal error": (
        sdk.ServiceBusError("no", condition="amqp:internal-error"),
        Failure.ERROR,
    ),
    "server busy": (sdk.ServiceBusServerBusyError(), Failure.THROTTLED),
    "a full entity": (sdk.ServiceBusQuotaExceededError(), Failure.QUOTA_EXCEEDED),
    "a disabled entity": (sdk.MessagingEntityDisabledError(), Failure.DISABLED),
    "no such entity": (sdk.MessagingEntityNotFoundError(), Failure.NOT_FOUND),
    "no such entity, told by the token": (
        sdk.ServiceBusAuthenticationError(error=TokenAuthFailure(404, "not found")),
        Failure.NOT_FOUND,
    ),
    "a wrong key": (
        sdk.ServiceBusAuthenticationError(error=TokenAuthFailure(401, "no")),
        Failure.UNAUTHORIZED,
    ),
    "no Send claim": (sdk.ServiceBusAuthorizationError(), Failure.UNAUTHORIZED),
    "a message that is too large": (sdk.MessageSizeExceededError(), Failure.REFUSED),
    "a mistake of ours": (KeyError("x"), None),
}


@pytest.mark.parametrize(("error", "failure"), VERDICTS.values(), ids=VERDICTS)
def test_what_an_error_says_of_a_destination(error, failure):
    assert failure_of(error) is failure
