"""Every error that a send of the SDK can raise, and its kind. The SDK's own translation makes the
errors here, from what its AMQP layer raises. `test_failures_live.py` gets them from a broker."""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
import ssl
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp import error as amqp
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.error import ErrorCondition
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage

from pairbus.client.sdk.failures import BY_CLASS, Kind, is_unreachable, kind_of
from pairbus.client.sdk.pairing_errors import (
    BacklogExhausted,
    ClientFaulted,
    EnvelopeTooLarge,
    PairingError,
    SyphonNotInstalled,
)

OUTAGE, THROTTLED, MESSAGE, SETUP, OTHER = Kind

LOGGER = logging.getLogger("tests.silent")
LOGGER.addHandler(logging.NullHandler())
LOGGER.propagate = False


def told_by_sdk(error: Exception, **options) -> sdk.ServiceBusError:
    return PyamqpTransport.create_servicebus_exception(LOGGER, error, **options)


def raised(function, *arguments) -> Exception:
    """With its traceback, like every error that was really raised."""
    try:
        function(*arguments)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def throw(error: Exception) -> Exception:
    def thrower():
        raise error

    return raised(thrower)


def answered(condition: bytes | None, status: int) -> sdk.ServiceBusError:
    """What `schedule_messages` raises when `$management` refuses."""
    return raised(
        PyamqpTransport.handle_amqp_mgmt_error, LOGGER, "refused", condition, "why", status
    )


# By what the service said, and how: of a message, by ending the link, or by ending the connection.
CONDITIONS = {
    "amqp:internal-error": (OUTAGE, OUTAGE, OUTAGE),
    "amqp:not-found": (SETUP, SETUP, OUTAGE),
    "amqp:unauthorized-access": (SETUP, SETUP, SETUP),
    "amqp:decode-error": (MESSAGE, MESSAGE, MESSAGE),
    "amqp:resource-limit-exceeded": (OUTAGE, OUTAGE, OUTAGE),
    "amqp:not-allowed": (MESSAGE, SETUP, OUTAGE),
    "amqp:invalid-field": (MESSAGE, SETUP, OUTAGE),
    "amqp:not-implemented": (MESSAGE, SETUP, OUTAGE),
    "amqp:resource-locked": (OUTAGE, OUTAGE, OUTAGE),
    "amqp:precondition-failed": (MESSAGE, SETUP, OUTAGE),
    "amqp:resource-deleted": (SETUP, SETUP, SETUP),
    "amqp:illegal-state": (OUTAGE, OUTAGE, OUTAGE),
    "amqp:frame-size-too-small": (OUTAGE, OUTAGE, OUTAGE),
    "amqp:connection:forced": (OUTAGE, OUTAGE, OUTAGE),
    "amqp:connection:framing-error": (OUTAGE, OUTAGE, OUTAGE),
    "amqp:connection:redirect": (OUTAGE, OUTAGE, OUTAGE),
    "amqp:session:window-violation": (OUTAGE, OUTAGE, OUTAGE),
    "amqp:session:errant-link": (OUTAGE, OUTAGE, OUTAGE),
    "amqp:session:handle-in-use": (OUTAGE, OUTAGE, OUTAGE),
    "amqp:session:unattached-handle": (OUTAGE, OUTAGE, OUTAGE),
    "amqp:link:detach-forced": (OUTAGE, OUTAGE, OUTAGE),
    "amqp:link:transfer-limit-exceeded": (OUTAGE, OUTAGE, OUTAGE),
    "amqp:link:message-size-exceeded": (MESSAGE, MESSAGE, MESSAGE),
    "amqp:link:redirect": (OUTAGE, OUTAGE, OUTAGE),
    "amqp:link:stolen": (OUTAGE, OUTAGE, OUTAGE),
    "amqp:client-error": (OUTAGE, OUTAGE, OUTAGE),
    "amqp:unknown-error": (OUTAGE, OUTAGE, OUTAGE),
    "amqp:vendor-error": (OUTAGE, OUTAGE, OUTAGE),
    "amqp:socket-error": (OUTAGE, OUTAGE, OUTAGE),
    "com.microsoft:server-busy": (THROTTLED, THROTTLED, THROTTLED),
    "com.microsoft:timeout": (OUTAGE, OUTAGE, OUTAGE),
    "com.microsoft:entity-disabled": (OUTAGE, OUTAGE, OUTAGE),
    "com.microsoft:container-close": (OUTAGE, OUTAGE, OUTAGE),
    "com.microsoft:auth-failed": (SETUP, SETUP, SETUP),
    "com.microsoft:argument-error": (MESSAGE, MESSAGE, MESSAGE),
    "com.microsoft:argument-out-of-range": (MESSAGE, MESSAGE, MESSAGE),
    "com.microsoft:precondition-failed": (MESSAGE, SETUP, OUTAGE),
    "com.microsoft:something-new": (OUTAGE, OUTAGE, OUTAGE),
}


