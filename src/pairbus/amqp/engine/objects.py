"""The C objects of one connection: made, emptied of their output, and freed exactly once.

`Engine` builds on this what the peer's bytes mean. Here is the promise that no handle outlives its
C object: whatever ends a delivery, a link, a session or the connection passes through here, and
takes the pointers away before Proton may free what they point to.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pairbus.amqp.engine.delivery import Delivery
from pairbus.amqp.engine.events import Closed, Event
from pairbus.amqp.engine.link import Link, Session
from pairbus.amqp.engine.pndata import symbol_map, write
from pairbus.amqp.engine.proton import ffi, lib
from pairbus.amqp.frames import CLOSE, encode_error, encode_frame, error_info
from pairbus.amqp.outcomes import AmqpError

SCRATCH_SIZE: Final = 65536

_peek_event = lib.pn_collector_peek
_pop_event = lib.pn_collector_pop
_peek_output = lib.pn_transport_peek
_pop_output = lib.pn_transport_pop
_unpack = ffi.unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What one connection may cost. A peer that goes beyond loses it; only a message that is too
    large is merely rejected."""

    frame_size_max: int = 65536
    channel_max: int = 255
    """The highest channel, so one session more than this."""

    links_max: int = 256
    """Of all sessions together."""

    message_size_max: int = 1024 * 1024 + 65536
    """As encoded, with annotations and framing: hence a bit above the 1 MiB that is advertised."""

    idle_timeout_ms: int | None = 240_000
    """After so long a silence the peer is given up; it is told half of it, as Proton does."""

    incoming_window: int = 16 * 1024 * 1024
    """Bytes of messages whose last frame has not come, over all links."""

    unsettled_max: int = 20_000
    """Deliveries without settlement, for each direction."""


