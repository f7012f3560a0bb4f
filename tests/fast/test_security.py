"""Credentials, the renewal of tokens, and TLS."""

from __future__ import annotations

import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
)

from pairbus.broker import Broker
from pairbus.broker.entities.policies import DEFAULT_KEY, DEFAULT_POLICY_NAME, default_policy
from pairbus.broker.links.tokens import make_token
from pairbus.client.sdk.failures import Kind, kind_of
from pairbus.fast.address import Address
from pairbus.fast.client import FastClient
from pairbus.fast.connection import attach_each
from pairbus.fast.tokens import JWT, SAS, Token, sign, source_of
from tests.fast.conftest import SECONDS
from tests.fast.credentials import Issuer
from tests.fast.world import bearer_broker, left, message, messages, names, send_one, take
from tests.waiting import wait_until

KEY = AzureNamedKeyCredential(DEFAULT_POLICY_NAME, DEFAULT_KEY)


def passes(client: FastClient) -> bool:
    """Whether a message can be sent, peeked, received and settled."""
    send_one(client.sender("q"), message("a"))
    receiver = client.receiver("q", credit=1)
    receiver.complete(take(receiver, 1))
    return client.management("q").peek(1, 1) == []


# -- credentials ------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "value"), [("SharedAccessKey", "d3Jvbmc="), ("Name", "nobody")])
def test_a_wrong_key_or_policy_is_refused(connect, broker, key, value):
    text = re.sub(f"({key})=[^;]*", rf"\1={value}", broker.connection_string)
    client = connect(text)
    with pytest.raises(ServiceBusAuthenticationError) as caught:
        client.receiver("q", credit=1).receive(1, max_wait_seconds=1)
    assert kind_of(caught.value) is Kind.SETUP
    assert DEFAULT_KEY not in str(caught.value)


def test_an_unknown_entity_is_refused_like_a_bad_token(client):
    with pytest.raises(ServiceBusAuthenticationError, match="nowhere"):
        client.receiver("nowhere", credit=1).receive(1, max_wait_seconds=1)
    with pytest.raises(ServiceBusAuthenticationError):
        send_one(client.sender("nowhere"), message("a"))
    assert passes(client)  # the connection has not suffered


def test_a_policy_without_the_right_is_refused_at_the_link(connect, broker):
    listener = connect(broker.connection_string_for("listener"))
    with pytest.raises(ServiceBusAuthorizationError):
        send_one(listener.sender("q"), message("a"))
    sender = connect(broker.connection_string_for("sender"))
    sender.sender("q").send(messages(2))
    with pytest.raises(ServiceBusAuthorizationError) as caught:
        sender.receiver("q", credit=1).receive(1, max_wait_seconds=1)
    assert kind_of(caught.value) is Kind.SETUP
    with pytest.raises(ServiceBusAuthorizationError):
        sender.management("q").peek(1, 1)
    assert len(take(listener.receiver("q", credit=2), 2)) == 2


def plain(broker: Broker, credential, clock) -> FastClient:
    where = f"localhost:{broker.port}"
    return FastClient(where, credential, use_tls=False, timeout_seconds=SECONDS, clock=clock)


def signature(broker: Broker, clock, resource: str = "q") -> str:
    audience = f"sb://localhost:{broker.port}/{resource}"
    return make_token(default_policy(), audience=audience, expires_at=clock() + 1000)


@pytest.mark.parametrize("resource", ["", "q"])
def test_a_signature_for_the_namespace_or_the_entity_opens(broker, clock, connect, resource):
    token = signature(broker, clock, resource)
    with plain(broker, AzureSasCredential(token), clock) as client:
        assert passes(client)
    text = re.sub("SharedAccessKeyName=[^;]*;", "", broker.connection_string)
    text = re.sub("SharedAccessKey=[^;]*", f"SharedAccessSignature={token}", text)
    assert passes(connect(text))


