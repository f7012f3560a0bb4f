"""A port with real sockets on loopback, and an echo where AMQP would be."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import logging
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from pairbus.broker.connection_limit import Slot
from pairbus.broker.entities.namespace_options import Limits, NamespaceOptions
from pairbus.broker.namespace import Namespace
from pairbus.broker.port.certificates import Certificates
from pairbus.broker.port.listener import Listener
from pairbus.broker.port.sockets import listen, look_up
from tests.broker.listening import in_a_loop

HELLO = b"AMQP\x00\x01\x00\x00"
HEALTH = b"GET /$health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
GOODBYE = b"goodbye"


class Echo(asyncio.Protocol):
    """Stands in for an AMQP connection."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.transport: asyncio.Transport
        self.received = 0
        self.pauses = 0
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.slot.occupy(self, transport)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        self.transport.write(data)

    def pause_writing(self) -> None:
        self.pauses += 1
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.slot.free()

    @property
    def is_encrypted(self) -> bool:
        return self.transport.get_extra_info("ssl_object") is not None

    def shutdown(self) -> None:
        self.transport.write(GOODBYE)
        self.transport.close()


class Port:
    """A running listener and the connections it opened."""

    def __init__(self, listener: Listener, port: int, certificates: Certificates) -> None:
        self.listener = listener
        self.port = port
        self.certificates = certificates
        self.made: list[Echo] = []

    async def connect(self, *, tls: bool = False, host: str = "127.0.0.1") -> Peer:
        context = None
        if tls:
            ca_file = self.certificates.ca_file(now=time.time())
            context = ssl.create_default_context(cafile=str(ca_file))
        name = "localhost" if tls else None
        return Peer(
            *await asyncio.open_connection(host, self.port, ssl=context, server_hostname=name)
        )

    async def emptied(self) -> None:
        async with asyncio.timeout(60):
            while len(self.listener.connections):
                await asyncio.sleep(0.01)


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, data: bytes, size: int | None = None) -> bytes:
        self.writer.write(data)
        return await self.read(len(data) if size is None else size)

    async def read(self, size: int = -1) -> bytes:
        """This number of bytes, or everything until the connection ends."""
        async with asyncio.timeout(60):
            if size >= 0:
                return await self.reader.readexactly(size)
            return await self.reader.read()

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError, ssl.SSLError):
            await self.writer.wait_closed()


@asynccontextmanager
async def opened(
    folder: Path,
    *,
    limits: Limits | None = None,
    is_tls_only: bool = False,
    host: str = "localhost",
    wrap: Callable[[socket.socket], Any] = lambda listening: listening,
) -> AsyncIterator[Port]:
    """`wrap` may put something between the listener and its sockets."""
    limits = limits or Limits()
    sockets = listen(look_up(host), 0, namespace="n")
    certificates = Certificates(folder / "certificates", ["localhost", "127.0.0.1"])
    # Never opened: nobody gets as far as its entities.
    namespace = Namespace(
        NamespaceOptions(name="n"), loop=asyncio.get_running_loop(), clock=time.time
    )

    class EchoListener(Listener):
        def open_amqp(self, slot: Slot) -> Any:
            port.made.append(Echo(slot))
            return port.made[-1]

    listener = EchoListener(
        [wrap(each) for each in sockets],
        namespace=namespace,
        certificates=certificates,
        limits=limits,
        is_tls_only=is_tls_only,
        clock=time.time,
    )
    port = Port(listener, sockets[0].getsockname()[1], certificates)
    listener.start()
    try:
        yield port
    finally:
        await listener.stop(patience_seconds=2)
        assert len(listener.connections) == 0


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@in_a_loop
async def test_amqp_is_recognised_by_its_first_bytes(tmp_path: Path, tls: bool, host: str) -> None:
    if host == "::1" and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    async with opened(tmp_path) as port:
        peer = await port.connect(tls=tls, host=host)
        assert await peer.ask(HELLO) == HELLO
        assert await peer.ask(b"x" * 300_000) == b"x" * 300_000
        assert port.made[0].is_encrypted is tls
        raw = port.made[0].transport.get_extra_info("socket")
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await peer.close()
        await port.emptied()
        assert port.made[0].is_lost


