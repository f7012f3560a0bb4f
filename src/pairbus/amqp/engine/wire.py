"""What the handles of one connection share: output, limits and usage. And its idle timer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pairbus.amqp.performatives import Statement, disposition

_TICK_SECONDS_MIN: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """The limits of one connection. A peer that exceeds them loses the connection. The exception is
    a message that is too large: it is rejected (in the server role).
    """

    frame_size_max: int = 65536
    channel_max: int = 255
    """The highest channel, so one session more than this."""

    sessions_max: int = 65_536
    """Of the peer's sessions at a time. Unlike `channel_max`, it is not in the open frame, and so
    it may change."""

    links_max: int = 256
    """Of all sessions together."""

    message_size_max: int = 1024 * 1024 + 65536
    """As encoded, with annotations and framing: hence a bit above the 1 MiB that is advertised."""

    idle_timeout_ms: int | None = 240_000
    """After this much silence the connection is closed. The peer is sent half of this value."""

    incoming_window: int = 16 * 1024 * 1024
    """Bytes of messages whose last frame has not come, over all links."""

    unsettled_max: int = 20_000
    """Deliveries without settlement, for each direction."""


class Wire:
    def __init__(self, limits: EngineLimits, *, is_server: bool) -> None:
        self.limits = limits
        self.is_server = is_server
        self.out: list[bytes] = []
        """In pieces, not necessarily one for each frame."""
        self.frame_size_max = 512
        """The peer's."""
        self.unsettled_max = limits.unsettled_max
        self.sent_count = 0
        self.received_count = 0
        """Unsettled deliveries, like `sent_count`."""
        self.part_bytes = 0
        """Of messages still arriving."""
        self.link_count = 0
        # A range of deliveries with the same state: one disposition covers all of them.
        self._said: Statement | None = None
        self._channel = self._first = self._last = 0

    def dispose(self, channel: int, said: Statement, number: int) -> None:
        """Send the peer the state of a delivery. It waits for others, until `end_run`."""
        if said is self._said and number == self._last + 1 and channel == self._channel:
            self._last = number
            return
        if self._said is not None:
            self.out.append(disposition(self._channel, self._said, self._first, self._last))
        self._said = said
        self._channel = channel
        self._first = self._last = number

    def end_run(self) -> None:
        """Write the disposition that waits for more of its kind."""
        if self._said is not None:
            self.out.append(disposition(self._channel, self._said, self._first, self._last))
            self._said = None

    def forget(self) -> None:
        """Clears all held and counted items. Pending output stays."""
        self.end_run()
        self.sent_count = self.received_count = 0
        self.part_bytes = self.link_count = 0


class IdleTimer:
    """When to give up on the peer, and when to send a heartbeat. Ask once for each tick: a question
    also notes that something was received or sent.
    """

    def __init__(self, silence_seconds: float | None) -> None:
        """`silence_seconds`: after this much silence, give up on the peer. None: never."""
        self._silence_seconds = silence_seconds
        self._give_up_at = self._heartbeat_at = 0.0
        self.has_received = True
        """Something came since the last tick."""
        self.has_sent = True
        """Something was sent since the last tick."""
        self.peer_seconds = 0.0
        """The peer gives up on us after this much silence. 0: never."""

    def is_peer_silent(self, now: float) -> bool:
        if self._silence_seconds is None:
            return False
        if self.has_received:
            self.has_received = False
            self._give_up_at = now + self._silence_seconds
        return now >= self._give_up_at

    def is_heartbeat_due(self, now: float) -> bool:
        if not self.peer_seconds:
            return False
        is_due = not self.has_sent and now >= self._heartbeat_at
        if self.has_sent or is_due:
            self.has_sent = False
            self._heartbeat_at = now + self.peer_seconds / 2
        return is_due

    def next_tick(self, now: float) -> float | None:
        deadlines = []
        if self._silence_seconds is not None:
            deadlines.append(self._give_up_at)
        if self.peer_seconds:
            deadlines.append(self._heartbeat_at)
        # A peer may ask for a heartbeat every millisecond. This sets a minimum interval.
        return max(min(deadlines), now + _TICK_SECONDS_MIN) if deadlines else None
