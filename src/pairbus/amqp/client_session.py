"""One session of a client with its links: what the peer may send, what it has said, what we owe it.

State only: frames come in from `client_core`, which also takes the frames that are written here.
Nothing blocks, and what is waited for is to be seen in a link's fields. A client is not the
application's last line of defence, but it counts on nothing that a peer could get wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from pairbus.amqp.client_frames import (
    WINDOW,
    disposition,
    encode_outcome,
    flow,
    read_error,
    read_outcome,
    read_transfer,
    transfer_frames,
)
from pairbus.amqp.frames import ATTACH, BEGIN, DETACH, END, FrameError, encode_frame
from pairbus.amqp.outcomes import NO_OUTCOME, AmqpError, Outcome, OutcomeKind
from pairbus.amqp.types import Described, Symbol, UByte, UInt, ULong

if TYPE_CHECKING:
    from pairbus.amqp.client_core import Core

SOURCE, TARGET = 0x28, 0x29
_SERIAL: Final = 0xFFFFFFFF
_HANDLE_MAX: Final = 255

Make = Callable[["ReceiverLink", int, bytes, bytes], Any]
"""What becomes of a message that arrived: the link, its delivery-id, its tag and its bytes."""


class Ticket:
    """A message that was sent: its outcome, once there is one."""

    __slots__ = ("context", "outcome")

    def __init__(self, context: Any) -> None:
        self.context = context
        self.outcome: Outcome | None = None


class Link:
    """What both kinds have in common."""

    __slots__ = (
        "attached",
        "error",
        "handle",
        "is_over",
        "name",
        "properties",
        "refused",
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
        self.refused = False
        """The peer answered the attach with no; the error comes with the detach."""
        self.size_max = 0
        """Of a message, as the peer said; 0: it did not."""
        self.properties: Mapping[str, Any] = {}
        """The peer's."""

    @property
    def alive(self) -> bool:
        return self.attached and not self.is_over

    def detach(self) -> None:
        """For good. The peer's answer ends the link (`Session.pending_detach`)."""
        if not self.is_over:
            self.is_over = True
            self.session.detach(self)

    def _over(self, error: AmqpError | None) -> None:
        self.is_over = True
        if self.error is None:
            self.error = error


class ReceiverLink(Link):
    __slots__ = (
        "_first",
        "_make",
        "_parts",
        "_parts_size",
        "credit",
        "delivery_count",
        "drained",
        "inbox",
    )

    def __init__(self, session: Session, handle: int, name: str, make: Make) -> None:
        super().__init__(session, handle, name)
        self.inbox: list[Any] = []
        """What has come and was not taken yet. Whoever takes it may put another list here."""
        self.credit = 0
        """How many the peer may still send."""
        self.delivery_count = 0
        self.drained = False
        """The peer has given back its credit, since `drain` asked for it."""
        self._make = make
        self._parts: list[bytes] = []  # of a message whose last frame has not come
        self._parts_size = 0
        self._first: tuple[int, bytes] = (0, b"")

    def grant(self, credit: int) -> None:
        """Let the peer have so much credit in all."""
        self.credit = credit
        self.session.flow(self, credit)

    def drain(self) -> None:
        """Ask for the credit back. Messages on the way still come; `drained` tells the end."""
        self.drained = False
        self.session.flow(self, self.credit, drain=True)

    def settle(self, ids: Iterable[int], outcome: Outcome, *, two_phase: bool) -> None:
        """Say what became of these deliveries; in ascending order, gaps allowed.

        `two_phase`: the peer answers, and until then they are in the session's `settling`.
        """
        self.session.dispose(ids, outcome, two_phase=two_phase)


class SenderLink(Link):
    __slots__ = ("_tag", "credit", "delivery_count")
    is_sender = True

    def __init__(self, session: Session, handle: int, name: str) -> None:
        super().__init__(session, handle, name)
        self.credit = 0
        """How many messages the peer will take now."""
        self.delivery_count = 0
        self._tag = 0

    def send(self, payload: bytes, *, message_format: int = 0, context: Any = None) -> Ticket:
        """Ask `credit` first. The ticket tells when the peer has answered."""
        self.credit -= 1
        self.delivery_count = self.delivery_count + 1 & _SERIAL
        self._tag = self._tag + 1 & _SERIAL
        return self.session.transfer_out(self, self._tag, payload, message_format, context)


