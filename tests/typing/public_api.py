"""The public API as an application uses it. Nothing runs this file: `make check` checks its types.
If a line here fails the check, an application's line would too."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, assert_type

import azure.servicebus
import azure.servicebus.aio
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch, ServiceBusSender
from azure.servicebus.aio.management import (
    ServiceBusAdministrationClient as AsyncAdministrationClient,
)
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

import pairbus
import pairbus.aio
from pairbus import (
    BacklogExhausted,
    ClientFaulted,
    EnvelopeTooLarge,
    OptionsError,
    PairbusError,
    PairedNamespaceOptions,
    PairingError,
    SendAvailabilityPairedNamespaceOptions,
    SequenceNumberUnknown,
    ServiceBusClient,
    SyphonNotInstalled,
    UnknownSequenceNumber,
)
from pairbus.client.route.status import EntityStatus, PairingStatus, WithdrawnQueue
from pairbus.events import Diverted, Event, FailedOver, Observer, PingSent

PRIMARY = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b"
SECONDARY = "Endpoint=sb://backup.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b"


def watch(event: Event) -> None:
    match event:
        case FailedOver(path=path, backlog_queue=queue, error=error, after_seconds=seconds):
            assert_type(path, str)
            assert_type(queue, str | None)
            assert_type(error, BaseException | None)
            assert_type(seconds, float)
        case Diverted(count=count):
            assert_type(count, int)
        case PingSent(answered=answered):
            assert_type(answered, bool)
        case _:
            assert_type(event.namespace, str)


def pair() -> ServiceBusClient:
    primary = ServiceBusClient.from_connection_string(PRIMARY)
    assert_type(primary, ServiceBusClient)
    secondary = ServiceBusClient.from_connection_string(SECONDARY, retry_total=5)
    manager = ServiceBusAdministrationClient.from_connection_string(SECONDARY)
    options = SendAvailabilityPairedNamespaceOptions(manager, secondary)
    assert_type(primary.pair_namespace(options), None)
    assert_type(options.backlog_queue_count, int)
    assert_type(options.mark_path_healthy("orders"), bool)
    assert_type(options.is_paired, bool)
    return primary


def in_with_statements() -> None:
    with ServiceBusClient.from_connection_string(PRIMARY) as client:
        assert_type(client, ServiceBusClient)


async def in_async_with_statements() -> None:
    async with pairbus.aio.ServiceBusClient.from_connection_string(PRIMARY) as client:
        assert_type(client, pairbus.aio.ServiceBusClient)


def all_options(manager: ServiceBusAdministrationClient) -> PairedNamespaceOptions:
    observer: Observer = watch
    return SendAvailabilityPairedNamespaceOptions(
        manager,
        azure.servicebus.ServiceBusClient.from_connection_string(SECONDARY),
        10,
        timedelta(minutes=1),
        False,
        timedelta(minutes=1),
        primary_namespace_name="contoso",
        ping_mode="link",
        failover_scope="namespace",
        fail_back_pings=2,
        fail_back="ordered",
        fail_back_wait_max=timedelta(hours=1),
        secondary_connections="lazy",
        send_timeout=timedelta(seconds=30),
        throttle_wait=timedelta(seconds=10),
        observers=[observer, print],
        syphon=None,
    )


def wrong_options(manager: ServiceBusAdministrationClient) -> None:
    # What a checker finds before it is run: an ignore that is not needed is an error here.
    SendAvailabilityPairedNamespaceOptions(manager, manager, "10")  # type: ignore[arg-type]
    SendAvailabilityPairedNamespaceOptions(manager, manager, ping_mode="http")  # type: ignore[arg-type]
    SendAvailabilityPairedNamespaceOptions(manager, manager, fail_back="sorted")  # type: ignore[arg-type]
    SendAvailabilityPairedNamespaceOptions(manager, manager, failover_interval=60)  # type: ignore[arg-type]
    SendAvailabilityPairedNamespaceOptions(manager, manager, observers=[len])  # type: ignore[list-item]


def send(primary: ServiceBusClient, later: datetime) -> None:
    with primary, primary.get_queue_sender("orders", client_identifier="me") as sender:
        takes_the_sdks(sender)
        sender.send_messages(ServiceBusMessage("order"), timeout=5.0)
        sender.send_messages([ServiceBusMessage("order")])
        batch = sender.create_message_batch(max_size_in_bytes=1000)
        assert_type(batch, ServiceBusMessageBatch)
        batch.add_message(ServiceBusMessage("order"))
        sender.send_messages(batch)
        numbers = sender.schedule_messages(ServiceBusMessage("order"), later)
        assert_type(numbers, list[int])
        for number in numbers:
            if isinstance(number, UnknownSequenceNumber):
                assert_type(number.backlog_queue, str | None)
                assert_type(number.message_id, str)
        sender.cancel_scheduled_messages(numbers, timeout=5.0)
    primary.get_topic_sender("events").close()


def takes_the_sdks(sender: ServiceBusSender) -> None:
    """A paired sender is one of the SDK's."""
    client: azure.servicebus.ServiceBusClient = pair()
    client.get_queue_receiver("orders").receive_messages()
    client.get_subscription_receiver("events", "audit").close()
    sender.close()


