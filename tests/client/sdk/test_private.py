"""Each private part of the SDK that pairbus uses: it exists, and works as expected, in the SDK of
the lock file."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import azure.servicebus.aio
import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageBatch,
    ServiceBusSender,
    TransportType,
)
from azure.servicebus._pyamqp import constants
from azure.servicebus._pyamqp.error import AMQPLinkError
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
)

from pairbus.broker import Broker
from pairbus.broker.port.certificates import Certificates
from pairbus.client.sdk import private
from tests.client.fakes import PRIMARY, connection_string, plain_client
from tests.client.silent import SilentPeer
from tests.interop.bus import sweeping_up_after_the_sdk

# What is freed is freed at once; what is not would wait for ever.
FREED_SECONDS_MAX = 25.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(queues=["orders"]) as broker:
        yield broker


@pytest.fixture
def opened(broker: Broker) -> Iterator[Any]:
    with (
        ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client,
        client.get_queue_sender("orders") as sender,
    ):
        yield sender


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"), ["localhost"])


@pytest.fixture
def swept() -> Iterator[None]:
    with sweeping_up_after_the_sdk():
        yield


# --- retries


class Failing(ServiceBusSender):
    attempts = 0
    error: type[ServiceBusError] = ServiceBusConnectionError

    def _open(self, timeout: float | None = None) -> None:
        self.attempts += 1
        raise self.error()

    def _handle_exception(self, exception: BaseException) -> Any:
        return exception


class Counted(private.PromptFailures, Failing):  # type: ignore[misc]
    pass


def counted(**settings: Any) -> Counted:
    client = plain_client(retry_backoff_factor=0, **settings)
    return private.adopt(client.get_queue_sender("orders"), Counted)


@pytest.mark.parametrize("retries", [0, 2])
def test_the_sdk_tries_as_often_as_its_sender_says(retries: int) -> None:
    sender, another = counted(retry_total=3), counted(retry_total=3)

    private.set_retries(sender, retries)

    for each, expected in ((sender, retries), (another, 3)):
        with pytest.raises(ServiceBusConnectionError):
            each.send_messages(ServiceBusMessage("a"))
        assert each.attempts == 1 + expected


def test_a_clients_retries_can_be_asked_for() -> None:
    assert private.retries_of(plain_client(retry_total=7)) == 7
    assert private.retries_of(plain_client()) == 3


# --- open or not


def test_a_sender_knows_whether_its_link_is_open(opened: Any) -> None:
    # Where a later SDK has these under other names, the answer would be "attached" too often.
    assert opened._handler._link.state.name == "ATTACHED"
    assert opened._handler._connection.state.name == "OPENED"

    assert private.is_running(opened)
    assert private.is_attached(opened)

    opened.close()
    assert not private.is_running(opened)
    assert not private.is_attached(opened)


@pytest.mark.parametrize("state", [constants.LinkState.DETACHED, constants.LinkState.ERROR])
def test_a_link_that_the_service_detached_is_not_attached(opened: Any, state: Any) -> None:
    opened._handler._link.state = state

    assert private.is_running(opened)
    assert not private.is_attached(opened)


@pytest.mark.parametrize(
    "state", [constants.ConnectionState.CLOSE_RCVD, constants.ConnectionState.END]
)
def test_a_link_of_a_connection_that_ended_is_not_attached(opened: Any, state: Any) -> None:
    connection = opened._handler._connection
    really, connection.state = connection.state, state

    assert not private.is_attached(opened)
    connection.state = really  # or nobody would close its socket


def test_a_sender_that_never_opened_is_not_open() -> None:
    sender = plain_client().get_queue_sender("orders")

    assert not private.is_running(sender)
    assert not private.is_attached(sender)


def test_a_link_can_be_opened_without_sending_anything(broker: Broker) -> None:
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        sender = client.get_queue_sender("orders")
        private.open_link(sender, 10.0)

        assert private.is_attached(sender)
        sender.close()
        assert not private.is_attached(sender)


# --- ending a read that is stuck


class Stuck:
    """A thread that opens a sender, and the outcome."""

    def __init__(self, sender: Any) -> None:
        self.error: BaseException | None = None
        self._sender = sender
        self._thread = threading.Thread(target=self._open, daemon=True)
        self._thread.start()

    def _open(self) -> None:
        try:
            self._sender.__enter__()
        except Exception as error:
            self.error = error

    def is_stuck(self, seconds: float = 0.0) -> bool:
        self._thread.join(seconds)
        return self._thread.is_alive()


def free(stuck: Stuck, sender: Any) -> None:
    """Like the background worker: again if necessary."""
    deadline = time.monotonic() + FREED_SECONDS_MAX
    while stuck.is_stuck(0.05):
        assert time.monotonic() < deadline, "it cannot be freed"
        private.cut(sender)


@pytest.mark.usefixtures("swept")
@pytest.mark.parametrize("through", ["TLS", "a WebSocket"])
def test_cutting_frees_a_thread_that_reads_through(
    certificates: Certificates, through: str
) -> None:
    """Without both, it is freed in `shells/test_background.py`."""
    now = time.time()
    tls = certificates.context(now=now) if through == "TLS" else None
    with SilentPeer(tls=tls, websocket=through == "a WebSocket") as peer:
        if tls is None:
            text, transport = peer.connection_string(), TransportType.AmqpOverWebsocket
        else:
            text, transport = connection_string("localhost"), TransportType.Amqp
        client = plain_client(
            text,
            custom_endpoint_address=peer.address,
            transport_type=transport,
            connection_verify=str(certificates.ca_file(now=now)),
            retry_total=0,
        )
        sender = bounded(client, 60.0)
        stuck = Stuck(sender)
        assert peer.has_taken.wait(FREED_SECONDS_MAX)
        assert stuck.is_stuck(0.3)

        free(stuck, sender)

        assert isinstance(stuck.error, ServiceBusError)
        client.close()


@pytest.mark.usefixtures("swept")
def test_an_open_sender_that_is_cut_fails_its_next_send(opened: Any) -> None:
    private.cut(opened)

    with pytest.raises(ServiceBusConnectionError):
        opened.send_messages(ServiceBusMessage("a"))

    private.cut(opened)


def test_aborting_frees_a_task_that_reads_from_a_silent_peer() -> None:
    async def run(peer: SilentPeer) -> None:
        client = azure.servicebus.aio.ServiceBusClient.from_connection_string(
            peer.connection_string(), retry_total=0
        )
        sender = client.get_queue_sender("orders")
        private.abort(sender)  # which has nothing to abort yet
        opening = asyncio.create_task(sender.__aenter__())
        while private.writer_of(sender) is None:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert not opening.done()

        private.abort(sender)

        with pytest.raises(ServiceBusError):
            await asyncio.wait_for(opening, FREED_SECONDS_MAX)
        await client.close()

    with SilentPeer() as peer:
        asyncio.run(run(peer))


def test_closing_a_writer_does_not_wait_for_a_silent_peer(certificates: Certificates) -> None:
    now = time.time()
    trusting = ssl.create_default_context(cafile=str(certificates.ca_file(now=now)))

    async def run(peer: SilentPeer) -> float:
        _, writer = await asyncio.open_connection("localhost", peer.port, ssl=trusting)
        began = time.monotonic()
        await private.close_writer(writer)
        await private.close_writer(writer)
        await private.close_writer(None)
        return time.monotonic() - began

    with SilentPeer(tls=certificates.context(now=now)) as peer:
        # asyncio itself would wait for the peer's farewell for half a minute.
        assert asyncio.run(run(peer)) < FREED_SECONDS_MAX


def test_a_socket_that_is_closed_or_missing_can_be_closed_again(opened: Any) -> None:
    sock = private.socket_of(opened)
    assert sock is not None

    private.close_socket(sock)
    private.close_socket(sock)
    private.close_socket(None)

    assert sock.fileno() == -1


# --- TLS


class Bounded(private.PromptFailures, ServiceBusSender):  # type: ignore[misc]
    seconds: float | None = 33.0

    @property
    def handshake_seconds(self) -> float | None:
        return self.seconds


def bounded(client: ServiceBusClient, seconds: float | None) -> Bounded:
    sender = private.adopt(client.get_queue_sender("orders"), Bounded)
    sender.seconds = seconds
    return sender


def tls_client(peer: SilentPeer, ca_file: Path, **settings: Any) -> ServiceBusClient:
    return plain_client(
        connection_string("localhost"),
        custom_endpoint_address=peer.address,
        connection_verify=str(ca_file),
        retry_total=0,
        **settings,
    )


@pytest.mark.parametrize(
    "transport", [TransportType.Amqp, TransportType.AmqpOverWebsocket], ids=["tcp", "websocket"]
)
def test_after_the_handshake_the_socket_has_the_time_out_that_the_sdk_gives_it(
    broker: Broker, transport: TransportType
) -> None:
    text = broker.connection_string.replace(";UseDevelopmentEmulator=true", "")
    settings: dict[str, Any] = {
        "custom_endpoint_address": f"sb://localhost:{broker.port}",
        "transport_type": transport,
        "connection_verify": str(broker.ca_file),
    }

    def time_out(seconds: float | None) -> Any:
        with (
            ServiceBusClient.from_connection_string(text, **settings) as client,
            bounded(client, seconds) as sender,
        ):
            sender.send_messages(ServiceBusMessage("a"))
            sock = private.socket_of(sender)
            return getattr(sock, "sock", sock).gettimeout()

    assert time_out(33.0) == time_out(None)


@pytest.mark.usefixtures("swept")
def test_a_peer_is_trusted_as_by_the_sdk(certificates: Certificates, broker: Broker) -> None:
    now = time.time()
    with SilentPeer(tls=certificates.context(now=now)) as peer:
        # The authority of another: it did not sign the peer's certificate.
        client = tls_client(peer, broker.ca_file, transport_type=TransportType.Amqp)

        with pytest.raises(ServiceBusError, match="CERTIFICATE_VERIFY_FAILED"):
            bounded(client, 10.0).__enter__()
        client.close()


def tls_options(client: ServiceBusClient) -> dict[str, Any]:
    """What the SDK is about to open a connection with."""
    sender = bounded(client, 5.0)
    sender._create_handler(None)  # type: ignore[arg-type]
    options: dict[str, Any] = sender._handler._ssl_opts  # type: ignore[union-attr]
    return options


def test_a_handshake_checks_names_and_certificates_of_the_default_authorities() -> None:
    context = tls_options(plain_client())["context"]

    assert context.seconds == 5.0
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.cert_store_stats()["x509_ca"] > 0


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(
            {"ssl_context": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)},
            id="the application has its own",
        ),
        pytest.param({"connection_verify": "/nowhere/ca.pem"}, id="the SDK reports a missing file"),
    ],
)
def test_the_sdks_own_tls_is_left_alone_if(settings: dict[str, Any]) -> None:
    options = tls_options(plain_client(**settings))

    assert not isinstance(options.get("context"), private.BoundedTls)


class Prompt(private.AsyncPromptFailures, azure.servicebus.aio.ServiceBusSender):  # type: ignore[misc]
    pass


def asyncio_tls_options(**settings: Any) -> dict[str, Any]:
    client = azure.servicebus.aio.ServiceBusClient.from_connection_string(PRIMARY, **settings)
    sender = private.adopt(client.get_queue_sender("orders"), Prompt)
    sender._create_handler(None)
    options: dict[str, Any] = sender._handler._ssl_opts
    return options


def test_an_application_has_its_own_tls_context_in_asyncio() -> None:
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    assert asyncio_tls_options(ssl_context=own) == {"context": own}


def test_a_file_of_authorities_that_is_replaced_is_read_again(
    certificates: Certificates, broker: Broker, tmp_path: Path
) -> None:
    path = tmp_path / "ca.pem"
    path.write_bytes(broker.ca_file.read_bytes())
    old = asyncio_tls_options(connection_verify=str(path))["context"]
    path.write_bytes(certificates.ca_file(now=time.time()).read_bytes())
    os.utime(path, ns=(0, 0))

    new = asyncio_tls_options(connection_verify=str(path))["context"]

    assert new.get_ca_certs() != old.get_ca_certs()


# --- sizes


def test_an_open_link_tells_its_limits(opened: Any) -> None:
    message, batch = private.link_limits(opened)

    assert private.knows_limits(opened)
    assert (message, batch) == (
        opened._max_message_size_on_link,
        opened._max_batch_size_on_link,
    )
    assert message == 262_144


def test_a_link_that_is_not_open_is_taken_for_one_of_the_standard_tier() -> None:
    sender = plain_client().get_queue_sender("orders")

    assert not private.knows_limits(sender)
    assert private.link_limits(sender) == (262_144, 262_144)


@pytest.mark.parametrize(("body", "more"), [(b"", {}), (b"x" * 5_000, {"subject": "y" * 100})])
def test_a_message_is_measured_as_it_goes_over_the_wire(body: bytes, more: dict[str, Any]) -> None:
    sender = plain_client().get_queue_sender("orders")
    message = ServiceBusMessage(body, message_id="1", **more)

    size = private.encoded_size(sender, message.raw_amqp_message)

    # In a batch it has the same bytes, in a section of their own.
    batch = ServiceBusMessageBatch(100_000)
    empty = batch.size_in_bytes
    batch.add_message(message)
    assert 5 <= batch.size_in_bytes - empty - size <= 9


# --- names


def test_a_clients_entity_can_be_asked_for() -> None:
    bound = plain_client(f"{PRIMARY};EntityPath=orders")

    assert private.entity_of(bound) == "orders"
    assert private.entity_of(plain_client()) is None


def test_how_a_client_gets_in_can_be_asked_for() -> None:
    client = plain_client(PRIMARY, connection_verify="/tmp/ca.pem")
    local = plain_client(connection_string("localhost:5672", "UseDevelopmentEmulator=true"))

    assert private.credential_of(client).get_token("sb://contoso").token
    assert private.uses_tls(client)
    assert not private.uses_tls(local)
    assert private.ca_file_of(client) == "/tmp/ca.pem"
    assert private.ca_file_of(local) is None


def test_clients_of_one_host_behind_two_endpoints_are_two() -> None:
    one = plain_client(PRIMARY, custom_endpoint_address="sb://localhost:1")
    another = plain_client(PRIMARY, custom_endpoint_address="sb://localhost:2")

    assert private.address_of(one) != private.address_of(another)
    assert private.address_of(one) == private.address_of(
        plain_client(PRIMARY, custom_endpoint_address="SB://LOCALHOST:1")
    )


def test_a_client_with_its_own_handlers_makes_senders_that_the_other_does_not_know_of() -> None:
    client = plain_client(retry_total=7)
    own = private.with_own_handlers(client)

    closed: list[Any] = []
    sender: Any = own.get_queue_sender("orders")
    sender.close = lambda: closed.append(sender)
    client.close()

    assert closed == []
    assert private.retries_of(own) == 7


# --- what the service said


def test_what_the_service_called_an_error_is_known(opened: Any) -> None:
    with pytest.raises(MessageSizeExceededError) as caught:
        opened.send_messages(ServiceBusMessage("x" * 300_000))

    assert private.condition_of(caught.value) == "amqp:link:message-size-exceeded"
    assert private.condition_of(OperationTimeoutError(message="late")) is None


def test_why_a_link_was_detached_is_reported_in_place_of_an_unknown_error() -> None:
    cause = AMQPLinkError(condition=b"amqp:link:message-size-exceeded", description="too large")
    unknown = AMQPLinkError(condition=b"amqp:unknown-error", description="no idea")
    other = AMQPLinkError(condition=b"amqp:internal-error", description="oops")
    sender = SimpleNamespace(_handler=SimpleNamespace(_link=SimpleNamespace(_error=cause)))

    assert private.detach_error(sender, unknown) is cause
    assert private.detach_error(sender, other) is other
    assert private.detach_error(SimpleNamespace(_handler=None), unknown) is unknown
    sender._handler._link._error = None
    assert private.detach_error(sender, unknown) is unknown


@pytest.mark.parametrize("emulator", ["", "UseDevelopmentEmulator=true"])
def test_the_connections_of_asyncio_read_the_certificates_once(emulator: str) -> None:
    client = azure.servicebus.aio.ServiceBusClient.from_connection_string(
        connection_string("localhost:5672", emulator)
    )
    senders = [private.adopt(client.get_queue_sender("orders"), Prompt) for _ in range(2)]
    for sender in senders:
        sender._create_handler(None)  # type: ignore[arg-type]

    one, two = (sender._handler._ssl_opts["context"] for sender in senders)  # type: ignore[union-attr]
    assert one is two
    assert one.verify_mode is ssl.CERT_REQUIRED
    assert one.check_hostname
    assert one.cert_store_stats()["x509_ca"] > 0