@pytest.mark.req("F-01", "F-02")
@pytest.mark.parametrize(("condition", "kinds"), CONDITIONS.items(), ids=CONDITIONS)
def test_a_condition_means_what_it_means_where_it_was_said(condition, kinds):
    errors = [
        told_by_sdk(level(condition.encode(), description="why"))
        for level in (amqp.MessageException, amqp.AMQPLinkError, amqp.AMQPConnectionError)
    ]

    assert tuple(kind_of(error) for error in errors) == kinds


def test_every_condition_that_the_sdk_knows_has_its_line():
    assert {condition.value.decode() for condition in ErrorCondition} <= set(CONDITIONS)


def test_every_error_of_the_sdk_was_thought_of():
    classes = {each for each in vars(sdk).values() if inspect.isclass(each)} - {Any}
    depends_on_what_is_inside = {
        sdk.ServiceBusError,
        sdk.ServiceBusConnectionError,
        sdk.ServiceBusCommunicationError,
        sdk.ServiceBusAuthenticationError,
        # Not of senders, and not of the SDK's tree.
        sdk.MessageAlreadySettled,
        sdk.AzureError,
    }

    assert classes == depends_on_what_is_inside | {each for each in BY_CLASS if each in classes}


BY_CLASS_ALONE = {
    "a time-out": (sdk.OperationTimeoutError(), OUTAGE),
    "a lost connection": (sdk.ServiceBusConnectionError(), OUTAGE),
    "a failure to communicate": (sdk.ServiceBusCommunicationError(), OUTAGE),
    "a disabled entity": (sdk.MessagingEntityDisabledError(), OUTAGE),
    "a full entity": (sdk.ServiceBusQuotaExceededError(), OUTAGE),
    "a messaging failure without a name": (sdk.ServiceBusError("?"), OUTAGE),
    "a busy service": (sdk.ServiceBusServerBusyError(), THROTTLED),
    "too large a message": (sdk.MessageSizeExceededError(), MESSAGE),
    "no rights": (sdk.ServiceBusAuthorizationError(), SETUP),
    "no proof of who one is": (sdk.ServiceBusAuthenticationError(), SETUP),
    "no such entity": (sdk.MessagingEntityNotFoundError(), SETUP),
    "nothing to cancel": (sdk.MessageNotFoundError(), OTHER),
    "a lock of a receiver": (sdk.MessageLockLostError(), OTHER),
    "a lock of a session": (sdk.SessionLockLostError(), OTHER),
    "a session of another": (sdk.SessionCannotBeLockedError(), OTHER),
    "an entity that exists": (sdk.MessagingEntityAlreadyExistsError(), OTHER),
    "a renewer's failure": (sdk.AutoLockRenewFailed("?"), OTHER),
    "a settled message": (sdk.MessageAlreadySettled(action="complete"), OTHER),
    "our own: no backlog left": (BacklogExhausted(entity="q"), OTHER),
    "our own: not paired": (PairingError("?"), OTHER),
    "our own: no syphon": (SyphonNotInstalled("no syphon"), OTHER),
    "our own: faulted": (ClientFaulted(which="primary", reason="closed"), OTHER),
    "our own: too large": (EnvelopeTooLarge(entity="q", backlog_queue="b"), MESSAGE),
    "a cancelled task": (asyncio.CancelledError(), OTHER),
    "an impatient user": (KeyboardInterrupt(), OTHER),
    "a closed sender": (ValueError("The handler has already been shutdown."), OTHER),
    "a caller's mistake": (TypeError("unexpected keyword argument"), OTHER),
    "a bug": (AttributeError("no such attribute"), OTHER),
    "a bare time-out": (TimeoutError(), OUTAGE),
    "a bare refusal": (ConnectionRefusedError(), OUTAGE),
    "a missing library": (ImportError("Please install websocket-client"), SETUP),
}


