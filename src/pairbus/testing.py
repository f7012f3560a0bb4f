"""Helpers for tests of your application: two paired namespaces, and a clock that you move by hand.

Usable from any test framework; `pairbus.pytest_plugin` wraps them in fixtures. The SDK, the broker
and the syphon are imported only by the methods that need them, so `ManualClock` is cheap to import.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from azure.core.credentials import AccessToken
    from azure.servicebus import ServiceBusReceivedMessage
    from azure.servicebus.management import ServiceBusAdministrationClient

    import pairbus
    import pairbus.aio
    from pairbus.broker import Broker, EntityDescription, QueueDescription

_PRIMARY_NAME: Final = "primary"
_SETTINGS: Final[dict[str, Any]] = {
    "failover_interval": timedelta(0),
    "ping_primary_interval": timedelta(seconds=1),
    "backlog_queue_count": 2,
    "primary_namespace_name": _PRIMARY_NAME,
}


class ManualClock:
    """Seconds since the epoch, for `Broker(clock=...)`. Call it to read the time.

    A broker subscribes to the clock, because its timers were set by the old time. `advance` returns
    when the broker has caught up: locks, schedules and expiries are up to date.

    >>> clock = ManualClock(1000.0)
    >>> clock.advance(60)
    >>> clock()
    1060.0
    """

    def __init__(self, now: float | None = None, *, runs: bool = False) -> None:
        """With `runs`, the clock keeps running between two jumps. It starts at the current time by
        default.
        """
        self._runs = runs
        if runs:
            self._offset = 0.0 if now is None else now - time.time()
        else:
            self._offset = 1_800_000_000.0 if now is None else now
        self._listeners: list[Callable[[], None]] = []

    def __call__(self) -> float:
        return self._offset + (time.time() if self._runs else 0.0)

    def advance(self, seconds: float) -> None:
        self._offset += seconds
        for listener in list(self._listeners):
            listener()

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls `listener` after each jump. Returns a function that ends the subscription."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)


class LocalCredential:
    """A credential like those of azure-identity, for a broker with `--accept-bearer`.

    Its tokens are not signed, and such a broker checks no signature. It honours their expiry, and
    their `roles` if these name roles of Service Bus.

    >>> LocalCredential(roles=["Azure Service Bus Data Sender"]).get_token("scope").token[:4]
    'e30.'
    """

    def __init__(self, *, roles: Iterable[str] = (), seconds: float = 3600) -> None:
        self._roles = list(roles)
        self._seconds = seconds

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        from azure.core.credentials import AccessToken

        expires_on = int(time.time() + self._seconds)
        claims = json.dumps({"exp": expires_on, "roles": self._roles})
        payload = base64.urlsafe_b64encode(claims.encode()).decode().rstrip("=")
        return AccessToken(f"e30.{payload}.", expires_on)


class ServiceBusPair:
    """Two namespaces in this process, and paired clients for them, until the `with` block ends.

    `queues` and `topics` are created on the primary; `events/Subscriptions/audit` among the topics
    is a subscription.

    >>> with ServiceBusPair(queues=["orders"]) as pair:          # doctest: +SKIP
    ...     with pair.client().get_queue_sender("orders") as sender:
    ...         with pair.primary.faults.unreachable():
    ...             sender.send_messages(ServiceBusMessage("order 1"))
    ...     assert pair.bring_home() == 1
    """

    def __init__(
        self,
        queues: Iterable[str | QueueDescription] = (),
        *,
        topics: Iterable[str | EntityDescription] = (),
    ) -> None:
        from pairbus.broker import Broker

        self.primary: Broker = Broker(queues, topics=topics)
        """The namespace under test: `primary.faults.unreachable()` takes it down."""
        self.secondary: Broker = Broker()
        """The namespace with the backlog queues."""
        self._clients: list[Any] = []

    def start(self) -> Self:
        self.primary.start()
        try:
            self.secondary.start()
        except BaseException:
            self.primary.stop()
            raise
        return self

    def close(self) -> None:
        """Closes the clients, then stops both namespaces."""
        try:
            while self._clients:
                self._clients.pop().close()
        finally:
            self.secondary.stop()
            self.primary.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def client(self, **settings: Any) -> pairbus.ServiceBusClient:
        """A paired client of the primary, closed together with the pair.

        `settings` are passed to `options`.
        """
        import pairbus

        client = pairbus.ServiceBusClient.from_connection_string(
            self.primary.connection_string, retry_total=0
        )
        options = self.options(**settings)
        self._clients.append(client)  # entered after the secondary's client, so it is closed first
        client.pair_namespace(options)
        return client

    def options(self, **settings: Any) -> pairbus.SendAvailabilityPairedNamespaceOptions:
        """Options to pair a client of your own: `client.pair_namespace(pair.options())`.

        By default it fails over at the first failure and has two backlog queues. `settings` are
        passed to SendAvailabilityPairedNamespaceOptions.
        """
        import pairbus

        secondary = pairbus.ServiceBusClient.from_connection_string(
            self.secondary.connection_string, retry_total=0
        )
        manager = self._administration()
        self._clients += [secondary, manager]
        return pairbus.SendAvailabilityPairedNamespaceOptions(
            manager, secondary, **(_SETTINGS | settings)
        )

    def backlog(self) -> list[ServiceBusReceivedMessage]:
        """Peeks at the diverted messages that were not brought home yet."""
        from azure.servicebus import ServiceBusClient

        found: list[ServiceBusReceivedMessage] = []
        with ServiceBusClient.from_connection_string(self.secondary.connection_string) as client:
            # Empty queues are skipped: the SDK takes a second to open and close a link.
            for queue in self._backlog_queues(skip_empty=True):
                with client.get_queue_receiver(queue) as receiver:
                    found += receiver.peek_messages(max_message_count=250, sequence_number=1)
        return found

    def bring_home(self) -> int:
        """Brings messages home once, like a syphon, in this process and without Spark.

        Returns the number of messages that it brought home.
        """
        from pairbus.fast.address import Address
        from pairbus.syphon.job import Job
        from pairbus.syphon.options import SyphonOptions
        from pairbus.syphon.receipts import ReceiptOutcome
        from pairbus.syphon.runner import InProcessRunner

        options = SyphonOptions(
            primaries={
                _PRIMARY_NAME: Address.from_connection_string(self.primary.connection_string)
            },
            secondary=Address.from_connection_string(self.secondary.connection_string),
        )
        queues = self._backlog_queues()
        job = Job(options, InProcessRunner(), lambda: queues)
        receipts = job.run(once=True)
        return sum(each.count for each in receipts if each.outcome is ReceiptOutcome.BROUGHT_HOME)

    def _backlog_queues(self, *, skip_empty: bool = False) -> list[str]:
        from pairbus.syphon.discovery import namespace_of

        with self._administration() as manager:
            return [
                queue.name
                for queue in manager.list_queues_runtime_properties()
                if namespace_of(queue.name) is not None
                and (queue.active_message_count or not skip_empty)
            ]

    def _administration(self) -> ServiceBusAdministrationClient:
        from azure.servicebus.management import ServiceBusAdministrationClient

        return ServiceBusAdministrationClient.from_connection_string(
            self.secondary.connection_string,
            connection_verify=str(self.secondary.ca_file),
            use_env_settings=False,  # a proxy is not for brokers on this machine
        )


class AsyncServiceBusPair:
    """`ServiceBusPair` for asyncio: `client()` is a context manager. Nothing blocks the event loop.

    >>> async with AsyncServiceBusPair(queues=["orders"]) as pair:          # doctest: +SKIP
    ...     async with pair.client() as client, client.get_queue_sender("orders") as sender:
    ...         with pair.primary.faults.unreachable():
    ...             await sender.send_messages(ServiceBusMessage("order 1"))
    ...     assert await pair.bring_home() == 1
    """

    def __init__(
        self,
        queues: Iterable[str | QueueDescription] = (),
        *,
        topics: Iterable[str | EntityDescription] = (),
    ) -> None:
        self._pair = ServiceBusPair(queues, topics=topics)
        self.primary: Broker = self._pair.primary
        """The namespace under test: `primary.faults.unreachable()` takes it down."""
        self.secondary: Broker = self._pair.secondary
        """The namespace with the backlog queues."""

    def start(self) -> Self:
        self._pair.start()
        return self

    def close(self) -> None:
        """Stops both namespaces."""
        self._pair.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    @asynccontextmanager
    async def client(self, **settings: Any) -> AsyncIterator[pairbus.aio.ServiceBusClient]:
        """A paired client of the primary, closed at the end of the `async with` block.

        `settings` are passed to SendAvailabilityPairedNamespaceOptions. By default it fails over at
        the first failure and has two backlog queues.
        """
        from azure.servicebus.aio.management import ServiceBusAdministrationClient

        from pairbus.aio import SendAvailabilityPairedNamespaceOptions, ServiceBusClient

        text = self.secondary.connection_string
        async with AsyncExitStack() as stack:
            manager = await stack.enter_async_context(
                ServiceBusAdministrationClient.from_connection_string(
                    text,
                    connection_verify=str(self.secondary.ca_file),
                    use_env_settings=False,
                )
            )
            secondary = await stack.enter_async_context(
                ServiceBusClient.from_connection_string(text, retry_total=0)
            )
            client = ServiceBusClient.from_connection_string(
                self.primary.connection_string, retry_total=0
            )
            await stack.enter_async_context(client)
            await client.pair_namespace(
                SendAvailabilityPairedNamespaceOptions(manager, secondary, **(_SETTINGS | settings))
            )
            yield client

    async def backlog(self) -> list[ServiceBusReceivedMessage]:
        """Peeks at the diverted messages that were not brought home yet."""
        return await asyncio.to_thread(self._pair.backlog)

    async def bring_home(self) -> int:
        """Brings messages home once, like a syphon. Returns their number."""
        return await asyncio.to_thread(self._pair.bring_home)
