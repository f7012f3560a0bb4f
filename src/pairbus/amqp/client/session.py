"""One session of a client: it writes the frames of its links, and reads the peer's.

State only, as in `client_links`. What a peer gets wrong raises FrameError, which ends the
connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from pairbus.amqp.client.frames import (
    WINDOW,
    disposition,
    encode_outcome,
    flow,
    read_error,
    read_outcome,
    read_transfer,
    transfer_frames,
)
from pairbus.amqp.client.links import (
    SERIAL,
    Link,
    Make,
    ReceiverLink,
    SenderLink,
    Settlement,
    Ticket,
)
from pairbus.amqp.codec.types import Described, Symbol, UByte, UInt, ULong
from pairbus.amqp.frames import ATTACH, BEGIN, DETACH, END, FrameError, encode_frame
from pairbus.amqp.outcomes import NO_OUTCOME, AmqpError, Outcome

if TYPE_CHECKING:
    from pairbus.amqp.client.protocol import Core

_SOURCE, _TARGET = 0x28, 0x29
_HANDLE_MAX: Final = 255


class Session:
    __slots__ = (
        "_blocked",
        "_by_remote_handle",
        "_core",
        "_is_shared",
        "_next_delivery_id",
        "_next_incoming_id",
        "_next_outgoing_id",
        "_remote_window",
        "_sent",
        "begun",
        "channel",
        "is_over",
        "links",
        "settling",
    )

    def __init__(self, core: Core, channel: int, *, is_shared: bool) -> None:
        """One that is not shared ends with its last link."""
        self._core = core
        self._is_shared = is_shared
        self.channel = channel
        self.begun = False
        self.is_over = False
        self.links: dict[int, Link] = {}
        """By our handle, until the peer has detached its end."""
        self._by_remote_handle: dict[int, Link] = {}
        self._next_incoming_id = 0  # of the peer's transfers; then of ours
        self._next_outgoing_id = 0
        self._remote_window = 0
        self._blocked: list[bytes] = []  # transfers that wait for the peer's window
        self._next_delivery_id = 0
        self._sent: dict[int, Ticket] = {}
        self.settling: dict[int, Settlement] = {}
        """Deliveries on whose settlement the peer has not answered yet."""
        fields = [None, UInt(0), UInt(WINDOW), UInt(WINDOW), UInt(_HANDLE_MAX)]
        self._write(BEGIN, fields)

    def _write(self, code: int, fields: list[Any]) -> None:
        self._core.write(encode_frame(code, fields, channel=self.channel))

    # -- links ------------------------------------------------------------------------------

    def attach_sender(self, target: str, *, name: str | None = None, **settings: Any) -> SenderLink:
        link = SenderLink(self, self._free_handle(), name or str(uuid4()))
        settings.setdefault("source", link.name)
        self._attach(link, target=target, **settings)
        return link

    def attach_receiver(
        self, source: str, make: Make, *, name: str | None = None, **settings: Any
    ) -> ReceiverLink:
        link = ReceiverLink(self, self._free_handle(), name or str(uuid4()), make)
        settings.setdefault("target", link.name)
        self._attach(link, source=source, **settings)
        return link

    def _free_handle(self) -> int:
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
            Described(ULong(_SOURCE), [source]),
            Described(ULong(_TARGET), [target]),
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

    def end(self, error: AmqpError | None) -> None:
        """It is over, and its links with it; what was waited for will never come."""
        self.is_over = True
        for link in self.links.values():
            link.end(error)

    # -- messages ---------------------------------------------------------------------------

    def flow(self, link: ReceiverLink | None, credit: int = 0, *, drain: bool = False) -> None:
        self._core.write(
            flow(
                self.channel,
                next_incoming_id=self._next_incoming_id,
                next_outgoing_id=self._next_outgoing_id,
                handle=None if link is None else link.handle,
                delivery_count=0 if link is None else link.delivery_count,
                credit=credit,
                drain=drain,
            )
        )

    def dispose(self, ids: Iterable[int], outcome: Outcome, *, two_phase: bool) -> Settlement:
        """One frame for each run of consecutive ids."""
        state, settling, settlement = (
            encode_outcome(outcome),
            self.settling,
            Settlement(outcome.kind),
        )
        first = last = -1
        for number in ids:
            if two_phase:
                settling[number] = settlement
                settlement.left += 1
            if number == last + 1 and first >= 0:
                last = number
                continue
            if first >= 0:
                self._dispose(first, last, two_phase, state)
            first = last = number
        if first >= 0:
            self._dispose(first, last, two_phase, state)
        return settlement

    def _dispose(self, first: int, last: int, two_phase: bool, state: bytes) -> None:
        frame = disposition(self.channel, first, last, settled=not two_phase, state=state)
        self._core.write(frame)

    def transfer(self, link: SenderLink, tag: bytes, payload: bytes, message_format: int) -> Ticket:
        number = self._next_delivery_id
        self._next_delivery_id = number + 1 & SERIAL
        self._sent[number] = ticket = Ticket()
        self._blocked += transfer_frames(
            channel=self.channel,
            handle=link.handle,
            delivery_id=number,
            tag=tag,
            payload=payload,
            message_format=message_format,
            frame_size_max=self._core.remote_frame_size_max,
        )
        self._unblock()
        return ticket

    def _unblock(self) -> None:
        count = min(len(self._blocked), self._remote_window)
        if count > 0:
            self._core.out += self._blocked[:count]
            del self._blocked[:count]
            self._remote_window -= count
            self._next_outgoing_id = self._next_outgoing_id + count & SERIAL

    # -- the peer's frames ------------------------------------------------------------------

    def on_begin(self, fields: list[Any]) -> None:
        self.begun = True
        self._next_incoming_id = _number(fields, 1, "begin")
        self._remote_window = _number(fields, 2, "begin")
        self._unblock()

    def on_attach(self, fields: list[Any]) -> None:
        name = fields[0] if fields else None
        remote_handle = _number(fields, 1, "attach")
        link = next((one for one in self.links.values() if one.name == name), None)
        known = link in self._by_remote_handle.values()
        if link is None or known or len(fields) < 3 or fields[2] is not link.is_sender:
            raise FrameError("amqp:not-allowed", f"an attach of link {name!r}, not asked for")
        if remote_handle in self._by_remote_handle:
            raise FrameError("amqp:session:handle-in-use", f"handle {remote_handle} is in use")
        self._by_remote_handle[remote_handle] = link
        far_end = 6 if link.is_sender else 5
        if len(fields) <= far_end or fields[far_end] is None:
            return  # a refusal; the detach that follows says why
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
            said = f"detach of handle {remote_handle}, which is not in use"
            raise FrameError("amqp:session:unattached-handle", said)
        if not link.is_over:
            link.end(read_error(fields[2] if len(fields) > 2 else None))
            self.detach(link)
        del self.links[link.handle]
        if not self.links and not self._is_shared:
            self._write(END, [])
            self.end(None)

    def on_flow(self, fields: list[Any]) -> None:
        # Of the peer's window, what we have sent and it has not seen is used up already.
        unseen = self._next_outgoing_id - _number(fields, 0, "flow", default=0) & SERIAL
        self._remote_window = max(0, _number(fields, 1, "flow") - unseen)
        self._unblock()
        if len(fields) > 4 and fields[4] is not None:
            link = self._by_remote_handle.get(_number(fields, 4, "flow"))
            count = _number(fields, 5, "flow", default=0)
            credit = _number(fields, 6, "flow", default=0)
            if isinstance(link, SenderLink | ReceiverLink):
                link.flowed(count, credit)
        if len(fields) > 9 and fields[9] is True:
            self.flow(None)

    def on_message(self, number: int, tag: bytes, data: bytes) -> bool:
        """A whole message on handle 0, as read by the short cut of `Core`; False if it is not
        that simple here."""
        link = self._by_remote_handle.get(0)
        if link.__class__ is not ReceiverLink or link._parts:
            return False
        self._next_incoming_id = self._next_incoming_id + 1 & SERIAL
        link.arrived(number, tag, data)
        return True

    def on_transfer(self, data: bytes, at: int, end: int) -> None:
        handle, number, tag, more, aborted, payload = read_transfer(data, at)
        self._next_incoming_id = self._next_incoming_id + 1 & SERIAL
        link = self._by_remote_handle.get(handle)
        if not isinstance(link, ReceiverLink) or payload > end:
            raise FrameError("amqp:not-allowed", f"a transfer on handle {handle}, or a cut one")
        if aborted:
            link.aborted()
        else:
            link.part_arrived(
                number, tag, data[payload:end], more=more, size_max=self._core.message_size_max
            )

    def on_disposition(self, fields: list[Any]) -> None:
        is_of_ours = bool(fields) and fields[0] is True
        first = _number(fields, 1, "disposition")
        last = _number(fields, 2, "disposition", default=first)
        settled = len(fields) > 3 and fields[3] is True
        outcome = read_outcome(fields[4] if len(fields) > 4 else None)
        known: Mapping[int, object] = self._sent if is_of_ours else self.settling
        count = (last - first & SERIAL) + 1
        # A range may claim four thousand million deliveries: look through the shorter side.
        if count > len(known):
            numbers = [one for one in known if one - first & SERIAL < count]
        else:
            numbers = [one & SERIAL for one in range(first, first + count)]
        if not is_of_ours:
            if settled:
                self._settled(numbers, outcome or NO_OUTCOME)
        elif settled or outcome is not None:
            for number in numbers:
                ticket = self._sent.pop(number, None)
                if ticket is not None:
                    ticket.outcome = outcome or NO_OUTCOME

    def _settled(self, numbers: list[int], outcome: Outcome) -> None:
        """The peer's answer to settlements of ours: the same again, or why not."""
        settling, answered = self.settling, outcome.kind
        for number in numbers:
            settlement = settling.pop(number, None)
            if settlement is None:
                continue
            settlement.left -= 1
            if outcome.error is not None:
                settlement.refusals[number] = outcome.error
            elif settlement.kind is not answered:
                said = f"{settlement.kind.name.lower()} was answered with {answered.name.lower()}"
                settlement.refusals[number] = AmqpError("amqp:internal-error", said)


def _number(fields: list[Any], index: int, frame: str, *, default: int | None = None) -> int:
    value = fields[index] if index < len(fields) else None
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= SERIAL:
        raise FrameError("amqp:invalid-field", f"field {index} of {frame} is {value!r}, no number")
    return int(value)
