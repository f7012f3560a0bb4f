"""What the handles of one connection share: its output, its limits, and how much is used."""

from __future__ import annotations

from dataclasses import dataclass

from pairbus.amqp.performatives import Statement, disposition


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What one connection may cost. A peer that goes beyond loses it; only a message that is too
    large is merely rejected (in the server role)."""

    frame_size_max: int = 65536
    channel_max: int = 255
    """The highest channel, so one session more than this."""

    links_max: int = 256
    """Of all sessions together."""

    message_size_max: int = 1024 * 1024 + 65536
    """As encoded, with annotations and framing: hence a bit above the 1 MiB that is advertised."""

    idle_timeout_ms: int | None = 240_000
    """After this much silence the peer is given up. It is told half of it."""

    incoming_window: int = 16 * 1024 * 1024
    """Bytes of messages whose last frame has not come, over all links."""

    unsettled_max: int = 20_000
    """Deliveries without settlement, for each direction."""


class Wire:
    __slots__ = (
        "_channel",
        "_first",
        "_last",
        "_said",
        "frame_size_max",
        "held_bytes",
        "is_server",
        "limits",
        "link_count",
        "out",
        "part_bytes",
        "received_count",
        "sent_count",
        "unsettled_max",
    )

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
        self.held_bytes = 0
        """Of messages received and not yet settled by us."""
        self.part_bytes = 0
        """Of messages still arriving."""
        self.link_count = 0
        # A run of deliveries of which the same is said: one disposition will do for all of them.
        self._said: Statement | None = None
        self._channel = self._first = self._last = 0

    def dispose(self, channel: int, said: Statement, number: int) -> None:
        """Tell the peer the state of a delivery."""
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
        """Nothing of what is held or counted exists any more. What is to be sent stays."""
        self.end_run()
        self.sent_count = self.received_count = self.held_bytes = 0
        self.part_bytes = self.link_count = 0
