"""The names of `pairbus` for asyncio, as `azure.servicebus.aio` has them for `azure.servicebus`."""

from pairbus import (
    BacklogExhausted,
    ClientFaulted,
    EnvelopeTooLarge,
    OptionsError,
    PairbusError,
    PairedNamespaceOptions,
    PairingError,
    SendAvailabilityPairedNamespaceOptions,
    SequenceNumberUnknown,
    SyphonNotInstalled,
    UnknownSequenceNumber,
)
from pairbus.client.aio.client import ServiceBusClient

__all__ = [
    "ServiceBusClient",
    "PairedNamespaceOptions",
    "SendAvailabilityPairedNamespaceOptions",
    "PairbusError",
    "OptionsError",
    "PairingError",
    "SyphonNotInstalled",
    "BacklogExhausted",
    "EnvelopeTooLarge",
    "ClientFaulted",
    "SequenceNumberUnknown",
    "UnknownSequenceNumber",
]
