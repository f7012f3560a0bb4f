"""The links of a client: what each of them may do, and what the peer has said of it.

State only. A link speaks through its session, which writes the frames; nothing here blocks, and
what somebody waits for is to be seen in a link's fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pairbus.amqp.client.errors import LinkLost
from pairbus.amqp.frames import FrameError
from pairbus.amqp.outcomes import AmqpError, Outcome, OutcomeKind

if TYPE_CHECKING:
    from pairbus.amqp.client.session import Session

SERIAL: Final = 0xFFFFFFFF
"""AMQP's counters are of 32 bits, and begin again at 0."""

Make = Callable[["ReceiverLink", int, bytes, bytes], Any]
"""What becomes of a message that arrived: the link, its delivery-id, its tag and its bytes."""


class Ticket:
    """A message that was sent: its outcome, once there is one."""

    __slots__ = ("outcome",)

    def __init__(self) -> None:
        self.outcome: Outcome | None = None


class Settlement:
    """What was said of deliveries together, and how many of them the peer has not answered yet."""

    __slots__ = ("kind", "left", "refusals")

    def __init__(self, kind: OutcomeKind) -> None:
        self.kind = kind
        self.left = 0
        self.refusals: dict[int, AmqpError] = {}
        """By delivery-id: those that the peer refused, and why."""


class Link:
    """What both kinds have in common."""

    __slots__ = (
        "attached",
        "error",
        "handle",
        "is_over",
        "name",
        "properties",
        "session",
        "size_max",
    )
    is_sender = False

    def __init__(self, session: Session, handle: int, name: str) -> None:
        self.session = session
        self.handle = handle
        self.name = name
        self.attached = False
        """The peer has answered, and with yes."""
        self.is_over = False
        """Detached by either side, or gone with its session or connection."""
        self.error: AmqpError | None = None
        """Why, if the peer said so."""
        self.size_max = 0
        """Of a message, as the peer said; 0: it did not."""
        self.properties: Mapping[str, Any] = {}
        """The peer's."""

    @property
    def alive(self) -> bool:
        return self.attached and not self.is_over

    def check(self) -> None:
        """Raises LinkLost if nothing can be done here any more."""
        if self.is_over:
            raise LinkLost(f"link {self.name!r} was ended", self.error)

    def detach(self) -> None:
        """For good, and at once as far as we are concerned. The peer's answer is awaited by the
        session, which knows the link until then."""
        if not self.is_over:
            self.is_over = True
            self.session.detach(self)

    def end(self, error: AmqpError | None) -> None:
        """The peer has detached it, or it went with what it was on."""
        if not self.is_over:
            self.is_over = True
            self.error = error


class ReceiverLink(Link):
    __slots__ = (
        "_first",
        "_is_draining",
        "_make",
        "_parts",
        "_parts_size",
        "credit",
        "delivery_count",
        "inbox",
    )

    def __init__(self, session: Session, handle: int, name: str, make: Make) -> None:
        super().__init__(session, handle, name)
        self.inbox: list[Any] = []
        """What has come and was not taken yet. Whoever takes it may put another list here."""
        self.credit = 0
        """How many the peer may still send."""
        self.delivery_count = 0
        self._is_draining = False
        self._make = make
        self._parts: list[bytes] = []  # of a message whose last frame has not come
        self._parts_size = 0
        self._first: tuple[int, bytes] = (0, b"")

    def grant(self, credit: int) -> None:
        """Let the peer have so much credit in all."""
        if self.is_over:
            return
        self.credit = credit
        self._is_draining = False
        self.session.flow(self, credit)

    def drain(self) -> None:
        """Ask for the credit back: what is on the way still comes, then `credit` is 0."""
        if self.credit and not self._is_draining and not self.is_over:
            self._is_draining = True
            self.session.flow(self, self.credit, drain=True)

    def settle(self, ids: Iterable[int], outcome: Outcome, *, two_phase: bool) -> Settlement:
        """Say what became of these deliveries; gaps are allowed.

        `two_phase`: the peer answers, and until then they are in the session's `settling`. Of a
        link that is over, nothing is left to wait for, because nothing was said.
        """
        if self.is_over:
            return Settlement(outcome.kind)
        return self.session.dispose(ids, outcome, two_phase=two_phase)

    # -- the peer's -------------------------------------------------------------------------

    def arrived(self, number: int, tag: bytes, data: bytes) -> None:
        """A whole message. The hot path: every one of them comes by here."""
        if self.credit <= 0:
            raise FrameError("amqp:link:transfer-limit-exceeded", "a transfer without credit")
        self.credit -= 1
        self.delivery_count = self.delivery_count + 1 & SERIAL
        if not self.is_over:
            self.inbox.append(self._make(self, number, tag, data))

    def part_arrived(
        self, number: int | None, tag: bytes | None, data: bytes, *, more: bool, size_max: int
    ) -> None:
        """A frame of a message; the first one bears its number and tag."""
        if not self._parts:
            if number is None or tag is None:
                raise FrameError("amqp:invalid-field", "a delivery without an id or a tag")
            if not more:
                self.arrived(number, tag, data)
                return
            self._first = (number, tag)
        self._parts.append(data)
        self._parts_size += len(data)
        if self._parts_size > size_max:
            said = f"a message of more than {size_max} bytes"
            raise FrameError("amqp:link:message-size-exceeded", said)
        if not more:
            parts = self._parts
            self._forget_parts()
            self.arrived(*self._first, b"".join(parts))

    def aborted(self) -> None:
        """The message whose first frames came was none."""
        self._forget_parts()
        self.credit -= 1
        self.delivery_count = self.delivery_count + 1 & SERIAL

    def _forget_parts(self) -> None:
        self._parts, self._parts_size = [], 0

    def flowed(self, delivery_count: int, credit: int) -> None:
        """The sender has advanced its count to use up our credit, if it was asked to."""
        skipped = delivery_count - self.delivery_count & SERIAL
        if self._is_draining and credit == 0 and skipped <= self.credit:
            self._is_draining = False
            self.delivery_count = delivery_count
            self.credit = 0


class SenderLink(Link):
    __slots__ = ("_tag", "credit", "delivery_count")
    is_sender = True

    def __init__(self, session: Session, handle: int, name: str) -> None:
        super().__init__(session, handle, name)
        self.credit = 0
        """How many messages the peer will take now."""
        self.delivery_count = 0
        self._tag = 0

    def send(self, payload: bytes, *, message_format: int = 0) -> Ticket:
        """Ask `credit` first. The ticket tells when the peer has answered."""
        self.check()
        self.credit -= 1
        self.delivery_count = self.delivery_count + 1 & SERIAL
        self._tag = self._tag + 1 & SERIAL
        return self.session.transfer(self, self._tag.to_bytes(4, "big"), payload, message_format)

    def flowed(self, delivery_count: int, credit: int) -> None:
        """The receiver's credit counts from what it had seen by then."""
        unseen = self.delivery_count - delivery_count & SERIAL
        self.credit = max(0, credit - unseen)
