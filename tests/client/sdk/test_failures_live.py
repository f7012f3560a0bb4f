"""The same errors as the SDK raises them, blocking and asyncio, when a broker fails."""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.servicebus import ServiceBusMessage, TransportType

from pairbus.broker import Broker, QueueDescription
from pairbus.broker.entities.descriptions import Status
from pairbus.broker.faults import CutAfterAccept, CutInTransfer, Error, Hang, Throttle, Unreachable
from pairbus.client.sdk.failures import Kind, kind_of
from tests.interop.bus import POLICIES
from tests.interop.shells import AsyncioShell, Shell

OUTAGE, THROTTLED, MESSAGE, SETUP, OTHER = Kind

pytestmark = [
    pytest.mark.req("F-01", "F-02"),
    # The blocking SDK forgets to close a socket that its peer has closed first.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


SECONDS = 60.0
"""Against hanging: what is refused is refused at once."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    queues = [
        QueueDescription(name="orders"),
        QueueDescription(name="off", status=Status.DISABLED),
        QueueDescription(name="sessions", requires_session=True),
    ]
    with Broker(queues=queues, topics=["events"], policies=POLICIES) as running:
        yield running
        with warnings.catch_warnings():  # see above: collected here, they disturb no other module
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@contextmanager
def sender_of(shell: Shell, broker: Broker, queue: str = "orders", **edits: str) -> Iterator[Any]:
    text = broker.connection_string
    for name, value in edits.items():
        text = re.sub(f"{name}=[^;]*", f"{name}={value}", text)
    with shell.client(text, retry_total=0) as client:
        yield client.get_queue_sender(queue)


def sent(sender: Any, message: Any = None, *, seconds: float = SECONDS) -> BaseException:
    return _failure(sender.send_messages, message or ServiceBusMessage("x"), timeout=seconds)


def scheduled(sender: Any, message: Any = None, *, seconds: float = SECONDS) -> BaseException:
    later = datetime.now(UTC) + timedelta(hours=1)
    return _failure(
        sender.schedule_messages, message or ServiceBusMessage("x"), later, timeout=seconds
    )


def opened(sender: Any) -> BaseException:
    return _failure(sender.__enter__)


def _failure(call: Any, *arguments: Any, **options: Any) -> BaseException:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - which one it is, is the question
        call(*arguments, **options)
    return raised.value


FAULTS = {
    "the namespace is gone": (Unreachable(), OUTAGE),
    "it hangs": (Hang(), OUTAGE),
    "an internal error": (Error(), OUTAGE),
    "a time-out there": (Error(condition="com.microsoft:timeout"), OUTAGE),
    "the quota": (Error(condition="amqp:resource-limit-exceeded"), OUTAGE),
    "the link is detached": (Unreachable(entity="orders"), OUTAGE),
    "throttling": (Throttle(), THROTTLED),
    "the key is taken back": (Error(condition="amqp:unauthorized-access"), SETUP),
    "the entity is deleted": (Error(condition="amqp:resource-deleted"), SETUP),
    "the message is not understood": (Error(condition="amqp:decode-error"), MESSAGE),
}


@pytest.mark.parametrize(("fault", "kind"), FAULTS.values(), ids=FAULTS)
def test_a_fault_under_an_open_link(shell, broker, fault, kind):
    with sender_of(shell, broker) as sender:
        sender.send_messages(ServiceBusMessage("before"))
        seconds = 1.0 if isinstance(fault, Hang) else SECONDS
        with broker.faults.start(fault):
            errors = sent(sender, seconds=seconds), scheduled(sender, seconds=seconds)

    assert [kind_of(error) for error in errors] == [kind] * 2, repr(errors)


@pytest.mark.parametrize("fault", [CutInTransfer(), CutAfterAccept()])
def test_a_connection_that_breaks_in_a_send(shell, broker, fault):
    with sender_of(shell, broker) as sender, broker.faults.start(fault):
        error = sent(sender)

    assert kind_of(error) is OUTAGE, repr(error)


def test_a_namespace_that_is_gone_before_there_was_a_link(shell, broker):
    with sender_of(shell, broker) as sender, broker.faults.unreachable():
        errors = opened(sender), sent(sender), scheduled(sender)

    assert [kind_of(error) for error in errors] == [OUTAGE] * 3


SETUPS = {
    "a wrong key": {"SharedAccessKey": "d3Jvbmc="},
    "an unknown policy": {"SharedAccessKeyName": "nobody"},
    "a policy that may not send": {
        "SharedAccessKeyName": "listener",
        "SharedAccessKey": "bGlzdGVu",
    },
    "an entity that is not there": {"queue": "nowhere"},
}


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS)
def test_a_client_that_is_configured_wrong(shell, broker, setup):
    with sender_of(shell, broker, **setup) as sender:
        errors = opened(sender), sent(sender), scheduled(sender)

    assert [kind_of(error) for error in errors] == [SETUP] * 3, repr(errors)


def test_an_entity_that_is_disabled(shell, broker):
    with sender_of(shell, broker, "off") as sender:
        assert [kind_of(sent(sender)), kind_of(scheduled(sender))] == [OUTAGE] * 2


MESSAGES = {
    "too large": ServiceBusMessage(b"x" * 300_000),
    "a number beyond 32 bits": ServiceBusMessage("x", application_properties={"n": 2**31}),
    "a property of no AMQP type": ServiceBusMessage("x", application_properties={"o": object()}),
    "bytes that are no text": ServiceBusMessage("x", application_properties={"b": b"\xff"}),
    "no message": "text",
    "a dict without a body": {"subject": "x"},
    "too long a time to live": ServiceBusMessage("x", time_to_live=timedelta(days=60)),
}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_a_message_that_nobody_would_take(shell, broker, message):
    with sender_of(shell, broker) as sender:
        errors = sent(sender, message), scheduled(sender, message)

    assert [kind_of(error) for error in errors] == [MESSAGE] * 2, repr(errors)


def test_a_message_without_the_session_that_it_needs(shell, broker):
    with sender_of(shell, broker, "sessions") as sender:
        errors = sent(sender), scheduled(sender)

    assert [kind_of(error) for error in errors] == [MESSAGE] * 2, repr(errors)


def test_a_closed_sender_is_the_callers_mistake(shell, broker):
    with sender_of(shell, broker) as sender:
        sender.close()

        assert [kind_of(sent(sender)), kind_of(opened(sender))] == [OTHER] * 2


class Credential:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        raise self.error


class AsyncioCredential(Credential):
    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        raise self.error


@pytest.mark.parametrize(
    ("failure", "kind"),
    [(ClientAuthenticationError("refused"), SETUP), (ServiceRequestError("no route"), OUTAGE)],
    ids=["refused", "out of reach"],
)
def test_a_credential_that_fails(shell, broker, failure, kind):
    [endpoint] = broker.namespaces.values()
    credential = (AsyncioCredential if isinstance(shell, AsyncioShell) else Credential)(failure)
    where = f"{endpoint.host}:{endpoint.port}"
    with shell.client_with(where, credential, use_tls=False, retry_total=0) as client:
        error = opened(client.get_queue_sender("orders"))

    assert kind_of(error) is kind, repr(error)


def test_a_certificate_that_is_not_there(shell, broker):
    text = re.sub(";?UseDevelopmentEmulator=true", "", broker.connection_string)
    options = {
        "connection_verify": "/nowhere/ca.pem",
        "custom_endpoint_address": f"sb://localhost:{broker.port}",
        "transport_type": TransportType.Amqp,
        "retry_total": 0,
    }
    with shell.client(text, **options) as client:
        error = opened(client.get_queue_sender("orders"))

    assert kind_of(error) is SETUP, repr(error)