@in_a_loop
async def test_one_letter_at_a_time_is_still_amqp(tmp_path: Path) -> None:
    async with opened(tmp_path) as port:
        peer = await port.connect()
        for letter in HELLO:
            assert await peer.ask(bytes([letter])) == bytes([letter])
        await peer.close()


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
@in_a_loop
async def test_everything_else_is_http(tmp_path: Path, tls: bool) -> None:
    async with opened(tmp_path) as port:
        peers = [await port.connect(tls=tls) for _ in range(3)]
        for peer in peers:
            peer.writer.write(HEALTH)
        for peer in peers:
            head, _, body = (await peer.read()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert body == b'{"status":"ok","namespace":"n"}'
            await peer.close()


@in_a_loop
async def test_garbage_gets_an_http_error_and_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as port:
        for garbage in (b"\x00\x01\x02\x03", b"AMQQ....\r\n\r\n", os.urandom(4) + b"\xff" * 99):
            if garbage[0] == 0x16:
                continue
            peer = await port.connect()
            peer.writer.write(garbage)
            assert (await peer.read()).startswith(b"HTTP/1.1 400")
            await peer.close()
        await port.emptied()
        assert caplog.messages == []  # a flood of it must not fill the log


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(b"", id="silence"),
        pytest.param(b"\x16", id="the first byte of TLS"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="a part of a hello"),
        pytest.param(b"GET /$health HT", id="a part of a request"),
        pytest.param(b"PUT /q HTTP/1.1\r\ncontent-length: 9\r\n\r\n1", id="a part of a body"),
    ],
)
@in_a_loop
async def test_a_peer_that_stalls_in_the_handshake_loses_its_socket(
    tmp_path: Path, start: bytes
) -> None:
    async with opened(tmp_path, limits=Limits(handshake_seconds=0.2)) as port:
        peers = [await port.connect() for _ in range(3)]
        for peer in peers:
            peer.writer.write(start)
        for peer in peers:
            try:
                left = await peer.read()
            except ConnectionResetError:
                left = b""
            # uvicorn answers before it has the whole body, and then waits for the rest of it
            assert left == b"" or left.startswith(b"HTTP/1.1 401")
            await peer.close()
        await port.emptied()
        assert not port.made


@in_a_loop
async def test_silence_inside_tls_is_cut_off_too(tmp_path: Path) -> None:
    async with opened(tmp_path, limits=Limits(handshake_seconds=2)) as port:
        await port.listener.tls_context()  # making keys takes a part of that time
        peer = await port.connect(tls=True)
        with suppress(ConnectionError, ssl.SSLError):
            assert await peer.read() == b""
        await peer.close()
        await port.emptied()


@in_a_loop
async def test_a_request_whose_head_never_ends_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as port:
        peer = await port.connect()
        peer.writer.write(b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000)
        assert (await peer.read()).startswith(b"HTTP/1.1 400")
        await peer.close()
        await port.emptied()


@in_a_loop
async def test_a_request_with_a_long_address_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as port:
        peer = await port.connect()
        peer.writer.write(b"GET /q?" + b"a&" * 5_000 + HEALTH[len(b"GET /$health") :])
        assert (await peer.read()).startswith(b"HTTP/1.1 400")
        await peer.close()
        await port.emptied()


@in_a_loop
async def test_thousands_of_requests_in_one_packet_are_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as port:
        few = await port.connect()
        keep = HEALTH.replace(b"Connection: close\r\n", b"")
        few.writer.write(keep * 10 + HEALTH)
        assert (await few.read()).count(b"HTTP/1.1 200 OK") == 11
        many = await port.connect()
        many.writer.write(keep * 5000)
        answer = b""
        with contextlib.suppress(ConnectionResetError):  # what it did not read may cause this
            answer = await many.read()
        assert answer.count(b"HTTP/1.1 200 OK") < 100
        for peer in (few, many):
            await peer.close()
        await port.emptied()


