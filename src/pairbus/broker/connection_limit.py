"""The limit on a namespace's connections: every accepted socket occupies a slot until it is closed.

A slot counts against the limit for every protocol: TLS, HTTP, WebSocket or AMQP. It knows which
protocol object owns the socket at the moment, so that a stopping broker can ask each one for a
clean end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, cast

from pairbus.broker.entities.namespace_options import Limits
from pairbus.broker.refusals import network_of

logger = logging.getLogger(__name__)

_NO_LINGER: Final = struct.pack("ii", 1, 0)


class Closable(Protocol):
    """The protocol object that reads and writes a socket at the moment."""

    def shutdown(self) -> None:
        """End the connection by the protocol, then close the transport. This must not wait."""


class Slot:
    """One connection's share of the limit.

    A new owner occupies the same slot when the protocol changes, as when HTTP becomes a WebSocket.
    """

    def __init__(self, limit: ConnectionLimit, peer: tuple[Any, ...]) -> None:
        self._limit = limit
        self.peer = peer
        """Its socket address."""
        self.network = network_of(peer)
        self.is_authenticated = False
        """The client has shown a valid token."""
        self._owner: Closable | None = None
        self._transport: asyncio.Transport | None = None

    def occupy(self, owner: Closable, transport: asyncio.BaseTransport | None = None) -> None:
        self._owner = owner
        if transport is not None:
            # uvloop's transports are asyncio's by their methods only, not by class.
            self._transport = cast(asyncio.Transport, transport)

    def authenticated(self) -> bool:
        """The client has shown a valid token, so no other connection can take its slot. False if
        too many such clients are connected: then this one has to leave.
        """
        self.is_authenticated = self._limit.authenticated(self)
        return self.is_authenticated

    def free(self) -> None:
        self._limit.release(self)

    def shutdown(self) -> None:
        if self._owner is not None:
            self._owner.shutdown()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        elif self._owner is not None:
            self._owner.shutdown()

    def reset(self) -> None:
        """Abort the connection: the peer sees a reset, and nothing more is sent."""
        if self._transport is None:
            return
        underlying = self._transport.get_extra_info("socket")
        if underlying is not None:
            with contextlib.suppress(OSError):  # the socket may be closed already
                underlying.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()


class ConnectionLimit:
    """The slots of one namespace, in two separate parts.

    Connections without a valid token have a limited number of slots, in total and for each address.
    They cannot shut out other clients: a new connection always gets a slot, if necessary that of
    the oldest such connection of its address, or of the address with the most. Connections with a
    valid token have slots of their own, so they cannot shut out a health check, which has no token.
    """

    def __init__(self, limits: Limits, *, on_replaced: Callable[[Slot], None]) -> None:
        """`on_replaced` is called with a slot whose connection is closed for another one."""
        self._limits = limits
        self._on_replaced = on_replaced
        self._slots: set[Slot] = set()
        self._unauthenticated: dict[str, dict[Slot, None]] = {}
        """By network, the oldest first."""
        self._unauthenticated_count = 0
        self.ended_count = 0
        """The number of connections that have ended."""
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[Slot]:
        return iter(tuple(self._slots))

    def acquire(self, peer: tuple[Any, ...]) -> Slot:
        """A slot for a new connection from this socket address."""
        slot = Slot(self, peer)
        same_network = self._unauthenticated.get(slot.network, {})
        if same_network and len(same_network) >= self._limits.unauthenticated_per_address_max:
            self._replace(same_network)
        elif self._unauthenticated_count >= self._limits.unauthenticated_max:
            self.replace_unauthenticated()
        self._slots.add(slot)
        self._unauthenticated.setdefault(slot.network, {})[slot] = None
        self._unauthenticated_count += 1
        self._empty.clear()
        return slot

    def replace_unauthenticated(self) -> None:
        """Close a connection without a valid token, if there is one."""
        if self._unauthenticated:
            self._replace(max(self._unauthenticated.values(), key=len))

    def _replace(self, slots: dict[Slot, None]) -> None:
        oldest = next(iter(slots))
        self._on_replaced(oldest)
        self.release(oldest)
        oldest.abort()

    def authenticated(self, slot: Slot) -> bool:
        """False if the limit of connections with a valid token is reached."""
        if len(self._slots) - self._unauthenticated_count >= self._limits.connections_max:
            return False
        self._remove_unauthenticated(slot)
        return True

    def release(self, slot: Slot) -> None:
        self._remove_unauthenticated(slot)
        if slot in self._slots:
            self._slots.remove(slot)
            self.ended_count += 1
        if not self._slots:
            self._empty.set()

    def _remove_unauthenticated(self, slot: Slot) -> None:
        same_network = self._unauthenticated.get(slot.network, {})
        if slot in same_network:
            del same_network[slot]
            self._unauthenticated_count -= 1
            if not same_network:
                del self._unauthenticated[slot.network]

    async def close_all(self, *, patience_seconds: float) -> None:
        """Ask every connection for a clean end; abort those that take longer than the patience."""
        for slot in self:
            slot.shutdown()
        if await self._is_empty_within(patience_seconds):
            return
        logger.info("aborting %d connections that did not close in time", len(self))
        for slot in self:
            slot.abort()
        await self._is_empty_within(patience_seconds)

    async def _is_empty_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True
