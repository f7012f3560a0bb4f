"""Keeps an application sending while its Azure Service Bus namespace is down.

`ServiceBusClient` is the official SDK's client that can also be paired; `pairbus.aio` has the same
for asyncio. `pairbus.broker` is a Service Bus in one process. Names are loaded when they are first
used, so a program that only runs the broker loads no SDK.
"""

from __future__ import annotations

# This module imports nothing, so that `pairbus` can handle a Ctrl-C as early as possible.
TYPE_CHECKING = False  # type checkers take it as true
if TYPE_CHECKING:
    from typing import Any

    __version__: str
    from pairbus.client.blocking.client import ServiceBusClient as ServiceBusClient
    from pairbus.client.sdk.pairing_errors import BacklogExhausted as BacklogExhausted
    from pairbus.client.sdk.pairing_errors import ClientFaulted as ClientFaulted
    from pairbus.client.sdk.pairing_errors import EnvelopeTooLarge as EnvelopeTooLarge
    from pairbus.client.sdk.pairing_errors import PairingError as PairingError
    from pairbus.client.sdk.pairing_errors import SequenceNumberUnknown as SequenceNumberUnknown
    from pairbus.client.sdk.pairing_errors import SyphonNotInstalled as SyphonNotInstalled
    from pairbus.client.sdk.pairing_errors import UnknownSequenceNumber as UnknownSequenceNumber
    from pairbus.errors import OptionsError as OptionsError
    from pairbus.errors import OutboxError as OutboxError
    from pairbus.errors import PairbusError as PairbusError
    from pairbus.options import Outbox as Outbox
    from pairbus.options import PairedNamespaceOptions as PairedNamespaceOptions
    from pairbus.options import (
        SendAvailabilityPairedNamespaceOptions as SendAvailabilityPairedNamespaceOptions,
    )

_HOMES = {
    "ServiceBusClient": "pairbus.client.blocking.client",
    "PairedNamespaceOptions": "pairbus.options",
    "SendAvailabilityPairedNamespaceOptions": "pairbus.options",
    "PairbusError": "pairbus.errors",
    "OptionsError": "pairbus.errors",
    "Outbox": "pairbus.options",
    "OutboxError": "pairbus.errors",
    "PairingError": "pairbus.client.sdk.pairing_errors",
    "SyphonNotInstalled": "pairbus.client.sdk.pairing_errors",
    "BacklogExhausted": "pairbus.client.sdk.pairing_errors",
    "EnvelopeTooLarge": "pairbus.client.sdk.pairing_errors",
    "ClientFaulted": "pairbus.client.sdk.pairing_errors",
    "SequenceNumberUnknown": "pairbus.client.sdk.pairing_errors",
    "UnknownSequenceNumber": "pairbus.client.sdk.pairing_errors",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pairbus' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)


def _version() -> str:
    # Reading the metadata takes longer than importing this package, so it happens on first use.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pairbus")
    except PackageNotFoundError:
        return "0+unknown"  # a source tree, or a copy without metadata


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, "__version__"])
