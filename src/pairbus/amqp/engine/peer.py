"""What the peer does to sessions, links and deliveries: its frames change them and make events.

There is one function for each performative of a session. A mistake of the peer raises FrameError,
which ends the connection. Delivery-ids are the exception: the official Python SDK repeats and skips
them when threads or tasks share a connection. Azure accepts that, and so do we.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import Any

from pairbus.amqp.codec.types import UInt
from pairbus.amqp.engine.attach import field, read_attach
from pairbus.amqp.engine.delivery import Delivery, SharedAnswer
from pairbus.amqp.engine.events import (
    Attached,
    Detached,
    Disposed,
    Event,
    Flowed,
    Oversized,
    Transferred,
)
from pairbus.amqp.engine.link import Link
from pairbus.amqp.engine.session import Session, SettlementGroup
from pairbus.amqp.frames import SERIAL, FrameError, read_error
from pairbus.amqp.outcomes import AmqpError, Outcome, OutcomeKind, rejected
from pairbus.amqp.performatives import read_disposition, read_transfer

# -- messages ---------------------------------------------------------------------------------


def transfer(session: Session, data: bytes, at: int, end: int, events: list[Event]) -> None:
    """The transfer whose list begins at `at`. Every message passes here."""
    handle, number, tag, message_format, settled, more, aborted, payload = read_transfer(
        data, at, end
    )
    session._next_incoming_id = session._next_incoming_id + 1 & SERIAL
    link: Link | None = session._by_remote_handle.get(handle)
    if link is None:
        raise FrameError("amqp:invalid-field", f"a transfer on handle {handle}, which has no link")
    if link.is_sender:
        said = f"a transfer on link {link.name!r}, on which the peer receives"
        raise FrameError("amqp:not-allowed", said)
    if not link.alive:
        return
    if more or aborted or link._partial is not None:
        body = data[payload:end]
        _part(link, number, tag, message_format, settled, more, aborted, body, events)
        return
    if number is None:
        raise FrameError("amqp:invalid-field", "a delivery without an id")
    wire, size = session._wire, end - payload
    link._delivery_count = link._delivery_count + 1 & SERIAL
    link._credit -= 1
    if link._credit < 0 and not wire.is_server:  # the Python SDK sends without credit
        raise FrameError("amqp:link:transfer-limit-exceeded", "a transfer without credit")
    if link._sink is not None:
        if size > link._size_max:
            raise _beyond(link._size_max)
        link._sink(number, tag or b"", data[payload:end])
        return
    delivery = Delivery(link, number, tag or b"")
    if settled:
        delivery.settled = True
    else:
        received = session._received
        if number in received:
            _share(session, delivery)
        else:
            received[number] = delivery
        link._unsettled += 1
        wire.received_count += 1
        if wire.received_count > wire.unsettled_max:
            raise _too_many_unsettled(wire.unsettled_max)
    if size > link._size_max:
        _refuse_size(link, delivery, events)
        return
    events.append(Transferred(link, delivery, data[payload:end], message_format, settled))


def _share(session: Session, delivery: Delivery) -> None:
    """Another unsettled delivery has the same id."""
    known: Delivery | SharedAnswer | SettlementGroup = session._received[delivery._number]
    if isinstance(known, SettlementGroup):  # a sink received that one, and waits only for an answer
        session._received[delivery._number] = delivery
    else:
        shared = SharedAnswer(session, known) if isinstance(known, Delivery) else known
        shared.join(delivery)


def _too_many_unsettled(limit: int) -> FrameError:
    said = f"more than {limit} deliveries are not settled yet"
    return FrameError("amqp:resource-limit-exceeded", said)


def _refuse_size(link: Link, delivery: Delivery, events: list[Event]) -> None:
    said = f"the message is larger than {link._size_max} bytes"
    error = AmqpError("amqp:link:message-size-exceeded", said)
    delivery.settle(rejected(error))
    events.append(Oversized(link, error))


def _beyond(limit: int) -> FrameError:
    return FrameError("amqp:link:message-size-exceeded", f"a message of more than {limit} bytes")


def _part(
    link: Link,
    number: int | None,
    tag: bytes | None,
    message_format: int,
    settled: bool,
    more: bool,
    aborted: bool,
    body: bytes,
    events: list[Event],
) -> None:
    """A frame of a message of several frames, or of one that is aborted.

    The first one's id and format count: the others may bear another id, as the SDK's do.
    """
    wire = link._wire
    partial = link._partial
    if partial is None:
        if number is None:
            raise FrameError("amqp:invalid-field", "a delivery without an id")
        link._credit -= 1
        link._delivery_count = link._delivery_count + 1 & SERIAL
        if link._credit < 0 and not wire.is_server:
            raise FrameError("amqp:link:transfer-limit-exceeded", "a transfer without credit")
        if aborted:
            return
        link._partial = partial = _begin(link, number, tag or b"")
        link._message_format = message_format
    elif tag is not None and tag != partial.tag:
        said = f"link {link.name!r} has a frame of another message before the last one's end"
        raise FrameError("amqp:invalid-field", said)
    if settled and not aborted:
        link._is_settled = True
    if aborted:
        link._drop_parts()
        if link._sink is None:
            _withdraw(partial)
        return
    _append(link, body)
    if more:
        return
    data, oversize = bytes(link._parts), link._is_oversize
    # The peer may have settled it by a disposition between two frames.
    settled = link._is_settled or partial.settled
    link._drop_parts()
    if link._sink is not None:
        link._sink(partial._number, partial.tag, data)
        return
    if settled:
        _withdraw(partial)
    if oversize:
        _refuse_size(link, partial, events)
    else:
        events.append(Transferred(link, partial, data, link._message_format, settled))


def _begin(link: Link, number: int, tag: bytes) -> Delivery:
    """A delivery counts from its first frame on, because an answer to its id applies to it."""
    partial = Delivery(link, number, tag)
    if link._sink is None:
        session, wire = link.session, link._wire
        if number in session._received:
            _share(session, partial)
        else:
            session._received[number] = partial
        link._unsettled += 1
        wire.received_count += 1
        if wire.received_count > wire.unsettled_max:
            raise _too_many_unsettled(wire.unsettled_max)
    return partial


def _withdraw(delivery: Delivery) -> None:
    """It needs no answer after all."""
    if not delivery.settled:
        delivery._forget()
        if delivery._shared is not None:
            delivery._shared.left(delivery)


def _append(link: Link, body: bytes) -> None:
    wire = link._wire
    if link._is_oversize:
        return
    if len(link._parts) + len(body) > link._size_max:
        if link._sink is not None:
            raise _beyond(link._size_max)
        wire.part_bytes -= len(link._parts)
        link._parts = bytearray()
        link._is_oversize = True
        return
    link._parts += body
    wire.part_bytes += len(body)
    window = wire.limits.incoming_window
    if link._size_max > wire.limits.message_size_max:
        window = max(window, 2 * link._size_max)
    if wire.part_bytes > window:
        said = f"messages of more than {window} bytes are incomplete"
        raise FrameError("amqp:resource-limit-exceeded", said)


def disposition(session: Session, data: bytes, at: int, end: int, events: list[Event]) -> int:
    """The disposition whose list begins at `at`.

    Returns how many deliveries it named without saying anything new, minus those with news.
    """
    of_sent, first, last, settled, outcome = read_disposition(data, at, end)
    known: dict[int, Any] = session._sent if of_sent else session._received
    group: list[Delivery] = []
    if first == last:
        if first not in known:
            return 0
        one = known[first]
        is_news = _disposed(known, first, outcome, settled, group)
        if group:
            events.append(Disposed(one.link, group, outcome, settled))
        return -1 if is_news else 1
    # A range may claim four thousand million deliveries: look through the shorter side.
    count = (last - first & SERIAL) + 1
    if count > len(known):
        looked_at = len(known)
        numbers = [number for number in known if number - first & SERIAL < count]
    else:
        looked_at = count
        numbers = [
            number & SERIAL for number in range(first, first + count) if number & SERIAL in known
        ]
    news = 0
    for number in numbers:
        if settled and known[number].__class__ is SettlementGroup:
            known.pop(number).answered(number, outcome)
            news += 1
        else:
            news += _disposed(known, number, outcome, settled, group)
    for link, of_link in groupby(group, key=_link):
        events.append(Disposed(link, list(of_link), outcome, settled))
    return looked_at - 2 * news


_link = attrgetter("link")


def _disposed(
    known: dict[int, Any], number: int, outcome: Outcome, settled: bool, group: list[Delivery]
) -> bool:
    """Handles the peer's state of a delivery: the first outcome counts, then the settlement.
    Returns False if there is nothing new. A delivery whose owner must know joins `group`.
    """
    one: Delivery | SharedAnswer | SettlementGroup = known[number]
    if isinstance(one, Delivery):
        is_ours = one.link.is_sender
        is_news = is_ours and one.outcome is None and outcome.kind >= OutcomeKind.ACCEPTED
        if is_news or (is_ours and settled):
            if one.outcome is None:
                one.outcome = outcome
            group.append(one)
        if settled:
            one._forget()
        return settled or is_news
    if settled:
        if isinstance(one, SettlementGroup):
            del known[number]
            one.answered(number, outcome)
        else:
            for delivery in list(one.waiting):
                _withdraw(delivery)
    return settled


# -- links ------------------------------------------------------------------------------------


def flow(session: Session, fields: list[Any], events: list[Event]) -> None:
    # Of the peer's window, what we have sent and it has not seen is used up already.
    seen = field(fields, 0, UInt, "flow", "next-incoming-id", optional=True) or 0
    unseen = session._next_outgoing_id - seen & SERIAL
    window: int = field(fields, 1, UInt, "flow", "incoming-window")
    session._remote_window = max(0, window - unseen)
    session._unblock()
    link: Link | None = None
    handle = field(fields, 4, UInt, "flow", "handle", optional=True)
    if handle is not None:
        link = session._by_remote_handle.get(handle)
        if link is None:
            raise FrameError("amqp:invalid-field", f"a flow on handle {handle}, which has no link")
        if link.alive:
            _link_flow(link, fields, events)
    if len(fields) > 9 and fields[9] is True:
        if link is not None and link.alive and link._opened:
            link._flow()
        else:
            session._flow()


def _link_flow(link: Link, fields: list[Any], events: list[Event]) -> None:
    count: int = field(fields, 5, UInt, "flow", "delivery-count", optional=True) or 0
    if link.is_sender:
        credit: int = field(fields, 6, UInt, "flow", "link-credit", optional=True) or 0
        # The receiver's credit counts from what it had seen by then, not from what we have sent.
        unseen = link._delivery_count - count & SERIAL
        link._credit = max(0, credit - unseen) - len(link._waiting)
        link._drain = len(fields) > 8 and fields[8] is True
        if link._waiting:
            link._send_waiting()
        last = events[-1] if events else None
        if type(last) is not Flowed or last.link is not link:  # the event has no figures of its own
            events.append(Flowed(link))
        return
    # The answer to a drain: the sender returns credit by counting it as deliveries. That holds even
    # if we have granted more since: the sender subtracts the same deliveries from that grant.
    skipped = count - link._delivery_count & SERIAL
    if link._drains_unanswered and 0 < skipped <= max(0, link._credit):
        link._delivery_count = count
        link._credit -= skipped
        link._drain = False
        link._drains_unanswered -= 1
        events.append(Flowed(link))


def attach(session: Session, fields: list[Any], events: list[Event]) -> None:
    """A link of the peer's, or the answer to ours."""
    wire = session._wire
    name: str = field(fields, 0, str, "attach", "name")
    handle: int = field(fields, 1, UInt, "attach", "handle")
    is_sender: bool = field(fields, 2, bool, "attach", "role")
    if handle in session._by_remote_handle:
        said = f"link {name!r:.60} asks for handle {handle}, in use"
        raise FrameError("amqp:session:handle-in-use", said)
    link: Link | None = session._names.get((name, is_sender))
    if wire.is_server:
        if link is not None:
            raise FrameError("amqp:invalid-field", f"the name of link {name!r:.60} is in use")
        if wire.link_count >= wire.limits.links_max:
            raise FrameError(
                "amqp:resource-limit-exceeded",
                f"link {name!r:.60} is one too many: a connection may have {wire.limits.links_max}",
            )
        link = Link(session, int(handle), name, is_sender=is_sender)
    elif link is None or link in session._by_remote_handle.values():
        raise FrameError("amqp:not-allowed", f"an attach of link {name!r:.60}, not asked for")
    session._by_remote_handle[int(handle)] = link
    link.remote, *termini = read_attach(fields)
    if wire.is_server:
        link._termini = (termini[0], termini[1])
    if not is_sender:
        count = field(fields, 9, UInt, "attach", "initial-delivery-count", optional=True)
        link._delivery_count = int(count or 0)
    if link.alive:
        events.append(Attached(link))


def detach(session: Session, fields: list[Any], events: list[Event]) -> None:
    handle: int = field(fields, 0, UInt, "detach", "handle")
    link: Link | None = session._by_remote_handle.pop(handle, None)
    if link is None:
        said = f"detach of handle {handle}, which is not in use"
        raise FrameError("amqp:session:unattached-handle", said)
    closed = len(fields) > 1 and fields[1] is True
    if link.alive:
        link.close(closed=closed)
        error = read_error(fields[2] if len(fields) > 2 else None)
        events.append(Detached(link, closed, error))
    session._drop_link(link)
    if session.ends_with_links and not session._links:
        session.end()