@in_a_loop
async def test_one_connection_too_many_takes_the_place_of_the_oldest_stranger(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="pairbus.broker")
    limits = Limits(connections_max=2, unauthenticated_max=2)
    async with opened(tmp_path, limits=limits) as port:
        zeroth, first = await port.connect(), await port.connect()
        assert await zeroth.ask(HELLO) == await first.ask(HELLO) == HELLO

        second = await port.connect()
        assert await second.ask(HELLO) == HELLO
        with contextlib.suppress(ConnectionResetError):
            assert await zeroth.read() == b""
        await zeroth.close()
        assert len(port.listener.connections) == 2
        [line] = caplog.messages
        assert line.startswith("namespace n refused 127.0.0.1:")
        assert line.endswith(": it had shown no valid token, and a new connection took its place")

        for slot in port.listener.connections:
            assert slot.authenticated()
        strangers = [await port.connect() for _ in range(3)]
        assert await first.ask(b"still here") == b"still here"
        health = await port.connect()
        assert (await health.ask(HEALTH, 15)) == b"HTTP/1.1 200 OK"
        for peer in (first, second, health, *strangers):
            await peer.close()


@pytest.mark.parametrize(
    ("first", "answer"),
    [(HELLO, b"AMQP\x02\x01\x00\x00"), (HEALTH, b"HTTP/1.1 403 Forbidden\r\n")],
    ids=["amqp", "http"],
)
@in_a_loop
async def test_tls_only_means_tls_only(
    tmp_path: Path, first: bytes, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="pairbus.broker")
    async with opened(tmp_path, is_tls_only=True) as port:
        plain = await port.connect()
        plain.writer.write(first)
        said = await plain.read()
        assert said.startswith(answer)
        head, _, body = said.partition(b"\r\n\r\n")
        assert not body or f"Content-Length: {len(body)}\r\n".encode() in head
        await plain.close()
        assert not port.made
        [line] = caplog.messages
        assert line.startswith("namespace n refused 127.0.0.1:")
        assert line.endswith(": this broker accepts only TLS")

        encrypted = await port.connect(tls=True)
        encrypted.writer.write(first)
        assert await encrypted.read(4) == first[:4].replace(b"GET ", b"HTTP")
        await encrypted.close()


@in_a_loop
async def test_a_failed_tls_handshake_affects_no_other_connection(tmp_path: Path) -> None:
    async with opened(tmp_path) as port:
        for _ in range(5):
            peer = await port.connect()
            peer.writer.write(b"\x16" + os.urandom(400))
            await asyncio.wait({asyncio.ensure_future(peer.reader.read())})
            await peer.close()
        good = await port.connect(tls=True)
        assert await good.ask(HELLO) == HELLO
        await good.close()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
@in_a_loop
async def test_stopping_closes_every_connection_cleanly(tmp_path: Path, tls: bool) -> None:
    async with opened(tmp_path) as port:
        silent, peer, web = [await port.connect() for _ in range(2)] + [await port.connect(tls=tls)]
        peer, web = web, peer
        assert await peer.ask(HELLO) == HELLO
        await web.ask(HEALTH.replace(b"close", b"keep-alive"), 1)

        started = time.monotonic()
        stopping = asyncio.create_task(port.listener.stop(patience_seconds=60))
        assert await peer.read() == GOODBYE
        for other in (peer, silent, web):
            await other.close()
        await stopping

        assert time.monotonic() - started < 30
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            await port.connect()


@in_a_loop
async def test_a_peer_that_does_not_read_is_cut_off_when_patience_ends(tmp_path: Path) -> None:
    async with opened(tmp_path) as port:
        peer = await port.connect()
        await peer.ask(HELLO)
        port.made[0].transport.write(bytes(50_000_000))

        started = time.monotonic()
        await port.listener.stop(patience_seconds=0.2)

        # uvloop counts in milliseconds, and may be one early
        assert 0.199 <= time.monotonic() - started < 30
        assert port.made[0].is_lost
        await peer.close()


