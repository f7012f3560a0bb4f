"""`pair_namespace` itself: what it creates, what it refuses, and what is left when it fails."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusError

from pairbus.client.sdk.pairing_errors import PairingError
from pairbus.errors import PairbusError
from pairbus.events import FailedOver, Paired
from tests.pairing.shells import bare


def settings(queue) -> dict:
    """All settings of a queue, as the administration client shows them."""
    return {name: value for name, value in queue.items() if name != "name"}


# what it makes


@pytest.mark.req("A-03", "A-04", "A-05", "A-06", "A-09", "Q-01")
def test_two_arguments_are_enough(world):
    client = world.client()
    options = world.shell.options(world.manager(), world.factory())
    assert options.backlog_queue_count == 10
    assert options.failover_interval == timedelta(minutes=1)
    assert options.ping_primary_interval == timedelta(minutes=1)
    assert options.enable_syphon is False
    client.pair_namespace(options)
    try:
        names = [f"localhost/x-servicebus-transfer/{index}" for index in range(10)]
        assert all(world.secondary.has_queue(name) for name in names)
        assert options.backlog_queue_count == 10
        assert client.pairing.status().backlog_queues == tuple(names)
        assert bare(client.pairing.options) is bare(options)
    finally:
        for name in names:
            world.secondary.admin.delete_queue(name)


@pytest.mark.req("A-08")
@pytest.mark.parametrize("existing", [0, 2, 3])
def test_the_options_say_how_many_backlog_queues_there_are(world, existing):
    for index in range(existing):
        world.secondary.admin.create_queue(world.backlog_path(index))
    client = world.client()
    options = world.options(backlog_queue_count=3)
    client.pair_namespace(options)
    listed = [queue.name for queue in world.secondary.admin.list_queues()]
    there = [name for name in listed if name.startswith(f"{world.name}/")]
    assert options.backlog_queue_count == len(there)
    assert sorted(client.pairing.status().backlog_queues) == sorted(there)


@pytest.mark.req("Q-03", "Q-04")
def test_queues_that_exist_are_used_as_they_are_and_others_left_alone(world, caplog):
    admin = world.secondary.admin
    for index in (0, 2, 3):
        admin.create_queue(
            world.backlog_path(index), lock_duration=timedelta(seconds=20), max_delivery_count=3
        )
    before = {index: settings(admin.get_queue(world.backlog_path(index))) for index in (0, 2, 3)}
    queue = world.queue()
    client = world.client()
    options = world.options(backlog_queue_count=2)
    client.pair_namespace(options)
    assert options.backlog_queue_count == 2
    [paired] = world.events_of(Paired)
    assert paired.made == (world.backlog_path(1),)
    [warning] = paired.warnings
    assert f"{world.backlog_path(0)!r} already existed" in warning
    assert "after 3 deliveries (max_delivery_count)" in warning
    warned = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert warned == [warning]
    sender = world.sender(client, queue)
    world.primary.fault("cannot_send", queue)
    for number in range(6):
        world.send(sender, f"{number}")
        client.pairing.mark_path_healthy(queue)  # so that the next one chooses anew
    world.check(queue, backlog=[f"{number}" for number in range(6)])
    for index in (2, 3):
        assert world.secondary.count(world.backlog_path(index)) == 0
    for index, had in before.items():
        has = settings(admin.get_queue(world.backlog_path(index)))
        for changing in ("updated_at_utc", "accessed_at_utc"):
            had.pop(changing, None)
            has.pop(changing, None)
        assert has == had


@pytest.mark.req("A-03", "X-01")
@pytest.mark.parametrize("connections", ["ready", "lazy"])
def test_the_secondarys_client_may_be_the_plain_sdks(world, connections):
    queue = world.queue()
    factory = world.enter(
        world.shell.plain_client(world.secondary.connection_string(), retry_total=0)
    )
    client = world.pair(factory=factory, secondary_connections=connections)
    sender = world.sender(client, queue)
    world.primary.fault("cannot_send", queue)
    world.send(sender, "1", "2")
    world.check(queue, backlog=["1", "2"])
    client.close()
    with factory.get_queue_sender(world.backlog_path(0)) as other:
        other.send_messages(ServiceBusMessage("it is the application's own"))


# what it refuses


def refused_pairing(client, options, *words: str) -> PairingError:
    with pytest.raises(PairingError) as raised:
        client.pair_namespace(options)
    assert isinstance(raised.value, ServiceBusError)
    assert isinstance(raised.value, PairbusError)
    for word in words:
        assert word in str(raised.value)
    return raised.value


def check_unpaired(world, client, queue: str) -> None:
    """It is what it was before: a client like the SDK's."""
    assert client.pairing is None
    with client.get_queue_sender(queue) as sender:
        world.send(sender, "unpaired")
        fault = world.primary.fault("cannot_send", queue)
        with pytest.raises(ServiceBusError) as raised:
            world.send(sender, "refused")
        assert not isinstance(raised.value, PairbusError)
        fault.clear()
    world.check(queue, primary=["unpaired"])


