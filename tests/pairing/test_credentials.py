"""Every kind of credential that the SDK knows, on both sides of a pair; and TLS."""

from __future__ import annotations

import re
import time

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import TransportType

from pairbus.broker.entities.policies import default_policy
from pairbus.broker.links.tokens import make_token
from pairbus.client.sdk.pairing_errors import PairingError
from pairbus.events import FailedBack
from pairbus.testing import LocalCredential
from tests.pairing.namespaces import with_token
from tests.pairing.world import SECOND

pytestmark = pytest.mark.req("X-01")


SENDER, OWNER = "Azure Service Bus Data Sender", "Azure Service Bus Data Owner"


class LaterCredential(LocalCredential):
    """For asyncio."""

    async def get_token(self, *scopes, **more):
        return super().get_token(*scopes, **more)

    async def close(self):
        pass


def identity(shell, role):
    kind = LocalCredential if shell.name == "sync" else LaterCredential
    return kind(roles=[role])


def signature(namespace) -> str:
    audience = f"sb://{namespace.endpoint}/"
    return make_token(default_policy(), audience=audience, expires_at=time.time() + 3600)


def named_key(namespace, shell):
    return AzureNamedKeyCredential(default_policy().name, default_policy().key)


def sas(namespace, shell):
    return AzureSasCredential(signature(namespace))


def bearer(namespace, shell):
    return identity(shell, SENDER)


def check_both_ways(world, client, queue: str) -> None:
    """To the primary, to the backlog, a ping, and back: each on its own connection."""
    with client.get_queue_sender(queue) as sender:
        world.send(sender, "1")
        with world.primary.fault("cannot_send", queue):
            world.send(sender, "2")
        world.wait_for(FailedBack, queue)
        world.send(sender, "3")
    world.check(queue, primary=["1", "3"], backlog=["2"])


@pytest.mark.parametrize("make", [named_key, sas, bearer], ids=lambda make: make.__name__)
def test_credential_objects(world, make):
    queue = world.queue()

    def connect(namespace):
        return world.enter(
            world.shell.client_with(
                namespace.endpoint, make(namespace, world.shell), use_tls=False, retry_total=0
            )
        )

    client = connect(world.primary)
    world.pair(client, factory=connect(world.secondary), ping_primary_interval=SECOND)
    check_both_ways(world, client, queue)


@pytest.mark.parametrize("role", [OWNER, SENDER])
def test_a_manager_needs_the_role_of_an_owner(world, role):
    """Also where the backlog queues exist: it looks them up."""
    queue = world.queue()
    client, factory = world.client(), world.factory()
    manager = world.enter(
        world.shell.manager_with(
            world.secondary.endpoint,
            identity(world.shell, role),
            connection_verify=str(world.secondary.ca_file),
        )
    )
    if role == SENDER:
        with pytest.raises(PairingError, match=f"or the role {OWNER}"):
            client.pair_namespace(world.options(manager=manager, factory=factory))
        return
    world.pair(client, manager=manager, factory=factory, ping_primary_interval=SECOND)
    check_both_ways(world, client, queue)


def test_a_signature_in_the_connection_string(world):
    queue = world.queue()
    primary, secondary = (
        with_token(namespace.connection_string(), signature(namespace))
        for namespace in (world.primary, world.secondary)
    )
    client = world.client(primary)
    world.pair(client, factory=world.factory(secondary), ping_primary_interval=SECOND)
    check_both_ways(world, client, queue)


def test_a_client_that_may_only_send_is_enough(world):
    queue = world.queue()
    client = world.client(world.primary.connection_string("sender"))
    factory = world.factory(world.secondary.connection_string("sender"))
    world.pair(client, factory=factory, ping_primary_interval=SECOND)
    check_both_ways(world, client, queue)


def test_a_token_that_is_no_longer_taken_is_no_outage(world):
    """A signature for another queue: the client is set up wrong, and a failover would not help."""
    from azure.servicebus.exceptions import ServiceBusAuthenticationError

    queue, other = world.queue(), world.queue("other")
    audience = f"sb://{world.primary.endpoint}/{other}"
    token = make_token(default_policy(), audience=audience, expires_at=time.time() + 3600)
    client = world.pair(world.client(with_token(world.primary.connection_string(), token)))
    with pytest.raises(ServiceBusAuthenticationError), client.get_queue_sender(queue):
        pass
    with client.get_queue_sender(other) as sender:
        world.send(sender, "fine")
    world.check(other, primary=["fine"])
    assert world.backlog() == []


TRANSPORTS = {
    "tls": TransportType.Amqp,
    "websocket": TransportType.AmqpOverWebsocket,
}


@pytest.mark.parametrize("transport", TRANSPORTS)
# The SDK's own way of saying "no TLS" to aiohttp.
@pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")
def test_transports(world, transport):
    queue = world.queue()

    def settings(namespace):
        text = namespace.connection_string()
        options = {
            "custom_endpoint_address": f"sb://{namespace.endpoint}",
            "transport_type": TRANSPORTS[transport],
            # The SDK gives a WebSocket one second to open, which a busy machine may exceed.
            "retry_total": 2,
            "retry_backoff_factor": 0.1,
        }
        if transport == "tls":
            text = re.sub(";?UseDevelopmentEmulator=true", "", text)
            options["connection_verify"] = namespace.ca_file
        return text, options

    text, options = settings(world.primary)
    if transport == "tls":  # the port is not in its name, so that both would be called localhost
        name = f"{world.primary.name}.servicebus.windows.net"
        text = text.replace(world.primary.endpoint, name)
    client = world.client(text, **options)
    text, options = settings(world.secondary)
    world.pair(client, factory=world.factory(text, **options), ping_primary_interval=SECOND)
    check_both_ways(world, client, queue)


@pytest.mark.req("F-01")
def test_a_primary_that_hangs_in_the_tls_handshake_is_failed_over_in_bounded_time(world):
    queue = world.queue()
    text = re.sub(";?UseDevelopmentEmulator=true", "", world.primary.connection_string())
    client = world.client(
        text,
        custom_endpoint_address=f"sb://{world.primary.endpoint}",
        transport_type=TransportType.Amqp,
        connection_verify=world.primary.ca_file,
    )
    world.pair(client, send_timeout=3 * SECOND)
    with world.primary.fault("hang"):
        began = time.monotonic()
        sender = client.get_queue_sender(queue)
        world.send(sender, "diverted")
        assert time.monotonic() - began < 40
        sender.close()
    world.check(queue, backlog=["diverted"])
