"""Keys, policies and tokens with the official SDK: who may connect, and what they may do.

A token that proves nothing fails at `$cbs` (ServiceBusAuthenticationError), as does one for an
entity that is not there; a good token without the right fails at the link
(ServiceBusAuthorizationError).
"""

from __future__ import annotations

import logging
import re
import time
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
)

from pairbus.broker import Broker
from pairbus.broker.entities.descriptions import QueueDescription
from pairbus.broker.entities.namespace_options import NamespaceOptions
from pairbus.broker.entities.policies import default_policy
from pairbus.broker.links.tokens import make_token
from tests.interop.bus import take
from tests.interop.shells import both_clients

pytestmark = pytest.mark.req("B-02")


def with_token(bus, token):
    """A connection string with a signature in place of a key."""
    text = re.sub("SharedAccessKeyName=[^;]*;", "", bus.broker.connection_string)
    return re.sub("SharedAccessKey=[^;]*", f"SharedAccessSignature={token}", text)


def token_for(bus, resource, *, seconds=600.0):
    audience = f"sb://{bus.endpoint}/{resource}"
    return make_token(default_policy(), audience=audience, expires_at=bus.clock() + seconds)


def send_and_look(bus, client):
    """Both directions of one client."""
    with client.get_queue_sender(bus.queue) as sender:
        sender.send_messages(ServiceBusMessage("x"))
    with client.get_queue_receiver(bus.queue) as receiver:
        assert [str(m) for m in receiver.peek_messages(10, sequence_number=1)] == ["x"]


@both_clients
def test_a_policy_with_only_send_sends_and_schedules_but_does_not_receive(bus):
    client = bus.connect(bus.connection_string("sender"))
    sender = bus.sender(client=client)
    sender.send_messages(ServiceBusMessage("allowed"))
    later = datetime.now(UTC) + timedelta(hours=1)
    [number] = sender.schedule_messages(ServiceBusMessage("later"), later)
    sender.cancel_scheduled_messages(number)
    with pytest.raises(ServiceBusAuthorizationError):
        bus.receiver(client=client)
    with pytest.raises(ServiceBusAuthorizationError):
        bus.receiver(client=client, sub_queue="deadletter")
    assert bus.left_bodies() == ["allowed"]


@both_clients
def test_a_policy_with_only_listen_receives_but_does_not_send(bus):
    bus.send("x", "y")
    client = bus.connect(bus.connection_string("listener"))
    receiver = bus.receiver(client=client)
    assert [str(m) for m in receiver.peek_messages(2)] == ["x", "y"]
    [message] = take(receiver)
    receiver.renew_message_lock(message)
    receiver.complete_message(message)
    with pytest.raises(ServiceBusAuthorizationError):
        bus.sender(client=client)
    assert bus.left_bodies() == ["y"]


@pytest.mark.queue(requires_session=True)
def test_a_policy_with_only_send_may_not_list_sessions(bus):
    bus.send("x", session_id="s")
    client = bus.connect(bus.connection_string("sender"))
    with pytest.raises(ServiceBusAuthorizationError):
        list(client.list_queue_sessions(bus.queue))
    client = bus.connect(bus.connection_string("listener"))
    assert list(client.list_queue_sessions(bus.queue)) == ["s"]


@pytest.mark.parametrize("wrong", [{"key": "bm90IHRoZSBrZXk="}, {"policy": "nobody"}], ids=str)
def test_a_wrong_key_or_an_unknown_policy_is_refused(bus, wrong):
    client = bus.connect(bus.connection_string(**wrong))
    with pytest.raises(ServiceBusAuthenticationError):
        bus.sender(client=client)
    with pytest.raises(ServiceBusAuthenticationError):
        bus.receiver(client=client)


def test_an_unknown_queue_is_refused_like_a_bad_token(bus):
    with pytest.raises(ServiceBusAuthenticationError):
        bus.sender("nowhere")
    with pytest.raises(ServiceBusAuthenticationError):
        bus.receiver("nowhere")
    with pytest.raises(ServiceBusAuthenticationError):
        list(bus.client.list_queue_sessions("nowhere"))


def test_an_expired_token_is_refused_and_the_log_says_so(bus, caplog):
    """By the broker's clock: the SDK, by its own, still accepts the token."""
    caplog.set_level(logging.INFO, logger="pairbus.broker")
    client = bus.connect(with_token(bus, token_for(bus, bus.queue, seconds=60)))
    bus.sender(client=client)
    bus.advance(61)
    with pytest.raises(ServiceBusAuthenticationError):
        bus.receiver(client=client)
    entity, policy = re.escape(bus.queue), default_policy().name
    wanted = rf" refused \S+:\d+, entity '{entity}', policy '{policy}': the token expired at "
    assert any(re.search(wanted, line) for line in caplog.messages), caplog.messages


