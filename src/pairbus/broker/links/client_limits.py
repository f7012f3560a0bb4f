"""What one client may cost: little before its first valid token, and then what `Limits` allows.

Anybody can connect, and a thousand such connections must not fill the process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pairbus.amqp.engine import EngineLimits
from pairbus.broker.entities.namespace_options import Limits

_HELD_BYTES_MAX: Final = 16 * 1024 * 1024
# Before its first valid token, a client needs two links to `$cbs`, and a few kilobytes.
_UNAUTHENTICATED_LINKS_MAX: Final = 8
# Java's SDK begins the session of each sender and receiver before it sends the first token.
_UNAUTHENTICATED_SESSIONS_MAX: Final = 128
_UNAUTHENTICATED_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    engine: EngineLimits
    held_bytes_max: int
    """Of messages that are not on the disk yet, and of requests. Above this, reading pauses."""
    unread_bytes_max: int
    """Of output that the client does not read. Above this, it gets no more messages, and reading
    pauses.
    """


def with_token(limits: Limits) -> ClientLimits:
    return ClientLimits(
        engine=EngineLimits(
            frame_size_max=limits.frame_size_max,
            links_max=limits.links_max,
            unsettled_max=limits.unsettled_max,
            incoming_window=_HELD_BYTES_MAX,
            idle_timeout_ms=int(limits.idle_timeout_seconds * 1000),
        ),
        held_bytes_max=_HELD_BYTES_MAX,
        unread_bytes_max=limits.write_buffer_bytes_max,
    )


def without_token(limits: Limits) -> ClientLimits:
    later = with_token(limits)
    return ClientLimits(
        engine=replace(
            later.engine,
            links_max=min(_UNAUTHENTICATED_LINKS_MAX, limits.links_max),
            sessions_max=_UNAUTHENTICATED_SESSIONS_MAX,
            incoming_window=_UNAUTHENTICATED_BYTES_MAX,
        ),
        held_bytes_max=_UNAUTHENTICATED_BYTES_MAX,
        unread_bytes_max=min(_UNAUTHENTICATED_BYTES_MAX, later.unread_bytes_max),
    )
