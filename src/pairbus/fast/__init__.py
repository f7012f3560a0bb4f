"""A lean Service Bus client for Spark tasks: many messages at little cost, bodies never decoded.

It speaks to Azure and to the broker by the rules of the official SDK, takes its credentials, and
raises its exceptions. What it does not do: sessions, deferral, WebSockets, retries.
"""

from pairbus.fast.client import FastClient
from pairbus.fast.errors import SendFailed, SettleFailed
from pairbus.fast.flight import Flight, land
from pairbus.fast.management import Management
from pairbus.fast.message import Received
from pairbus.fast.receiver import Receiver
from pairbus.fast.sender import Sender
from pairbus.fast.settling import Settling

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