@pytest.fixture
def bearer(clock):
    with bearer_broker("q", "other", clock=clock) as broker:
        yield broker


def test_a_token_credential_opens(bearer, clock):
    issuer = Issuer(clock=clock)
    with plain(bearer, issuer, clock) as client:
        assert passes(client)
    assert set(issuer.scopes) == {"https://servicebus.azure.net//.default"}


def test_what_a_token_credential_raises_is_raised(bearer, clock):
    issuer = Issuer(clock=clock)
    issuer.is_down = True
    with (
        plain(bearer, issuer, clock) as client,
        pytest.raises(ClientAuthenticationError) as caught,
    ):
        client.receiver("q", credit=1).receive(1, max_wait_seconds=1)
    assert kind_of(caught.value) is Kind.SETUP


def test_something_else_is_no_credential():
    with pytest.raises(TypeError, match="the credential is a str; expected AzureNamedKey"):
        FastClient("localhost", "secret", use_tls=False)


def test_a_signature_is_what_the_sdk_would_sign():
    from azure.servicebus._pyamqp.utils import generate_sas_token

    ours = sign("sb://ns/q ü", "name", "key", expires=1_800_000_000)
    theirs = generate_sas_token("sb://ns/q ü", "name", "key", 1_800_000_000)
    assert ours == theirs


def test_the_expiry_of_a_signature_is_read_from_it():
    at = 1_800_000_000
    text = sign("sb://ns/q", "name", "key", expires=at)
    assert source_of(AzureSasCredential(text))("sb://ns/q", 0.0) == Token(text, at, SAS)
    for strange in ("SharedAccessSignature sr=x&sig=y", "SharedAccessSignature se=never"):
        assert source_of(AzureSasCredential(strange))("", 0.0).expires == float("inf")
    shared = type("Shared", (), {"token_type": SAS.encode(), "get_token": lambda *_: None})
    assert source_of(shared()) is not None
    assert JWT == "jwt"


# -- renewal ----------------------------------------------------------------------------------


def test_tokens_are_renewed_by_the_calls_that_need_them(client, clock):
    sender, receiver = client.sender("q"), client.receiver("q", credit=10)
    for number in range(5):
        send_one(sender, message(f"m-{number}"))
        taken = take(receiver, 1)
        receiver.complete(taken)
        assert client.management("q").peek(1, 1) == []
        clock.advance(3300)  # a token lives for 3600 seconds
    assert client.is_open


