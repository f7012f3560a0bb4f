"""Handles for what lives on a connection: `Session`, `Link`, and `Delivery` in its own module.

Each holds a C pointer only while the engine vouches for it, and loses it the moment its object may
be freed: when it is settled, detached, ended, or the connection is over. From then on questions
answer "nothing", endings do nothing, and `send` raises `LinkClosed`. A handle can be kept for
ever; it cannot crash the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pairbus.amqp.engine.delivery import Delivery
from pairbus.amqp.engine.pndata import symbol_map, write, write_condition
from pairbus.amqp.engine.proton import ffi, lib
from pairbus.amqp.outcomes import AmqpError
from pairbus.errors import PairbusError

if TYPE_CHECKING:
    from pairbus.amqp.engine.engine import Engine

_TAG_SIZE_MAX: Final = 32
_PIECE_SIZE: Final = 65536
_FRAMING_SIZE: Final = 65536
"""What a batch may have on top of the messages in it."""

# The frequent calls by name: an attribute look-up less for each of them, for each message.
_delivery_settle = lib.pn_delivery_settle
_new_delivery = lib.pn_delivery
_link_send = lib.pn_link_send
_link_advance = lib.pn_link_advance
_link_credit = lib.pn_link_credit
_from_buffer = ffi.from_buffer


class LinkClosed(PairbusError):
    """Nothing can be sent here any more: the link, its session or its connection is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteAttach:
    """What the peer's attach said."""

    source_address: str | None = None
    target_address: str | None = None
    has_source: bool = False
    has_target: bool = False
    target_is_coordinator: bool = False
    source_filter: Mapping[str, object] = field(default_factory=dict)
    described_filters: frozenset[str] = frozenset()
    """The filters whose value had a descriptor, which `source_filter` leaves out."""

    properties: Mapping[str, object] = field(default_factory=dict)
    snd_settle_mode: int = 2
    """0 unsettled, 1 settled, 2 mixed."""

    rcv_settle_mode: int = 0
    """0 first, 1 second."""

    max_message_size: int = 0
    """0: none given."""

    dynamic: bool = False
    """The peer wants us to name the source."""

    @property
    def is_refusal(self) -> bool:
        """Neither source nor target: the error follows in a detach."""
        return not (self.has_source or self.has_target)


class Session:
    __slots__ = ("_closing", "_pn", "context", "engine")

    def __init__(self, engine: Engine, pn: Any) -> None:
        self.engine = engine
        self.context: Any = None
        self._pn = pn
        self._closing = False

    @property
    def alive(self) -> bool:
        return self._pn is not None and not self._closing

    @property
    def outgoing_bytes(self) -> int:
        """Bytes of messages that wait for the peer's session window or credit."""
        return 0 if self._pn is None else int(lib.pn_session_outgoing_bytes(self._pn))

    def end(self, error: AmqpError | None = None) -> None:
        """End it and its links. The answer of the peer is awaited, but nothing is reported."""
        if self._pn is None or self._closing:
            return
        if error is not None:
            write_condition(lib.pn_session_condition(self._pn), error)
        self.engine._session_ends(self)
        lib.pn_session_close(self._pn)


