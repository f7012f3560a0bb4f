"""The names of `pairbus` for asyncio, as `azure.servicebus.aio` has them for `azure.servicebus`."""

from pairbus.errors import OptionsError, PairbusError
from pairbus.options import PairedNamespaceOptions, SendAvailabilityPairedNamespaceOptions
from pairbus.sender.aio.client import ServiceBusClient
from pairbus.servicebus.errors import (
    BacklogExhausted,
    ClientFaulted,
    EnvelopeTooLarge,
    PairingError,
    SequenceNumberUnknown,
    SyphonNotInstalled,
)
from pairbus.servicebus.messages import UnknownSequenceNumber

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
