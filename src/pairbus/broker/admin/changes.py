"""Changes by requests: creates, replaces and removes entities and rules.

A PUT is the whole description: a setting that it leaves out gets its default, except for settings
that cannot be changed. A change happens in one turn of the event loop, and the answer is sent when
it is on the disk. All functions raise HttpRefused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from xml.etree.ElementTree import Element

from pairbus.broker.admin import access, entity_xml
from pairbus.broker.admin.access import HttpRefused, bad_request, conflict
from pairbus.broker.admin.atom import child, child_text, own_name
from pairbus.broker.admin.rule_xml import ELEMENT as RULE_ELEMENT
from pairbus.broker.admin.rule_xml import read_rule
from pairbus.broker.admin.targets import AdminRequest, TargetKind
from pairbus.broker.directory import EntityExists
from pairbus.broker.entities.descriptions import (
    DEFAULT_RULE,
    EntityDescription,
    RuleDescription,
    SubscriptionDescription,
    subscription_path,
)
from pairbus.broker.entities.settings import in_service_names
from pairbus.broker.entities.stored import FIXED
from pairbus.broker.messages.queue import Queue
from pairbus.broker.messages.topic import Subscription
from pairbus.broker.namespace import Namespace
from pairbus.errors import BrokerError, ConfigError

_SIZE: Final = "max_message_size_in_kilobytes"
_STANDARD_KILOBYTES: Final = 256
_PREMIUM_KILOBYTES: Final = range(1024, 102_401)
_FORWARDS: Final = {
    "forward_to": "ServiceBusSupplementaryAuthorization",
    "forward_dead_lettered_messages_to": "ServiceBusDlqSupplementaryAuthorization",
}


# -- queues, topics and subscriptions ---------------------------------------------------------


async def create_entity(request: AdminRequest, content: Element) -> Queue:
    target = request.target
    is_subscription, name = target.kind is TargetKind.SUBSCRIPTION, target.path
    if is_subscription:
        name = subscription_path(request.topic().name, target.subscription or "")
    kind = entity_xml.kind_of(content)
    if is_subscription and kind is not SubscriptionDescription:
        raise bad_request(f"The path names a subscription, but the body is a {own_name(content)}")
    if kind is SubscriptionDescription and not is_subscription:
        raise bad_request("A subscription is created at TOPIC/subscriptions/NAME")
    settings = _settings(request, content, None)
    with _config_errors():
        if is_subscription:
            settings["rules"] = (_first_rule(request, content),)
        description = kind(name=name, **settings)
        _check_forwarding(request, description, None)
        entity = request.namespace.create(description)
    await _durable(request.namespace)
    return entity


def _first_rule(request: AdminRequest, content: Element) -> RuleDescription:
    """A new subscription has the rule of the request, or else one that matches every message."""
    given = child(content, entity_xml.DEFAULT_RULE)
    now_ms = request.namespace.now_ms()
    if given is None:
        return RuleDescription(name=DEFAULT_RULE, created_ms=now_ms)
    return read_rule(given, child_text(given, "Name") or DEFAULT_RULE, now_ms=now_ms)


async def update_entity(request: AdminRequest, content: Element) -> Queue:
    entity = request.entity()
    old = entity.description
    if entity_xml.kind_of(content) is not type(old):
        raise bad_request(f"{old} exists, but the body is a {own_name(content)}")
    settings = {name: getattr(old, name) for name in (*FIXED, _SIZE)}
    if isinstance(old, SubscriptionDescription):
        settings["rules"] = old.rules
    settings |= _settings(request, content, old)
    with _config_errors():
        description = type(old)(name=old.name, **settings)
        _check_forwarding(request, description, old)
        request.namespace.update(entity, description)
    await _durable(request.namespace)
    return entity


# -- rules ------------------------------------------------------------------------------------


async def create_rule(
    request: AdminRequest, content: Element
) -> tuple[Subscription, RuleDescription]:
    subscription, name = request.subscription(), request.target.rule or ""
    if subscription.description.find_rule(name) is not None:
        raise conflict(f"{subscription.description} has a rule {name!r} already")
    with _config_errors():
        rule = _read_rule(request, content, name)
    await _put_rules(request, subscription, (*subscription.description.rules, rule))
    return subscription, rule


async def update_rule(
    request: AdminRequest, content: Element
) -> tuple[Subscription, RuleDescription]:
    subscription = request.subscription()
    old = request.rule(subscription)
    with _config_errors():
        new = replace(_read_rule(request, content, old.name), created_ms=old.created_ms)
    rules = tuple(new if one is old else one for one in subscription.description.rules)
    await _put_rules(request, subscription, rules)
    return subscription, new


def _read_rule(request: AdminRequest, content: Element, name: str) -> RuleDescription:
    if own_name(content) != RULE_ELEMENT:
        raise bad_request(f"The path names a rule, but the body is a {own_name(content)}")
    return read_rule(content, name, now_ms=request.namespace.now_ms())


async def _put_rules(
    request: AdminRequest, subscription: Subscription, rules: tuple[RuleDescription, ...]
) -> None:
    with _config_errors():
        description = replace(subscription.description, rules=rules)
        request.namespace.update(subscription, description)
    await _durable(request.namespace)


# -- removal ----------------------------------------------------------------------------------


async def delete(request: AdminRequest) -> None:
    if request.target.kind is TargetKind.RULE:
        subscription = request.subscription()
        gone = request.rule(subscription)
        rules = tuple(one for one in subscription.description.rules if one is not gone)
        await _put_rules(request, subscription, rules)
    else:
        request.namespace.delete(request.entity())
        await _durable(request.namespace)


# -- checks that a description cannot make by itself ------------------------------------------


def _settings(
    request: AdminRequest, content: Element, old: EntityDescription | None
) -> dict[str, Any]:
    settings = entity_xml.read_settings(content, request.address)
    if _SIZE in settings and not request.has_message_size:
        raise bad_request(f"{entity_xml.MESSAGE_SIZE} needs the api-version 2021-05 or a later one")
    if request.namespace.options.sku == "Premium":
        if old is None and entity_xml.kind_of(content) is not SubscriptionDescription:
            settings.setdefault(_SIZE, _PREMIUM_KILOBYTES.start)
        _check_premium(settings)
    else:
        _check_standard(settings, _STANDARD_KILOBYTES if old is None else getattr(old, _SIZE))
    return settings


def _check_forwarding(
    request: AdminRequest, description: EntityDescription, old: EntityDescription | None
) -> None:
    """The target must exist when it is set. If it is deleted later, messages go to the transfer
    dead-letter queue.
    """
    for name, header in _FORWARDS.items():
        path = getattr(description, name)
        if path is None or (old is not None and getattr(old, name) == path):
            continue
        target = request.namespace.find(path)
        if target is None or isinstance(target, Subscription):
            raise bad_request(
                f"{description}: {name} is {path!r}, but there is no such queue or topic"
            )
        access.check_target(request.http, request.namespace, path, header=header)


def _check_premium(settings: dict[str, Any]) -> None:
    size = settings.get(_SIZE)
    if size is not None and size not in _PREMIUM_KILOBYTES:
        low, high = _PREMIUM_KILOBYTES[0], _PREMIUM_KILOBYTES[-1]
        raise bad_request(
            f"{entity_xml.MESSAGE_SIZE} is {size}, but must be between {low} and {high}"
        )
    for name in ("enable_partitioning", "enable_express"):
        if settings.get(name):
            raise bad_request(f"{in_service_names(name)} is not possible in Premium namespaces")


def _check_standard(settings: dict[str, Any], kilobytes: int) -> None:
    """The size is fixed, but a client may send back the value that it was shown."""
    size = settings.get(_SIZE)
    if size is not None and size != kilobytes:
        raise bad_request(
            f"{entity_xml.MESSAGE_SIZE} is {size}, but can be set in Premium namespaces only, "
            "and this one is Standard"
        )


async def _durable(namespace: Namespace) -> None:
    try:
        await namespace.durable()
    except BrokerError as error:
        raise HttpRefused(500, f"The change could not be stored: {error}") from error


@contextmanager
def _config_errors() -> Iterator[None]:
    """An error from a description or the namespace is the client's mistake."""
    try:
        yield
    except EntityExists as error:
        raise conflict(str(error)) from error
    except ConfigError as error:
        raise bad_request(in_service_names(str(error))) from error