class Link:
    __slots__ = (
        "_arriving",
        "_closing",
        "_format",
        "_oversize",
        "_part_size",
        "_parts",
        "_pn",
        "_size_max",
        "context",
        "engine",
        "is_sender",
        "name",
        "remote",
        "session",
    )

    def __init__(self, session: Session, pn: Any, name: str, *, is_sender: bool) -> None:
        self.engine = session.engine
        self.session = session
        self.name = name
        self.is_sender = is_sender
        """Whether WE send on it."""

        self.remote = RemoteAttach()
        self.context: Any = None
        self._pn = pn
        self._closing = False  # we closed it, the peer has not answered: C must still know it
        self._arriving = False  # the last frame of a message has not come yet; this much has:
        self._parts: list[bytes] = []
        self._part_size = 0
        self._format = 0
        self._oversize = False
        self._size_max = 0  # of a message, as `accept` said; 0: the connection's limit holds

    def __repr__(self) -> str:
        role = "sender" if self.is_sender else "receiver"
        return f"<Link {self.name!r} {role}{'' if self.alive else ' closed'}>"

    @property
    def alive(self) -> bool:
        return self._pn is not None and not self._closing

    @property
    def is_arriving(self) -> bool:
        """Some of a message has come, and not its last frame."""
        return self._arriving

    # -- its life -----------------------------------------------------------------------------

    def accept(
        self,
        *,
        source_address: str | None = None,
        filter: Mapping[str, object] | None = None,
        properties: Mapping[str, object] | None = None,
        max_message_size: int | None = None,
        credit: int = 0,
    ) -> None:
        """Answer the peer's attach with its own termini and settle modes, and what is given."""
        pn = self._pn
        if pn is None or self._closing:
            return
        source, target = lib.pn_link_source(pn), lib.pn_link_target(pn)
        lib.pn_terminus_copy(source, lib.pn_link_remote_source(pn))
        lib.pn_terminus_copy(target, lib.pn_link_remote_target(pn))
        # A terminus without an address reads as none at all; to answer none would be to refuse.
        for terminus, kind in ((source, lib.PN_SOURCE), (target, lib.PN_TARGET)):
            if lib.pn_terminus_get_type(terminus) == lib.PN_UNSPECIFIED:
                lib.pn_terminus_set_type(terminus, kind)
        if source_address is not None:
            lib.pn_terminus_set_address(source, source_address.encode())
        if filter is not None:
            write(lib.pn_terminus_filter(source), symbol_map(filter))
        lib.pn_link_set_snd_settle_mode(pn, self.remote.snd_settle_mode)
        lib.pn_link_set_rcv_settle_mode(pn, self.remote.rcv_settle_mode)
        self._open(properties, max_message_size)
        if credit and not self.is_sender:
            lib.pn_link_flow(pn, credit)

    def _open(self, properties: Mapping[str, object] | None, max_message_size: int | None) -> None:
        if properties is not None:
            write(lib.pn_link_properties(self._pn), symbol_map(properties))
        if max_message_size is not None:
            self._size_max = max_message_size + _FRAMING_SIZE
            lib.pn_link_set_max_message_size(self._pn, max_message_size)
        lib.pn_link_open(self._pn)

    def refuse(self, error: AmqpError) -> None:
        """Answer the peer's attach with "no": null termini, then a detach with the error."""
        pn = self._pn
        if pn is None or self._closing:
            return
        lib.pn_terminus_set_type(lib.pn_link_source(pn), lib.PN_UNSPECIFIED)
        lib.pn_terminus_set_type(lib.pn_link_target(pn), lib.PN_UNSPECIFIED)
        lib.pn_link_open(pn)
        self.close(error)

    def close(self, error: AmqpError | None = None) -> None:
        """Detach for good. Its deliveries are forgotten; the peer's answer is not reported."""
        self._end(error, lib.pn_link_close)

    def detach(self, error: AmqpError | None = None) -> None:
        """Detach without closing: the peer may attach it again."""
        self._end(error, lib.pn_link_detach)

    def _end(self, error: AmqpError | None, how: Any) -> None:
        if self._pn is None or self._closing:
            return
        if error is not None:
            write_condition(lib.pn_link_condition(self._pn), error)
        self.engine._link_ends(self)
        how(self._pn)

    # -- credit -------------------------------------------------------------------------------

    @property
    def credit(self) -> int:
        """Sender: how many messages may be sent now. Receiver: how many the peer may send.

        A sender's is also held to the connection's limit of unsettled deliveries. No event tells
        when that has room again: look here after settling.
        """
        pn = self._pn
        if pn is None or self._closing:
            return 0
        credit: int = _link_credit(pn)
        if self.is_sender:
            room: int = self.engine._unsettled_max - len(self.engine._sent)
            if credit > room:
                credit = room
        return credit if credit > 0 else 0

    @property
    def credit_for_settled(self) -> int:
        """Sender: how many may be sent that are settled at once, and so count as no unsettled ones.

        An answer must not wait for the settlements that it may be needed for.
        """
        if self._pn is None or self._closing:
            return 0
        return max(0, int(_link_credit(self._pn)))

    @property
    def drain(self) -> bool:
        """Sender: the peer wants the credit used up or given back (`drained`)."""
        return self._pn is not None and not self._closing and bool(lib.pn_link_get_drain(self._pn))

    def grant(self, credit: int) -> None:
        """Receiver: let the peer send that many more."""
        if self._pn is not None and not self._closing and not self.is_sender:
            lib.pn_link_flow(self._pn, credit)

    def request_drain(self) -> None:
        """Receiver: ask the peer to use up its credit or give it back; `Flowed` tells when."""
        if self._pn is not None and not self._closing and not self.is_sender:
            lib.pn_link_set_drain(self._pn, True)

    def drained(self) -> None:
        """Sender: there is nothing to send for the rest of the credit."""
        if self._pn is not None and not self._closing and self.is_sender:
            lib.pn_link_drained(self._pn)

    @property
    def queued(self) -> int:
        """Messages given to `send` that still wait for the peer's credit or session window."""
        return 0 if self._pn is None else int(lib.pn_link_queued(self._pn))

    @property
    def unsettled(self) -> int:
        return 0 if self._pn is None else int(lib.pn_link_unsettled(self._pn))

    # -- messages -----------------------------------------------------------------------------

    def send(
        self, tag: bytes, data: bytes, *, settled: bool = False, context: Any = None
    ) -> Delivery:
        """Send one encoded message. Ask `credit` first: without it, the message waits in memory."""
        pn = self._pn
        if pn is None or self._closing or not self.is_sender:
            raise LinkClosed(f"link {self.name!r} cannot send: it is closed, or receives")
        size = len(tag)
        if not 0 < size <= _TAG_SIZE_MAX:
            raise ValueError(f"a delivery tag has 1 to {_TAG_SIZE_MAX} bytes, not {size}: {tag!r}")
        engine = self.engine
        pointer = _new_delivery(pn, (size, _from_buffer(tag)))
        size = len(data)
        if size <= _PIECE_SIZE:
            _link_send(pn, data, size)
        else:
            self._send_pieces(data)
        _link_advance(pn)
        delivery = Delivery(self, pointer, tag, size)
        delivery.context = context
        if settled:
            delivery._pn = None
            delivery.settled = True
            _delivery_settle(pointer)
        else:
            engine._sent[pointer] = delivery
        engine._unflushed += size
        if engine._unflushed > _PIECE_SIZE:
            engine._flush()
        return delivery

    def _send_pieces(self, data: bytes) -> None:
        # Proton keeps the largest size a delivery ever had until the connection ends. Handing it
        # over in pieces, each put into frames before the next comes, keeps that small.
        whole = _from_buffer(data)
        for start in range(0, len(data), _PIECE_SIZE):
            _link_send(self._pn, whole + start, min(_PIECE_SIZE, len(data) - start))
            self.engine._flush()
