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
from collections.abc import Iterator
from typing import Final, Protocol, cast

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

    def __init__(self, limit: ConnectionLimit, address: str) -> None:
        self._limit = limit
        self.address = address
        self._owner: Closable | None = None
        self._transport: asyncio.Transport | None = None

    def occupy(self, owner: Closable, transport: asyncio.BaseTransport | None = None) -> None:
        self._owner = owner
        if transport is not None:
            # uvloop's transports are asyncio's by their methods only, not by class.
            self._transport = cast(asyncio.Transport, transport)

    def authenticated(self) -> None:
        """The client has shown a valid token, so no other connection can take its slot."""
        self._limit.authenticated(self)

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
    """The slots of one namespace.

    Strangers, who have shown no valid token, cannot shut others out: when all slots are taken, a
    new connection gets the oldest stranger's. The address with the most strangers loses first.
    """

    def __init__(self, connections_max: int) -> None:
        self._connections_max = connections_max
        self._slots: set[Slot] = set()
        self._strangers: dict[str, dict[Slot, None]] = {}
        """By address, the oldest first."""
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[Slot]:
        return iter(tuple(self._slots))

    def acquire(self, address: str) -> Slot | None:
        """A slot, or None when the limit is reached and no stranger has one."""
        if len(self._slots) >= self._connections_max:
            if not self._strangers:
                return None
            crowd = max(self._strangers.values(), key=len)
            stranger = next(iter(crowd))
            self.release(stranger)
            stranger.abort()
        slot = Slot(self, address)
        self._slots.add(slot)
        self._strangers.setdefault(address, {})[slot] = None
        self._empty.clear()
        return slot

    def authenticated(self, slot: Slot) -> None:
        crowd = self._strangers.get(slot.address, {})
        crowd.pop(slot, None)
        if not crowd:
            self._strangers.pop(slot.address, None)

    def release(self, slot: Slot) -> None:
        self.authenticated(slot)
        self._slots.discard(slot)
        if not self._slots:
            self._empty.set()

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
