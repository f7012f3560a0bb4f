"""Keeps an application sending while its Azure Service Bus namespace is down.

`ServiceBusClient` is the official SDK's, and can be paired; `pairbus.aio` has the same for asyncio.
`pairbus.broker` is a Service Bus in one process. Names are loaded when they are first used: who
only runs the broker loads no SDK.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pairbus.errors import OptionsError as OptionsError
    from pairbus.errors import PairbusError as PairbusError
    from pairbus.options import PairedNamespaceOptions as PairedNamespaceOptions
    from pairbus.options import (
        SendAvailabilityPairedNamespaceOptions as SendAvailabilityPairedNamespaceOptions,
    )
    from pairbus.sender.blocking.client import ServiceBusClient as ServiceBusClient
    from pairbus.servicebus.errors import BacklogExhausted as BacklogExhausted
    from pairbus.servicebus.errors import ClientFaulted as ClientFaulted
    from pairbus.servicebus.errors import EnvelopeTooLarge as EnvelopeTooLarge
    from pairbus.servicebus.errors import PairingError as PairingError
    from pairbus.servicebus.errors import SequenceNumberUnknown as SequenceNumberUnknown
    from pairbus.servicebus.errors import SyphonNotInstalled as SyphonNotInstalled
    from pairbus.servicebus.messages import UnknownSequenceNumber as UnknownSequenceNumber

_HOMES = {
    "ServiceBusClient": "pairbus.sender.blocking.client",
    "PairedNamespaceOptions": "pairbus.options",
    "SendAvailabilityPairedNamespaceOptions": "pairbus.options",
    "PairbusError": "pairbus.errors",
    "OptionsError": "pairbus.errors",
    "PairingError": "pairbus.servicebus.errors",
    "SyphonNotInstalled": "pairbus.servicebus.errors",
    "BacklogExhausted": "pairbus.servicebus.errors",
    "EnvelopeTooLarge": "pairbus.servicebus.errors",
    "ClientFaulted": "pairbus.servicebus.errors",
    "SequenceNumberUnknown": "pairbus.servicebus.errors",
    "UnknownSequenceNumber": "pairbus.servicebus.messages",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pairbus' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
