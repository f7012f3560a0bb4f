"""How messages go on: forwarded, buried, or from the schedule into the queue.

Where a queue forwards, a message is stored at its destination at once; the queues on the way only
number it. Every function stores through the queues it is given and returns where it put things, so
that the caller can show them when they are durable. Times are epoch milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pairbus.amqp.codec import sections
from pairbus.amqp.codec.sections import slice_message
from pairbus.amqp.codec.stamp import with_application_properties
from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.message import Message, State
from pairbus.broker.messages import lifecycle
from pairbus.broker.messages.incoming import (
    IncomingMessage,
    dead_letter_properties,
    parts_of,
    to_message,
)
from pairbus.broker.messages.lifecycle import FORWARD_HOPS_MAX, MailboxKind
from pairbus.cost.meter import units_of

if TYPE_CHECKING:
    from pairbus.broker.messages.mailbox import Mailbox
    from pairbus.broker.messages.queue import Queue

    Placed = list[tuple[Queue, Mailbox, Message]]

_FAILED: Final = "ForwardingFailed"
_HOPS: Final = "MaxTransferHopCountExceeded"
_NO_TARGET: Final = (_FAILED, "there is no forwarding target")


def forward(
    start: Queue,
    one: IncomingMessage,
    number: int,
    *,
    now_ms: int,
    source: str | None = None,
    to: str = "",
) -> Placed:
    """Follow the chain to its end; what cannot arrive is buried at its start, with the reason."""
    target_name = to or start.description.forward_to
    target: Queue | None = None
    while target_name is not None:
        target = start.namespace.find(target_name)
        one.hops += 1
        refused = _refusal_of_hop(target_name, target, one)
        if refused is not None or target is None:
            times = lifecycle.times_at_enqueue(
                start.description, ttl_ms=one.parts.ttl_ms, due_ms=None, now_ms=now_ms
            )
            lost = to_message(
                one, number, times, enqueued_sequence=number, dead_letter_source=source
            )
            return dead_letter_in(
                start, MailboxKind.TRANSFER_DEAD_LETTER, lost, *(refused or _NO_TARGET)
            )
        target.tally.forward += units_of(one.size)
        target_name = target.description.forward_to
    assert target is not None
    return _arrive(target, one, number, source=source, now_ms=now_ms)


def _arrive(
    queue: Queue, one: IncomingMessage, enqueued_sequence: int, *, source: str | None, now_ms: int
) -> Placed:
    one.session_id = sections.group_id(one.parts) if queue.description.requires_session else None
    one.message_id = sections.message_id(one.parts)
    if not queue.enqueuer.is_new(one, now_ms=now_ms):
        return []
    times = lifecycle.times_at_enqueue(
        queue.description, ttl_ms=one.parts.ttl_ms, due_ms=None, now_ms=now_ms
    )
    _, placed = queue.enqueuer.deposit(
        one,
        queue.main.next_sequence(),
        times,
        enqueued_sequence=enqueued_sequence,
        source=source,
        now_ms=now_ms,
    )
    return placed


def _refusal_of_hop(
    name: str, target: Queue | None, one: IncomingMessage
) -> tuple[str, str] | None:
    """Why the message cannot go there: the reason in the service's word, and a sentence."""
    if target is None:
        return _FAILED, f"the forwarding target {name!r} does not exist"
    if target.description.noun == "subscription":
        return _FAILED, f"the forwarding target {name!r} is a subscription, not a queue or topic"
    if one.hops > FORWARD_HOPS_MAX:
        return _HOPS, f"forwarded more than {FORWARD_HOPS_MAX} times, last to {name!r}"
    description = target.description
    try:
        session_id = sections.group_id(one.parts)
        sections.message_id(one.parts)
    except ValueError as trouble:
        return _FAILED, f"{name!r} cannot take it: {trouble}"
    error = (
        lifecycle.refusal_to_send(description)
        or lifecycle.refusal_of_message(description, size=one.size, session_id=session_id)
        or lifecycle.refusal_of_size(description, used=target.size_bytes, added=one.size)
    )
    return None if error is None else (_FAILED, error.description)


def dead_letter(
    queue: Queue, message: Message, reason: str | None, description: str | None, *, now_ms: int
) -> Placed:
    """To the dead-letter queue, or to where dead letters are forwarded."""
    target = queue.description.forward_dead_lettered_messages_to
    if target is None:
        copy = replace(message, lock=None, busy=False, body_id=None)
        return dead_letter_in(queue, MailboxKind.DEAD_LETTER, copy, reason, description)
    parts = parts_of(message, dead_letter_properties(reason, description))
    parts.ttl_ms = None
    source = message.dead_letter_source or queue.name
    return forward(
        queue,
        IncomingMessage(parts, message.size),
        message.sequence,
        now_ms=now_ms,
        source=source,
        to=target,
    )


def dead_letter_in(
    queue: Queue, kind: MailboxKind, message: Message, reason: str | None, description: str | None
) -> Placed:
    """A dead letter keeps its number and never expires."""
    mailbox = queue.mailboxes[kind]
    add_properties(message, dead_letter_properties(reason, description))
    message.state, message.expires_ms, message.due_ms = int(State.ACTIVE), None, None
    message.session_id = None  # the property stays; dead-letter queues have no sessions
    queue.place(mailbox, message)
    return [(queue, mailbox, message)]


def activate(queue: Queue, message: Message, *, now_ms: int) -> None:
    """The old row goes and the new one comes in one transaction: never both, never none."""
    one = IncomingMessage(
        parts_of(message, {}), message.size, message.session_id, partition_id=message.partition_id
    )
    if queue.description.forward_to is not None:
        placed = forward(queue, one, message.sequence, now_ms=now_ms)
    else:
        times = lifecycle.times_at_enqueue(
            queue.description, ttl_ms=message.ttl_ms, due_ms=None, now_ms=now_ms
        )
        _, placed = queue.enqueuer.deposit(
            one,
            queue.main.next_sequence(),
            times,
            enqueued_sequence=message.enqueued_sequence,
            now_ms=now_ms,
        )
    message.busy = True
    queue.main.held[message.sequence] = message
    queue.main.counters.add(State.SCHEDULED, message.size, -1)
    queue.namespace.store.delete(queue.main.counters, message)
    queue.namespace.committer.when_durable(_activated, queue, message, placed)


def _activated(error: Exception | None, queue: Queue, message: Message, placed: Placed) -> None:
    message.busy = False
    queue.main.held.pop(message.sequence, None)
    if error is not None:
        queue.main.counters.add(State.SCHEDULED, message.size)
        for target, mailbox, copy in placed:
            target.unplace(mailbox, copy)
        return
    for target, mailbox, copy in placed:
        target.arrived(mailbox, copy)


def add_properties(message: Message, properties: Mapping[str, Any]) -> None:
    if properties:
        parts = slice_message(message.bare)
        message.bare = with_application_properties(
            parts.bare, parts.application_properties, properties
        )


def cannot_store(error: Exception) -> AmqpError:
    return AmqpError("amqp:internal-error", f"the broker cannot write its data file: {error}")
