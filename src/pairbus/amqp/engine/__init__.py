"""AMQP 1.0 without I/O: one state machine for both roles. See `engine` and docs/amqp.md."""

from pairbus.amqp.engine.attach import RemoteAttach
from pairbus.amqp.engine.delivery import Delivery
from pairbus.amqp.engine.engine import Engine
from pairbus.amqp.engine.events import (
    Attached,
    ConnectionClosed,
    Detached,
    Disposed,
    Event,
    Flowed,
    Opened,
    Oversized,
    SessionBegun,
    SessionEnded,
    Transferred,
)
from pairbus.amqp.engine.link import Link, LinkClosed
from pairbus.amqp.engine.session import Session, SettlementGroup
from pairbus.amqp.engine.wire import EngineLimits

__all__ = [
    "Attached",
    "ConnectionClosed",
    "Delivery",
    "Detached",
    "Disposed",
    "Engine",
    "EngineLimits",
    "Event",
    "Flowed",
    "Link",
    "LinkClosed",
    "Opened",
    "Oversized",
    "RemoteAttach",
    "Session",
    "SessionBegun",
    "SessionEnded",
    "SettlementGroup",
    "Transferred",
]
