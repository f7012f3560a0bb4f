"""The SDK's client with `pair_namespace`, which pairs it with a client of another namespace."""

from __future__ import annotations

import threading
from typing import Any, Self

import azure.servicebus
from azure.servicebus import ServiceBusReceiver

from pairbus.client import checks
from pairbus.client.blocking.pairing import Pairing
from pairbus.client.blocking.sender import PairedSender
from pairbus.client.sdk import backlog_queues, private
from pairbus.client.state import ClientState
from pairbus.client.steps import run
from pairbus.client.syphon import SyphonSupervisor, syphon_for
from pairbus.options import PairedNamespaceOptions, SendAvailabilityPairedNamespaceOptions


class ServiceBusClient(azure.servicebus.ServiceBusClient):
    """Like `azure.servicebus.ServiceBusClient`, with `pair_namespace` added."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        private.make_closable(self)
        self._state: ClientState[Pairing] = ClientState(self)
        self._pairing_lock = threading.Lock()

    @classmethod
    def from_connection_string(cls, conn_str: str, **kwargs: Any) -> Self:
        """As the SDK's."""
        made = super().from_connection_string(conn_str, **kwargs)
        assert isinstance(made, cls)
        return made

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def pair_namespace(self, options: PairedNamespaceOptions) -> None:
        """Pair this client of the primary with the secondary namespace in the options.

        When it returns, all senders of this client are paired, including those made earlier. If it
        raises (`PairingError` for bad credentials, backlog queues that cannot be created, or a
        secondary that cannot be reached), the client stays as it was, and you can use the options
        again.
        """
        with self._pairing_lock:
            self._state.check_unpaired()
            checked = checks.checked(self, options, is_asyncio=False)
            try:
                self._pair_with(checked)
            except BaseException:
                checked.release()
                raise

    def _pair_with(self, options: SendAvailabilityPairedNamespaceOptions) -> None:
        namespace = checks.namespace_name(self, options)
        syphon = syphon_for(options, namespace)
        backlog = run(backlog_queues.steps_for(namespace, options))
        pairing = Pairing(self, options, backlog, paired_sender_class=PairedSender)
        supervisor = None
        if syphon is not None:
            supervisor = SyphonSupervisor(
                syphon, pairing, self, fault=lambda client, reason: client.fault(reason)
            )
        try:
            pairing.start()
            if supervisor is not None:
                supervisor.start()
                for state, listener in supervisor.listeners():
                    state.listen(supervisor, listener)
            paths = self._state.install(pairing)
        except BaseException:
            if supervisor is not None:
                supervisor.abandon()
            pairing.close()
            raise
        pairing.follow_secondary()
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

    def close(self) -> None:
        """Like the SDK's method. It also stops the pings and the syphon, and closes the connections
        to the secondary. The secondary's own client stays open.
        """
        self._end("closed")

    def fault(self, reason: str) -> None:
        """End this client. Using it afterwards raises `ClientFaulted` with the reason."""
        self._state.set_fault(reason)
        self._end(f"faulted: {reason}")

    def _end(self, reason: str) -> None:
        pairing = self._state.pairing
        self._state.is_closed = True
        if pairing is not None and pairing.is_of_parent:
            return  # the connections belong to the parent process
        while (listener := self._state.take_listener()) is not None:
            listener(reason)
        if self._state.pairing is not None:
            self._state.pairing.close()
        super().close()
