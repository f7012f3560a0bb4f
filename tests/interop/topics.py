"""Topics for tests of the official SDK: made while the broker runs, each for one test alone.

The administration API has tests of its own; here entities are made on the broker's own loop, which
takes no link and no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from azure.servicebus import ServiceBusMessage

from pairbus.broker import Broker
from pairbus.broker.entities.descriptions import (
    EntityDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    subscription_path,
)
from pairbus.broker.namespace import Namespace
from pairbus.broker.rules import SqlAction, SqlFilter, TrueFilter
from tests.interop.bus import Bus

DURABLE_SECONDS_MAX = 10


def on_the_broker(broker: Broker, work: Callable[[Namespace], object]) -> None:
    """Runs the function on the broker's loop, and waits until its changes are durable."""
    running = broker._running
    assert running is not None
    assert running._loop is not None
    [namespace] = running.server._namespaces

    async def run() -> None:
        work(namespace)
        await namespace.durable()

    asyncio.run_coroutine_threadsafe(run(), running._loop).result(DURABLE_SECONDS_MAX)


def make(broker: Broker, *descriptions: EntityDescription) -> None:
    def work(namespace: Namespace) -> None:
        for description in descriptions:
            namespace.create(description)

    on_the_broker(broker, work)


def change(broker: Broker, path: str, **settings: Any) -> None:
    def work(namespace: Namespace) -> None:
        entity = namespace.find(path)
        assert entity is not None, path
        namespace.update(entity, replace(entity.description, **settings))

    on_the_broker(broker, work)


def remove(broker: Broker, path: str) -> None:
    def work(namespace: Namespace) -> None:
        entity = namespace.find(path)
        assert entity is not None, path
        namespace.delete(entity)

    on_the_broker(broker, work)


def exists(broker: Broker, path: str) -> bool:
    found: list[object] = []
    on_the_broker(broker, lambda namespace: found.append(namespace.find(path)))
    return found != [None]


def rule(filter: Any = None, action: str | None = None, *, name: str = "rule") -> RuleDescription:
    """A filter or an action in SQL, or a filter of another kind."""
    return RuleDescription(
        name=name,
        filter=SqlFilter(filter) if isinstance(filter, str) else filter or TrueFilter(),
        action=None if action is None else SqlAction(action),
    )


class Topic:
    """A topic of the test's own with its subscriptions, seen through the test's `bus`."""

    def __init__(
        self,
        bus: Bus,
        settings: dict[str, Any] | None = None,
        *,
        name: str = "topic",
        **subscriptions: dict[str, Any],
    ) -> None:
        self.bus = bus
        self.name = bus.path(name)
        make(
            bus.broker,
            TopicDescription(name=self.name, **(settings or {})),
            *(
                SubscriptionDescription(name=self.path(name), **own)
                for name, own in subscriptions.items()
            ),
        )
        self._sender: Any = None
        self._receivers: dict[tuple[str, str | None], Any] = {}

    def path(self, subscription: str) -> str:
        return subscription_path(self.name, subscription)

    def sender(self, client: Any = None) -> Any:
        chosen = client or self.bus.client
        return self.bus.enter(chosen.get_topic_sender(self.name))

    def receiver(self, subscription: str, *, client: Any = None, **options: Any) -> Any:
        chosen = client or self.bus.client
        receiver = self.bus.enter(
            chosen.get_subscription_receiver(self.name, subscription, **options)
        )
        if "session_id" not in options:
            self._receivers[subscription, options.get("sub_queue")] = receiver
        return receiver

    def send(self, *messages: Any, **settings: Any) -> None:
        """Texts become messages with these settings; one send each."""
        if self._sender is None:
            self._sender = self.sender()
        for message in messages:
            if isinstance(message, str):
                message = ServiceBusMessage(message, **settings)
            self._sender.send_messages(message)

    def left(self, subscription: str, sub_queue: str | None = None) -> list[Any]:
        """Peeks, with the test's receiver if there is one: opening another takes half a second."""
        receiver = self._receivers.get((subscription, sub_queue))
        if receiver is None:
            receiver = self.receiver(subscription, sub_queue=sub_queue)
        return list(receiver.peek_messages(250, sequence_number=1))

    def left_bodies(self, subscription: str, sub_queue: str | None = None) -> list[str]:
        return [str(message) for message in self.left(subscription, sub_queue)]
