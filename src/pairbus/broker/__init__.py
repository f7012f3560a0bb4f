"""A local Service Bus in one process: for tests, for development, and as either half of a pair.

The names below are imported on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pairbus.errors import requires_extra

if TYPE_CHECKING:
    from pairbus.broker.broker import Broker
    from pairbus.broker.entities.config import load_config
    from pairbus.broker.entities.descriptions import (
        QueueDescription,
        RuleDescription,
        Status,
        SubscriptionDescription,
        TopicDescription,
        subscription_path,
    )
    from pairbus.broker.entities.namespace_options import Limits, NamespaceOptions
    from pairbus.broker.entities.policies import Policy, Right
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
    "broker": ("Broker",),
    "entities.config": ("load_config",),
    "entities.descriptions": (
        "QueueDescription",
        "RuleDescription",
        "Status",
        "SubscriptionDescription",
        "TopicDescription",
        "subscription_path",
    ),
    "entities.namespace_options": ("Limits", "NamespaceOptions"),
    "entities.policies": ("Policy", "Right"),
    "rules": ("CorrelationFilter", "FalseFilter", "SqlAction", "SqlFilter", "TrueFilter"),
    "server": ("Endpoint", "Server"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            with requires_extra("pairbus.broker", "broker"):
                return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
