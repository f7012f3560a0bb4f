"""A Service Bus of our own, in one process: for tests, for laptops, and for either of a pair.

The names below are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pairbus.broker.broker import Broker
    from pairbus.broker.entities.config import load_config
    from pairbus.broker.entities.descriptions import (
        Limits,
        NamespaceOptions,
        Policy,
        QueueDescription,
        Right,
        Status,
    )
    from pairbus.broker.entities.topic_entities import (
        RuleDescription,
        SubscriptionDescription,
        TopicDescription,
        subscription_path,
    )
    from pairbus.broker.rules import (
        CorrelationFilter,
        FalseFilter,
        SqlAction,
        SqlFilter,
        TrueFilter,
    )
    from pairbus.broker.server import Endpoint, Server

__all__ = [
    "Broker",
    "QueueDescription",
    "TopicDescription",
    "SubscriptionDescription",
    "subscription_path",
    "RuleDescription",
    "TrueFilter",
    "FalseFilter",
    "CorrelationFilter",
    "SqlFilter",
    "SqlAction",
    "NamespaceOptions",
    "Policy",
    "Right",
    "Status",
    "Limits",
    "Endpoint",
    "Server",
    "load_config",
]

_HOMES = {
    **dict.fromkeys(
        ("TopicDescription", "SubscriptionDescription", "subscription_path", "RuleDescription"),
        "entities.topic_entities",
    ),
    **dict.fromkeys(
        ("TrueFilter", "FalseFilter", "CorrelationFilter", "SqlFilter", "SqlAction"), "rules"
    ),
    "Broker": "broker",
    "Endpoint": "server",
    "Server": "server",
    "load_config": "entities.config",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from pairbus.errors import requires_extra

    with requires_extra("pairbus.broker", "broker"):
        home = import_module(f"{__name__}.{_HOMES.get(name, 'entities.descriptions')}")
    value = getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
