"""What a request changes: entities and rules made, replaced and removed.

A PUT is the whole description: what it leaves out has its default, except what cannot be changed.
All of it happens between two turns of the loop, and is answered for when the disk has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from xml.etree.ElementTree import Element

from starlette.requests import Request

from pairbus.broker.admin import access, targets
from pairbus.broker.admin import entity_xml as describe
from pairbus.broker.admin.atom import Place, child_text, own_name
from pairbus.broker.admin.errors import Refused, bad_request, conflict, not_found
from pairbus.broker.admin.rule_xml import ELEMENT as RULE_ELEMENT
from pairbus.broker.admin.rule_xml import read_rule
from pairbus.broker.directory import EntityExists
from pairbus.broker.entities.descriptions import (
    DEFAULT_RULE,
    EntityDescription,
    RuleDescription,
    SubscriptionDescription,
    subscription_path,
)
from pairbus.broker.entities.stored import FIXED
from pairbus.broker.messages.queue import Queue
from pairbus.broker.messages.topic import Subscription, Topic
from pairbus.broker.namespace import Namespace
from pairbus.errors import BrokerError, ConfigError

_SIZE: Final = "max_message_size_in_kilobytes"
_STANDARD_KILOBYTES: Final = 256
_PREMIUM_KILOBYTES: Final = range(1024, 102_401)
_FORWARDS: Final = {
    "forward_to": "ServiceBusSupplementaryAuthorization",
    "forward_dead_lettered_messages_to": "ServiceBusDlqSupplementaryAuthorization",
}


class Changes:
    """Finds and changes what a request is about; raises Refused."""

    def __init__(
        self, namespace: Namespace, request: Request, place: Place, *, has_message_size: bool
    ) -> None:
        self._namespace = namespace
        self._request = request
        self._place = place
        self._has_message_size = has_message_size

    # -- finding

    def entity(self, path: str) -> Queue:
        """A queue or a topic. A subscription is not found by its path alone."""
        found = self._namespace.find(path)
        if found is None or isinstance(found, Subscription):
            raise not_found(f"queue or topic {targets.shown(path)!r}")
        return found

    def topic(self, path: str) -> Topic:
        found = self._namespace.find(path)
        if not isinstance(found, Topic):
            raise not_found(f"topic {targets.shown(path)!r}")
        return found

    def subscription(
        self, target: targets.Subscription | targets.Rules | targets.Rule
    ) -> Subscription:
        topic = self.topic(target.topic)
        name = target.name if isinstance(target, targets.Subscription) else target.subscription
        found = topic.subscriptions.get(name.lower())
        if found is None:
            raise not_found(f"subscription {targets.shown(name)!r} of topic {topic.name!r}")
        return found

    def rule(self, target: targets.Rule, subscription: Subscription) -> RuleDescription:
        for rule in subscription.description.rules:
            if rule.name.lower() == target.name.lower():
                return rule
        raise not_found(f"rule {targets.shown(target.name)!r} of {subscription.description}")

    # -- queues and topics

    async def create_entity(self, target: targets.Entity, content: Element) -> Queue:
        kind = describe.kind_of(content)
        if kind is SubscriptionDescription:
            raise bad_request("A subscription is made at TOPIC/subscriptions/NAME")
        with _complaints():
            description = kind(name=target.path, **self._settings(content, None))
            self._check_forwarding(description, None)
            entity = self._namespace.create(description)
        await self._durable()
        return entity

    async def update_entity(self, target: targets.Entity, content: Element) -> Queue:
        entity = self.entity(target.path)
        await self._update(entity, content)
        return entity

    async def _update(self, entity: Queue, content: Element) -> None:
        old = entity.description
        if describe.kind_of(content) is not type(old):
            raise bad_request(f"{old} exists, and the body is a {own_name(content)}")
        settings = {name: getattr(old, name) for name in (*FIXED, _SIZE)}
        if isinstance(old, SubscriptionDescription):
            settings["rules"] = old.rules
        settings |= self._settings(content, old)
        with _complaints():
            description = type(old)(name=old.name, **settings)
            self._check_forwarding(description, old)
            self._namespace.update(entity, description)
        await self._durable()

    # -- subscriptions

    async def create_subscription(
        self, target: targets.Subscription, content: Element
    ) -> Subscription:
        topic = self.topic(target.topic)
        if describe.kind_of(content) is not SubscriptionDescription:
            raise bad_request(f"A subscription is asked for, and the body is a {own_name(content)}")
        settings = self._settings(content, None)
        with _complaints():
            description = SubscriptionDescription(
                name=subscription_path(topic.name, target.name),
                rules=(self._first_rule(content),),
                **settings,
            )
            self._check_forwarding(description, None)
            entity = self._namespace.create(description)
        await self._durable()
        assert isinstance(entity, Subscription)
        return entity

    def _first_rule(self, content: Element) -> RuleDescription:
        given = describe.default_rule(content)
        now_ms = self._namespace.now_ms()
        if given is None:
            return RuleDescription(name=DEFAULT_RULE, created_ms=now_ms)
        return read_rule(given, child_text(given, "Name") or DEFAULT_RULE, now_ms=now_ms)

    async def update_subscription(
        self, target: targets.Subscription, content: Element
    ) -> Subscription:
        subscription = self.subscription(target)
        await self._update(subscription, content)
        return subscription

    # -- rules

    async def create_rule(
        self, target: targets.Rule, content: Element
    ) -> tuple[Subscription, RuleDescription]:
        subscription = self.subscription(target)
        names = [one.name.lower() for one in subscription.description.rules]
        if target.name.lower() in names:
            raise conflict(f"{subscription.description} has a rule {target.name!r} already")
        with _complaints():
            rule = self._read_rule(content, target.name)
        await self._put_rules(subscription, (*subscription.description.rules, rule))
        return subscription, rule

    async def update_rule(
        self, target: targets.Rule, content: Element
    ) -> tuple[Subscription, RuleDescription]:
        subscription = self.subscription(target)
        old = self.rule(target, subscription)
        with _complaints():
            new = replace(self._read_rule(content, old.name), created_ms=old.created_ms)
        rules = subscription.description.rules
        await self._put_rules(subscription, tuple(new if one is old else one for one in rules))
        return subscription, new

    def _read_rule(self, content: Element, name: str) -> RuleDescription:
        if own_name(content) != RULE_ELEMENT:
            raise bad_request(f"A rule is asked for, and the body is a {own_name(content)}")
        return read_rule(content, name, now_ms=self._namespace.now_ms())

    async def _put_rules(
        self, subscription: Subscription, rules: tuple[RuleDescription, ...]
    ) -> None:
        with _complaints():
            description = replace(subscription.description, rules=rules)
            self._namespace.update(subscription, description)
        await self._durable()

    # -- removal

    async def delete(self, target: targets.Entity | targets.Subscription | targets.Rule) -> None:
        match target:
            case targets.Entity():
                self._namespace.delete(self.entity(target.path))
            case targets.Subscription():
                self._namespace.delete(self.subscription(target))
            case targets.Rule():
                subscription = self.subscription(target)
                gone = self.rule(target, subscription)
                rules = subscription.description.rules
                await self._put_rules(subscription, tuple(one for one in rules if one is not gone))
                return
        await self._durable()

    # -- what descriptions alone do not know

    def _settings(self, content: Element, old: EntityDescription | None) -> dict[str, Any]:
        settings = describe.read_settings(content, self._place)
        if _SIZE in settings and not self._has_message_size:
            raise bad_request(
                f"{describe.MESSAGE_SIZE} needs the api-version 2021-05 or a later one"
            )
        if self._namespace.options.sku == "Premium":
            if old is None and describe.kind_of(content) is not SubscriptionDescription:
                settings.setdefault(_SIZE, _PREMIUM_KILOBYTES.start)
            _check_premium(settings)
        else:
            _check_standard(settings, _STANDARD_KILOBYTES if old is None else getattr(old, _SIZE))
        return settings

    def _check_forwarding(
        self, description: EntityDescription, old: EntityDescription | None
    ) -> None:
        """The target must exist when it is named; that it may go later is told by dead letters."""
        for name, header in _FORWARDS.items():
            path = getattr(description, name)
            if path is None or (old is not None and getattr(old, name) == path):
                continue
            target = self._namespace.find(path)
            if target is None or isinstance(target, Subscription):
                raise bad_request(
                    f"{description}: {name} is {path!r}, but there is no such queue or topic"
                )
            access.check_target(self._request, self._namespace, path, header=header)

    async def _durable(self) -> None:
        try:
            await self._namespace.durable()
        except BrokerError as error:
            raise Refused(500, f"The change could not be stored: {error}") from error


def _check_premium(settings: dict[str, Any]) -> None:
    size = settings.get(_SIZE)
    if size is not None and size not in _PREMIUM_KILOBYTES:
        low, high = _PREMIUM_KILOBYTES[0], _PREMIUM_KILOBYTES[-1]
        raise bad_request(
            f"{describe.MESSAGE_SIZE} is {size}, but must be between {low} and {high}"
        )
    for name in ("enable_partitioning", "enable_express"):
        if settings.get(name):
            raise bad_request(f"{describe.ATTRIBUTES[name]} is not possible in Premium namespaces")


def _check_standard(settings: dict[str, Any], kilobytes: int) -> None:
    """There is no choice, but what was shown may be sent back."""
    size = settings.get(_SIZE)
    if size is not None and size != kilobytes:
        raise bad_request(
            f"{describe.MESSAGE_SIZE} is {size}, but can be set in Premium namespaces only, "
            "and this one is Standard"
        )


@contextmanager
def _complaints() -> Iterator[None]:
    """What a description or the namespace refuses is the client's mistake."""
    try:
        yield
    except EntityExists as error:
        raise conflict(str(error)) from error
    except ConfigError as error:
        raise bad_request(describe.in_words_of_the_service(str(error))) from error
