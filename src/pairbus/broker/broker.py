"""A broker inside a Python program: a context manager around a thread with its own event loop.

For tests and notebooks. Errors in `start` are raised in the caller's thread. After `stop`, no
thread, socket or temporary file is left. `server.py` does the work.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from pairbus.broker.entities.descriptions import (
    EntityDescription,
    QueueDescription,
    topics_from_names,
)
from pairbus.broker.entities.namespace_options import Limits, NamespaceOptions
from pairbus.broker.entities.policies import Policy, default_policy
from pairbus.broker.faults import Faults
from pairbus.broker.server import Endpoint, Server, new_event_loop
from pairbus.cost.meter import Meter
from pairbus.errors import BrokerError, ConfigError

_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 30.0


class Broker:
    """A local Service Bus for as long as the `with` block lasts.

    >>> with Broker(queues=["orders"]) as broker:          # doctest: +SKIP
    ...     client = ServiceBusClient.from_connection_string(broker.connection_string)

    Give either the settings of one namespace, or several as `namespaces`. A broker can be started
    again after a stop. It keeps its ports, so that connection strings stay valid.
    """

    def __init__(
        self,
        queues: Iterable[str | QueueDescription] = (),
        *,
        topics: Iterable[str | EntityDescription] = (),
        name: str = "local",
        port: int = 0,
        policies: Sequence[Policy] | None = None,
        data: str | Path | None = None,
        limits: Limits | None = None,
        sku: str | None = None,
        namespaces: Sequence[NamespaceOptions] | None = None,
        host: str = "localhost",
        tls_only: bool | None = None,
        allow_insecure: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`topics` may contain subscriptions: `events/Subscriptions/audit`, or a description."""
        for given, what in ((queues, "queues"), (topics, "topics")):
            if isinstance(given, str):  # it would be taken for a list of letters
                raise ConfigError(f"{what} must be a list of names, such as [{given!r}]")
        queues, topics = tuple(queues), tuple(topics)
        if namespaces is None:
            namespaces = (
                NamespaceOptions(
                    name=name,
                    port=port,
                    queues=[
                        q if isinstance(q, QueueDescription) else QueueDescription(name=q)
                        for q in queues
                    ],
                    topics=topics_from_names(topics),
                    policies=(default_policy(),) if policies is None else tuple(policies),
                    data=None if data is None else Path(data),
                    limits=limits or Limits(),
                    sku=sku or "Standard",
                ),
            )
        elif queues or topics or any(one is not None for one in (policies, data, limits, sku)):
            raise ConfigError(
                "give queues, topics, policies, data, limits and sku in each of the namespaces, "
                "not beside them"
            )
        self._namespaces = tuple(namespaces)
        self._host = host
        self._tls_only = tls_only
        self._allow_insecure = allow_insecure
        self._clock = clock
        self._running: _BrokerThread | None = None

    # --- life cycle

    def start(self) -> Self:
        if self._running is not None:
            raise BrokerError("the broker is already running")
        server = Server(
            self._namespaces,
            host=self._host,
            tls_only=self._tls_only,
            allow_insecure=self._allow_insecure,
            clock=self._clock,
        )
        self._running = running = _BrokerThread(server)
        try:
            running.start()
        except BaseException:
            self._running = None
            raise
        self._namespaces = tuple(
            replace(options, port=running.endpoints[options.name].port)
            for options in self._namespaces
        )
        # A program that does not call `stop` still exits, with its messages on the disk.
        atexit.register(self._stop_at_exit)
        return self

    def stop(self) -> None:
        """Safe to call more than once, and before `start`."""
        running, self._running = self._running, None
        if running is not None:
            atexit.unregister(self._stop_at_exit)
            running.stop()

    def _stop_at_exit(self) -> None:
        # An exiting interpreter cannot start threads, so the stop may be interrupted. Everything
        # acknowledged is on the disk anyway.
        with contextlib.suppress(RuntimeError):
            self.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- connecting

    @property
    def connection_string(self) -> str:
        """The connection string of the only namespace. With several namespaces, use
        `broker[name].connection_string`.
        """
        return self._only().connection_string

    def connection_string_for(self, policy_name: str) -> str:
        return self._only().connection_string_for(policy_name)

    @property
    def faults(self) -> Faults:
        """Faults on demand in the only namespace. With several, use `broker[name].faults`."""
        return self._only().faults

    @property
    def meter(self) -> Meter:
        """Billed operations in the only namespace. With several, use `broker[name].meter`."""
        return self._only().meter

    @property
    def port(self) -> int:
        return self._only().port

    @property
    def ca_file(self) -> Path:
        """The authority to trust. In the SDK: `connection_verify=str(broker.ca_file)`."""
        return self._started().server.ca_file()

    @property
    def namespaces(self) -> Mapping[str, Endpoint]:
        return self._started().endpoints

    def __getitem__(self, name: str) -> Endpoint:
        endpoints = self._started().endpoints
        if name not in endpoints:
            known = ", ".join(endpoints)
            raise KeyError(f"there is no namespace {name!r}; the namespaces are {known}")
        return endpoints[name]

    def _only(self) -> Endpoint:
        endpoints = self._started().endpoints
        if len(endpoints) > 1:
            raise BrokerError(
                f"this broker has several namespaces ({', '.join(endpoints)}): "
                "name one, as in broker[name].connection_string"
            )
        return next(iter(endpoints.values()))

    def _started(self) -> _BrokerThread:
        if self._running is None:
            raise BrokerError("the broker is not running: use it in a `with` block, or start() it")
        return self._running


class _BrokerThread:
    """The thread of a running broker, with its own event loop."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.endpoints: Mapping[str, Endpoint] = {}
        self._ready: Future[dict[str, Endpoint]] = Future()
        self._done: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._is_stopping = False
        # A daemon thread, because the interpreter waits for other threads before it runs atexit.
        self._thread = threading.Thread(target=self._run, name="pairbus-broker", daemon=True)

    def start(self) -> None:
        self._thread.start()
        try:
            self.endpoints = self._ready.result(_START_SECONDS)
        except BaseException:
            self._ask_to_stop()
            self._thread.join(_STOP_SECONDS)
            raise

    def stop(self) -> None:
        self._ask_to_stop()
        self._done.result(_STOP_SECONDS)
        self._thread.join(_STOP_SECONDS)

    def _ask_to_stop(self) -> None:
        self._is_stopping = True
        if self._loop is not None and self._stop is not None and not self._done.done():
            self._loop.call_soon_threadsafe(self._stop.set)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            self._done.set_exception(error)
        else:
            self._done.set_result(None)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        if self._is_stopping:
            return  # `start` was interrupted before there was a loop
        await self.server.start()
        self._ready.set_result(dict(self.server.endpoints))
        try:
            await self._stop.wait()
        finally:
            await self.server.stop()
