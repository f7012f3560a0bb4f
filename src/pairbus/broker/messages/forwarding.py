"""Moves messages: forwards and dead-letters them, or activates them when their schedule is due.

Where an entity forwards, a message is stored at its destination at once; the entities on the way
only number it. Every function stores through the entities that it is given and returns the
placements, so that the caller can show them when they are durable. Times are epoch milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pairbus.amqp.codec import sections
from pairbus.amqp.codec.sections import slice_message
from pairbus.amqp.codec.stamp import with_application_properties
from pairbus.broker.message import Message, MessageState
from pairbus.broker.messages import lifecycle
from pairbus.broker.messages.entity import Entity, Placements
from pairbus.broker.messages.incoming import (
    IncomingMessage,
    dead_letter_properties,
    parts_of,
    to_message,
)
from pairbus.broker.messages.lifecycle import FORWARD_HOPS_MAX, MailboxKind
from pairbus.cost.meter import units_of

_FAILED: Final = "ForwardingFailed"
_HOPS: Final = "MaxTransferHopCountExceeded"


def forward(
    start: Entity, one: IncomingMessage, number: int, *, now_ms: int, to: str = ""
) -> Placements:
    """Follow the chain to its end. `number` is what `start` has given to the message.

    A message that cannot arrive goes to the transfer dead-letter queue of the chain's start.
    """
    one.enqueued_sequence = number
    target_name = to or start.description.forward_to
    target: Entity | None = None
    while target_name is not None:
        target = start.runtime.find(target_name)
        one.hops += 1
        refusal = _refusal_of_hop(target_name, target, one)
        if refusal is not None:
            times = lifecycle.times_at_enqueue(
                start.description, ttl_ms=one.parts.ttl_ms, due_ms=None, now_ms=now_ms
            )
            lost = to_message(one, number, times)
            return dead_letter_in(start, MailboxKind.TRANSFER_DEAD_LETTER, lost, *refusal)
        assert target is not None  # a missing entity is refused above
        target.tally.forward += units_of(one.size)
        target_name = target.description.forward_to
    assert target is not None
    return _arrive(target, one, now_ms=now_ms)


def _arrive(target: Entity, one: IncomingMessage, *, now_ms: int) -> Placements:
    one.session_id = sections.group_id(one.parts) if target.description.requires_session else None
    one.message_id = sections.message_id(one.parts)
    if not target.enqueuer.is_new(one, now_ms=now_ms):
        return Placements()
    times = lifecycle.times_at_enqueue(
        target.description, ttl_ms=one.parts.ttl_ms, due_ms=None, now_ms=now_ms
    )
    return target.enqueuer.store(one, target.main.next_sequence(), times, now_ms=now_ms)[1]


def _refusal_of_hop(
    name: str, target: Entity | None, one: IncomingMessage
) -> tuple[str, str] | None:
    """Why the message cannot go there: the service's name for the reason, and a sentence."""
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
    except ValueError as error:
        return _FAILED, f"{name!r} cannot accept it: {error}"
    refusal = (
        lifecycle.refusal_to_send(description)
        or lifecycle.refusal_of_message(description, size=one.size, session_id=session_id)
        or lifecycle.refusal_of_size(description, used=target.size_bytes, added=one.size)
    )
    return None if refusal is None else (_FAILED, refusal.description)


def dead_letter(
    entity: Entity,
    message: Message,
    reason: str | None,
    description: str | None,
    *,
    now_ms: int,
    hops: int = 0,
) -> Placements:
    """Moves a message to the dead-letter queue, or to the target for dead letters.

    `hops`: how often it was forwarded on its way here. The target may be the topic that it comes
    from, whose rules fail again.
    """
    target = entity.description.forward_dead_lettered_messages_to
    if target is None:
        copy = replace(message, lock=None, busy=False, body_id=None)
        return dead_letter_in(entity, MailboxKind.DEAD_LETTER, copy, reason, description)
    parts = parts_of(message, dead_letter_properties(reason, description))
    parts.ttl_ms = None
    source = message.dead_letter_source or entity.name
    one = IncomingMessage(parts, message.size, source=source, hops=hops)
    return forward(entity, one, message.sequence, now_ms=now_ms, to=target)


def dead_letter_in(
    entity: Entity, kind: MailboxKind, message: Message, reason: str | None, description: str | None
) -> Placements:
    """A dead letter keeps its number and never expires."""
    mailbox = entity.mailboxes[kind]
    add_properties(message, dead_letter_properties(reason, description))
    message.state, message.expires_ms, message.due_ms = int(MessageState.ACTIVE), None, None
    message.session_id = None  # the property stays; dead-letter queues have no sessions
    entity.place(mailbox, message)
    return Placements([(entity, mailbox, message)])


def activate(entity: Entity, message: Message, *, now_ms: int) -> None:
    """Enqueue a scheduled message as if it were sent now.

    One transaction deletes the old row and inserts the new one, so there is always exactly one.
    """
    one = IncomingMessage(
        parts_of(message, {}),
        message.size,
        message.session_id,
        partition_id=message.partition_id,
        enqueued_sequence=message.enqueued_sequence,
        source=message.dead_letter_source,
    )
    if entity.description.forward_to is not None:
        placements = forward(entity, one, message.sequence, now_ms=now_ms)
    else:
        times = lifecycle.times_at_enqueue(
            entity.description, ttl_ms=message.ttl_ms, due_ms=None, now_ms=now_ms
        )
        number = entity.main.next_sequence()
        _, placements = entity.enqueuer.store(one, number, times, now_ms=now_ms)
    message.busy = True
    entity.main.held[message.sequence] = message
    entity.main.counters.add(MessageState.SCHEDULED, message.size, -1)
    entity.runtime.store.delete(entity.main.counters, [message])

    def activated(error: Exception | None) -> None:
        message.busy = False
        entity.main.held.pop(message.sequence, None)
        if error is not None:
            entity.main.counters.add(MessageState.SCHEDULED, message.size)
        placements.finish(error)

    entity.runtime.committer.when_durable(activated)


def add_properties(message: Message, properties: Mapping[str, Any]) -> None:
    if properties:
        parts = slice_message(message.bare)
        message.bare = with_application_properties(
            parts.bare, parts.application_properties, properties
        )
