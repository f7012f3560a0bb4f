"""One text for both clients of the official `azure-servicebus` package: blocking and asyncio.

An object of the asyncio package is wrapped (`Blocking`) so that it answers under the names and in
the manner of its blocking twin. Its coroutines run to their end on a loop in a thread of its own,
so its background tasks are alive between calls, as in an application.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterable, Callable, Iterator
from functools import partial
from typing import Any, Protocol

import azure.servicebus as blocking
import azure.servicebus.aio as aio
import pytest
from azure.servicebus.aio import AutoLockRenewer, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.aio._servicebus_session_async import ServiceBusSession

HANG_SECONDS = 60
both_clients = pytest.mark.parametrize("shell", ["sync", "asyncio"], indirect=True)
"""For a test of what the two clients do each in its own way: waits, flow control, reconnects."""


class Shell(Protocol):
    """A way to use the SDK: `sync` or `asyncio`, under the blocking names."""

    name: str

    def client(self, connection_string: str, **options: Any) -> Any: ...

    def client_with(self, namespace: str, credential: Any, **options: Any) -> Any: ...

    def lock_renewer(self, **options: Any) -> Any: ...


class SyncShell:
    name = "sync"

    def client(self, connection_string: str, **options: Any) -> Any:
        return blocking.ServiceBusClient.from_connection_string(connection_string, **options)

    def client_with(self, namespace: str, credential: Any, **options: Any) -> Any:
        return blocking.ServiceBusClient(namespace, credential, **options)

    def lock_renewer(self, **options: Any) -> Any:
        return blocking.AutoLockRenewer(**options)


class AsyncioShell:
    """The asyncio client on a loop that runs in its own thread for the whole test session."""

    name = "asyncio"
    _WRAPPED = (
        aio.ServiceBusClient,
        ServiceBusSender,
        ServiceBusReceiver,
        ServiceBusSession,
        AutoLockRenewer,
    )

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="asyncio-shell")
        self._thread.start()

    def client(self, connection_string: str, **options: Any) -> Any:
        make = aio.ServiceBusClient.from_connection_string
        return self.call(make, connection_string, **options)

    def client_with(self, namespace: str, credential: Any, **options: Any) -> Any:
        return self.call(aio.ServiceBusClient, namespace, credential, **options)

    def lock_renewer(self, **options: Any) -> Any:
        return self.call(AutoLockRenewer, **options)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        async def run() -> Any:
            result = function(
                *(_unwrap(value) for value in args),
                **{key: _unwrap(value) for key, value in kwargs.items()},
            )
            if inspect.isawaitable(result):
                result = await result
            elif isinstance(result, AsyncIterable) and not isinstance(result, self._WRAPPED):
                result = [item async for item in result]
            return result

        future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        return self.wrap(future.result(HANG_SECONDS))

    def wrap(self, value: Any) -> Any:
        return Blocking(value, self) if isinstance(value, self._WRAPPED) else value

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Blocking:
    """An object of the asyncio SDK with the names and the behaviour of its blocking twin."""

    _END = object()

    def __init__(self, target: Any, shell: AsyncioShell) -> None:
        self.target = target
        self._shell = shell

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.target, name)
        if callable(value):
            return partial(self._shell.call, value)
        return self._shell.wrap(value)

    def __enter__(self) -> Blocking:
        self._shell.call(self.target.__aenter__)
        return self

    def __exit__(self, *exc: object) -> None:
        self._shell.call(self.target.__aexit__, *exc)

    def __iter__(self) -> Iterator[Any]:
        iterator = aiter(self.target)
        while (item := self._shell.call(anext, iterator, self._END)) is not self._END:
            yield item


def _unwrap(value: Any) -> Any:
    return value.target if isinstance(value, Blocking) else value
