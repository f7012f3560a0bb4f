"""The SDK's asyncio client with `pair_namespace`: like `blocking/client.py`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Self

import azure.servicebus.aio
from azure.servicebus.aio import ServiceBusReceiver

from pairbus.client import checks
from pairbus.client.aio.pairing import Pairing
from pairbus.client.aio.sender import PairedSender
from pairbus.client.sdk import backlog_queues, private
from pairbus.client.state import ClientState
from pairbus.client.steps import run_async
from pairbus.client.syphon import SyphonSupervisor, syphon_for
from pairbus.options import PairedNamespaceOptions, SendAvailabilityPairedNamespaceOptions


class ServiceBusClient(azure.servicebus.aio.ServiceBusClient):
    """Like `azure.servicebus.aio.ServiceBusClient`, with `pair_namespace` added."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        private.make_closable(self)
        self._state: ClientState[Pairing] = ClientState(self)
        self._pairing_lock = asyncio.Lock()

    @classmethod
    def from_connection_string(cls, conn_str: str, **kwargs: Any) -> Self:
        """As the SDK's."""
        made = super().from_connection_string(conn_str, **kwargs)
        assert isinstance(made, cls)
        return made

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self

    async def pair_namespace(self, options: PairedNamespaceOptions) -> None:
        """Pair this client of the primary with the secondary namespace in the options.

        When it returns, all senders of this client are paired, including those made earlier. If it
        raises (`PairingError` for bad credentials, backlog queues that cannot be created, or a
        secondary that cannot be reached), the client stays as it was, and you can use the options
        again.
        """
        async with self._pairing_lock:
            self._state.check_unpaired()
            checked = checks.checked(self, options, is_asyncio=True)
            try:
                await self._pair_with(checked)
            except BaseException:
                checked.release()
                raise

    async def _pair_with(self, options: SendAvailabilityPairedNamespaceOptions) -> None:
        namespace = checks.namespace_name(self, options)
        syphon = syphon_for(options, namespace)
        backlog = await run_async(backlog_queues.steps_for(namespace, options))
        pairing = Pairing(self, options, backlog, paired_sender_class=PairedSender)
        supervisor = None
        if syphon is not None:
            fault = partial(fault_from_thread, asyncio.get_running_loop())
            supervisor = SyphonSupervisor(syphon, pairing, self, fault=fault)
        try:
            await pairing.start()
            if supervisor is not None:
                await start_on_thread(supervisor)
            paths = self._state.install(pairing)
        except BaseException:
            if supervisor is not None:
                await asyncio.to_thread(supervisor.abandon)
            await pairing.close()
            raise
        await pairing.follow_secondary()
        pairing.announce(paths)

    @property
    def pairing(self) -> Pairing | None:
        """The pair's state, or None: `status()`, `observe(callback)`, `mark_path_healthy(path)`."""
        return self._state.pairing

    def get_queue_receiver(self, queue_name: str, **kwargs: Any) -> ServiceBusReceiver:
        """As the SDK's."""
        self._state.check()
        return super().get_queue_receiver(queue_name, **kwargs)

    def get_subscription_receiver(
        self, topic_name: str, subscription_name: str, **kwargs: Any
    ) -> ServiceBusReceiver:
        """As the SDK's."""
        self._state.check()
        return super().get_subscription_receiver(topic_name, subscription_name, **kwargs)

    def get_queue_sender(self, queue_name: str, **kwargs: Any) -> PairedSender:
        """As the SDK's."""
        return self._state.adopt(super().get_queue_sender, queue_name, kwargs, PairedSender)

    def get_topic_sender(self, topic_name: str, **kwargs: Any) -> PairedSender:
        """As the SDK's."""
        return self._state.adopt(super().get_topic_sender, topic_name, kwargs, PairedSender)

    async def close(self) -> None:
        """Like the SDK's method. It also stops the pings and the syphon, and closes the connections
        to the secondary. The secondary's own client stays open.
        """
        await self._end("closed")

    async def fault(self, reason: str) -> None:
        """End this client. Using it afterwards raises `ClientFaulted` with the reason."""
        self._state.set_fault(reason)
        await self._end(f"faulted: {reason}")

    async def _end(self, reason: str) -> None:
        pairing = self._state.pairing
        self._state.is_closed = True
        if pairing is not None and pairing.is_of_parent:
            return  # the connections belong to the parent process
        while (listener := self._state.take_listener()) is not None:
            ending = listener(reason)
            if inspect.isawaitable(ending):
                await ending
        if self._state.pairing is not None:
            await self._state.pairing.close()
        await super().close()


async def start_on_thread(supervisor: SyphonSupervisor) -> None:
    starting = asyncio.ensure_future(asyncio.to_thread(supervisor.start))
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait([starting])  # so that it can be stopped
        raise
    for state, listener in supervisor.listeners():
        ending = state.listen(supervisor, _on_thread(listener))
        if ending is not None:  # that client is already closed
            await ending


def _on_thread(listener: Callable[[str], None]) -> Callable[[str], Awaitable[None]]:
    return lambda reason: asyncio.to_thread(listener, reason)


def fault_from_thread(
    loop: asyncio.AbstractEventLoop, client: ServiceBusClient, reason: str
) -> None:
    """The supervisor calls this on its own thread."""
    if not loop.is_closed():
        asyncio.run_coroutine_threadsafe(client.fault(reason), loop).result()
