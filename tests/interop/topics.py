"""Topics for tests of the official SDK: made while the broker runs, each for one test alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
)

from pairbus.broker import Broker
from pairbus.broker.entities.descriptions import subscription_path
from tests.interop.bus import POLICIES, Bus

NOTHING = FalseRuleFilter()


@contextmanager
def premium(bus: Bus) -> Iterator[Bus]:
    """The same client on a namespace that knows the size of a message."""
    with Broker([bus.queue], sku="Premium", policies=POLICIES, clock=bus.clock) as broker:
        view = Bus(shell=bus.shell, broker=broker, clock=bus.clock, queue=bus.queue)
        yield view
        view.close()


@cache
def administration(broker: Broker) -> ServiceBusAdministrationClient:
    """One for each broker: a handshake takes longer than most requests."""
    return ServiceBusAdministrationClient.from_connection_string(
        broker.connection_string, connection_verify=str(broker.ca_file), retry_total=0
    )


def make(broker: Broker, kind: str, path: str, **settings: Any) -> None:
    """`kind` is queue, topic or subscription; `rules`, of a subscription, replace the default."""
    rules = settings.pop("rules", None)
    call = getattr(administration(broker), f"create_{kind}")
    call(*path.split("/Subscriptions/"), **settings)
    if rules is not None:
        change(broker, kind, path, rules=rules)


def find(broker: Broker, kind: str, path: str) -> Any:
    """Its properties, or None if there is none."""
    try:
        return getattr(administration(broker), f"get_{kind}")(*path.split("/Subscriptions/"))
    except ResourceNotFoundError:
        return None


def change(broker: Broker, kind: str, path: str, **settings: Any) -> None:
    admin, names = administration(broker), path.split("/Subscriptions/")
    for old in list(admin.list_rules(*names)) if "rules" in settings else ():
        admin.delete_rule(*names, old.name)
    for options in settings.pop("rules", ()):
        admin.create_rule(*names, **options)
    if settings:
        update = getattr(admin, f"update_{kind}")
        update(*names[:-1], find(broker, kind, path), **settings)


def rule(filter: Any, action: str | None = None, *, name: str = "rule") -> dict[str, Any]:
    """A filter or an action in SQL, or a filter of another kind."""
    options = {"filter": SqlRuleFilter(filter) if isinstance(filter, str) else filter}
    if action is not None:
        options["action"] = SqlRuleAction(action)
    return {"rule_name": name, **options}


def policy(name: str, key: str, *rights: AccessRights) -> AuthorizationRule:
    return AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=list(rights),
        key_name=name,
        primary_key=key,
        secondary_key=key,
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
        make(bus.broker, "topic", self.name, **(settings or {}))
        for subscription, own in subscriptions.items():
            make(bus.broker, "subscription", self.path(subscription), **own)
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