@pytest.mark.req("A-07", "A-08")
def test_a_backlog_queue_that_cannot_be_made_is_named(world):
    queue, missing = world.queue(), world.backlog_path(1)
    client = world.client()
    options = world.options(backlog_queue_count=3)
    world.secondary.admin.create_topic(missing)
    refused_pairing(client, options, missing, "probably a topic")
    assert not world.secondary.has_queue(world.backlog_path(2))
    assert not options.is_paired
    assert world.events == []
    assert options.backlog_queue_count == 3, "what was asked for"
    world.secondary.admin.delete_topic(missing)
    check_unpaired(world, client, queue)
    client.pair_namespace(options)
    [paired] = world.events_of(Paired)
    assert paired.made == (missing, world.backlog_path(2)), "the first was made the first time"


@pytest.mark.req("A-07")
@pytest.mark.parametrize("who", ["secondary_namespace_manager", "messaging_factory"])
def test_a_certificate_that_is_not_trusted_is_named_with_the_setting(world, who):
    queue = world.queue()
    client = world.client()
    if who == "messaging_factory":
        text = re.sub(";?UseDevelopmentEmulator=true", "", world.secondary.connection_string())
        factory = world.factory(
            text,
            custom_endpoint_address=f"sb://{world.secondary.endpoint}",
            transport_type=TransportType.Amqp,
        )
        options = world.options(factory=factory)
    else:
        options = world.options(manager=world.manager(connection_verify=True))
    error = refused_pairing(client, options, who)
    assert "connection_verify" in str(error)
    assert "certificate verify failed" in str(error)
    check_unpaired(world, client, queue)


@pytest.mark.req("A-07")
@pytest.mark.parametrize("connections", ["ready", "lazy"])
@pytest.mark.parametrize(
    ("policy", "key"),
    [("RootManageSharedAccessKey", "bm90IHRoZSBrZXk="), ("listener", None)],
    ids=["wrong key", "only Listen"],
)
def test_a_secondarys_client_that_may_not_send_is_refused(world, policy, key, connections):
    queue = world.queue()
    client = world.client()
    factory = world.factory(world.secondary.connection_string(policy, key))
    options = world.options(factory=factory, secondary_connections=connections)
    error = refused_pairing(client, options, "could not open a sender link to backlog queue")
    assert error.__cause__ is not None
    check_unpaired(world, client, queue)
    world.pair(client)
    with client.get_queue_sender(queue) as sender:
        world.send(sender, "paired")
    world.check(queue, primary=["unpaired", "paired"])


@pytest.mark.req("A-07")
def test_a_secondary_that_is_down_cannot_be_paired_with(world):
    queue = world.queue()
    client = world.client()
    options = world.options()
    world.secondary.kill()
    refused_pairing(client, options, world.secondary.endpoint, "must be up")
    world.secondary.start()
    check_unpaired(world, client, queue)
    client.pair_namespace(options)
    assert client.pairing is not None


@pytest.mark.req("A-01", "F-05")
def test_a_sender_of_the_secondarys_client_is_never_diverted(world):
    """It is the application's own client. Its use as a secondary changes nothing for it."""
    client, factory = world.client(), world.factory()
    world.pair(client, factory=factory)
    world.secondary.admin.create_queue(f"{world.name}.own")
    sender = world.enter(factory.get_queue_sender(f"{world.name}.own"))
    fault = world.secondary.fault("cannot_send", f"{world.name}.own")
    with pytest.raises(ServiceBusError):
        sender.send_messages(ServiceBusMessage("x"))
    fault.clear()
    sender.send_messages(ServiceBusMessage("y"))
    assert world.secondary.count(f"{world.name}.own") == 1
    assert not world.events_of(FailedOver)
