"""The names of `pairbus` for asyncio, as `azure.servicebus.aio` has them for `azure.servicebus`."""

from pairbus import (
    BacklogExhausted,
    ClientFaulted,
    EnvelopeTooLarge,
    OptionsError,
    Outbox,
    OutboxError,
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
    "Outbox",
    "OutboxError",
    "PairingError",
    "SyphonNotInstalled",
    "BacklogExhausted",
    "EnvelopeTooLarge",
    "ClientFaulted",
    "SequenceNumberUnknown",
    "UnknownSequenceNumber",
]
