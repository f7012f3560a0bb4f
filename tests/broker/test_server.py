"""Starting and stopping namespaces together; what cannot start leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
from importlib import import_module
from pathlib import Path
from unittest import mock

import pytest
from websockets.client import ClientProtocol
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from pairbus.broker import Broker
from pairbus.broker.entities.namespace_options import Limits, NamespaceOptions
from pairbus.broker.entities.policies import DEFAULT_KEY, Policy, Right
from pairbus.broker.namespace import Namespace
from pairbus.broker.server import Endpoint, Server
from pairbus.errors import BrokerError, ConfigError, DataFileError, StartError
from tests.broker.listening import in_a_loop, is_open

OWN = Policy(name="own", key="a key of our own", rights=frozenset(Right))
LISTEN = Policy(name="listen", key="l", rights=frozenset({Right.LISTEN}))


def endpoint(*policies: Policy, host: str = "localhost", is_tls_only: bool = False) -> Endpoint:
    return Endpoint(
        name="n",
        host=host,
        port=5673,
        policies=policies,
        is_tls_only=is_tls_only,
        faults=mock.sentinel.faults,
        meter=mock.sentinel.meter,
    )


def test_a_connection_string_is_what_the_sdks_expect_of_an_emulator() -> None:
    assert endpoint(OWN).connection_string == (
        "Endpoint=sb://localhost:5673;SharedAccessKeyName=own;SharedAccessKey=a key of our own;"
        "UseDevelopmentEmulator=true"
    )


def test_with_tls_only_it_does_not_speak_of_an_emulator() -> None:
    text = endpoint(OWN, host="[2001:db8::1]", is_tls_only=True).connection_string

    assert text.startswith("Endpoint=sb://[2001:db8::1]:5673;")
    assert "Emulator" not in text


def test_a_connection_string_prefers_a_policy_that_may_manage() -> None:
    both = endpoint(LISTEN, OWN)

    assert "SharedAccessKeyName=own;" in both.connection_string
    assert "SharedAccessKeyName=listen;" in both.connection_string_for("listen")
    assert "SharedAccessKeyName=listen;" in endpoint(LISTEN).connection_string
    with pytest.raises(ConfigError, match="no policy 'other'; its policies are: listen, own"):
        both.connection_string_for("other")


@in_a_loop
async def test_every_namespace_has_its_port(tmp_path: Path) -> None:
    server = Server([NamespaceOptions(name=n, data=tmp_path) for n in ("east", "west")])
    assert dict(server.endpoints) == {}
    await server.start()
    ports = [each.port for each in server.endpoints.values()]
    assert list(server.endpoints) == ["east", "west"]
    assert len(set(ports)) == 2
    assert all(map(is_open, ports))
    assert server.ca_file() == tmp_path / "certificates" / "ca.pem"

    await server.stop()

    assert not any(map(is_open, ports))
    assert dict(server.endpoints) == {}


@in_a_loop
async def test_if_one_namespace_cannot_start_none_does(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = Server(
            [
                NamespaceOptions(name="good", data=tmp_path),
                NamespaceOptions(name="bad", port=port, data=tmp_path),
            ]
        )
        with pytest.raises(StartError, match=f"namespace 'bad': port {port} is already in use"):
            await server.start()
    # The data file of the good one is free again.
    again = Server([NamespaceOptions(name="good", data=tmp_path)])
    await again.start()
    await again.stop()


@in_a_loop
async def test_two_brokers_do_not_share_a_data_file(tmp_path: Path) -> None:
    first = Server([NamespaceOptions(data=tmp_path)])
    await first.start()
    with pytest.raises(BrokerError, match=r"local\.db"):
        await Server([NamespaceOptions(data=tmp_path)]).start()
    await first.stop()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_others_get_in_only_with_a_key_of_our_own(host: str) -> None:
    weak = Policy(name="weak", key=DEFAULT_KEY, rights=frozenset({Right.SEND}))

    with pytest.raises(ConfigError, match=r"policy 'weak' has the well-known key.*own"):
        Server([NamespaceOptions(policies=[OWN, weak])], host=host)


def test_others_get_in_only_with_tls() -> None:
    with pytest.raises(ConfigError, match="in the clear"):
        Server([NamespaceOptions(policies=[OWN])], host="0.0.0.0", tls_only=False)


@pytest.mark.parametrize(
    ("host", "tls_only", "expected"),
    [("0.0.0.0", None, True), ("localhost", None, False), ("localhost", True, True)],
)
@in_a_loop
async def test_tls_is_required_where_others_get_in_and_where_it_is_asked_for(
    host: str, tls_only: bool | None, expected: bool
) -> None:
    server = Server([NamespaceOptions(policies=[OWN])], host=host, tls_only=tls_only)
    await server.start()
    (started,) = server.endpoints.values()
    await server.stop()
    assert started.is_tls_only is expected


@pytest.mark.parametrize(
    ("namespaces", "reason"),
    [
        ([], "at least one namespace"),
        (
            [NamespaceOptions(name="a"), NamespaceOptions(name="A")],
            "namespace 'A' is defined twice",
        ),
    ],
)
def test_impossible_sets_of_namespaces_are_refused(
    namespaces: list[NamespaceOptions], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        Server(namespaces)


# --- AMQP itself, by hand: an open, and the close that a stopping broker sends

OPEN = bytes.fromhex("0000001102000000005310c00401a10163")
HEADER = b"AMQP\x00\x01\x00\x00"


class Client:
    """Bytes of AMQP over TCP, TLS or a WebSocket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.wire: ClientProtocol | None = None

    async def upgrade(self) -> None:
        self.wire = ClientProtocol(
            parse_uri("ws://localhost/$servicebus/websocket"),
            subprotocols=[Subprotocol("AMQPWSB10")],
        )
        self.wire.send_request(self.wire.connect())
        self._send(b"")
        self.wire.receive_data(await self.reader.readuntil(b"\r\n\r\n"))
        assert self.wire.events_received()[0].status_code == 101  # type: ignore[union-attr]

    def _send(self, data: bytes) -> None:
        if self.wire is None:
            self.writer.write(data)
        else:
            if data:
                self.wire.send_binary(data)
            self.writer.writelines(self.wire.data_to_send())

    async def until(self, wanted: bytes, *, sending: bytes = b"") -> bytes:
        """Everything up to the wanted bytes, or to the end of the connection."""
        self._send(sending)
        collected = b""
        while wanted not in collected:  # or the connection ends
            data = await self.reader.read(10_000)
            if not data:
                break
            collected += data
        return collected


