"""AMQP 1.0 without I/O: one state machine for both roles. See `engine` and docs/amqp.md."""

from pairbus.amqp.codec.batches import BATCH_FORMAT
from pairbus.amqp.engine.attach import RemoteAttach
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
from pairbus.amqp.engine.link import Delivery, Link, LinkClosed
from pairbus.amqp.engine.session import Session, SettlementGroup
from pairbus.amqp.engine.wire import EngineLimits
from pairbus.amqp.outcomes import (
    ACCEPTED,
    NO_OUTCOME,
    RELEASED,
    AmqpError,
    Outcome,
    OutcomeKind,
    modified,
    rejected,
)
from pairbus.amqp.sasl import Identity, SaslClient, SaslServer

__all__ = [
    "ACCEPTED",
    "BATCH_FORMAT",
    "NO_OUTCOME",
    "RELEASED",
    "AmqpError",
    "Attached",
    "ConnectionClosed",
    "Delivery",
    "Detached",
    "Disposed",
    "Engine",
    "EngineLimits",
    "Event",
    "Flowed",
    "Identity",
    "Link",
    "LinkClosed",
    "Opened",
    "Outcome",
    "OutcomeKind",
    "Oversized",
    "RemoteAttach",
    "SaslClient",
    "SaslServer",
    "Session",
    "SessionBegun",
    "SessionEnded",
    "SettlementGroup",
    "Transferred",
    "modified",
    "rejected",
]
