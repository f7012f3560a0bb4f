"""A lean Service Bus client for Spark tasks: many messages at little cost, bodies never decoded.

It speaks to Azure and to the broker by the rules of the official SDK, takes its credentials, and
raises its exceptions. What it does not do: sessions, deferral, WebSockets, retries.
"""

from pairbus.servicebus.fast.client import FastClient
from pairbus.servicebus.fast.errors import SendFailed, SettleFailed
from pairbus.servicebus.fast.flight import Flight, land
from pairbus.servicebus.fast.management import Management
from pairbus.servicebus.fast.received import Received
from pairbus.servicebus.fast.receiver import Receiver
from pairbus.servicebus.fast.sender import Sender
from pairbus.servicebus.fast.settling import Settling

__all__ = [
    "FastClient",
    "Flight",
    "Management",
    "Received",
    "Receiver",
    "SendFailed",
    "Sender",
    "SettleFailed",
    "Settling",
    "land",
]
