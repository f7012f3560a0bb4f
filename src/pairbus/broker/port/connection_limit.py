"""Every accepted socket has a seat in its namespace, from the first byte to the last.

The seat counts against the limit of connections, knows whom to ask for a clean end, and is left
when the socket is gone, whatever has been spoken on it: TLS, HTTP, WebSocket or AMQP.
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


def reset(transport: asyncio.Transport) -> None:
    """End it as when the machine is gone: the peer sees a reset, and nothing more is sent."""
    underlying = transport.get_extra_info("socket")
    if underlying is not None:
        with contextlib.suppress(OSError):  # it may be gone already
            underlying.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()


class Guest(Protocol):
    """Whoever reads and writes a socket at the moment."""

    def shutdown(self) -> None:
        """Finish in the manner of the protocol, then close the transport. Must not wait."""


class AmqpProtocol(Guest, Protocol):
    """What the socket side needs of an AMQP connection: asyncio's Protocol, and a clean end."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> bool | None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class Seat:
    """One connection's place. `take` again hands it on, as when HTTP becomes a WebSocket."""

    def __init__(self, seats: Seats) -> None:
        self._seats = seats
        self._guest: Guest | None = None
        self._transport: asyncio.Transport | None = None

    def take(self, guest: Guest, transport: asyncio.BaseTransport | None = None) -> None:
        self._guest = guest
        if transport is not None:
            # uvloop's transports are asyncio's by their methods only, not by class.
            self._transport = cast(asyncio.Transport, transport)

    def leave(self) -> None:
        self._seats.release(self)

    def shutdown(self) -> None:
        if self._guest is not None:
            self._guest.shutdown()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        elif self._guest is not None:
            self._guest.shutdown()


class Seats:
    """All seats of a namespace."""

    def __init__(self, seats_max: int) -> None:
        self._seats_max = seats_max
        self._taken: set[Seat] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._taken)

    def __iter__(self) -> Iterator[Seat]:
        return iter(tuple(self._taken))

    def offer(self) -> Seat | None:
        """A seat, or None when all are taken."""
        if len(self._taken) >= self._seats_max:
            return None
        seat = Seat(self)
        self._taken.add(seat)
        self._empty.clear()
        return seat

    def release(self, seat: Seat) -> None:
        self._taken.discard(seat)
        if not self._taken:
            self._empty.set()

    async def clear(self, *, patience_seconds: float) -> None:
        """Have everybody leave: politely, then, after a while, not."""
        for seat in self:
            seat.shutdown()
        if await self._is_empty_within(patience_seconds):
            return
        logger.info("%d connections did not end in time and are cut off", len(self))
        for seat in self:
            seat.abort()
        await self._is_empty_within(patience_seconds)

    async def _is_empty_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True
