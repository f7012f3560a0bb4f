"""Idle time-outs: when to give up the peer, and when to send a heartbeat."""

from __future__ import annotations

from typing import Final

_TICK_SECONDS_MIN: Final = 0.1


class IdleTimer:
    __slots__ = ("_heard_until", "_silence_seconds", "_speak_at", "heard", "peer_seconds", "spoke")

    def __init__(self, silence_seconds: float | None) -> None:
        """`silence_seconds`: after this much silence the peer is given up. None: never."""
        self._silence_seconds = silence_seconds
        self._heard_until = self._speak_at = 0.0
        self.heard = True
        """Something came since the last tick."""
        self.spoke = True
        """Something was sent since the last tick."""
        self.peer_seconds = 0.0
        """The peer gives us up after this much silence. 0: never."""

    def is_peer_silent(self, now: float) -> bool:
        if self._silence_seconds is None:
            return False
        if self.heard:
            self.heard = False
            self._heard_until = now + self._silence_seconds
        return now >= self._heard_until

    def must_speak(self, now: float) -> bool:
        if not self.peer_seconds:
            return False
        is_due = not self.spoke and now >= self._speak_at
        if self.spoke or is_due:
            self.spoke = False
            self._speak_at = now + self.peer_seconds / 2
        return is_due

    def next_tick(self, now: float) -> float | None:
        deadlines = []
        if self._silence_seconds is not None:
            deadlines.append(self._heard_until)
        if self.peer_seconds:
            deadlines.append(self._speak_at)
        # A peer may ask for a heartbeat every millisecond. This sets a minimum interval.
        return max(min(deadlines), now + _TICK_SECONDS_MIN) if deadlines else None