@pytest.mark.req("F-01", "F-02")
@pytest.mark.parametrize(("error", "kind"), BY_CLASS_ALONE.values(), ids=BY_CLASS_ALONE)
def test_an_error_by_itself(error, kind):
    assert kind_of(error) is kind


# The SDK's "Handler failed", by what is inside.
WRAPPED = {
    "a lost socket": (OSError("Server unexpectedly closed connection"), OUTAGE),
    "a name that is not resolved": (socket.gaierror(-2, "Name or service not known"), OUTAGE),
    "TLS that fails": (ssl.SSLError("handshake"), OUTAGE),
    "a certificate that ran out": (ssl.SSLCertVerificationError("expired"), OUTAGE),
    "a time-out": (TimeoutError("Authentication attempt timed-out."), OUTAGE),
    "asyncio's time-out": (TimeoutError(), OUTAGE),
    "a stream that ended": (asyncio.IncompleteReadError(b"", 8), OUTAGE),
    "the SDK's race with a lost connection": (
        AttributeError("'NoneType' object has no attribute 'client_ready'"),
        OUTAGE,
    ),
    "its cousin": (TypeError("'NoneType' object is not subscriptable"), OUTAGE),
    "an answer in no protocol": (ValueError("SASL negotiation failed."), OUTAGE),
    "a closed link": (ValueError("Link already closed."), OUTAGE),
    "half a frame": (struct.error("unpack requires a buffer of 8 bytes"), OUTAGE),
    "a short frame": (IndexError("list index out of range"), OUTAGE),
    "uvloop's closed transport": (RuntimeError("the handler is closed"), OUTAGE),
    "a CA file that is not there": (FileNotFoundError(2, "No such file"), SETUP),
    "a credential that was refused": (ClientAuthenticationError("AADSTS7000215"), SETUP),
    "a token's issuer that is out of reach": (ServiceRequestError("no route"), OUTAGE),
    "a token's issuer that breaks off": (ServiceResponseError("connection reset"), OUTAGE),
}


@pytest.mark.req("F-01", "F-02")
@pytest.mark.parametrize(("inner", "kind"), WRAPPED.values(), ids=WRAPPED)
def test_what_the_sdk_wraps_counts_by_what_is_inside(inner, kind):
    error = told_by_sdk(throw(inner))

    assert "Handler failed" in str(error)
    assert kind_of(error) is kind


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, SETUP), (401, SETUP), (403, SETUP), (408, OUTAGE), (429, OUTAGE), (503, OUTAGE)],
)
@pytest.mark.parametrize("error_class", [HttpResponseError, ClientAuthenticationError])
def test_a_tokens_issuer_is_out_or_says_no(error_class, status, kind):
    response = SimpleNamespace(status_code=status, reason="why", headers={}, request=None)
    response.text = response.body = lambda: ""

    assert kind_of(told_by_sdk(throw(error_class("?", response=response)))) is kind


# What the encoder does not take. The first three go off when a message is sent, inside of the SDK's
# retry loop.
MALFORMED = {
    "a number beyond 32 bits": {"n": 2**31},
    "an object": {"o": object()},
    "half a surrogate": {"s": "\ud800"},
}


@pytest.mark.req("F-02")
@pytest.mark.parametrize("properties", MALFORMED.values(), ids=MALFORMED)
def test_a_message_that_cannot_be_encoded_is_its_own_fault(properties):
    message = ServiceBusMessage("x", application_properties=properties)
    outgoing = PyamqpTransport.to_outgoing_amqp_message(message.raw_amqp_message)
    plain = raised(encode_payload, bytearray(), outgoing)

    assert kind_of(told_by_sdk(plain)) is MESSAGE
    assert kind_of(plain) is MESSAGE


@pytest.mark.req("F-02")
@pytest.mark.parametrize(
    "message",
    [
        "text",
        {"subject": "without a body"},
        ServiceBusMessage("x", application_properties={"b": b"\xff"}),
        AmqpAnnotatedMessage(data_body=b"x", properties={"message_id": 1.5}),
    ],
    ids=["a text", "half a dict", "bytes that are no text", "an id that is no id"],
)
def test_what_is_no_message_is_its_own_fault_too(message):
    batch = ServiceBusMessageBatch()

    assert kind_of(raised(batch.add_message, message)) is MESSAGE


