"""Tracks which receiver holds which session of a mailbox, and which session is next.

A session is available while it has active messages and no receiver holds it. Receivers that ask for
the next session get them in the order in which they became available. A free session costs one
small object; its messages stay on the disk.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pairbus.broker.message import Message
from pairbus.broker.messages.window import Window


class Consumer(Protocol):
    """A link that receives messages. It knows its credit and its connection's back-pressure."""

    session: MessageSession | None

    def room(self) -> int:
        """How many messages it can take now."""

    def deliver(self, messages: Sequence[Message], *, now_ms: int) -> None: ...

    def session_granted(self, session_id: str, *, now_ms: int) -> None:
        """It waited for the next available session."""

    def session_timed_out(self) -> None: ...
    def session_lost(self) -> None: ...


@dataclass(slots=True, eq=False)
class MessageSession:
    session_id: str
    active: int = 0
    """The number of durable active messages, including those that its holder has locked."""
    holder: Consumer | None = None
    until_ms: int = 0
    is_ending: bool = False
    """Its holder has lost it, but its messages are not back on the disk yet."""
    window: Window | None = None
    """Set only while the session is held."""


class Sessions:
    def __init__(self, counts: Iterable[tuple[str, int]], window: Callable[[str], Window]) -> None:
        self._new_window = window
        self._sessions: dict[str, MessageSession] = {}
        self._available: OrderedDict[str, None] = OrderedDict()
        self._held: dict[str, MessageSession] = {}
        for session_id, active in counts:
            self._sessions[session_id] = MessageSession(session_id, active)
            self._available[session_id] = None

    def find(self, session_id: str) -> MessageSession | None:
        return self._sessions.get(session_id)

    def with_messages(self) -> list[str]:
        return [name for name, session in self._sessions.items() if session.active > 0]

    def is_held(self, session_id: str) -> bool:
        return session_id in self._held

    @property
    def has_held(self) -> bool:
        return bool(self._held)

    def next_available(self) -> str | None:
        return next(iter(self._available), None)

    def hold(self, session_id: str, holder: Consumer, *, until_ms: int) -> MessageSession:
        """The caller has checked `is_held` before."""
        session = self._sessions.get(session_id)
        if session is None:
            session = self._sessions[session_id] = MessageSession(session_id)
        assert session.holder is None
        session.holder, session.until_ms = holder, until_ms
        session.window = self._new_window(session_id)
        self._available.pop(session_id, None)
        self._held[session_id] = session
        return session

    def release(self, session: MessageSession) -> None:
        """The caller has unlocked its messages before."""
        session.holder = None
        session.is_ending = False
        if session.window is not None:
            session.window.clear()
        session.window = None
        self._held.pop(session.session_id, None)
        self._update_free(session)

    def expired(self, *, now_ms: int) -> list[MessageSession]:
        return [
            session
            for session in self._held.values()
            if session.until_ms <= now_ms and not session.is_ending
        ]

    def move_locks(self, step_ms: int) -> None:
        for session in self._held.values():
            session.until_ms += step_ms

    @property
    def next_lock_expiry_ms(self) -> int | None:
        ends = (session.until_ms for session in self._held.values() if not session.is_ending)
        return min(ends, default=None)

    def count(self, session_id: str, change: int) -> MessageSession:
        """One of its messages became active (+1), or is no longer active (-1)."""
        session = self._sessions.get(session_id)
        if session is None:
            session = self._sessions[session_id] = MessageSession(session_id)
        session.active += change
        assert session.active >= 0, session_id
        if session.holder is None:
            self._update_free(session)
        return session

    def _update_free(self, session: MessageSession) -> None:
        """Make a free session available, or forget it if it has no messages."""
        if session.active > 0:
            self._available.setdefault(session.session_id, None)
        else:
            self._available.pop(session.session_id, None)
            del self._sessions[session.session_id]