def test_a_token_is_renewed_while_a_receiver_waits(bearer, clock):
    issuer = Issuer(clock=clock, seconds=1000)
    with (
        plain(bearer, issuer, clock) as client,
        plain(bearer, Issuer(clock=clock, seconds=9000), clock) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        receiver = client.receiver("q", credit=10)
        assert receiver.receive(1, max_wait_seconds=0) == []
        for count in range(1, 4):
            waiting = pool.submit(receiver.receive, 1, max_wait_seconds=150)
            clock.advance(950)
            wait_until(lambda count=count: issuer.count > count)
            # The receiver gets it only after the broker has answered the renewal. If the clock
            # advanced before that answer, the broker would end the link.
            send_one(other.sender("q"), message(f"late-{count}"))
            received = waiting.result(160)
            assert names(received) == [f"late-{count}"]
            receiver.complete(received)


def test_a_token_that_is_due_for_renewal_while_another_is_asked_for_takes_no_answer_away(
    bearer, clock
):
    class Slow(Issuer):
        def get_token(self, *scopes: str, **options: object) -> AccessToken:
            token = super().get_token(*scopes, **options)
            if len(self.scopes) == 2:
                clock.advance(950)  # the first token is due
            return token

    with plain(bearer, Slow(clock=clock, seconds=1000), clock) as client:
        client.sender("q").send(messages(1))
        client.sender("other").send(messages(1))
        client.sender("q").send(messages(1))


def test_a_token_that_cannot_be_renewed_is_tried_again_as_long_as_it_holds(bearer, clock):
    issuer = Issuer(clock=clock, seconds=1000)
    with plain(bearer, issuer, clock) as client:
        sender = client.sender("q")
        send_one(sender, message("a"))
        issuer.is_down = True
        for seconds in (920, 20):
            clock.advance(seconds)
            send_one(sender, message("b"))
        assert len(issuer.scopes) == 1
        issuer.is_down = False
        clock.advance(31)
        send_one(sender, message("c"))
        assert len(issuer.scopes) == 2


def test_hundreds_of_tokens_are_asked_for_together():
    """More than a link has credit for: the others follow with the first answers."""
    paths = [f"q{number}" for number in range(180)]
    with (
        Broker(queues=paths) as broker,
        broker.faults.slow(latency_seconds=0.5),
        plain(broker, KEY, time.time) as client,
    ):
        assert attach_each([client.sender(path) for path in paths]) == [None] * len(paths)


def test_ctrl_c_during_a_renewal_does_not_end_renewals(bearer, clock):
    class Interrupted(Issuer):
        def get_token(self, *scopes: str, **options: object) -> AccessToken:
            if self.is_down:
                raise KeyboardInterrupt
            return super().get_token(*scopes, **options)

    issuer = Interrupted(clock=clock, seconds=1000)
    with plain(bearer, issuer, clock) as client:
        sender = client.sender("q")
        send_one(sender, message("a"))
        issuer.is_down = True
        clock.advance(920)
        with pytest.raises(KeyboardInterrupt):
            send_one(sender, message("b"))
        issuer.is_down = False
        send_one(sender, message("c"))
        assert issuer.count == 2


def test_an_expired_signature_ends_the_link_until_there_is_another(broker, clock):
    credential = AzureSasCredential(signature(broker, clock))
    with plain(broker, credential, clock) as client:
        sender = client.sender("q")
        send_one(sender, message("a"))
        clock.advance(950)
        send_one(sender, message("b"))
        clock.advance(100)
        for _ in range(2):
            with pytest.raises((ServiceBusAuthenticationError, ServiceBusAuthorizationError)):
                send_one(sender, message("c"))
        credential.update(signature(broker, clock))
        send_one(sender, message("d"))
        assert left(client) == ["a", "b", "d"]


def test_a_signature_that_has_expired_by_our_clock_only_is_not_sent_again_and_again(broker, clock):
    class Counted(AzureSasCredential):
        count = 0

        @property
        def signature(self) -> str:
            self.count += 1
            return super().signature

    credential = Counted(signature(broker, clock))
    with plain(broker, credential, lambda: clock() + 2000) as client:
        assert client.receiver("q", credit=1).receive(1, max_wait_seconds=0.5) == []
    assert credential.count < 5


def test_messages_delivered_before_a_token_expired_are_not_lost(broker, clock):
    with plain(broker, AzureSasCredential(signature(broker, clock)), clock) as client:
        client.sender("q").send(messages(10))
        receiver = client.receiver("q", credit=10, mode="receiveAndDelete")
        taken = take(receiver, 1)
        clock.advance(1100)
        taken += take(receiver, 9)
        with pytest.raises((ServiceBusAuthenticationError, ServiceBusAuthorizationError)):
            receiver.receive(1, max_wait_seconds=5)
    assert names(taken) == [f"m-{number}" for number in range(10)]


# -- TLS --------------------------------------------------------------------------------------


def test_everything_goes_over_tls(broker, clock):
    client = FastClient("localhost", KEY, port=broker.port, ca_file=broker.ca_file, clock=clock)
    with closing(client):
        client.sender("q").send(messages(2000, body=bytes(500)))
        receiver = client.receiver("q", credit=500)
        taken = take(receiver, 2000)
        assert names(taken) == [f"m-{number}" for number in range(2000)]
        receiver.complete(taken)
        large = message("large", body=bytes(200_000))
        send_one(client.sender("q"), large)
        [one] = take(receiver, 1)
        assert one.data.endswith(large)


def test_a_connection_string_without_the_emulator_s_flag_means_tls(broker, connect):
    text = broker.connection_string.replace(";UseDevelopmentEmulator=true", "")
    assert passes(connect(text, port=broker.port, ca_file=broker.ca_file))


def test_a_server_with_an_untrusted_certificate_is_refused(broker):
    client = FastClient("localhost", KEY, port=broker.port, timeout_seconds=30)
    with closing(client), pytest.raises(ServiceBusConnectionError, match="certificate") as caught:
        client.open()
    assert kind_of(caught.value) is Kind.OUTAGE
    assert not client.is_open


def test_the_certificate_must_be_for_the_host(broker, monkeypatch):
    found = socket.getaddrinfo("localhost", broker.port, type=socket.SOCK_STREAM)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    client = FastClient("elsewhere.example", KEY, port=broker.port, ca_file=broker.ca_file)
    with closing(client), pytest.raises(ServiceBusConnectionError, match="certificate"):
        client.open()


def test_a_ca_file_that_is_not_there_or_not_one_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"ca_file.*missing.pem"):
        FastClient("localhost", KEY, ca_file=tmp_path / "missing.pem")
    (tmp_path / "wrong.pem").write_text("hello")
    with pytest.raises(ValueError, match=r"wrong.pem.*holds no certificates"):
        FastClient("localhost", KEY, ca_file=tmp_path / "wrong.pem")


