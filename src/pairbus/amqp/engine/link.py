"""A link, and what we do to it. What the peer does is in `peer`.

You may keep a link for any time. When it has ended, its methods do nothing, its figures are 0, and
`send` raises `LinkClosed`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from pairbus.amqp.codec.types import Described, UByte, UInt, ULong
from pairbus.amqp.engine.attach import SOURCE, TARGET, RemoteAttach, terminus
from pairbus.amqp.engine.delivery import Delivery, SharedAnswer
from pairbus.amqp.engine.session import Session
from pairbus.amqp.frames import ATTACH, DETACH, SERIAL, encode_error, symbol_map
from pairbus.amqp.outcomes import AmqpError
from pairbus.amqp.performatives import transfer_frames, transfer_head

_TAG_SIZE_MAX: Final = 32
_FRAMING_SIZE: Final = 65536
"""The maximum overhead of a batch in addition to its messages."""


class LinkClosed(Exception):
    """Nothing can be sent on this link: the link, its session or its connection has ended."""


MessageSink = Callable[[int, bytes, bytes], None]
"""The delivery-id, the tag and the bytes of a message that has come."""


class Link:
    def __init__(self, session: Session, handle: int, name: str, *, is_sender: bool) -> None:
        self.session = session
        self.handle = handle
        """Ours."""
        self.name = name
        self.is_sender = is_sender
        """Whether WE send on it."""
        self.alive = True
        self.remote = RemoteAttach()
        # The peer's source and target, until they are echoed: they may be large.
        self._termini: tuple[Described | None, Described | None] = (None, None)
        self.context: Any = None
        self._wire = session._wire
        self._opened = False  # our attach was sent
        self._credit = 0  # of a sender, minus the messages that wait for credit
        self._unsettled = 0  # how many of the session's deliveries are of this link
        self._delivery_count = 0
        self._drain = False  # the receiver (either side) wants the credit used up or returned
        self._drains_unanswered = 0  # how often we asked for that, without an answer so far
        # Sender: messages without credit, and the constant parts of a transfer by the tag's size.
        self._waiting: deque[tuple[Delivery, bytes, int]] = deque()
        self._heads: dict[int, tuple[bytes, bytes]] = {}
        # Receiver: a message whose last frame has not come.
        self._partial: Delivery | None = None
        self._parts = bytearray()
        self._message_format = 0
        self._is_oversize = False
        self._is_settled = False
        self._size_max = session._wire.limits.message_size_max
        self._sink: MessageSink | None = None
        session._links[handle] = self
        session._names[name, is_sender] = self
        session._wire.link_count += 1

    def __repr__(self) -> str:
        role = "sender" if self.is_sender else "receiver"
        return f"<Link {self.name!r} {role}{'' if self.alive else ' closed'}>"

    @property
    def is_arriving(self) -> bool:
        """Whether a message has arrived only in part."""
        return self._partial is not None

    @property
    def is_detached(self) -> bool:
        """By both sides, or gone with its session."""
        return self.session._links.get(self.handle) is not self

    # -- its life -----------------------------------------------------------------------------

    def accept(
        self,
        *,
        filter: Mapping[str, object] | None = None,
        properties: Mapping[str, object] | None = None,
        max_message_size: int | None = None,
        credit: int = 0,
    ) -> None:
        """Answer the peer's attach with its own termini and settle modes, and what is given."""
        if not self.alive or self._opened:
            return
        remote = self.remote
        self._attach(
            terminus(SOURCE, self._termini[0], filter=filter),
            terminus(TARGET, self._termini[1]),
            snd_settle_mode=remote.snd_settle_mode,
            rcv_settle_mode=remote.rcv_settle_mode,
            properties=properties,
            max_message_size=max_message_size,
        )
        self.grant(credit)

    def _attach(
        self,
        source: Described | None,
        target: Described | None,
        *,
        snd_settle_mode: int = 2,
        rcv_settle_mode: int = 0,
        properties: Mapping[str, object] | None = None,
        max_message_size: int | None = None,
    ) -> None:
        self._opened = True
        self._termini = (None, None)
        if max_message_size is not None:
            self._size_max = max_message_size + _FRAMING_SIZE
        fields: list[Any] = [
            self.name,
            UInt(self.handle),
            not self.is_sender,
            UByte(snd_settle_mode),
            UByte(rcv_settle_mode),
            source,
            target,
            None,
            None,
            UInt(0) if self.is_sender else None,
            None if max_message_size is None else ULong(max_message_size),
        ]
        if properties:
            fields += [None, None, symbol_map(properties)]
        self.session._write(ATTACH, fields)
        if self._waiting:
            self._send_waiting()

    def close(self, error: AmqpError | None = None, *, closed: bool = True) -> None:
        """Detach it. Its deliveries are forgotten; the peer's answer is not reported.

        As the answer to the peer's attach, it means "no": null termini, then the detach. If not
        `closed`, it can be attached again.
        """
        if not self.alive:
            return
        self._forget()
        self._wire.end_run()
        if not self._opened:
            self._attach(None, None)  # only what is attached can be detached
        fields = [UInt(self.handle), closed]
        self.session._write(DETACH, [*fields, encode_error(error)] if error else fields)

    def _forget(self) -> None:
        """Drops its deliveries. The session keeps the link until the peer has detached it."""
        self.alive = False
        self._drop_parts()
        self._termini = (None, None)
        self.remote = replace(self.remote, source_filter={}, properties={})
        session = self.session
        for delivery, data, _ in self._waiting:
            delivery.settled = True
            session._waiting_bytes -= len(data)
        self._waiting.clear()
        if self.is_sender and session._blocked:
            session._blocked = deque(one for one in session._blocked if one[0] is not self)
            session._blocked_bytes = sum(len(frame) for _, frame in session._blocked)
        for delivery in self._unsettled_deliveries():
            delivery._forget()
            if delivery._shared is not None:
                delivery._shared.left(delivery)

    def _unsettled_deliveries(self) -> list[Delivery]:
        """In the order in which they came.

        The newest are looked at first, and no more than needed: a peer that attaches and detaches
        again and again must not make us read the whole table each time.
        """
        found: list[Delivery] = []
        table: dict[int, Any] = self.session._sent if self.is_sender else self.session._received
        for known in reversed(table.values()):
            if len(found) >= self._unsettled:
                break
            if isinstance(known, Delivery):
                if known.link is self:
                    found.append(known)
            elif isinstance(known, SharedAnswer):
                found += [one for one in reversed(known.waiting) if one.link is self]
        found.reverse()
        return found

    def _drop_parts(self) -> None:
        self._wire.part_bytes -= len(self._parts)
        self._parts = bytearray()
        self._partial = None
        self._is_oversize = self._is_settled = False

    # -- credit -------------------------------------------------------------------------------

    @property
    def credit(self) -> int:
        """Sender: how many messages may be sent now. Receiver: how many the peer may send.

        For a sender, the connection's limit of unsettled deliveries applies, too. There is no event
        when it has room again: check this after settling.
        """
        if not self.alive:
            return 0
        credit = self._credit
        if self.is_sender:
            room = self._wire.unsettled_max - self._wire.sent_count
            if credit > room:
                credit = room
        return credit if credit > 0 else 0

    @property
    def credit_for_settled(self) -> int:
        """Sender: how many may be sent that are settled at once, and so count as no unsettled ones.

        An answer must not wait for the settlements that it may be needed for.
        """
        return max(0, self._credit) if self.alive else 0

    @property
    def drain(self) -> bool:
        """Sender: the peer wants the credit used up or returned (`drained`)."""
        return self._drain and self.alive and self.is_sender

    def _flow(self) -> None:
        self.session._flow(
            handle=self.handle,
            delivery_count=self._delivery_count,
            credit=max(0, self._credit),
            drain=self._drain,
        )

    def grant(self, credit: int) -> None:
        """Receiver: let the peer send that many more."""
        if credit and self.alive and not self.is_sender:
            self._credit += credit
            self._drain = False
            if self._opened:
                self._flow()

    def set_credit(self, credit: int) -> None:
        """Receiver: let the peer send that many. This replaces the earlier credit."""
        if self.alive and not self.is_sender:
            self._credit = credit
            self._drain = False
            self._flow()

    def request_drain(self) -> None:
        """Receiver: ask the peer to use up its credit or return it. `Flowed` reports the end."""
        if self.alive and not self.is_sender:
            self._drain = True
            self._drains_unanswered += 1
            self._flow()

    def drained(self) -> None:
        """Sender: there is nothing to send for the rest of the credit."""
        if self._drain and self.alive and self.is_sender:
            # Credit is returned by counting the deliveries as if they had been sent.
            self._delivery_count = self._delivery_count + max(0, self._credit) & SERIAL
            self._credit = min(0, self._credit)
            self._flow()
            self._drain = False

    # -- messages -----------------------------------------------------------------------------

    def send(
        self,
        tag: bytes,
        data: bytes,
        *,
        settled: bool = False,
        message_format: int = 0,
        context: Any = None,
    ) -> Delivery:
        """Send one encoded message. Check `credit` first: without credit, the message waits in
        memory.
        """
        if not self.alive or not self.is_sender:
            raise LinkClosed(f"link {self.name!r} cannot send: it is closed, or receives")
        if not 0 < len(tag) <= _TAG_SIZE_MAX:
            raise ValueError(
                f"a delivery tag has 1 to {_TAG_SIZE_MAX} bytes, not {len(tag)}: {tag!r}"
            )
        delivery = Delivery(self, -1, tag)
        delivery.context = context
        delivery.settled = settled
        self._credit -= 1
        if self._credit >= 0 and self._opened:
            self._transfer(delivery, data, message_format)
        else:
            self._waiting.append((delivery, data, message_format))
            self.session._waiting_bytes += len(data)
        return delivery

    def _send_waiting(self) -> None:
        """Sender: messages that waited for credit, or for our own attach."""
        while self._waiting and self._opened and self._credit + len(self._waiting) > 0:
            delivery, data, message_format = self._waiting.popleft()
            self.session._waiting_bytes -= len(data)
            self._transfer(delivery, data, message_format)

    def _transfer(self, delivery: Delivery, data: bytes, message_format: int) -> None:
        session, wire, tag = self.session, self._wire, delivery.tag
        number = session._next_delivery_id
        session._next_delivery_id = number + 1 & SERIAL
        self._delivery_count = self._delivery_count + 1 & SERIAL
        if not delivery.settled:
            delivery._number = number
            session._sent[number] = delivery
            self._unsettled += 1
            wire.sent_count += 1
        try:
            start, middle = self._heads[len(tag)]
        except KeyError:
            head = transfer_head(session.channel, self.handle, len(tag))
            start, middle = self._heads[len(tag)] = head
        size = len(start) + len(middle) + len(tag) + len(data) + 9
        if (
            size <= wire.frame_size_max
            and session._remote_window > 0
            and not (message_format or delivery.settled or session._blocked)
        ):
            wire.out += (
                b"%b%b%b%b%b\x43"
                % (size.to_bytes(4, "big"), start, number.to_bytes(4, "big"), middle, tag),
                data,
            )
            session._remote_window -= 1
            session._next_outgoing_id = session._next_outgoing_id + 1 & SERIAL
            return
        if delivery.settled:
            wire.end_run()  # a reply must not overtake the answer to its request
        for frame in transfer_frames(
            channel=session.channel,
            handle=self.handle,
            number=number,
            tag=tag,
            message_format=message_format,
            settled=delivery.settled,
            data=data,
            frame_size_max=wire.frame_size_max,
        ):
            session._blocked.append((self, frame))
            session._blocked_bytes += len(frame)
        session._unblock()

    def receive_into(self, sink: MessageSink) -> None:
        """Receiver: pass each message to `sink` instead of making an event.

        This costs half as much: no `Delivery` is made, and `Session.settle` takes delivery-ids.
        """
        self._sink = sink


def attach(
    session: Session,
    name: str,
    *,
    is_sender: bool,
    source: str,
    target: str,
    filter: Mapping[str, object] | None = None,
    properties: Mapping[str, object] | None = None,
    snd_settle_mode: int = 2,
    rcv_settle_mode: int = 0,
    max_message_size: int | None = None,
    credit: int = 0,
) -> Link:
    """Client: a new link."""
    if not session.alive:
        raise LinkClosed(f"link {name!r} cannot be attached: its session is over")
    handle = 0
    while handle in session._links:
        handle += 1
    link = Link(session, handle, name, is_sender=is_sender)
    link._attach(
        terminus(SOURCE, Described(ULong(SOURCE), [source]), filter=filter),
        Described(ULong(TARGET), [target]),
        snd_settle_mode=snd_settle_mode,
        rcv_settle_mode=rcv_settle_mode,
        properties=properties,
        max_message_size=max_message_size,
    )
    link.grant(credit)
    return link
