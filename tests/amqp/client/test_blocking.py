"""The blocking client on a real socket, against the broker: AMQP alone, let in by SASL PLAIN."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from contextlib import contextmanager, suppress

import pytest
import trustme

from pairbus.amqp.client import blocking
from pairbus.amqp.client.blocking import (
    Connection,
    ConnectionLost,
    LinkLost,
    PeerSilent,
    wait_together,
)
from pairbus.amqp.client.requests import RequestLinks
from pairbus.amqp.client.transport import Transport, TransportClosed
from pairbus.amqp.codec.values import encode
from pairbus.amqp.outcomes import ACCEPTED, OutcomeKind
from pairbus.amqp.sasl import SaslClient
from pairbus.broker import Broker
from pairbus.broker.entities.policies import DEFAULT_KEY, DEFAULT_POLICY_NAME
from tests.amqp.client.clientpair import as_tuple

MESSAGE = b"\x00\x53\x77" + encode("hello")


@pytest.fixture
def broker():
    with Broker(queues=["q"]) as running:
        yield running


@contextmanager
def connected(broker, **more):
    sasl = SaslClient("PLAIN", DEFAULT_POLICY_NAME, DEFAULT_KEY)
    connection = Connection("localhost", broker.port, **{"sasl": sasl, **more})
    connection.open(60)
    try:
        yield connection
    finally:
        connection.close()


@pytest.fixture
def connection(broker):
    with connected(broker) as connection:
        yield connection


def soon() -> float:
    return time.monotonic() + 60


def settle(connection, link, ids, outcome):
    return connection.settled(link, connection.begin_settling(link, ids, outcome), until=soon())


def sent(connection, count=1):
    link = connection.attach_sender("q", until=soon())
    for _ in range(count):
        connection.wait(lambda: link.credit, soon(), "credit")
        delivery = link.send(MESSAGE)
        connection.wait(lambda delivery=delivery: delivery.outcome, soon(), "an answer")
        assert delivery.outcome.kind is OutcomeKind.ACCEPTED
    return link


def test_a_message_goes_to_and_fro(connection):
    sent(connection)
    link = connection.attach_receiver("q", as_tuple, until=soon(), rcv_settle_mode=1)
    link.grant(5)
    connection.wait(lambda: link.inbox, soon(), "a message")
    [(number, tag, data)] = link.inbox
    assert len(tag) == 16
    assert data.endswith(MESSAGE)
    assert settle(connection, link, [number], ACCEPTED) == {}
    connection.detach(link, soon())
    assert link.is_over
    connection.detach(link, soon())  # again: nothing to do


def test_a_refused_link_is_told_with_its_reason_and_the_connection_goes_on(connection):
    with pytest.raises(LinkLost, match="nowhere") as caught:
        connection.attach_sender("nowhere", until=soon())
    assert caught.value.error.condition == "amqp:not-found"
    assert not connection.is_over
    sent(connection)


def test_a_refused_login_is_told(broker):
    sasl = SaslClient("PLAIN", DEFAULT_POLICY_NAME, "wrong")
    connection = Connection("localhost", broker.port, sasl=sasl)
    with pytest.raises(ConnectionLost, match="refused PLAIN") as caught:
        connection.open(60)
    assert caught.value.error.condition == "amqp:unauthorized-access"
    assert connection.is_over
    assert "wrong" not in str(caught.value)


def test_silence_is_told_and_nothing_more_is_known(broker):
    with connected(broker) as connection, broker.faults.hang():
        link = connection.start_sender("q")
        with pytest.raises(PeerSilent, match=r"within 0\.2 s: waited for a link") as caught:
            connection.wait(lambda: link.attached, time.monotonic() + 0.2, "a link")
        assert isinstance(caught.value, TimeoutError)
        assert not connection.wait_quietly(lambda: link.attached, time.monotonic())


def test_a_lost_connection_ends_its_links(connection):
    link = sent(connection)
    connection.interrupt()
    with pytest.raises(ConnectionLost):
        connection.wait(lambda: False, soon(), "nothing")
    assert connection.is_over
    assert link.is_over
    with pytest.raises(ConnectionLost):
        connection.start_sender("q")
    with pytest.raises(ConnectionLost):
        connection.exchange(0)
    with pytest.raises(LinkLost):
        link.send(MESSAGE)
    connection.close()
    connection.interrupt()


def test_a_request_is_answered_and_strangers_answers_are_dropped(connection):
    requests = RequestLinks(connection, "q/$management")
    requests.wait_attached(soon())
    properties = {"operation": "com.microsoft:peek-message", "type": "entity-mgmt"}
    requests._answers.inbox += [b"garbage", MESSAGE, b"\x00\x53\x73" + encode([None] * 6)]
    answer = requests.ask(properties, {"from-sequence-number": 1}, until=soon())
    assert answer.properties["statusCode"] == 400
    for _ in range(150):  # more than the credit that answers are given at once
        assert requests.ask(properties, None, until=soon()).properties["statusCode"] == 400
    assert requests.alive


def test_requests_to_nobody_are_refused(connection):
    requests = RequestLinks(connection, "nowhere/$management")
    with pytest.raises(LinkLost):
        requests.wait_attached(soon())


def test_upkeep_is_called_while_waiting(connection):
    calls = []

    def upkeep() -> float:
        calls.append(time.monotonic())
        return time.monotonic() + 0.01

    connection.upkeep = upkeep
    connection.wait(lambda: len(calls) > 3, soon(), "upkeep")


@pytest.mark.parametrize("waits_for_several", [False, True])
def test_what_has_come_while_nobody_read_is_no_silence(
    broker, connection, monkeypatch, waits_for_several
):
    link = connection.attach_receiver("q", as_tuple, until=soon())
    link.grant(1)
    connection.flush(soon())
    with connected(broker) as other:
        sent(other)
    poll = select.poll()
    poll.register(connection._transport.fileno(), select.POLLIN)
    assert poll.poll(60_000)
    monkeypatch.setattr(blocking, "_now", lambda: time.monotonic() + 1000)
    if waits_for_several:
        assert wait_together([connection], lambda: link.inbox, blocking._now())
    else:
        assert connection.wait_quietly(lambda: link.inbox, blocking._now())


def test_a_wait_for_several_ends_in_time_although_a_peer_sends_without_a_pause(
    connection, monkeypatch
):
    reads = iter([True] * 100)
    monkeypatch.setattr(connection, "exchange", lambda seconds: next(reads))
    assert not wait_together([connection], lambda: False, time.monotonic())
    assert len(list(reads)) > 90


def test_a_peer_is_heard_out_although_neither_side_reads_at_first():
    """Both have more to say than the kernel keeps: a side that only writes would wait forever."""
    much = bytes(8 * 1024 * 1024)
    with socket.create_server(("127.0.0.1", 0)) as server:
        transport = Transport("127.0.0.1", server.getsockname()[1], tls=None, seconds=5)
        peer, _ = server.accept()
        with peer:
            peer.setblocking(False)
            transport.write(much)
            to_send, heard, received = memoryview(much), 0, 0
            while heard < len(much) or received < len(much):
                with suppress(BlockingIOError):
                    to_send = to_send[peer.send(to_send) :] if to_send else to_send
                heard += len(transport.exchange(0.01))
                with suppress(BlockingIOError):
                    received += len(peer.recv(1 << 20))
            assert not transport.has_output
            peer.close()
            with pytest.raises(TransportClosed):
                transport.exchange(5)
        transport.interrupt()
        transport.close()
        transport.close()


def test_an_address_that_refuses_is_not_the_last_one():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        Transport("localhost", port, tls=None, seconds=5).close()
    with pytest.raises(OSError, match="refused"):
        Transport("localhost", port, tls=None, seconds=5)
    with pytest.raises(TimeoutError):
        Transport("localhost", port, tls=None, seconds=0)


def test_one_read_of_a_tls_socket_takes_all_records_that_have_arrived():
    size = 3 * 16 * 1024
    authority = trustme.CA()
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(serving)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    is_sent = threading.Event()

    def serve() -> None:
        sock, _ = listener.accept()
        with serving.wrap_socket(sock, server_side=True) as peer:
            peer.sendall(bytes(size))
            is_sent.set()
            peer.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        port = listener.getsockname()[1]
        transport = Transport("127.0.0.1", port, tls=trusting, server_name="localhost", seconds=60)
        assert is_sent.wait(60)
        assert len(transport.exchange(60)) == size
        transport.close()


def test_two_connections_are_waited_for_at_once(broker):
    with connected(broker) as one, connected(broker) as other:
        link = other.attach_receiver("q", lambda *_: "message", until=soon())
        link.grant(1)
        assert not wait_together([one, other], lambda: link.inbox, time.monotonic() + 0.05)
        sent(one)
        assert wait_together([one, other], lambda: link.inbox, soon())


def test_the_loss_of_one_connection_does_not_end_the_wait_for_another(broker):
    with connected(broker) as one, connected(broker) as other:
        link = other.attach_receiver("q", lambda *_: "message", until=soon())
        link.grant(1)
        one.interrupt()
        assert not wait_together([one, other], lambda: link.inbox, time.monotonic() + 0.05)
        assert one.is_over
        assert "lost" in str(one.loss)
        with connected(broker) as third:
            sent(third)
        assert wait_together([one, other], lambda: link.inbox, soon())
        other.interrupt()
        assert not wait_together([one, other], lambda: False, soon()), "nothing is left"
