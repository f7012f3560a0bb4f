"""What one client knows of its own messages of one entity in a backlog queue, and when it peeks at
them. For ordered failback: `fail_back.py` says what that is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from weakref import WeakSet

from pairbus.client.route.plans import PeekBacklog

# Sends wait for the last messages if the first one that is not home was diverted so recently.
NEAR_SECONDS: Final = 5.0
# How often a send that waits asks again, and how often the queue is peeked at meanwhile.
HOLD_POLL_SECONDS: Final = 0.1
PEEK_SECONDS_NEAR: Final = 0.5
# While the backlog is deep, peeks are rare: a tenth of the time that it is behind, in these bounds.
PEEK_SECONDS_MIN: Final = 1.0
PEEK_SECONDS_MAX: Final = 30.0
PEEK_LAG_PART: Final = 0.1
# If sends have waited without success, no send waits for this long. It doubles each time.
HOLD_REST_SECONDS: Final = 30.0
HOLD_REST_SECONDS_MAX: Final = 480.0
# No message came home for this long: warn. The time until the next warning doubles each time.
STALL_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeekedPage:
    """What a page showed of this client's messages for the entity."""

    first: int | None
    """The sequence number of the first one, or None if there is none on the page."""
    diverted_at: float | None = None
    """When it was diverted, on the client's clock."""
    last: int = 0
    """The sequence number of the last message on the page, of any client."""
    is_end: bool
    """There are no more messages behind the page."""


@dataclass(slots=True)
class OwnBacklog:
    """The client's own messages of one entity in its backlog queue."""

    has_messages: bool = False
    """Some were acknowledged, and have not been seen to be home."""
    attempts: WeakSet[object] = field(default_factory=WeakSet)
    """The calls that have a send to the queue under way. Weak, like the next one: a Ctrl-C can keep
    a call from reporting its end.
    """
    calls: WeakSet[object] = field(default_factory=WeakSet)
    """Calls that have begun to divert. A part of one may be in the queue, and the rest not yet."""
    cursor: int = 0
    """None of the messages that are left has a lower sequence number."""
    first: int | None = None
    """The first of them that the last peek saw."""
    next_peek: float = 0.0
    peek_out: PeekBacklog | None = None
    moved_at: float = 0.0
    """When a peek last showed progress."""
    stall_seconds: float = STALL_SECONDS
    hold_from: float = 0.0
    """Until then, sends do not wait again."""
    hold_rest_seconds: float = HOLD_REST_SECONDS

    @property
    def is_pinned(self) -> bool:
        """Whether the entity must keep its backlog queue."""
        return self.has_messages or bool(self.attempts)

    @property
    def is_awaited(self) -> bool:
        return self.has_messages or bool(self.calls)

    def wait_begins(self, *, now: float) -> None:
        """The primary answers: peek at once."""
        self.next_peek = self.moved_at = now
        self.stall_seconds = STALL_SECONDS
        self.hold_from, self.hold_rest_seconds = now, HOLD_REST_SECONDS

    def queue_changed(self) -> None:
        """Each queue has sequence numbers of its own."""
        self.cursor, self.first = 0, None

    def hold_ended(self, *, now: float) -> None:
        """Sends have waited, but the backlog did not come home in time."""
        self.hold_from = now + self.hold_rest_seconds
        self.hold_rest_seconds = min(2 * self.hold_rest_seconds, HOLD_REST_SECONDS_MAX)

    def peeked(self, page: PeekedPage, *, is_quiet: bool, now: float) -> bool:
        """Learns from a page. Returns whether the syphon is close behind, or has caught up.

        `is_quiet`: no message has been diverted since the peek began.
        """
        if page.first is None and not page.is_end:
            self.cursor, self.next_peek = page.last + 1, now
            return False
        if page.first is None:
            self.moved_at, self.first = now, None
            self.has_messages = self.has_messages and not is_quiet
            lag = 0.0
        else:
            self.cursor = page.first
            if page.first != self.first:
                self.first, self.moved_at = page.first, now
            lag = 0.0 if page.diverted_at is None else now - page.diverted_at
        if lag <= NEAR_SECONDS:
            self.next_peek = now + PEEK_SECONDS_NEAR
            return True
        seconds = min(max(lag * PEEK_LAG_PART, PEEK_SECONDS_MIN), PEEK_SECONDS_MAX)
        self.next_peek = now + seconds
        return False

    def peek_failed(self, *, now: float) -> None:
        self.next_peek = now + PEEK_SECONDS_MAX

    def is_stalled(self, *, now: float) -> bool:
        """Whether it is time for a warning that nothing comes home."""
        if now - self.moved_at < self.stall_seconds:
            return False
        self.stall_seconds *= 2
        return True