@in_a_loop
async def test_when_files_run_out_it_waits_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Flaky:
        """A listening socket that cannot accept at first, because descriptors are used up."""

        def __init__(self, real: socket.socket) -> None:
            self.real = real
            self.failures = 2

        def accept(self) -> Any:
            if self.failures:
                self.failures -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return self.real.accept()

        def fileno(self) -> int:
            return self.real.fileno()

        def close(self) -> None:
            self.real.close()

    async with opened(tmp_path, host="127.0.0.1", wrap=Flaky) as port:
        peer = await port.connect()

        assert await peer.ask(HELLO) == HELLO
        await peer.close()
        assert caplog.text.count("Too many open files") == 2


# --- AMQP over WebSocket


class WebSocketPeer:
    """The sans-I/O client of `websockets` on a stream."""

    def __init__(self, peer: Peer, path: str, subprotocol: str | None = "AMQPWSB10") -> None:
        self.peer = peer
        protocols: Any = [subprotocol] if subprotocol else None
        self.wire = ClientProtocol(parse_uri(f"ws://localhost{path}"), subprotocols=protocols)
        self.wire.send_request(self.wire.connect())

    async def events(self) -> list[Any]:
        while True:  # until there is an event, or the end
            for chunk in self.wire.data_to_send():
                if chunk:
                    self.peer.writer.write(chunk)
            if found := self.wire.events_received():
                return found
            async with asyncio.timeout(60):
                data = await self.peer.reader.read(100_000)
            if not data:
                return []
            self.wire.receive_data(data)

    async def binary(self, size: int) -> bytes:
        collected = b""
        while len(collected) < size:
            for frame in await self.events():
                assert frame.opcode is Opcode.BINARY
                collected += bytes(frame.data)
        return collected


@pytest.mark.parametrize("tls", [False, True], ids=["ws", "wss"])
@pytest.mark.parametrize(
    "path", ["/$servicebus/websocket", "/$servicebus/websocket/", "/%24ServiceBus/websocket?x=1"]
)
@in_a_loop
async def test_amqp_comes_through_a_websocket(tmp_path: Path, tls: bool, path: str) -> None:
    async with opened(tmp_path) as port:
        peer = WebSocketPeer(await port.connect(tls=tls), path)
        (response,) = await peer.events()
        assert response.status_code == 101
        assert response.headers["Sec-WebSocket-Protocol"] == "AMQPWSB10"

        peer.wire.send_binary(HELLO[:3], fin=False)
        peer.wire.send_continuation(HELLO[3:], fin=True)
        assert await peer.binary(8) == HELLO
        assert port.made[0].slot.authenticated()
        peer.wire.send_binary(b"y" * 500_000)
        assert await peer.binary(500_000) == b"y" * 500_000
        assert port.made[0].is_encrypted is tls

        peer.wire.send_ping(b"are you there")
        (pong,) = await peer.events()
        assert (pong.opcode, bytes(pong.data)) == (Opcode.PONG, b"are you there")

        peer.wire.send_close(1000)
        (close,) = await peer.events()
        assert close.opcode is Opcode.CLOSE
        await peer.peer.close()
        await port.emptied()
        assert port.made[0].is_lost


@pytest.mark.parametrize(
    ("path", "subprotocol", "status"),
    [("/elsewhere", "AMQPWSB10", 404), ("/$servicebus/websocket", "mqtt", 400)],
)
@in_a_loop
async def test_a_websocket_for_something_else_is_refused(
    tmp_path: Path, path: str, subprotocol: str, status: int
) -> None:
    async with opened(tmp_path) as port:
        peer = WebSocketPeer(await port.connect(), path, subprotocol)
        for chunk in peer.wire.data_to_send():
            peer.peer.writer.write(chunk)
        assert (await peer.peer.read()).startswith(f"HTTP/1.1 {status}".encode())
        await peer.peer.close()
        await port.emptied()
        assert not port.made


