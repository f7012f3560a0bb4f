"""Stand-ins for tests of the paired client that need no connection: real clients of the SDK that
never connect, a clock that is set by hand, and replacements for senders of the SDK."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import azure.servicebus.aio
from azure.servicebus import ServiceBusClient
from azure.servicebus.aio.management import (
    ServiceBusAdministrationClient as AsyncAdministrationClient,
)
from azure.servicebus.exceptions import (
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.client.pairing import PairingCore
from pairbus.client.sdk import backlog_queues
from pairbus.client.sdk.backlog_queues import BacklogQueues
from pairbus.client.syphon import SyphonContext
from pairbus.events import Event
from pairbus.options import SendAvailabilityPairedNamespaceOptions

KEY = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=c2VjcmV0"
AT_ONCE = timedelta(0)


def connection_string(host: str, *more: str) -> str:
    return ";".join([f"Endpoint=sb://{host}/", KEY, *more])


PRIMARY = connection_string("contoso.servicebus.windows.net")
SECONDARY = connection_string("backup.servicebus.windows.net")


class Clock:
    """Monotonic seconds, moved by hand."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def plain_client(text: str = PRIMARY, **settings: Any) -> ServiceBusClient:
    """A client of the SDK. It would connect on first use, and is never used here."""
    return ServiceBusClient.from_connection_string(text, **settings)


def sender_with(limits: tuple[int, int], queue: str = "orders") -> Any:
    """A sender whose link has reported these limits: of a message, and of a batch."""
    sender = plain_client().get_queue_sender(queue)
    report_limits(sender, limits)
    return sender


def report_limits(sender: Any, limits: tuple[int, int]) -> None:
    sender._max_message_size_on_link, sender._max_batch_size_on_link = limits


def as_if_open(sender: Any) -> None:
    sender._running = True


def refusal(kind: type[ServiceBusError], condition: str) -> ServiceBusError:
    """What the SDK raises when the service answers with this AMQP condition."""
    answer: Any = Exception("refused")
    answer.condition = condition.encode()
    return kind(message="refused", error=answer)


def options(
    secondary: str = SECONDARY, *, manager: str | None = None, **settings: Any
) -> SendAvailabilityPairedNamespaceOptions:
    """Blocking, with the backlog queues on `backup`."""
    return SendAvailabilityPairedNamespaceOptions(
        ServiceBusAdministrationClient.from_connection_string(manager or secondary),
        settings.pop("factory", None) or plain_client(secondary),
        **settings,
    )


def asyncio_options(**settings: Any) -> SendAvailabilityPairedNamespaceOptions:
    """Create and close these in an event loop."""
    return SendAvailabilityPairedNamespaceOptions(
        AsyncAdministrationClient.from_connection_string(SECONDARY),
        azure.servicebus.aio.ServiceBusClient.from_connection_string(SECONDARY),
        **settings,
    )


def found(count: int) -> BacklogQueues:
    return BacklogQueues(queues=backlog_queues.names("contoso", count), made=())


def pairing_of(
    clock: Callable[[], float], *, queues: int = 3, retry_total: int = 3, **settings: Any
) -> tuple[PairingCore, list[Event]]:
    """What both shells' pairings have in common, and the events that its observers get."""
    events: list[Event] = []
    settings = {"failover_interval": AT_ONCE, "observers": [events.append], **settings}
    client = plain_client(PRIMARY, retry_total=retry_total)
    pairing = PairingCore(client, options(**settings), found(queues), clock=clock)
    pairing.pool = NoConnections()
    return pairing, events


class NoConnections:
    """In place of a shell's pool, where nothing is sent."""

    is_ready = False
    kept: frozenset[str] = frozenset()

    def has_ready(self, queue: str) -> bool:
        return self.is_ready

    def trim(self, *, keep: frozenset[str]) -> None:
        self.kept = keep


def run_in_threads(work: Callable[[], None], count: int = 8) -> None:
    """`count` threads at once, which switch as often as Python allows."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)


def outage() -> ServiceBusConnectionError:
    return ServiceBusConnectionError(message="the connection is gone")


def busy() -> ServiceBusServerBusyError:
    return ServiceBusServerBusyError(message="the server is busy")


class StandIn:
    """In place of a sender of the SDK, where nothing is sent."""

    fully_qualified_namespace = "backup.servicebus.windows.net"

    def __init__(self, queue: str = "q") -> None:
        self.entity_name = queue
        self.is_closed = False
        self._running = False
        self._handler: Any = None
        self._max_message_size_on_link = 0
        self._max_batch_size_on_link = 0

    def open(self, limits: tuple[int, int] = (1000, 2000)) -> None:
        """As if its link had attached."""
        self._running, self._handler = True, object()
        self._max_message_size_on_link, self._max_batch_size_on_link = limits

    def close(self) -> None:
        self.is_closed = True
        self._running, self._handler = False, None


class RecordedSyphon:
    """Only records its calls. It starts when the gate is open."""

    def __init__(self, start_error: Exception | None = None) -> None:
        self.context: SyphonContext | None = None
        self.start_error = start_error
        self.stop_error: Exception | None = None
        self.starts = 0
        self.stops: list[float] = []
        """How many seconds each stop was given."""
        self.stopped_in: list[str] = []
        """The names of the threads."""
        self.started = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    @property
    def is_running(self) -> bool:
        return self.starts > len(self.stops)

    def start(self, context: SyphonContext) -> None:
        self.starts += 1
        self.started.set()
        assert self.gate.wait(30)
        if self.start_error is not None:
            raise self.start_error
        self.context = context

    def stop(self, *, timeout_seconds: float) -> None:
        assert self.context is not None or self.start_error is not None, "it has not started"
        self.stops.append(timeout_seconds)
        self.stopped_in.append(threading.current_thread().name)
        if self.stop_error is not None:
            raise self.stop_error
