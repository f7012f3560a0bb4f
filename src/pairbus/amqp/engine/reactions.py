"""What follows from each of Proton's rarer events: opens, begins, attaches, flows and endings.

One function per event, in the table at the end. The frequent one, a delivery, is read by the engine
itself. An event's object is valid while the event is in the collector, which is as long as its
function runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pairbus.amqp.engine.events import (
    Attached,
    Detached,
    Event,
    Flowed,
    Opened,
    SessionBegun,
    SessionEnded,
)
from pairbus.amqp.engine.link import Link, RemoteAttach, Session
from pairbus.amqp.engine.pndata import read_condition, read_filter, read_map, text
from pairbus.amqp.engine.proton import lib
from pairbus.amqp.outcomes import AmqpError

if TYPE_CHECKING:
    from pairbus.amqp.engine.engine import Engine

_SILENT_LINKS_MAX: Final = 64


def opened(engine: Engine, event: Any, events: list[Event]) -> None:
    connection = engine._connection
    if engine._server:
        lib.pn_connection_open(connection)
        engine._local_open = True
    container_id = text(lib.pn_connection_remote_container(connection)) or ""
    hostname = text(lib.pn_connection_remote_hostname(connection))
    properties = read_map(lib.pn_connection_remote_properties(connection))
    events.append(Opened(container_id, hostname, properties))


def begun(engine: Engine, event: Any, events: list[Event]) -> None:
    pn = lib.pn_event_session(event)
    session = engine._sessions.get(pn)
    if session is None:
        engine._sessions[pn] = session = Session(engine, pn)
        lib.pn_session_open(pn)
    if not session._closing:
        events.append(SessionBegun(session))


def ended(engine: Engine, event: Any, events: list[Event]) -> None:
    pn = lib.pn_event_session(event)
    session = engine._sessions.pop(pn, None)
    if session is None:
        return
    error = read_condition(lib.pn_session_remote_condition(pn))
    for key, link in [item for item in engine._links.items() if item[1].session is session]:
        if not link._closing:
            engine._link_ends(link)
            events.append(Detached(link, True, error))
        link._pn = None
        del engine._links[key]
    if not session._closing:
        session._closing = True
        lib.pn_session_close(pn)
        events.append(SessionEnded(session, error))
    session._pn = None
    engine._silent_links = [link for link in engine._silent_links if link[0] is not session]
    lib.pn_session_free(pn)
    # Its channel is free again only when Proton has written the end.
    engine._must_write = True


def attached(engine: Engine, event: Any, events: list[Event]) -> None:
    pn = lib.pn_event_link(event)
    link = engine._links.get(pn)
    if any(pn == silent for _, silent in engine._silent_links):
        # Proton would wake the old link, closed as it is. No SDK uses a name twice.
        said = "a link with this name was detached with unsettled deliveries; use another name"
        engine._fail(AmqpError("amqp:not-allowed", said), events)
        return
    if link is None:
        session = engine._sessions.get(lib.pn_link_session(pn))
        if session is None:
            return
        name = text(lib.pn_link_name(pn)) or ""
        link = Link(session, pn, name, is_sender=bool(lib.pn_link_is_sender(pn)))
        link._closing = session._closing
        engine._links[pn] = link
    link.remote = _read_attach(pn)
    if not link._closing:
        events.append(Attached(link))


def link_closed(engine: Engine, event: Any, events: list[Event]) -> None:
    _gone(engine, event, events, closed=True)


def link_detached(engine: Engine, event: Any, events: list[Event]) -> None:
    _gone(engine, event, events, closed=False)


def _gone(engine: Engine, event: Any, events: list[Event], *, closed: bool) -> None:
    pn = lib.pn_event_link(event)
    link = engine._links.pop(pn, None)
    if link is None:
        return
    if not link._closing:
        error = read_condition(lib.pn_link_remote_condition(pn))
        engine._link_ends(link)
        if lib.pn_link_state(pn) & lib.PN_LOCAL_UNINIT:
            lib.pn_link_open(pn)  # neither accepted nor refused yet; only an attach has a detach
        (lib.pn_link_close if closed else lib.pn_link_detach)(pn)
        events.append(Detached(link, closed, error))
    link._pn = None
    if link.is_sender and lib.pn_link_unsettled(pn) > 0:
        # Freeing it would tell the peer that we settled what it may still settle another way.
        # It goes with its session, or when there are too many of them.
        engine._silent_links.append((link.session, pn))
        if len(engine._silent_links) <= _SILENT_LINKS_MAX:
            return
        _, pn = engine._silent_links.pop(0)
    lib.pn_link_free(pn)


def flowed(engine: Engine, event: Any, events: list[Event]) -> None:
    pn = lib.pn_event_link(event)
    link = engine._links.get(pn)
    if link is None or link._closing:
        return
    if link.is_sender or lib.pn_link_drained(pn) > 0:
        events.append(Flowed(link))


def closed(engine: Engine, event: Any, events: list[Event]) -> None:
    error = read_condition(lib.pn_connection_remote_condition(engine._connection))
    engine._say_close(None)
    engine._over(error, events)


def failed(engine: Engine, event: Any, events: list[Event]) -> None:
    """Proton found the fault itself, and has its close frame ready."""
    error = read_condition(lib.pn_transport_condition(engine._transport))
    engine._flush()
    engine._over(error, events)


def deaf(engine: Engine, event: Any, events: list[Event]) -> None:
    engine._fail(AmqpError("amqp:decode-error", "an unreadable frame"), events)


def _read_attach(pn: Any) -> RemoteAttach:
    source, target = lib.pn_link_remote_source(pn), lib.pn_link_remote_target(pn)
    filters, described = read_filter(lib.pn_terminus_filter(source))
    target_type = lib.pn_terminus_get_type(target)
    return RemoteAttach(
        source_address=text(lib.pn_terminus_get_address(source)),
        target_address=text(lib.pn_terminus_get_address(target)),
        has_source=lib.pn_terminus_get_type(source) != lib.PN_UNSPECIFIED,
        has_target=target_type != lib.PN_UNSPECIFIED,
        target_is_coordinator=target_type == lib.PN_COORDINATOR,
        source_filter=filters,
        described_filters=described,
        properties=read_map(lib.pn_link_remote_properties(pn)),
        snd_settle_mode=int(lib.pn_link_remote_snd_settle_mode(pn)),
        rcv_settle_mode=int(lib.pn_link_remote_rcv_settle_mode(pn)),
        max_message_size=int(lib.pn_link_remote_max_message_size(pn)),
        dynamic=bool(lib.pn_terminus_is_dynamic(source)),
    )


REACTIONS: Final[Mapping[int, Callable[[Engine, Any, list[Event]], None]]] = {
    lib.PN_CONNECTION_REMOTE_OPEN: opened,
    lib.PN_CONNECTION_REMOTE_CLOSE: closed,
    lib.PN_SESSION_REMOTE_OPEN: begun,
    lib.PN_SESSION_REMOTE_CLOSE: ended,
    lib.PN_LINK_REMOTE_OPEN: attached,
    lib.PN_LINK_REMOTE_CLOSE: link_closed,
    lib.PN_LINK_REMOTE_DETACH: link_detached,
    lib.PN_LINK_FLOW: flowed,
    lib.PN_TRANSPORT_ERROR: failed,
    lib.PN_TRANSPORT_TAIL_CLOSED: deaf,
}