@pytest.mark.parametrize(
    "error", [TypeError("?"), ValueError("?"), OverflowError("?"), struct.error("?")]
)
def test_without_a_traceback_an_encoders_error_is_the_messages(error):
    assert kind_of(told_by_sdk(error)) is MESSAGE


def token_failure(status, description="why"):
    return told_by_sdk(amqp.TokenAuthFailure(status, description))


TOKENS = {
    "a wrong key": (token_failure(401), SETUP),
    "no rights": (token_failure(403), SETUP),
    "no such entity": (token_failure(404), SETUP),
    "a token that cannot be read": (token_failure(400), SETUP),
    "an answer with a condition, as Azure's 401 and 404": (token_failure(None, None), SETUP),
    "put-token was rejected": (token_failure(0, "Auth message has been rejected."), OUTAGE),
    "the service fails": (token_failure(500), OUTAGE),
    "the service is busy": (token_failure(503), OUTAGE),
    "the service is slow": (token_failure(408), OUTAGE),
    "the link for tokens broke": (token_failure(ErrorCondition.ClientError), OUTAGE),
    "the link for tokens did not open": (
        told_by_sdk(amqp.AuthenticationException(condition=ErrorCondition.InternalError)),
        OUTAGE,
    ),
    "a token ran out on an idle link": (
        told_by_sdk(amqp.TokenExpired(condition=ErrorCondition.InternalError)),
        OUTAGE,
    ),
    "a WebSocket's host is not resolved": (
        told_by_sdk(amqp.AuthenticationException(ErrorCondition.ClientError, error=OSError())),
        OUTAGE,
    ),
    "a wrong key behind a gateway": (
        told_by_sdk(amqp.TokenAuthFailure(401, "why"), custom_endpoint_address="sb://gate"),
        SETUP,
    ),
    "a WebSocket's CA file is not there": (
        told_by_sdk(
            amqp.AMQPConnectionError(ErrorCondition.SocketError, error=FileNotFoundError(2, "?"))
        ),
        SETUP,
    ),
}


@pytest.mark.req("F-01", "F-02")
@pytest.mark.parametrize(("error", "kind"), TOKENS.values(), ids=TOKENS)
def test_authentication_fails_for_two_reasons(error, kind):
    assert kind_of(error) is kind


SCHEDULING = {
    "busy": (answered(b"com.microsoft:server-busy", 503), THROTTLED),
    "disabled": (answered(b"com.microsoft:entity-disabled", 403), OUTAGE),
    "full": (answered(b"amqp:resource-limit-exceeded", 403), OUTAGE),
    "failing": (answered(b"amqp:internal-error", 500), OUTAGE),
    "not there": (answered(b"amqp:not-found", 404), SETUP),
    "forbidden": (answered(b"amqp:unauthorized-access", 401), SETUP),
    "a session is missing": (answered(b"amqp:not-allowed", 400), MESSAGE),
    "a time beyond all times": (answered(b"com.microsoft:argument-out-of-range", 400), MESSAGE),
    "too large": (answered(b"amqp:link:message-size-exceeded", 403), MESSAGE),
    "an unnamed mistake": (answered(None, 400), MESSAGE),
    "an unnamed refusal": (answered(None, 401), SETUP),
    "unnamed and gone": (answered(None, 410), SETUP),
    "unnamed throttling": (answered(None, 429), THROTTLED),
    "an unnamed failure": (answered(None, 500), OUTAGE),
}


@pytest.mark.req("F-01", "F-02")
@pytest.mark.parametrize(("error", "kind"), SCHEDULING.values(), ids=SCHEDULING)
def test_scheduling_is_refused_for_the_same_reasons(error, kind):
    assert kind_of(error) is kind


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (ConnectionRefusedError(111, "refused"), True),
        (ConnectionResetError(104, "reset"), True),
        (socket.gaierror(-2, "unknown name"), True),
        (OSError(113, "no route to host"), True),
        (TimeoutError("silent"), False),
        (ssl.SSLError("handshake"), False),
        (None, False),
    ],
    ids=repr,
)
def test_what_says_that_the_whole_namespace_cannot_be_reached(cause, expected):
    inner = amqp.AMQPConnectionError(ErrorCondition.SocketError, error=cause)

    assert is_unreachable(sdk.ServiceBusConnectionError(message="x", error=inner)) is expected
    assert not is_unreachable(sdk.OperationTimeoutError(message="x"))
