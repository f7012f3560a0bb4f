"""One connection of a client, by hand on a socket: what it may cost, and how it ends."""

import logging
import socket
import time
from types import SimpleNamespace

import pytest

from pairbus.amqp.codec.types import Described, Symbol, UInt, ULong, UShort
from pairbus.amqp.frames import (
    AMQP_HEADER,
    HEARTBEAT,
    SASL_HEADER,
    decode_performative,
    encode_frame,
)
from pairbus.broker import Broker, Limits
from pairbus.broker.connection_limit import ConnectionLimit
from pairbus.broker.faults import Hang
from pairbus.broker.links import amqp_connection as connection_module
from pairbus.broker.links.amqp_connection import AmqpConnection

HANDSHAKE = (
    SASL_HEADER
    + encode_frame(0x41, [Symbol("ANONYMOUS"), b""], kind=1)
    + AMQP_HEADER
    + encode_frame(0x10, ["c", "h", UInt(65536), UShort(9)])
    + encode_frame(0x11, [None, UInt(0), UInt(1000), UInt(1000)])
)


_PLAIN = [Symbol("PLAIN"), b"\x00RootManageSharedAccessKey\x00SAS_KEY_VALUE"]
WITH_KEY = HANDSHAKE.replace(
    encode_frame(0x41, [Symbol("ANONYMOUS"), b""], kind=1), encode_frame(0x41, _PLAIN, kind=1)
)


def attach(address, number=0):
    ends = Described(ULong(0x28), ["s"]), Described(ULong(0x29), [address])
    name = f"l{number}"
    return encode_frame(0x12, [name, UInt(number), False, None, None, *ends, None, None, UInt(0)])


class Client:
    """Sends what a test gives it, and never answers anything."""

    def __init__(self, broker):
        self._socket = socket.create_connection(("localhost", broker.port), timeout=60)
        self._held = b""

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self._socket.close()

    def send(self, *chunks):
        self._socket.sendall(b"".join(chunks))

    def until(self, wanted):
        """The fields of the next frame with this code."""
        while True:
            while self._held[:4] == b"AMQP":
                self._held = self._held[8:]
            size = int.from_bytes(self._held[:4])
            if len(self._held) < 8 or len(self._held) < size:
                self._held += self._read()
                continue
            frame, self._held = self._held[8:size], self._held[size:]
            code, fields = decode_performative(frame)
            if code == wanted:
                return fields

    def _read(self):
        data = self._socket.recv(65536)
        assert data, "the broker closed the connection"
        return data

    def wait_for_end(self):
        """Seconds until the broker has closed the connection."""
        began = time.monotonic()
        try:
            while self._socket.recv(65536):
                pass
        except ConnectionResetError:
            pass
        return time.monotonic() - began


def request(number, size):
    """A request of many small values to `$cbs`, in as many frames as it needs."""
    body = b"\x00\x53\x77\xd0" + (size + 4).to_bytes(4) + size.to_bytes(4) + b"\x43" * size
    pieces = [body[at : at + 60_000] for at in range(0, len(body), 60_000)]
    for index, piece in enumerate(pieces):
        more = index < len(pieces) - 1
        fields = [UInt(0), UInt(number), b"%d" % number, UInt(0), False, more]
        head = encode_frame(0x14, fields)
        yield (len(head) + len(piece)).to_bytes(4) + head[4:] + piece


def test_cbs_takes_no_large_messages():
    with Broker(["q"]) as broker, Client(broker) as client:
        client.send(WITH_KEY, attach("$cbs"))
        assert client.until(0x12)[10] == 65536
        for number, size in enumerate([66_000, 120_000, 900_000]):
            client.send(*request(number, size))
            *_, state = client.until(0x15)
            assert state.value[0].value[0] == "amqp:link:message-size-exceeded"
        client.send(*request(3, 60_000))
        *_, state = client.until(0x15)
        assert state.descriptor == 0x24


@pytest.mark.parametrize("faults", [None, "other", "q"])
def test_after_a_failure_a_client_that_does_not_answer_loses_its_slot(monkeypatch, faults):
    def fails(*args, **more):
        raise ZeroDivisionError

    monkeypatch.setattr(connection_module, "attach", fails)
    limits = Limits(handshake_seconds=2.0, unauthenticated_max=1)
    with Broker(["q", "other"], limits=limits) as broker, Client(broker) as client:
        if faults is not None:
            broker.faults.slow(faults, latency_seconds=0.05)
        client.send(HANDSHAKE, attach("q"))
        (error,) = client.until(0x18)
        assert error.value[0] == "amqp:internal-error"
        assert client.wait_for_end() < 30
        with Client(broker) as another:
            another.send(HANDSHAKE)
            another.until(0x11)