@both_clients
@pytest.mark.parametrize("kind", ["named key", "sas"])
def test_the_credential_classes_of_azure_core_work(bus, kind):
    policy = default_policy()
    credential = {
        "named key": lambda: AzureNamedKeyCredential(policy.name, policy.key),
        "sas": lambda: AzureSasCredential(token_for(bus, bus.queue)),
    }[kind]()
    send_and_look(bus, bus.connect_with(credential))


class Clocks:
    """The SDK's clock and the broker's, which are set forward together."""

    def __init__(self, bus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._bus = bus
        self._ahead = 0.0
        for module in ("cbs", "aio._cbs_async"):
            monkeypatch.setattr(f"azure.servicebus._pyamqp.{module}.utc_now", self.utc_now)

    def utc_now(self) -> datetime:
        return datetime.fromtimestamp(self.sdk_time(), UTC)

    def sdk_time(self) -> float:
        return time.time() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds
        self._bus.advance(seconds)


class RenewingCredential:
    """Returns signatures that are valid for ten minutes, and counts the calls."""

    token_type = b"servicebus.windows.net:sastoken"
    """So the SDK asks for a token for the entity's address and not for Azure's scope."""

    def __init__(self, bus: Any, clocks: Clocks) -> None:
        self._bus = bus
        self._clocks = clocks
        self.asked = 0
        # The asyncio client awaits what the blocking one only calls.
        self.get_token = self._make if bus.shell.name == "sync" else self._make_later

    def _make(self, audience: str, **_: Any) -> AccessToken:
        self.asked += 1
        expires_at = self._bus.clock() + 600
        token = make_token(default_policy(), audience=audience, expires_at=expires_at)
        return AccessToken(token, int(self._clocks.sdk_time() + 600))

    async def _make_later(self, audience: str, **options: Any) -> AccessToken:
        return self._make(audience, **options)


@both_clients
def test_a_connection_outlives_its_token_when_the_sdk_renews_it(bus, monkeypatch):
    """The SDK renews a token in the last tenth of its life."""
    clocks = Clocks(bus, monkeypatch)
    credential = RenewingCredential(bus, clocks)
    client = bus.connect_with(credential)
    sender, receiver = bus.sender(client=client), bus.receiver(client=client)

    def send_and_receive():
        sender.send_messages(ServiceBusMessage("x"))
        [message] = take(receiver)
        receiver.complete_message(message)

    send_and_receive()
    assert credential.asked == 2, "one connection each"
    clocks.advance(570)
    send_and_receive()
    assert credential.asked == 4, "each has renewed its token"
    clocks.advance(60)
    send_and_receive()
    assert credential.asked == 4


@both_clients
def test_a_token_that_expired_unrenewed_ends_the_use_of_its_link(bus):
    """The SDK sees its link end, tries again once, and is refused at `$cbs`."""
    token = token_for(bus, bus.queue, seconds=600)
    client = bus.connect(with_token(bus, token), retry_total=1, retry_backoff_factor=0.01)
    sender = bus.sender(client=client)
    sender.send_messages(ServiceBusMessage("in time"))
    bus.advance(601)
    with pytest.raises(ServiceBusAuthenticationError):
        sender.send_messages(ServiceBusMessage("too late"))
    assert bus.left_bodies() == ["in time"]


class AnyToken:
    """Like a credential of azure-identity, but without Azure."""

    def get_token(self, *scopes, **more):
        return AccessToken("e30.e30.none", int(time.time()) + 3600)


@pytest.mark.req("B-02")
@pytest.mark.parametrize("accepts", [True, False], ids=["taken", "refused"])
def test_a_bearer_token_is_taken_where_the_namespace_says_so(accepts):
    options = NamespaceOptions(queues=[QueueDescription(name="q")], accepts_bearer=accepts)
    with Broker(namespaces=[options]) as broker:
        host = f"localhost:{broker['local'].port}"
        client = ServiceBusClient(host, AnyToken(), use_tls=False, retry_total=0)
        expected = nullcontext() if accepts else pytest.raises(ServiceBusAuthenticationError)
        with client, expected, client.get_queue_sender("q") as sender:
            sender.send_messages(ServiceBusMessage("hello"))
