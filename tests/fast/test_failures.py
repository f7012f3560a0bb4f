"""Peers that are gone, silent, closing or wrong: every call ends with a reason, and the next works.

No call may take longer than its time-out, and a bit for a busy machine.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
)

from pairbus.amqp.engine import Attached, Engine, Transferred
from pairbus.amqp.outcomes import AmqpError, Outcome, OutcomeKind
from pairbus.amqp.sasl import SaslServer
from pairbus.broker import Broker
from pairbus.broker.entities.namespace_options import Limits
from pairbus.broker.links.request_codec import Reply, cbs_reply, read_request
from pairbus.client.sdk.failures import Kind, kind_of
from pairbus.errors import OptionsError
from pairbus.fast.address import Address
from pairbus.fast.client import FastClient
from pairbus.fast.connection import CLOSE_SECONDS, attach_each
from pairbus.fast.errors import SendIncomplete
from tests.fast.conftest import SECONDS
from tests.fast.world import exhaust, listening, message, messages, names, send_one, take

KEY = AzureNamedKeyCredential("name", "key")
SHORT = 1.5


@contextmanager
def at_most(seconds: float):
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < seconds + 25


def client_of(port: int, *, timeout_seconds: float = SHORT) -> FastClient:
    return FastClient(f"127.0.0.1:{port}", KEY, use_tls=False, timeout_seconds=timeout_seconds)


# -- no connection ----------------------------------------------------------------------------


def test_a_port_without_a_listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    client = client_of(port)
    with at_most(SHORT), pytest.raises(ServiceBusConnectionError, match="no connection") as caught:
        client.open()
    assert kind_of(caught.value) is Kind.OUTAGE
    assert not client.is_open


def test_a_host_that_does_not_exist():
    client = FastClient("nowhere.invalid", KEY, timeout_seconds=SHORT)
    with pytest.raises(ServiceBusConnectionError) as caught:
        client.open()
    assert kind_of(caught.value) is Kind.OUTAGE


@pytest.mark.parametrize("host", ["", "no..where", "x" * 70])
def test_a_host_that_cannot_exist(host):
    with pytest.raises(OptionsError, match="expected the host of a namespace"):
        FastClient(host, KEY)


@pytest.mark.parametrize("tls", [False, True])
def test_a_peer_that_says_nothing(tls):
    hung = threading.Event()
    with listening(lambda peer: hung.wait(20)) as port:
        client = client_of(port)
        if tls:
            client = FastClient("127.0.0.1", KEY, port=port, timeout_seconds=SHORT)
        with at_most(SHORT), pytest.raises(ServiceBusError) as caught:
            client.open()
        hung.set()
    assert kind_of(caught.value) is Kind.OUTAGE


SASL = b"AMQP\x03\x01\x00\x00"


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"AMQP\x01\x01\x00\x0a",
        SASL,
        SASL + b"\x00\x00\x00\x04",
        SASL + b"\xff\xff\xff\xff\x02\x01\x00\x00",
        SASL + b"\x00\x00\x00\x10\x02\x01\x00\x00\x00\x53\x40\xc0\x03\x01\x00\x00",
        bytes(range(256)) * 100,
    ],
    ids=lambda said: repr(said[:12]),
)
def test_a_peer_that_speaks_something_else_and_hangs_up(said):
    def script(peer: socket.socket) -> None:
        peer.sendall(said)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(1000):
            pass

    with listening(script) as port:
        client = client_of(port)
        with at_most(SHORT), pytest.raises(ServiceBusError) as caught:
            client.open()
        assert kind_of(caught.value) is Kind.OUTAGE
        assert not client.is_open


# -- a broker that fails -----------------------------------------------------------------------


def works(client: FastClient) -> bool:
    send_one(client.sender("q"), message("probe"))
    receiver = client.receiver("q", credit=1)
    try:
        receiver.complete(take(receiver, 1))
    finally:
        receiver.close()
    return True


def test_an_unreachable_namespace_raises_and_is_found_again(client, broker):
    assert works(client)
    with broker.faults.unreachable():
        for _ in range(2):
            with pytest.raises(ServiceBusConnectionError) as caught:
                send_one(client.sender("q"), message("a"))
            assert kind_of(caught.value) is Kind.OUTAGE
    assert works(client)


def test_a_namespace_that_swallows_everything_is_given_up(client, connect, broker):
    assert works(client)
    with broker.faults.unreachable(mode="drop"):
        client.set_deadline(time.monotonic() + SHORT)
        with at_most(SHORT), pytest.raises(OperationTimeoutError) as caught:
            send_one(client.sender("q"), message("a"))
        assert kind_of(caught.value) is Kind.OUTAGE
        with at_most(SHORT), pytest.raises(ServiceBusError):
            connect(timeout_seconds=SHORT).open()
    client.set_deadline(math.inf)
    client.interrupt()
    with pytest.raises(ServiceBusConnectionError):
        works(client)
    assert works(client)


def test_a_hanging_namespace_looks_like_an_empty_queue_only_for_a_while(connect, broker):
    client = connect(silence_seconds=2.0)
    receiver = client.receiver("q", credit=10)
    assert receiver.receive(1, max_wait_seconds=0) == []
    with (
        broker.faults.hang(),
        at_most(2.0),
        pytest.raises(ServiceBusConnectionError, match="silent for 2 s") as caught,
    ):
        receiver.receive(1, max_wait_seconds=60)
    assert kind_of(caught.value) is Kind.OUTAGE
    assert receiver.receive(1, max_wait_seconds=0) == []


def test_silence_is_noticed_by_a_caller_that_waits_only_for_short_times(connect, broker):
    client = connect(silence_seconds=2.0)
    receiver = client.receiver("q", credit=10)
    assert receiver.receive(1, max_wait_seconds=0) == []
    until = time.monotonic() + 30

    def receive_nothing():
        while time.monotonic() < until:
            assert receiver.receive(1, max_wait_seconds=0.1) == []

    with (
        broker.faults.hang(),
        pytest.raises(ServiceBusConnectionError, match="silent for 2 s"),
    ):
        receive_nothing()


def test_heartbeats_keep_a_quiet_connection(connect, broker):
    client = connect(silence_seconds=4.0)
    receiver = client.receiver("q", credit=10)
    assert receiver.receive(1, max_wait_seconds=5.0) == []
    assert client.is_open


def test_heartbeats_keep_the_connection_of_a_caller_that_never_waits():
    with (
        Broker(queues=["q"], limits=Limits(idle_timeout_seconds=2.0)) as broker,
        Address.from_connection_string(broker.connection_string).client() as client,
    ):
        receiver = client.receiver("q", credit=10)
        until = time.monotonic() + 6.0
        while time.monotonic() < until:
            assert receiver.receive(1, max_wait_seconds=0) == []
            time.sleep(0.05)


def test_a_restart_is_reported_with_its_reason_and_survived(client, broker):
    client.sender("q").send(messages(2))
    receiver = client.receiver("q", credit=1)
    [first] = take(receiver, 1)
    with broker.faults.restart(seconds=60), pytest.raises(ServiceBusConnectionError):
        exhaust(receiver)
    receiver.complete([first])
    assert names(client.management("q").peek(1, 10)) == ["m-1"]


def test_a_broker_that_is_stopped_and_started_again(client, broker):
    client.sender("other").send(messages(1))
    receiver = client.receiver("q", credit=10)
    assert receiver.receive(1, max_wait_seconds=0) == []
    broker.stop()
    with pytest.raises(ServiceBusConnectionError):
        receiver.receive(1, max_wait_seconds=30)
    with pytest.raises(ServiceBusConnectionError):
        receiver.receive(1, max_wait_seconds=30)
    broker.start()
    client.sender("q").send(messages(1))
    assert names(take(receiver, 1)) == ["m-0"]


def test_a_link_that_is_ended_with_a_reason_is_attached_again_by_the_next_call(client, broker):
    receiver = client.receiver("q", credit=1)
    assert receiver.receive(1, max_wait_seconds=0) == []
    with broker.faults.cannot_receive("q", condition="com.microsoft:entity-disabled"):
        client.sender("q").send(messages(2))
        with pytest.raises(ServiceBusError, match="entity-disabled"):
            exhaust(receiver)
    assert len(take(receiver, 1)) == 1


def test_a_wait_is_cut_short_from_another_thread(client):
    receiver = client.receiver("q", credit=1)
    assert receiver.receive(1, max_wait_seconds=0) == []
    with ThreadPoolExecutor(1) as pool, at_most(0):
        waiting = pool.submit(receiver.receive, 1, max_wait_seconds=60)
        client.interrupt()
        with pytest.raises(ServiceBusConnectionError):
            waiting.result(30)
    assert receiver.receive(1, max_wait_seconds=0) == []


def test_closing_takes_no_longer_than_courtesy_allows(client, broker):
    client.sender("q").send(messages(5))
    receiver = client.receiver("q", credit=5)
    take(receiver, 1)
    with broker.faults.hang(), at_most(3 * CLOSE_SECONDS):
        client.close()
    assert not client.is_open


def test_without_a_connection_there_is_nothing_to_close(client):
    client.interrupt()
    client.close()


# -- peers that break the rules ---------------------------------------------------------------


class Mischief:
    """An AMQP server that follows the protocol up to the point that a test chooses."""

    def __init__(
        self, transferred=None, attached=None, answers_tokens=True, refuses_tokens=False
    ) -> None:
        self._answers_tokens = answers_tokens
        self._refuses_tokens = refuses_tokens
        self._transferred = transferred or (lambda event: event.delivery.accept())
        self._attached = attached or (lambda link: link.accept(credit=100))

    def __call__(self, peer: socket.socket) -> None:
        engine = self.engine = Engine(server=True, container_id="mischief", sasl=SaslServer())
        try:
            while data := peer.recv(65536):
                for event in engine.receive(data):
                    if type(event) is Attached:
                        self._attach(event.link)
                    elif type(event) is Transferred:
                        self._transfer(event)
                peer.sendall(engine.data_to_send())
        finally:
            engine.free()

    def _attach(self, link) -> None:
        address = link.remote.source_address if link.is_sender else link.remote.target_address
        if address == "$cbs":
            link.accept(credit=1_000)
            if link.is_sender:
                self._tokens = link
        else:
            self._attached(link)

    def _transfer(self, event: Transferred) -> None:
        if event.link.remote.target_address != "$cbs":
            self._transferred(event)
            return
        if self._refuses_tokens:
            event.delivery.settle(Outcome(OutcomeKind.REJECTED))
            return
        event.delivery.accept()
        if self._answers_tokens:
            answer = cbs_reply(read_request(event.data), Reply(202, "Accepted"))
            self._tokens.send(b"answer", answer, settled=True)


def sent_to(*, timeout_seconds: float = SECONDS, **mischief) -> ServiceBusError:
    return sent_to_peer(Mischief(**mischief), timeout_seconds=timeout_seconds)


def sent_to_peer(peer: Mischief, *, timeout_seconds: float = SECONDS) -> ServiceBusError:
    with listening(peer) as port:
        client = client_of(port, timeout_seconds=timeout_seconds)
        try:
            with at_most(2 * SHORT), pytest.raises(SendIncomplete) as caught:
                client.sender("q").send(messages(3))
        finally:
            client.close()
    return caught.value


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome(OutcomeKind.RELEASED), "released"),
        (Outcome(OutcomeKind.REJECTED), "rejected"),
        (None, ""),
    ],
    ids=["released", "refused without a reason", "settled without an outcome"],
)
def test_a_send_that_is_not_accepted_has_failed(outcome, said):
    failed = sent_to(transferred=lambda event: event.delivery.settle(outcome))
    assert failed.refused_ranges == (range(3),)
    assert said in str(failed.error)


def test_a_link_that_ends_in_place_of_an_answer_leaves_doubt():
    error = AmqpError("com.microsoft:server-busy", "not now")
    failed = sent_to(transferred=lambda event: event.link.close(error))
    assert failed.doubtful_ranges == (range(3),)
    assert kind_of(failed.error) is Kind.THROTTLED


def test_a_link_that_ends_without_a_reason_is_an_outage():
    failed = sent_to(transferred=lambda event: event.link.close())
    assert isinstance(failed.error, ServiceBusConnectionError)
    assert kind_of(failed.error) is Kind.OUTAGE


@pytest.mark.parametrize("which", ["session", "connection"])
def test_the_reason_for_the_end_of_a_session_or_connection_is_in_the_error(which):
    error = AmqpError("amqp:internal-error", "going down")

    def end(event):
        if which == "session":
            event.link.session.end(error)
        else:
            peer.engine.close(error)

    peer = Mischief(transferred=end)
    failed = sent_to_peer(peer)
    assert isinstance(failed.error, ServiceBusConnectionError) == (which == "connection")
    assert "going down" in str(failed.error)


@pytest.mark.parametrize(
    ("mischief", "said"),
    [
        ({"attached": lambda link: link.accept()}, "waited for an acknowledgement"),
        ({"attached": lambda link: None}, "waited for a link of 'q'"),
        ({"answers_tokens": False}, "put-token"),
    ],
    ids=["no credit", "no answer to an attach", "no answer to a token"],
)
def test_a_peer_that_does_not_answer_is_not_waited_for(mischief, said):
    failed = sent_to(timeout_seconds=SHORT, **mischief)
    assert isinstance(failed.error, OperationTimeoutError)
    assert failed.refused_ranges == (range(3),)
    assert said in str(failed.error)


def test_a_refused_link_says_why():
    error = AmqpError("amqp:not-found", "no such thing")
    failed = sent_to(attached=lambda link: link.close(error))
    assert "no such thing" in str(failed.error)
    assert kind_of(failed.error) is Kind.SETUP


def test_an_error_shows_no_time_if_requests_before_it_have_used_it_up():
    """Both tokens are asked for together, and then each alone."""
    with listening(Mischief(answers_tokens=False)) as port:
        client = client_of(port)
        try:
            errors = attach_each([client.sender("q"), client.sender("r")])
        finally:
            client.close()

    for error in errors:
        assert isinstance(error, OperationTimeoutError)
        assert "did not answer in time: waited for an answer of '$cbs'" in str(error)


def test_refused_requests_are_not_waited_for_however_many_they_are():
    """They are more than a link has credit for answers, and no answer comes."""
    with listening(Mischief(refuses_tokens=True)) as port:
        client = client_of(port, timeout_seconds=SECONDS)
        try:
            errors = attach_each([client.sender(f"q{number}") for number in range(150)])
        finally:
            client.close()

    assert {str(error) for error in errors if "refused the request" not in str(error)} == set()