@pytest.mark.req("B-02")
def test_without_a_token_an_unknown_entity_looks_like_any_other(caplog):
    caplog.set_level(logging.INFO, logger="pairbus.broker")
    errors = []
    with Broker(["q"]) as broker:
        for name in ("q", "x"):
            with Client(broker) as client:
                client.send(HANDSHAKE, attach(name))
                errors.append(client.until(0x16)[2].value)
    conditions, texts = zip(*((error[0], error[1]) for error in errors), strict=True)
    assert set(conditions) == {"amqp:unauthorized-access"}
    assert texts[0].replace("covers q", "covers x") == texts[1]
    assert [line.partition(", ")[2] for line in caplog.messages] == [
        f"entity 'q': {texts[0]}",
        f"entity 'x': {texts[1]}",
    ]


def test_a_broken_rule_of_the_protocol_is_logged_with_its_reason(caplog):
    caplog.set_level(logging.INFO, logger="pairbus.broker")
    with Broker(["q"]) as broker, Client(broker) as client:
        client.send(HANDSHAKE, encode_frame(0x10, ["again", "h"]))
        client.until(0x18)
        client.wait_for_end()
    [line] = caplog.messages
    assert line.endswith("amqp:illegal-state: a second open")


def unfinished(number, size):
    """The first frame of a message on that link, and never another."""
    head = encode_frame(0x14, [UInt(number), UInt(number), b"t", UInt(0), False, True])
    return (len(head) + size).to_bytes(4) + head[4:] + bytes(size)


def test_before_its_token_a_client_has_a_handful_of_links_and_little_memory(caplog):
    caplog.set_level(logging.INFO, logger="pairbus.broker")
    with Broker(["q"]) as broker:
        with Client(broker) as client:
            client.send(HANDSHAKE, *(attach("$cbs", number) for number in range(9)))
            (error,) = client.until(0x18)
            assert error.value[0] == "amqp:resource-limit-exceeded"
            assert "may have 8" in error.value[1]
            client.wait_for_end()
        with Client(broker) as client:
            client.send(HANDSHAKE, *(attach("$cbs", number) for number in range(3)))
            client.send(*(unfinished(number, 30_000) for number in range(3)))
            (error,) = client.until(0x18)
            assert error.value[:2] == [
                "amqp:resource-limit-exceeded",
                "messages of more than 65536 bytes are incomplete",
            ]
            client.wait_for_end()
    reasons = [line.partition("amqp:")[2] for line in caplog.messages]
    assert reasons == [
        "resource-limit-exceeded: link 'l8' is one too many: a connection may have 8",
        "resource-limit-exceeded: messages of more than 65536 bytes are incomplete",
    ]


def begin(channel):
    return encode_frame(0x11, [None, UInt(0), UInt(1000), UInt(1000)], channel=channel)


@pytest.mark.parametrize(
    ("handshake", "is_refused"),
    [(HANDSHAKE, True), (WITH_KEY, False)],
    ids=["without a token", "with a token"],
)
def test_before_its_token_a_client_may_begin_few_sessions(
    transport, connection, handshake, is_refused
):
    connection.data_received(handshake)

    connection.data_received(b"".join(begin(channel) for channel in range(1, 128)))
    assert not transport.is_closing()
    connection.data_received(begin(128))

    assert transport.is_closing() is is_refused
    refusal = b"session 129 is one too many: at most 128 are allowed now"
    assert (refusal in transport.unread) is is_refused


class Transport:
    """The socket of a client that reads nothing, and is not read while `is_paused`."""

    def __init__(self):
        self.connection = None
        self.is_paused = self.is_aborted = self._is_closing = False
        self.unread = bytearray()
        self._high = 0

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False

    def is_closing(self):
        return self._is_closing

    def get_extra_info(self, name):
        return ("127.0.0.1", 1)

    def set_write_buffer_limits(self, *, high):
        self._high = high

    def write(self, data):
        self.unread += data
        if len(self.unread) > self._high:
            self.connection.pause_writing()

    def close(self):
        self._is_closing = True  # the socket stays open until everything is sent

    def abort(self):
        self.is_aborted = True


@pytest.fixture
def transport():
    return Transport()


@pytest.fixture
def connection(world, transport):
    """A connection on that transport, in a loop whose timers do not fire by themselves."""
    limits = Limits(handshake_seconds=29.0, token_seconds=31.0, write_buffer_bytes_max=500_000)
    limit = ConnectionLimit(limits, on_replaced=lambda slot: None)
    connection = AmqpConnection(world.namespace, limit.acquire(("127.0.0.1", 1)), limits=limits)
    transport.connection = connection
    connection.connection_made(transport)
    yield connection
    connection.connection_lost(None)