async def connected(server: Server, way: str) -> Client:
    (place,) = server.endpoints.values()
    context = None
    if way == "TLS":
        context = ssl.create_default_context(cafile=str(server.ca_file()))
    client = Client(*await asyncio.open_connection("localhost", place.port, ssl=context))
    if way == "WebSocket":
        await client.upgrade()
    return client


@pytest.mark.parametrize("way", ["TCP", "TLS", "WebSocket"])
@in_a_loop
async def test_a_stopping_broker_closes_amqp_connections_with_a_reason(way: str) -> None:
    server = Server([NamespaceOptions()])
    await server.start()
    client = await connected(server, way)
    answer = await client.until(b"\x00\x53\x10", sending=HEADER + OPEN)
    assert HEADER in answer

    stopping = asyncio.create_task(server.stop())
    goodbye = await client.until(b"no such bytes")
    client.writer.close()
    await stopping

    assert b"\x00\x53\x18" in goodbye
    assert b"amqp:connection:forced" in goodbye


async def opened(server: Server) -> Client:
    """As soon as the broker accepts one more."""
    while True:
        client = await connected(server, "TCP")
        with contextlib.suppress(ConnectionError):
            if HEADER in await client.until(b"\x00\x53\x10", sending=HEADER + OPEN):
                return client
        client.writer.close()
        await asyncio.sleep(0.01)


@in_a_loop
async def test_an_open_that_is_never_finished_ends_the_connection() -> None:
    cases = list(
        itertools.product(("TCP", "TLS", "WebSocket"), (HEADER[:5], HEADER, HEADER + OPEN[:12]))
    )

    import_module("pairbus.broker.port.web")  # else the first request spends its time on it
    limits = Limits(handshake_seconds=2, unauthenticated_max=len(cases))
    server = Server([NamespaceOptions(limits=limits)])
    await server.start()

    async def stall(way: str, said: bytes) -> None:
        client = await connected(server, way)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await client.until(b"no such bytes", sending=said)
        client.writer.close()

    await asyncio.gather(*(stall(*case) for case in cases))
    for client in [await opened(server) for _ in cases]:  # each slot is free again
        client.writer.close()
    await server.stop()


