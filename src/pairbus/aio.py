"""The names of `pairbus` for asyncio, as `azure.servicebus.aio` has them for `azure.servicebus`."""

from pairbus.client.aio.client import ServiceBusClient
from pairbus.client.sdk.errors import (
    BacklogExhausted,
    ClientFaulted,
    EnvelopeTooLarge,
    PairingError,
    SequenceNumberUnknown,
    SyphonNotInstalled,
)
from pairbus.client.sdk.messages import UnknownSequenceNumber
from pairbus.errors import OptionsError, PairbusError
from pairbus.options import PairedNamespaceOptions, SendAvailabilityPairedNamespaceOptions

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
