"""A paired client on two brokers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus import SendAvailabilityPairedNamespaceOptions, ServiceBusClient
from pairbus.broker import Broker


@contextmanager
def paired(east: Broker, west: Broker, **settings: Any) -> Iterator[ServiceBusClient]:
    """A client of `east`, which fails over to `west` at once."""
    with (
        ServiceBusClient.from_connection_string(east.connection_string, retry_total=0) as primary,
        ServiceBusClient.from_connection_string(west.connection_string) as secondary,
        ServiceBusAdministrationClient.from_connection_string(
            west.connection_string, connection_verify=str(west.ca_file)
        ) as manager,
    ):
        options = SendAvailabilityPairedNamespaceOptions(
            manager, secondary, failover_interval=timedelta(0), **settings
        )
        primary.pair_namespace(options)
        yield primary