@in_a_loop
async def test_a_peer_that_lingers_does_not_hold_up_the_stop() -> None:
    server = Server([NamespaceOptions()])
    await server.start()
    client = await connected(server, "WebSocket")
    await client.until(b"\x00\x53\x10", sending=HEADER + OPEN)

    started = asyncio.get_running_loop().time()
    await server.stop(patience_seconds=0.2)

    assert asyncio.get_running_loop().time() - started < 30
    client.writer.close()


@in_a_loop
async def test_a_namespace_that_fails_to_close_does_not_keep_the_others_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = Namespace.close

    async def close_all_but_b(namespace: Namespace) -> None:
        await close(namespace)
        if namespace.name == "b":
            raise DataFileError("b.db: the disk is full")

    server = Server([NamespaceOptions(name=name, data=tmp_path) for name in ("a", "b")])
    await server.start()
    with monkeypatch.context() as patch:
        patch.setattr(Namespace, "close", close_all_but_b)
        with pytest.raises(DataFileError, match="disk is full"):
            await server.stop()

    again = Server([NamespaceOptions(name=name, data=tmp_path) for name in ("a", "b")])
    await again.start()
    await again.stop()


def test_a_network_of_containers_needs_one_explicit_word_and_gets_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> Endpoint:
        server = Server([NamespaceOptions()], host="0.0.0.0", allow_insecure=True)
        await server.start()
        (started,) = server.endpoints.values()
        await server.stop()
        return started

    with pytest.raises(ConfigError, match="--allow-insecure"):
        Server([NamespaceOptions()], host="0.0.0.0")
    assert not caplog.records

    started = asyncio.run(run())

    assert started.connection_string.endswith(";UseDevelopmentEmulator=true")
    assert "anyone who reaches it can read and change all messages" in caplog.text


def test_on_loopback_the_word_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    Server([NamespaceOptions()], allow_insecure=True)
    assert not caplog.records


def _asked(port: int, *lines: str) -> str:
    """The status line of the answer to a request with these lines."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode())
        return client.makefile("rb").readline().decode().strip()


WEB_SOCKET = (
    "GET /$servicebus/websocket HTTP/1.1",
    "Upgrade: websocket",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Protocol: AMQPWSB10",
)


def test_a_page_of_another_site_reaches_neither_http_nor_a_websocket() -> None:
    with Broker() as broker:
        port = broker.port
        ours = f"Host: localhost:{port}"
        for route in ("/$health", "/health", "/$faults", "/$metrics", "/$meter", "/orders"):
            line = _asked(port, f"GET {route} HTTP/1.1", f"Host: rebound.example:{port}")
            assert line.startswith("HTTP/1.1 421"), route
        for host in (ours, "Host: 127.0.0.1", f"Host: [::1]:{port}", "Host: a.localhost"):
            assert _asked(port, "GET /$health HTTP/1.1", host) == "HTTP/1.1 200 OK"

        upgrade = [*WEB_SOCKET[:1], "Connection: Upgrade", *WEB_SOCKET[1:]]
        for lines, status in (
            ([ours], 101),
            ([ours, f"Origin: http://localhost:{port}"], 101),
            ([ours, "Origin: https://page.example"], 403),
            ([ours, "Origin: null"], 403),
            (["Host: rebound.example", "Origin: http://rebound.example"], 403),
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
                client.sendall("\r\n".join([*upgrade, *lines, "", ""]).encode())
                assert client.makefile("rb").readline().split()[1] == b"%d" % status, lines


def test_in_a_network_of_containers_every_name_is_ours() -> None:
    with Broker(host="0.0.0.0", allow_insecure=True) as broker:
        line = _asked(broker.port, "GET /$health HTTP/1.1", "Host: servicebus:5300")
    assert line == "HTTP/1.1 200 OK"