def test_without_a_ca_file_the_one_in_the_environment_is_trusted(broker, monkeypatch, tmp_path):
    text = broker.connection_string.replace(";UseDevelopmentEmulator=true", "")
    address = Address.from_connection_string(text, port=broker.port)
    with closing(address.client()) as client, pytest.raises(ServiceBusConnectionError):
        client.open()

    monkeypatch.setenv("SSL_CERT_FILE", str(broker.ca_file))
    with closing(address.client()) as client:
        client.open()

    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
    with pytest.raises(FileNotFoundError, match=r"SSL_CERT_FILE.*missing.pem"):
        address.client()


# -- what it learns ---------------------------------------------------------------------------


def test_a_connection_string_for_one_entity_opens_no_other(connect, broker):
    client = connect(broker.connection_string + ";EntityPath=events")
    assert client.management("Events/Subscriptions/audit").peek(1, 1) == []
    for make in (client.sender, client.management, lambda path: client.receiver(path, credit=1)):
        with pytest.raises(ValueError, match="EntityPath 'events' only"):
            make("q")


def test_an_empty_path_is_refused(client):
    with pytest.raises(ValueError, match="path is empty"):
        client.sender("")


@pytest.mark.parametrize(
    ("namespace", "options", "port"),
    [
        ("127.0.0.9", {}, 5671),
        ("sb://127.0.0.9:1234/", {}, 5671),
        ("127.0.0.9", {"use_tls": False}, 5672),
        ("sb://127.0.0.9:1234/", {"use_tls": False}, 1234),
        ("127.0.0.9", {"port": 99}, 99),
    ],
)
def test_the_port_is_the_protocol_s_unless_it_is_given(namespace, options, port):
    """Nobody listens on that address of this machine, and the error says where it was tried."""
    with pytest.raises(ServiceBusConnectionError, match=f"127.0.0.9:{port}:"):
        FastClient(namespace, KEY, timeout_seconds=30, **options).open()


def test_a_client_is_shown_with_its_namespace():
    assert repr(FastClient("sb://ns.example:1234/", KEY)) == "<FastClient ns.example not open>"


def test_a_time_out_is_above_nothing():
    with pytest.raises(ValueError, match="timeout_seconds is 0"):
        FastClient("ns.example", KEY, timeout_seconds=0)
