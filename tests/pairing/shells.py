"""The two paired clients, blocking and asyncio, both under the blocking names, so that one test is
for both.

As for the plain SDK (`tests/interop/shells.py`), the asyncio client works on a loop in its own
thread, so that its background tasks are alive between calls, as in an application.
"""

from __future__ import annotations

from typing import Any, Protocol

import azure.servicebus as plain
import azure.servicebus.aio as plain_aio
from azure.servicebus.aio.management import (
    ServiceBusAdministrationClient as AsyncAdministrationClient,
)
from azure.servicebus.management import ServiceBusAdministrationClient

import pairbus
import pairbus.aio
from tests.interop import shells
from tests.interop.shells import Blocking


class Shell(Protocol):
    name: str

    def client(self, connection_string: str, **options: Any) -> Any: ...

    def client_with(self, namespace: str, credential: Any, **options: Any) -> Any: ...

    def plain_client(self, connection_string: str, **options: Any) -> Any: ...

    def manager(self, connection_string: str, **options: Any) -> Any: ...

    def manager_with(self, namespace: str, credential: Any, **options: Any) -> Any: ...

    def options(self, manager: Any, factory: Any, **settings: Any) -> Any: ...


class SyncShell:
    name = "sync"

    def client(self, connection_string: str, **options: Any) -> Any:
        return pairbus.ServiceBusClient.from_connection_string(connection_string, **options)

    def client_with(self, namespace: str, credential: Any, **options: Any) -> Any:
        return pairbus.ServiceBusClient(namespace, credential, **options)

    def plain_client(self, connection_string: str, **options: Any) -> Any:
        return plain.ServiceBusClient.from_connection_string(connection_string, **options)

    def manager(self, connection_string: str, **options: Any) -> Any:
        return ServiceBusAdministrationClient.from_connection_string(connection_string, **options)

    def manager_with(self, namespace: str, credential: Any, **options: Any) -> Any:
        return ServiceBusAdministrationClient(namespace, credential, **options)

    def options(self, manager: Any, factory: Any, **settings: Any) -> Any:
        return pairbus.SendAvailabilityPairedNamespaceOptions(manager, factory, **settings)


class AsyncioShell(shells.AsyncioShell):
    _MORE = (AsyncAdministrationClient, pairbus.SendAvailabilityPairedNamespaceOptions)

    def client(self, connection_string: str, **options: Any) -> Any:
        make = pairbus.aio.ServiceBusClient.from_connection_string
        return self.call(make, connection_string, **options)

    def client_with(self, namespace: str, credential: Any, **options: Any) -> Any:
        return self.call(pairbus.aio.ServiceBusClient, namespace, credential, **options)

    def plain_client(self, connection_string: str, **options: Any) -> Any:
        make = plain_aio.ServiceBusClient.from_connection_string
        return self.call(make, connection_string, **options)

    def manager(self, connection_string: str, **options: Any) -> Any:
        make = AsyncAdministrationClient.from_connection_string
        return self.call(make, connection_string, **options)

    def manager_with(self, namespace: str, credential: Any, **options: Any) -> Any:
        return self.call(AsyncAdministrationClient, namespace, credential, **options)

    def options(self, manager: Any, factory: Any, **settings: Any) -> Any:
        make = pairbus.aio.SendAvailabilityPairedNamespaceOptions
        return self.call(make, manager, factory, **settings)

    def wrap(self, value: Any) -> Any:
        # A pairing is asked from the loop's thread as well; its class is nobody's business.
        if isinstance(value, self._MORE) or type(value).__name__.endswith("Pairing"):
            return Blocking(value, self)
        return super().wrap(value)


def bare(value: Any) -> Any:
    """What an application would hold."""
    return value.target if isinstance(value, Blocking) else value