async def upgraded(port: Port) -> WebSocketPeer:
    peer = WebSocketPeer(await port.connect(), "/$servicebus/websocket")
    (response,) = await peer.events()
    assert response.status_code == 101
    return peer


@in_a_loop
async def test_before_its_token_a_client_of_a_websocket_may_not_make_us_hold_megabytes(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as port:
        peer = await upgraded(port)
        peer.wire.send_binary(bytes(100_000))
        assert await peer.binary(100_000) == bytes(100_000)
        peer.peer.writer.write(Frame(Opcode.BINARY, bytes(200_000)).serialize(mask=True)[:1000])
        (close,) = await peer.events()
        assert close.opcode is Opcode.CLOSE
        assert int.from_bytes(bytes(close.data[:2])) == 1009
        await peer.peer.close()
        await port.emptied()


@in_a_loop
async def test_text_in_a_websocket_ends_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as port:
        peer = await upgraded(port)
        peer.wire.send_text(b"hello")
        (close,) = await peer.events()
        assert close.opcode is Opcode.CLOSE
        assert int.from_bytes(bytes(close.data[:2])) == 1003
        await peer.peer.close()
        await port.emptied()


@in_a_loop
async def test_garbage_in_a_websocket_ends_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as port:
        for garbage in (b"\xff" * 50, b"\x82\xff" + b"\x7f" * 12, b"\x82\x05hello"):
            peer = await upgraded(port)
            peer.peer.writer.write(garbage)
            assert len(await peer.peer.read()) < 200
            await peer.peer.close()
        await port.emptied()


@in_a_loop
async def test_stopping_closes_a_websocket_cleanly(tmp_path: Path) -> None:
    async with opened(tmp_path) as port:
        peer = await upgraded(port)
        stopping = asyncio.create_task(port.listener.stop(patience_seconds=60))
        goodbye, close = await peer.events()
        assert bytes(goodbye.data) == GOODBYE
        assert close.opcode is Opcode.CLOSE
        assert await peer.events() == []
        await peer.peer.close()
        await stopping
        assert port.made[0].is_lost


@in_a_loop
async def test_a_slow_reader_of_a_websocket_holds_up_its_own_connection_only(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as port:
        slow = await upgraded(port)
        block = Frame(Opcode.BINARY, bytes(100_000)).serialize(mask=True)
        sent = 0
        while port.made[0].pauses == 0:
            slow.peer.writer.write(block)
            sent += 100_000
            await asyncio.sleep(0)
            assert sent < 200_000_000

        held = port.made[0].transport.get_write_buffer_size()
        assert held < 2_000_000
        other = await port.connect()
        assert await other.ask(HELLO) == HELLO
        assert await slow.binary(sent) == bytes(sent)
        for peer in (slow.peer, other):
            await peer.close()


@in_a_loop
async def test_pings_whose_answers_are_not_read_end_the_connection(tmp_path: Path) -> None:
    async with opened(tmp_path) as port:
        peer = await upgraded(port)
        port.made[0].pause_writing = lambda: None  # type: ignore[method-assign]
        port.made[0].transport.write(bytes(50_000_000))
        ping = Frame(Opcode.PING, bytes(125)).serialize(mask=True)
        with suppress(ConnectionError):
            while not port.made[0].is_lost:
                peer.peer.writer.write(ping * 100)
                await peer.peer.writer.drain()
        await peer.peer.close()
        await port.emptied()


@in_a_loop
async def test_the_key_of_a_websocket_is_answered_as_the_standard_says(tmp_path: Path) -> None:
    key = base64.b64encode(b"the sample nonce").decode()

    async with opened(tmp_path) as port:
        peer = await port.connect()
        head = (
            "GET /$servicebus/websocket HTTP/1.1\r\nHost: h\r\nUpgrade: WebSocket\r\n"
            f"Connection: keep-alive, Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: other, AMQPWSB10\r\n\r\n"
        )
        peer.writer.write(head.encode())
        answer = await peer.reader.readuntil(b"\r\n\r\n")
        # RFC 6455, 1.3
        assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in answer
        await peer.close()