def run_timers(world, delay):
    """Those that were set to this delay, also while others of them run."""
    for timer_delay, timer in zip(world.loop.delays, world.loop.timers, strict=True):
        if timer_delay == delay and not timer.cancelled():
            timer._run()


@pytest.mark.parametrize(
    ("handshake", "is_paused"),
    [(HANDSHAKE, True), (WITH_KEY, False)],
    ids=["without a token", "with a token"],
)
def test_before_its_token_a_client_may_have_few_bytes_of_requests_waiting(
    world, transport, connection, handshake, is_paused
):
    connection.data_received(handshake + attach("$cbs"))

    for number in range(2):
        for chunk in request(number, 60_000):
            connection.data_received(chunk)
    assert transport.is_paused == is_paused

    run_timers(world, 0)  # the turns of the requests
    assert not transport.is_paused


@pytest.mark.parametrize(
    ("handshake", "unread_max"),
    [(HANDSHAKE, 100_000), (WITH_KEY, 600_000)],
    ids=["without a token", "with a token"],
)
def test_before_its_token_a_client_may_leave_little_output_unread(
    transport, connection, handshake, unread_max
):
    connection.data_received(handshake)
    wants_answer = [UInt(0), UInt(9), UInt(0), UInt(9), None, None, None, None, None, True]
    flood = encode_frame(0x13, wants_answer) * 500

    while not transport.is_paused and len(transport.unread) < unread_max:
        connection.data_received(flood)

    assert transport.is_paused
    assert unread_max / 2 < len(transport.unread) < unread_max


ENDINGS = {
    "it broke a rule": lambda made: made.data_received(encode_frame(0x10, ["again", "h"])),
    "it closed the connection": lambda made: made.data_received(encode_frame(0x18, [])),
    "the broker shuts down": lambda made: made.shutdown(),
}


@pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)
def test_a_client_that_does_not_read_until_the_end_loses_its_slot(
    world, transport, connection, end
):
    connection.data_received(WITH_KEY)
    end(connection)
    assert (transport.is_closing(), transport.is_aborted) == (True, False)

    run_timers(world, 29.0)

    assert transport.is_aborted


def test_a_client_is_not_idle_while_a_fault_holds_what_it_sends(
    world, transport, connection, monkeypatch
):
    now = [1000.0]
    monkeypatch.setattr(connection_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    connection.data_received(WITH_KEY)
    hang = world.namespace.faults.start(Hang())

    connection.data_received(attach("q"))
    for _ in range(5):
        now[0] += 100
        connection.data_received(HEARTBEAT)
        world.loop.timers[-1]._run()  # looks whether the client is idle
    world.namespace.faults.clear([hang])
    world.namespace.run()

    assert b"l0" in transport.unread  # the link is attached
    assert not transport.is_closing()


def test_after_its_token_a_client_has_all_that_the_limits_allow():
    with Broker(["q"]) as broker, Client(broker) as client:
        client.send(WITH_KEY, *(attach("q", number) for number in range(20)))
        client.send(*(unfinished(number, 30_000) for number in range(3)))
        client.send(attach("q", 20))
        for _ in range(21):
            client.until(0x12)


@pytest.mark.parametrize(
    ("handshake", "may_stay"),
    [(HANDSHAKE, False), (WITH_KEY, True)],
    ids=["without a token", "with a token"],
)
def test_a_client_without_a_token_is_sent_away_in_time(
    world, transport, connection, caplog, handshake, may_stay
):
    caplog.set_level(logging.INFO, logger="pairbus.broker")
    connection.data_received(handshake + attach("$cbs"))

    run_timers(world, 31.0)

    reason = "it sent no valid token in 31 s"
    assert (reason.encode() in transport.unread) is not may_stay
    assert [line.endswith(f": {reason}") for line in caplog.messages] == [True] * (not may_stay)
    assert not transport.is_closing()  # the client should answer the close
    run_timers(world, 29.0)
    assert transport.is_aborted is not may_stay


def test_one_client_with_a_token_too_many_is_told_so(caplog):
    caplog.set_level(logging.INFO, logger="pairbus.broker")
    with (
        Broker(["q"], limits=Limits(connections_max=1)) as broker,
        Client(broker) as first,
        Client(broker) as second,
    ):
        for client in (first, second):
            client.send(WITH_KEY, attach("q"))
        (error,) = second.until(0x18)
        first.send(attach("q", 1))
        for _ in range(2):
            first.until(0x12)
    reason = "1 connections are open, which is the limit"
    assert error.value[:2] == ["amqp:resource-limit-exceeded", reason]
    assert caplog.messages[0].endswith(f": {reason}")