class Core:
    __slots__ = (
        "__weakref__",
        "_backlog",
        "_collector",
        "_connection",
        "_ended",
        "_freed",
        "_held_bytes",
        "_limits",
        "_links",
        "_local_open",
        "_locally_closed",
        "_must_write",
        "_muted",
        "_out",
        "_part_bytes",
        "_received",
        "_scratch",
        "_sent",
        "_server",
        "_sessions",
        "_silent_links",
        "_transport",
        "_unflushed",
        "_unsettled_max",
        "error",
    )

    def __init__(self, *, server: bool, limits: EngineLimits) -> None:
        self._server = server
        self._limits = limits
        self._unsettled_max = limits.unsettled_max
        self.error: AmqpError | None = None
        """Why the connection ended, if it did so with an error of either side."""

        # Proton's objects to ours. An entry lives exactly as long as its pointer is valid.
        self._sessions: dict[Any, Session] = {}
        self._links: dict[Any, Link] = {}
        self._sent: dict[Any, Delivery] = {}
        self._received: dict[Any, Delivery] = {}
        # Detached by the peer, with deliveries that we must not seem to settle.
        self._silent_links: list[tuple[Session, Any]] = []
        self._must_write = False  # before more input is read
        self._held_bytes = 0  # of messages received and not yet settled by us
        self._part_bytes = 0  # of messages still arriving
        self._backlog: list[Event] = []
        self._out: list[bytes] = []
        self._unflushed = 0
        self._muted = False  # SASL goes on: Proton's bytes must wait
        self._local_open = False
        self._locally_closed = False
        self._ended = False
        self._scratch = ffi.new("char[]", SCRATCH_SIZE)
        self._freed = False
        self._collector = lib.pn_collector()
        self._connection = lib.pn_connection()
        self._transport = lib.pn_transport()

    def _configure(
        self, container_id: str, hostname: str | None, properties: Mapping[str, object] | None
    ) -> None:
        connection, transport, limits = self._connection, self._transport, self._limits
        lib.pn_transport_trace(transport, lib.PN_TRACE_OFF)
        if self._server:
            lib.pn_transport_set_server(transport)
        lib.pn_transport_set_max_frame(transport, limits.frame_size_max)
        lib.pn_transport_set_channel_max(transport, limits.channel_max)
        lib.pn_transport_set_idle_timeout(transport, limits.idle_timeout_ms or 0)
        # Proton writes the close frame for the errors it finds; they must not lack the info map.
        condition = lib.pn_transport_condition(transport)
        write(lib.pn_condition_info(condition), error_info(AmqpError("")))
        lib.pn_connection_set_container(connection, container_id.encode())
        if hostname is not None:
            lib.pn_connection_set_hostname(connection, hostname.encode())
        if properties:
            write(lib.pn_connection_properties(connection), symbol_map(properties))
        lib.pn_connection_collect(connection, self._collector)
        lib.pn_transport_bind(transport, connection)

    # -- bytes out ----------------------------------------------------------------------------

    def data_to_send(self) -> bytes:
        """All bytes that are ready for the peer; they are the caller's now."""
        self._flush()
        out = self._out
        if not out:
            return b""
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        return data

    @property
    def has_output(self) -> bool:
        self._flush()
        return bool(self._out)

    @property
    def pending(self) -> int:
        """Bytes that wait for `data_to_send`, or for the peer's session window or credit.

        Nothing in here bounds it: stop sending while it is too much.
        """
        self._flush()
        waiting = sum(session.outgoing_bytes for session in self._sessions.values())
        return waiting + sum(map(len, self._out))

    @property
    def incoming_bytes(self) -> int:
        """Bytes of messages received and not yet settled by us, and of those still arriving.

        Stop reading from the socket while it is too much.
        """
        return self._held_bytes + self._part_bytes

    def _flush(self) -> None:
        """Move Proton's output to ours. Proton gives at most its buffer at a time."""
        self._unflushed = 0
        if self._freed or self._ended or self._locally_closed or self._muted:
            return
        transport, scratch = self._transport, self._scratch
        size = _peek_output(transport, scratch, SCRATCH_SIZE)
        if size <= 0:
            return
        out = self._out
        while size > 0:
            out.append(_unpack(scratch, size))
            _pop_output(transport, size)
            size = _peek_output(transport, scratch, SCRATCH_SIZE)
        # What Proton reports now are echoes of our own doing: `receive` never leaves a peer's.
        collector = self._collector
        while _peek_event(collector):
            _pop_event(collector)

    def _is_over(self) -> bool:
        return self._ended or self._freed

    # -- endings ------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Nothing more will be read or sent: the socket may be closed."""
        return (self._ended or self._freed) and not self._out

    def close(self, error: AmqpError | None = None) -> None:
        """Say goodbye. All handles are dead at once; `closed` when the peer has answered.

        A peer may never answer: how long to wait is the caller's business.
        """
        if self._ended or self._locally_closed or self._freed:
            return
        if error is not None:
            self.error = error
        spoken = self._local_open and not self._muted
        self._say_close(error)
        self._locally_closed = True
        self._ended = not spoken  # the peer has not met us: there is nothing to wait for
        self._forget_all()

    def _fail(self, error: AmqpError, events: list[Event]) -> None:
        """The peer broke a rule: tell it, and never listen to it again."""
        if not self._locally_closed:
            self._say_close(error)
        self._over(error, events)

    def _over(self, error: AmqpError | None, events: list[Event]) -> None:
        self._ended = True
        if error is not None:
            self.error = error
        self._forget_all()
        events.append(Closed(error))

    def _say_close(self, error: AmqpError | None) -> None:
        """Our own close frame after all that Proton has to say.

        Proton would hold it back until it has seen the peer's open, or while messages wait.
        """
        if self._muted:
            return
        if not self._local_open:
            lib.pn_connection_open(self._connection)
            self._local_open = True
        self._flush()
        if self._out or self._local_open:
            self._out.append(encode_frame(CLOSE, [encode_error(error)] if error else []))

    def _forget_all(self) -> None:
        for handles in (self._sent, self._received):
            for delivery in handles.values():
                delivery._pn = None
                delivery.settled = True
            handles.clear()
        for link in self._links.values():
            link._pn = None
            link._parts.clear()
        self._links.clear()
        self._silent_links.clear()
        for session in self._sessions.values():
            session._pn = None
        self._sessions.clear()
        self._held_bytes = self._part_bytes = 0

    def _link_ends(self, link: Link) -> None:
        """Its deliveries are no more. The link itself Proton must know until the peer answers."""
        link._closing = True
        self._drop_parts(link)
        handles = self._sent if link.is_sender else self._received
        for pn in [pn for pn, delivery in handles.items() if delivery.link is link]:
            delivery = handles.pop(pn)
            delivery._pn = None
            delivery.settled = True
            if not link.is_sender:
                self._held_bytes -= delivery.size

    def _session_ends(self, session: Session) -> None:
        session._closing = True
        for link in self._links.values():
            if link.session is session and not link._closing:
                self._link_ends(link)

    def _drop_parts(self, link: Link) -> None:
        self._part_bytes -= link._part_size
        link._part_size = 0
        link._format = 0
        link._arriving = link._oversize = False
        link._parts.clear()

    def free(self) -> None:
        """Release the C objects. Every handle is dead afterwards, and so is the engine."""
        if self._freed:
            return
        self._forget_all()
        self._out.clear()
        self._freed = True
        transport, connection, collector = self._transport, self._connection, self._collector
        self._transport = self._connection = self._collector = None
        lib.pn_transport_unbind(transport)
        lib.pn_connection_release(connection)
        lib.pn_decref(connection)
        lib.pn_decref(transport)
        lib.pn_collector_free(collector)

    def __del__(self) -> None:
        # A safety net for an owner that failed half-way: what C allocated, Python cannot collect.
        if not getattr(self, "_freed", True) and not sys.is_finalizing():
            self.free()
