"""One AMQP 1.0 connection, in either role: bytes in, events out, bytes out.

Stands on Proton's C engine through its cffi functions. Owns no socket, no thread and no clock: the
caller moves the bytes and passes the time to `tick` (monotonic seconds). Knows AMQP, not Service
Bus. Whatever the peer sends, nothing is raised: one that breaks a rule gets an AMQP error and a
closed connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pairbus.amqp.engine.delivery import Delivery
from pairbus.amqp.engine.events import (
    Attached,
    Closed,
    Detached,
    Disposed,
    Event,
    Flowed,
    Opened,
    SessionBegun,
    SessionEnded,
    Transferred,
)
from pairbus.amqp.engine.framer import Framer
from pairbus.amqp.engine.link import Link, LinkClosed, RemoteAttach, Session
from pairbus.amqp.engine.objects import SCRATCH_SIZE, Core, EngineLimits
from pairbus.amqp.engine.pndata import read_outcome, symbol_map, write, write_outcome
from pairbus.amqp.engine.proton import ffi, lib
from pairbus.amqp.engine.reactions import REACTIONS
from pairbus.amqp.frames import AMQP_HEADER, BATCH_FORMAT, BATCH_MARK, FrameError, pieces
from pairbus.amqp.handshake import Handshake
from pairbus.amqp.outcomes import (
    ACCEPTED,
    NO_OUTCOME,
    RELEASED,
    AmqpError,
    Outcome,
    OutcomeKind,
    modified,
    rejected,
)
from pairbus.amqp.sasl import Identity, SaslClient, SaslServer

__all__ = [
    "ACCEPTED",
    "BATCH_FORMAT",
    "NO_OUTCOME",
    "RELEASED",
    "AmqpError",
    "Attached",
    "Closed",
    "Delivery",
    "Detached",
    "Disposed",
    "Engine",
    "EngineLimits",
    "Event",
    "Flowed",
    "Identity",
    "Link",
    "LinkClosed",
    "Opened",
    "Outcome",
    "OutcomeKind",
    "RemoteAttach",
    "SaslClient",
    "SaslServer",
    "Session",
    "SessionBegun",
    "SessionEnded",
    "Transferred",
    "modified",
    "rejected",
]

_SLICE_SIZE: Final = 8192
"""How much Proton takes at most before its events are read."""

_IDLE_WORDS_MAX: Final = 10_000

_TICK_SECONDS_MIN: Final = 0.1
_DEFAULT_LIMITS: Final = EngineLimits()

# The frequent calls by name: an attribute look-up less for each of them, for each message.
_peek_event = lib.pn_collector_peek
_pop_event = lib.pn_collector_pop
_event_type = lib.pn_event_type
_event_delivery = lib.pn_event_delivery
_delivery_link = lib.pn_delivery_link
_delivery_pending = lib.pn_delivery_pending
_delivery_partial = lib.pn_delivery_partial
_delivery_readable = lib.pn_delivery_readable
_delivery_settled = lib.pn_delivery_settled
_delivery_settle = lib.pn_delivery_settle
_remote_state = lib.pn_delivery_remote_state
_link_recv = lib.pn_link_recv
_link_advance = lib.pn_link_advance
_push = lib.pn_transport_push
_unpack = ffi.unpack
_PN_DELIVERY: Final = lib.PN_DELIVERY


class Engine(Core):
    """See the module. Like everything of Proton's, for one thread at a time."""

    __slots__ = (
        "_format",
        "_framer",
        "_handshake",
        "_idle_words",
        "_plain_size_max",
        "context",
        "identity",
    )

    def __init__(
        self,
        *,
        server: bool,
        container_id: str,
        hostname: str | None = None,
        limits: EngineLimits = _DEFAULT_LIMITS,
        sasl: SaslServer | SaslClient | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> None:
        if isinstance(sasl, SaslClient if server else SaslServer):
            raise TypeError(f"{type(sasl).__name__} is not for the role server={server}")
        super().__init__(server=server, limits=limits)
        self.context: Any = None
        self.identity: Identity | None = None
        """Who the peer said it was; None when SASL was skipped or is not over."""

        self._format = 0  # of the transfer that is being read
        self._idle_words = 0  # dispositions that told nothing new
        self._plain_size_max = min(SCRATCH_SIZE, limits.message_size_max)
        self._framer = Framer(
            client=not server,
            frame_size_max=limits.frame_size_max,
            links_max=limits.links_max,
        )
        self._configure(container_id, hostname, properties)
        handshake = Handshake(sasl)
        self._handshake: Handshake | None = handshake
        self._muted = server or handshake.speaking_sasl
        self._take_handshake_output()

    # -- bytes in -----------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Event]:
        """Take what the peer sent, return what it meant. Never raises on what a peer sends."""
        events, self._backlog = self._backlog, []
        if self._is_over():
            return events
        if self._handshake is not None:
            data = self._shake_hands(data, events)
        if not data:
            return events
        try:
            block = self._framer.feed(data)
        except FrameError as error:
            self._fail(error.error, events)
            return events
        if self._locally_closed:
            # Only the peer's close is of interest; the rest would pile up inside Proton.
            self._ended = self._framer.has_ended()
        elif block:
            if BATCH_MARK not in block:
                self._feed(block, events)
                return events
            for piece, self._format in pieces(block):
                self._feed(piece, events)
                if self._ended:
                    break
            self._format = 0
        return events

    def take_events(self) -> list[Event]:
        """What arose outside of `receive`, such as the end of the connection found by `tick`."""
        events, self._backlog = self._backlog, []
        return events

    def tick(self, *, now: float) -> float | None:
        """Let time pass (monotonic seconds): heartbeats, idle time-out. Returns when to come again.

        May make output, may end the connection (`closed`, `take_events`).
        """
        if self._ended or self._freed or self._muted or self._locally_closed:
            return None
        # Proton reads a time of 0 as "none yet", hence the millisecond that is added.
        deadline: int = lib.pn_transport_tick(self._transport, int(now * 1000) + 1)
        self._collect(self._backlog)
        if not deadline or self._is_over():
            return None
        # A peer may ask for a heartbeat every millisecond; it will not get that.
        return max((deadline - 1) / 1000, now + _TICK_SECONDS_MIN)

    def _shake_hands(self, data: bytes, events: list[Event]) -> bytes:
        handshake = self._handshake
        assert handshake is not None
        data = handshake.receive(data)
        self._take_handshake_output()
        self.identity = handshake.identity
        if handshake.failure is not None:
            self._over(handshake.failure, events)
            return b""
        self._muted = handshake.speaking_sasl if not self._server else not handshake.done
        if handshake.done:
            self._handshake = None
            self._feed(AMQP_HEADER, events)
        return data

    def _take_handshake_output(self) -> None:
        handshake = self._handshake
        if handshake is not None and handshake.output:
            self._out.append(handshake.output)
            handshake.output = b""

    def _feed(self, piece: bytes, events: list[Event]) -> None:
        """Hand whole frames to Proton, slice by slice, and read what came of each."""
        transport, size = self._transport, len(piece)
        # A disposition may name every unsettled delivery, and makes an event for each: the more
        # there are, the fewer frames at a time.
        unsettled = len(self._sent) + len(self._received)
        most = _SLICE_SIZE if unsettled <= 128 else max(256, 128 * _SLICE_SIZE // unsettled)
        taken = _push(transport, piece, min(size, most))
        self._collect(events)
        if self._must_write:
            self._must_write = False
            self._flush()
        if taken == size or self._ended:
            return
        whole = ffi.from_buffer(piece)
        done = max(taken, 0)
        while taken > 0 and done < size and not self._ended:
            taken = _push(transport, whole + done, min(size - done, most))
            done += taken
            self._collect(events)
            if self._must_write:
                self._must_write = False
                self._flush()
        if taken <= 0 and not self._ended:
            self._fail(AmqpError("amqp:decode-error", "an unreadable frame"), events)

    def _collect(self, events: list[Event]) -> None:
        """Read Proton's events. A loop as bare as it can be: every message passes here."""
        collector, sent, received, links = (
            self._collector,
            self._sent,
            self._received,
            self._links,
        )
        while event := _peek_event(collector):
            kind = _event_type(event)
            if kind == _PN_DELIVERY:
                pn = _event_delivery(event)
                if (delivery := sent.get(pn) or received.get(pn)) is not None:
                    self._dispose(delivery, pn, events)
                elif (link := links.get(_delivery_link(pn))) is not None:
                    self._transfer(link, pn, events)
            elif (react := REACTIONS.get(kind)) is not None:
                react(self, event, events)
            if self._ended:
                return  # what is left in the collector dies with it
            _pop_event(collector)

    # -- messages -----------------------------------------------------------------------------

    def _transfer(self, link: Link, pn: Any, events: list[Event]) -> None:
        """A frame of a delivery that was not reported yet."""
        if not _delivery_readable(pn):
            # A late word on a delivery that is settled already; unless the peer sends on a link
            # of ours, for between two sends we leave no delivery current.
            if link.is_sender and lib.pn_link_current(link._pn) != ffi.NULL:
                said = f"a transfer on link {link.name!r}, on which the peer receives"
                self._fail(AmqpError("amqp:not-allowed", said), events)
            return
        size = _delivery_pending(pn)
        if size > self._plain_size_max or link._arriving or link._closing or _delivery_partial(pn):
            self._transfer_part(link, pn, size, events)
        elif _link_recv(link._pn, self._scratch, size) == size:
            self._deliver(link, pn, _unpack(self._scratch, size), self._format, events)
        elif size == 0:
            self._deliver(link, pn, b"", self._format, events)
        else:  # aborted with its first frame
            _delivery_settle(pn)

    def _deliver(
        self, link: Link, pn: Any, data: bytes, message_format: int, events: list[Event]
    ) -> None:
        _link_advance(link._pn)
        size = len(data)
        delivery = Delivery(link, pn, None, size)
        if _delivery_settled(pn):
            delivery._pn = None
            delivery.settled = True
            _delivery_settle(pn)
        else:
            self._received[pn] = delivery
            self._held_bytes += size
            if len(self._received) > self._unsettled_max:
                said = f"more than {self._unsettled_max} deliveries are not settled yet"
                self._fail(AmqpError("amqp:resource-limit-exceeded", said), events)
                return
        events.append(Transferred(link, delivery, data, message_format, delivery.settled))

    def _transfer_part(self, link: Link, pn: Any, size: int, events: list[Event]) -> None:
        """Some of a message of several frames.

        Its bytes are taken out of Proton as they come: Proton keeps every buffer for the life of
        the connection, at the largest size it ever had.
        """
        if link._closing or lib.pn_delivery_aborted(pn):
            self._drop_parts(link)
            _delivery_settle(pn)
            return
        if not link._arriving:
            link._arriving = True
            link._format = self._format
        buffer = self._scratch if size <= SCRATCH_SIZE else ffi.new("char[]", size)
        taken = _link_recv(link._pn, buffer, size)
        limit = link._size_max or self._limits.message_size_max
        if taken > 0 and not link._oversize:
            link._part_size += taken
            self._part_bytes += taken
            link._parts.append(_unpack(buffer, taken))
            if link._part_size > limit:
                self._drop_parts(link)
                link._arriving = link._oversize = True
        window = max(self._limits.incoming_window, 2 * link._size_max)
        if self._part_bytes > window:
            said = f"messages of more than {window} bytes are incomplete"
            self._fail(AmqpError("amqp:resource-limit-exceeded", said), events)
        elif not _delivery_partial(pn):
            data, message_format, oversize = b"".join(link._parts), link._format, link._oversize
            self._drop_parts(link)
            if oversize:
                said = f"the message is larger than {limit} bytes"
                write_outcome(pn, rejected(AmqpError("amqp:link:message-size-exceeded", said)))
                _delivery_settle(pn)
            else:
                self._deliver(link, pn, data, message_format, events)

    def _dispose(self, delivery: Delivery, pn: Any, events: list[Event]) -> None:
        """The peer's word on a delivery: the first outcome counts, then the settlement."""
        state = _remote_state(pn)
        if _delivery_settled(pn):
            outcome = ACCEPTED if state == 0x24 else read_outcome(pn)
            if delivery.link.is_sender or delivery._answered:
                events.append(Disposed(delivery, outcome, True))
            delivery.settle()
        elif state < 0x24 or delivery._told or not delivery._answered:
            # Nothing new. One disposition of 30 bytes can name all deliveries there are, over and
            # over; an honest peer comes back to a delivery no more often than it decides on one.
            self._idle_words += 1
            if self._idle_words > _IDLE_WORDS_MAX:
                said = f"more than {_IDLE_WORDS_MAX} dispositions that say nothing new"
                self._fail(AmqpError("amqp:not-allowed", said), events)
        else:
            delivery._told = True
            if self._idle_words:
                self._idle_words -= 1
            outcome = ACCEPTED if state == 0x24 else read_outcome(pn)
            events.append(Disposed(delivery, outcome, False))

    # -- the client role ----------------------------------------------------------------------

    def open(self) -> None:
        """Client: send open. (A server answers the peer's.) May be called before SASL is over."""
        if not (self._local_open or self._ended or self._freed or self._locally_closed):
            self._local_open = True
            lib.pn_connection_open(self._connection)

    def session(self) -> Session:
        """Client: begin a session. It may be used at once, before the peer has answered."""
        self._check_usable()
        pn = lib.pn_session(self._connection)
        lib.pn_session_open(pn)
        self._sessions[pn] = session = Session(self, pn)
        return session

    def attach_sender(self, session: Session, name: str, target: str, **settings: Any) -> Link:
        """Client: attach a link to send to `target`. For the settings see `_attach`."""
        settings.setdefault("source", name)
        return self._attach(session, name, is_sender=True, target=target, **settings)

    def attach_receiver(self, session: Session, name: str, source: str, **settings: Any) -> Link:
        """Client: attach a link to receive from `source`. For the settings see `_attach`."""
        settings.setdefault("target", name)
        return self._attach(session, name, is_sender=False, source=source, **settings)

    def _attach(
        self,
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
        self._check_usable()
        if session._pn is None or session._closing or session.engine is not self:
            raise LinkClosed(f"link {name!r} cannot be attached: its session is over")
        make = lib.pn_sender if is_sender else lib.pn_receiver
        pn = make(session._pn, name.encode())
        lib.pn_terminus_set_address(lib.pn_link_source(pn), source.encode())
        lib.pn_terminus_set_address(lib.pn_link_target(pn), target.encode())
        if filter is not None:
            write(lib.pn_terminus_filter(lib.pn_link_source(pn)), symbol_map(filter))
        lib.pn_link_set_snd_settle_mode(pn, snd_settle_mode)
        lib.pn_link_set_rcv_settle_mode(pn, rcv_settle_mode)
        self._links[pn] = link = Link(session, pn, name, is_sender=is_sender)
        link._open(properties, max_message_size)
        link.grant(credit)
        return link

    def _check_usable(self) -> None:
        if self._freed or self._ended or self._locally_closed:
            raise LinkClosed("the connection is over")
        if self._server:
            raise ValueError("sessions and links are the client's to begin; this is a server")