class Session:
    __slots__ = (
        "_blocked",
        "_by_remote_handle",
        "_core",
        "_free_handles",
        "_incoming_max",
        "_next_delivery_id",
        "_remote_handle_max",
        "begun",
        "channel",
        "error",
        "is_over",
        "links",
        "next_incoming_id",
        "next_outgoing_id",
        "refusals",
        "remote_window",
        "sent",
        "settling",
    )  # fmt: skip

    def __init__(self, core: Core, channel: int) -> None:
        self._core = core
        self.channel = channel
        self.begun = False
        self.is_over = False
        self.error: AmqpError | None = None
        self.links: dict[int, Link] = {}  # by our handle
        self._by_remote_handle: dict[int, Link] = {}
        self.next_incoming_id = 0
        self.next_outgoing_id = 0
        self.remote_window = 0
        self._remote_handle_max = _HANDLE_MAX
        self._next_delivery_id = 0
        self._blocked: list[bytes] = []  # transfers that wait for the peer's window
        self.sent: dict[int, Ticket] = {}
        self.settling: dict[int, OutcomeKind] = {}
        """Deliveries on whose settlement the peer has not answered yet."""
        self.refusals: dict[int, AmqpError] = {}
        """... and those whose settlement it refused: to be read and cleared by who asked."""
        core.write(
            encode_frame(
                BEGIN,
                [None, UInt(0), UInt(WINDOW), UInt(WINDOW), UInt(_HANDLE_MAX)],
                channel=channel,
            )
        )

    # -- ours to say ------------------------------------------------------------------------

    def attach_sender(self, target: str, *, name: str | None = None, **settings: Any) -> SenderLink:
        handle = self._handle()
        link = SenderLink(self, handle, name or str(uuid4()))
        settings.setdefault("source", link.name)
        self._attach(link, target=target, **settings)
        return link

    def attach_receiver(
        self, source: str, make: Make, *, name: str | None = None, **settings: Any
    ) -> ReceiverLink:
        handle = self._handle()
        link = ReceiverLink(self, handle, name or str(uuid4()), make)
        settings.setdefault("target", link.name)
        self._attach(link, source=source, **settings)
        return link

    def _handle(self) -> int:
        handle = 0
        while handle in self.links:
            handle += 1
        return handle

    def _attach(
        self,
        link: Link,
        *,
        source: str,
        target: str,
        snd_settle_mode: int = 0,
        rcv_settle_mode: int = 0,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        self.links[link.handle] = link
        fields: list[Any] = [
            link.name,
            UInt(link.handle),
            not link.is_sender,
            UByte(snd_settle_mode),
            UByte(rcv_settle_mode),
            Described(ULong(SOURCE), [source]),
            Described(ULong(TARGET), [target]),
            None,
            None,
            UInt(0) if link.is_sender else None,
        ]
        if properties:
            named = {Symbol(key): value for key, value in properties.items()}
            fields += [None, None, None, named]
        self._write(ATTACH, fields)

    def detach(self, link: Link) -> None:
        self._write(DETACH, [UInt(link.handle), True])

    def flow(self, link: ReceiverLink, credit: int, *, drain: bool = False) -> None:
        self._core.write(
            flow(
                self.channel,
                next_incoming_id=self.next_incoming_id,
                next_outgoing_id=self.next_outgoing_id,
                handle=link.handle,
                delivery_count=link.delivery_count,
                credit=credit,
                drain=drain,
            )
        )

    def dispose(self, ids: Iterable[int], outcome: Outcome, *, two_phase: bool) -> None:
        write, channel, state = self._core.write, self.channel, encode_outcome(outcome)
        settled, kind = not two_phase, outcome.kind
        first = last = -1
        settling = self.settling
        for number in ids:
            if two_phase:
                settling[number] = kind
            if number == last + 1 and first >= 0:
                last = number
                continue
            if first >= 0:
                write(disposition(channel, first, last, settled=settled, state=state))
            first = last = number
        if first >= 0:
            write(disposition(channel, first, last, settled=settled, state=state))

    def transfer_out(
        self, link: SenderLink, tag: int, payload: bytes, message_format: int, context: Any
    ) -> Ticket:
        number = self._next_delivery_id
        self._next_delivery_id = number + 1 & _SERIAL
        self.sent[number] = ticket = Ticket(context)
        frames = transfer_frames(
            channel=self.channel,
            handle=link.handle,
            delivery_id=number,
            tag=tag.to_bytes(4, "big"),
            payload=payload,
            message_format=message_format,
            frame_size_max=self._core.remote_frame_size_max,
        )
        self._blocked.extend(frames)
        self._unblock()
        return ticket

    def _unblock(self) -> None:
        blocked = self._blocked
        count = min(len(blocked), self.remote_window)
        if count > 0:
            self._core.out.extend(blocked[:count])
            del blocked[:count]
            self.remote_window -= count
            self.next_outgoing_id = self.next_outgoing_id + count & _SERIAL

    def end(self) -> None:
        if not self.is_over:
            self._write(END, [])
            self.over(None)

    def over(self, error: AmqpError | None) -> None:
        """Nothing of it goes on; what was waited for will never come."""
        self.is_over = True
        self.error = error
        for link in self.links.values():
            link._over(error)

    def _write(self, code: int, fields: list[Any]) -> None:
        self._core.write(encode_frame(code, fields, channel=self.channel))

    # -- the peer's frames ------------------------------------------------------------------

    def on_begin(self, fields: list[Any]) -> None:
        self.begun = True
        self.next_incoming_id = _number(fields, 1, "begin")
        self.remote_window = _number(fields, 2, "begin")
        self._unblock()

    def on_attach(self, fields: list[Any]) -> None:
        name = fields[0] if fields else None
        remote_handle = _number(fields, 1, "attach")
        link = next((one for one in self.links.values() if one.name == name), None)
        if link is None or len(fields) < 3 or fields[2] is not link.is_sender:
            raise FrameError("amqp:not-allowed", f"an attach of link {name!r}, which is not ours")
        if remote_handle in self._by_remote_handle:
            raise FrameError("amqp:session:handle-in-use", f"handle {remote_handle} is in use")
        self._by_remote_handle[remote_handle] = link
        ours = 6 if link.is_sender else 5
        if len(fields) <= ours or fields[ours] is None:
            link.refused = True  # the detach says why
            return
        if isinstance(link, ReceiverLink):
            link.delivery_count = _number(fields, 9, "attach")
        if len(fields) > 10 and isinstance(fields[10], int):
            link.size_max = int(fields[10])
        if len(fields) > 13 and isinstance(fields[13], dict):
            link.properties = {str(key): item for key, item in fields[13].items()}
        link.attached = True

    def on_detach(self, fields: list[Any]) -> None:
        remote_handle = _number(fields, 0, "detach")
        link = self._by_remote_handle.pop(remote_handle, None)
        if link is None:
            raise FrameError(
                "amqp:session:unattached-handle", f"detach of handle {remote_handle}, not in use"
            )
        if not link.is_over:
            link._over(read_error(fields[2] if len(fields) > 2 else None))
            self.detach(link)
        del self.links[link.handle]

    def on_flow(self, fields: list[Any]) -> None:
        # Of the peer's window, what we have sent and it has not seen is used up already.
        seen = fields[0] if fields and isinstance(fields[0], int) else 0
        window = _number(fields, 1, "flow")
        self.remote_window = max(0, window - (self.next_outgoing_id - seen & _SERIAL))
        self._unblock()
        if len(fields) > 4 and fields[4] is not None:
            link = self._by_remote_handle.get(_number(fields, 4, "flow"))
            if isinstance(link, SenderLink):
                count = fields[5] if len(fields) > 5 and isinstance(fields[5], int) else 0
                credit = _number(fields, 6, "flow")
                spent = link.delivery_count - count & _SERIAL
                link.credit = max(0, credit - spent)
            elif isinstance(link, ReceiverLink):
                if len(fields) > 8 and fields[8] is True:
                    count = _number(fields, 5, "flow")
                    if count - link.delivery_count & _SERIAL <= link.credit:
                        link.credit = 0
                        link.delivery_count = count
                        link.drained = True
        if len(fields) > 9 and fields[9] is True:
            self._core.write(
                flow(
                    self.channel,
                    next_incoming_id=self.next_incoming_id,
                    next_outgoing_id=self.next_outgoing_id,
                )
            )

    def on_transfer(self, data: bytes, at: int, end: int) -> None:
        handle, number, tag, settled, more, aborted, payload = read_transfer(data, at)
        self.next_incoming_id = self.next_incoming_id + 1 & _SERIAL
        link = self._by_remote_handle.get(handle)
        if link.__class__ is not ReceiverLink or payload > end:
            raise FrameError("amqp:not-allowed", f"a transfer on handle {handle}, or a cut one")
        assert isinstance(link, ReceiverLink)
        if link._parts or more or aborted:
            self._part(link, data[payload:end], number, tag, more, aborted)
            return
        if link.credit <= 0 or number is None or tag is None:
            raise FrameError("amqp:link:transfer-limit-exceeded", "a transfer without credit or id")
        link.credit -= 1
        link.delivery_count = link.delivery_count + 1 & _SERIAL
        if not link.is_over:
            link.inbox.append(link._make(link, number, tag, data[payload:end]))

    def _part(
        self,
        link: ReceiverLink,
        part: bytes,
        number: int | None,
        tag: bytes | None,
        more: bool,
        aborted: bool,
    ) -> None:
        """A frame of a message that has several."""
        if not link._parts:
            if number is None or tag is None or link.credit <= 0:
                raise FrameError("amqp:link:transfer-limit-exceeded", "a transfer without credit")
            link._first = (number, tag)
        link._parts.append(part)
        link._parts_size += len(part)
        if link._parts_size > self._core.message_size_max:
            raise FrameError(
                "amqp:link:message-size-exceeded",
                f"a message of more than {self._core.message_size_max} bytes",
            )
        if more and not aborted:
            return
        parts, link._parts, link._parts_size = link._parts, [], 0
        link.credit -= 1
        link.delivery_count = link.delivery_count + 1 & _SERIAL
        if not (aborted or link.is_over):
            link.inbox.append(link._make(link, *link._first, b"".join(parts)))

    def on_disposition(self, fields: list[Any]) -> None:
        of_sent = bool(fields) and fields[0] is True
        first = _number(fields, 1, "disposition")
        last = fields[2] if len(fields) > 2 and isinstance(fields[2], int) else first
        settled = len(fields) > 3 and fields[3] is True
        outcome = read_outcome(fields[4] if len(fields) > 4 else None)
        known: dict[int, Any] = self.sent if of_sent else self.settling
        count = (last - first & _SERIAL) + 1
        # A range may claim four thousand million deliveries.
        if count > len(known):
            numbers = [one for one in known if one - first & _SERIAL < count]
        else:
            numbers = [one & _SERIAL for one in range(first, first + count)]
        if of_sent:
            self._answered(numbers, outcome, settled)
        elif settled:
            self._settled(numbers, outcome or NO_OUTCOME)

    def _settled(self, numbers: Iterable[int], outcome: Outcome) -> None:
        """The peer's answer to a settlement of ours: the same again, or why not."""
        pop, answered, error = self.settling.pop, outcome.kind, outcome.error
        for number in numbers:
            asked = pop(number, answered)
            if error is not None:
                self.refusals[number] = error
            elif asked is not answered:
                said = f"{asked.name.lower()} was answered with {answered.name.lower()}"
                self.refusals[number] = AmqpError("amqp:internal-error", said)

    def _answered(self, numbers: Iterable[int], outcome: Outcome | None, settled: bool) -> None:
        """Of messages that we sent: an outcome ends it, whether or not the peer settled."""
        if outcome is None and not settled:
            return
        for number in numbers:
            ticket = self.sent.pop(number, None)
            if ticket is not None:
                ticket.outcome = outcome or NO_OUTCOME


def _number(fields: list[Any], index: int, frame: str) -> int:
    value = fields[index] if index < len(fields) else None
    if not isinstance(value, int) or isinstance(value, bool):
        raise FrameError("amqp:invalid-field", f"field {index} of {frame} is {value!r}, no number")
    return int(value)