def look(primary: ServiceBusClient) -> None:
    pairing = primary.pairing
    if pairing is None:
        return
    assert_type(pairing.observe(watch), Callable[[], None])
    assert_type(pairing.mark_path_healthy("orders"), bool)
    assert_type(pairing.options, SendAvailabilityPairedNamespaceOptions)
    status = pairing.status()
    assert_type(status, PairingStatus)
    assert_type(status.failed_over, tuple[str, ...])
    assert_type(status.as_dict(), dict[str, Any])
    entity = status.entity("orders")
    assert_type(entity, EntityStatus)
    assert_type(entity.since, datetime)
    assert_type(entity.first_failure, datetime | None)
    assert_type(entity.diverted, int)
    assert_type(status.withdrawn, tuple[WithdrawnQueue, ...])


def handle(primary: ServiceBusClient, options: PairedNamespaceOptions) -> None:
    try:
        primary.pair_namespace(options)
    except SyphonNotInstalled as error:
        assert_type(error.namespace, str | None)
    except PairingError as error:
        assert_type(error.namespace, str | None)
        assert_type(error.queue, str | None)
    except OptionsError as error:
        mistake: ValueError = error
        raise mistake from None
    try:
        primary.get_queue_sender("orders").send_messages(ServiceBusMessage("order"))
    except BacklogExhausted as error:
        sdk_error: ServiceBusError = error
        assert_type(error.entity, str)
        assert_type(error.primary_error, BaseException | None)
        assert_type(error.backlog_error, BaseException | None)
        assert_type(error.diverted_count, int)
        raise sdk_error from None
    except EnvelopeTooLarge as error:
        too_large: MessageSizeExceededError = error
        assert_type(error.backlog_queue, str)
        raise too_large from None
    except (ClientFaulted, SequenceNumberUnknown) as error:
        ours: PairbusError = error
        raise ours from None


# --- asyncio


async def pair_async() -> pairbus.aio.ServiceBusClient:
    primary = pairbus.aio.ServiceBusClient.from_connection_string(PRIMARY)
    assert_type(primary, pairbus.aio.ServiceBusClient)
    secondary = azure.servicebus.aio.ServiceBusClient.from_connection_string(SECONDARY)
    manager = AsyncAdministrationClient.from_connection_string(SECONDARY)
    options = pairbus.aio.SendAvailabilityPairedNamespaceOptions(
        manager, secondary, failover_interval=timedelta(0), observers=[watch]
    )
    await primary.pair_namespace(options)
    primary.pair_namespace(options)  # type: ignore[unused-coroutine]
    return primary


async def send_async(primary: pairbus.aio.ServiceBusClient, later: datetime) -> None:
    async with primary, primary.get_queue_sender("orders") as sender:
        plain: azure.servicebus.aio.ServiceBusSender = sender
        await plain.send_messages(ServiceBusMessage("order"))
        await sender.send_messages([ServiceBusMessage("order")], timeout=5.0)
        batch = await sender.create_message_batch()
        assert_type(batch, ServiceBusMessageBatch)
        numbers = await sender.schedule_messages(ServiceBusMessage("order"), later)
        assert_type(numbers, list[int])
        await sender.cancel_scheduled_messages(numbers)
    client: azure.servicebus.aio.ServiceBusClient = primary
    await client.close()
    if primary.pairing is not None:
        assert_type(primary.pairing.status(), PairingStatus)
        assert_type(primary.pairing.observe(watch), Callable[[], None])


def the_same_names() -> None:
    assert_type(pairbus.aio.PairingError, type[PairingError])
    assert_type(pairbus.aio.BacklogExhausted, type[pairbus.BacklogExhausted])
