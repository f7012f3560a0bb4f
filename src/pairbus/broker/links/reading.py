"""Whether a connection reads from its client, and if not, why."""

from __future__ import annotations

import asyncio
from enum import Enum, auto


class Pause(Enum):
    """Why the connection does not read from the client at the moment."""

    DISK = auto()
    """The client sends faster than the disk writes."""
    WRITES = auto()
    """The client does not read what it is sent."""
    REQUESTS = auto()
    """The client sends requests faster than they are answered."""
    FAULT = auto()
    """A fault on demand holds what the client sends."""


class Reading:
    """The transport is read while there is no reason for a pause."""

    def __init__(self, transport: asyncio.ReadTransport) -> None:
        self._transport = transport
        self._pauses: set[Pause] = set()

    def is_paused_by(self, why: Pause) -> bool:
        return why in self._pauses

    def pause(self, why: Pause) -> None:
        if not self._pauses and not self._transport.is_closing():
            self._transport.pause_reading()
        self._pauses.add(why)

    def resume(self, why: Pause) -> None:
        if why in self._pauses:
            self._pauses.remove(why)
            if not self._pauses and not self._transport.is_closing():
                self._transport.resume_reading()
