"""Topics and subscriptions: one message in, a copy for each subscription whose rules match.

A topic accepts messages like a queue and keeps only scheduled ones. A subscription delivers
messages like a queue and accepts none from senders. All copies of a message, and of a batch, are
stored in one transaction. Copies with the same bytes share one body on the disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from pairbus.amqp.codec.sections import group_id
from pairbus.amqp.outcomes import AmqpError
from pairbus.broker import rules
from pairbus.broker.entities.descriptions import (
    EntityDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.message import PARTITION_SHIFT, Message, MessageState
from pairbus.broker.messages import forwarding, lifecycle
from pairbus.broker.messages.enqueue import Enqueuer
from pairbus.broker.messages.entity import Done, Entity, Placements, Runtime
from pairbus.broker.messages.incoming import IncomingMessage, to_message
from pairbus.broker.messages.queue import Queue
from pairbus.broker.messages.rule import CompiledRule
from pairbus.broker.rules import EvaluationError, Facts, RuleWork
from pairbus.broker.storage.store import Counters, StoredEntity

_SHARED_FROM_BYTES: Final = 256
"""A smaller body costs less to copy than to share."""
_COMPILED_AT_ONCE: Final = 10_000
"""Characters of rules that are compiled in about 50 ms."""
_REASON_EVALUATION: Final = "FilterEvaluationException"
_REASON_SESSION: Final = "Session ID is null."


def _properties_bytes(one: IncomingMessage) -> int:
    """The part of a message that rules look at."""
    spans = (one.parts.properties, one.parts.application_properties)
    return sum(span[1] - span[0] for span in spans if span is not None)


class Subscription(Queue):
    description: SubscriptionDescription
    _rules: Sequence[CompiledRule] = ()
    _work: RuleWork | None = None

    def set_description(self, description: EntityDescription) -> None:
        super().set_description(description)
        assert isinstance(description, SubscriptionDescription)
        # A subscription may have thousands of rules: only new ones are compiled.
        known = {id(rule.description): rule for rule in self._rules}
        self._rules = [known.get(id(rule)) or CompiledRule(rule) for rule in description.rules]
        self._work = None

    def compile_rules(self) -> Iterator[None]:
        """Compile the rules that no message has needed yet, one at each step."""
        for rule in self._rules:
            if not rule.is_compiled:
                rule.compile()
                yield

    @property
    def uncompiled_characters(self) -> int:
        return sum(rule.characters for rule in self._rules if not rule.is_compiled)

    @property
    def work(self) -> RuleWork:
        """What its rules need for a message. They are compiled after this."""
        if self._work is None:
            for _ in self.compile_rules():
                pass
            self._work = RuleWork(
                sum(rule.work.steps for rule in self._rules),
                sum(rule.work.scans for rule in self._rules),
            )
        return self._work

    @property
    def takes_copies(self) -> bool:
        return lifecycle.refusal_to_send(self.description) is None

    def copies(self, one: IncomingMessage, facts: Facts) -> list[IncomingMessage]:
        """One for all rules without an action together, and one for each with an action.

        The first is the message itself, not a copy: do not change it. Raises EvaluationError.
        """
        found: list[IncomingMessage] = []
        is_plain = False
        if steps := self.work.steps:
            facts.budget.spend(steps)
        for rule in self._rules:
            if not rule.matches(facts):
                continue
            if rule.description.action is not None:
                found.append(rule.changed_copy(one, facts))
            else:
                is_plain = True
        if is_plain:
            found.insert(0, one)
        return found


class Topic(Queue):
    description: TopicDescription

    def __init__(
        self,
        runtime: Runtime,
        stored: StoredEntity,
        description: EntityDescription,
        counters: Sequence[Counters],
    ) -> None:
        super().__init__(runtime, stored, description, counters)
        self.subscriptions: dict[str, Subscription] = {}
        self.enqueuer = TopicEnqueuer(self)
        self.is_waiting = False
        """For its rules, after a start: they are too many to compile at once. In the meantime,
        sender links defer their messages. What arrives in another way is stored as scheduled.
        """

    @property
    def has_many_uncompiled_rules(self) -> bool:
        found = sum(one.uncompiled_characters for one in self.subscriptions.values())
        return found > _COMPILED_AT_ONCE

    def compile_rules(self) -> Iterator[None]:
        for subscription in list(self.subscriptions.values()):
            yield from subscription.compile_rules()

    def activate(self, sequence: int, *, now_ms: int) -> bool:
        return not self.is_waiting and super().activate(sequence, now_ms=now_ms)

    @property
    def size_bytes(self) -> int:
        """The messages in its subscriptions count towards the topic's quota."""
        own = self.main.counters.bytes
        return own + sum(other.size_bytes for other in self.subscriptions.values())

    @property
    def is_in_use(self) -> bool:
        return super().is_in_use or any(s.is_in_use for s in self.subscriptions.values())

    @property
    def idle_since_ms(self) -> int:
        """The use of a subscription counts as use of the topic."""
        own = super().idle_since_ms
        return max([own, *(s.idle_since_ms for s in self.subscriptions.values())])


def leads_to_waiting_topic(entity: Entity) -> bool:
    """Whether a message for the entity may arrive, maybe forwarded, in a topic that is waiting."""
    seen: set[Entity] = set()
    ahead: list[Entity] = [entity]
    while ahead:
        one = ahead.pop()
        if one in seen:
            continue
        seen.add(one)
        if isinstance(one, Topic):
            if one.is_waiting:
                return True
            ahead += one.subscriptions.values()
        if one.description.forward_to is not None:
            target = one.runtime.find(one.description.forward_to)
            ahead += [] if target is None else [target]
    return False


class TopicEnqueuer(Enqueuer):
    def __init__(self, topic: Topic) -> None:
        super().__init__(topic)
        self._topic = topic

    def enqueue(
        self,
        batch: Sequence[IncomingMessage],
        done: Done,
        arguments: tuple[Any, ...],
        *,
        now_ms: int,
    ) -> AmqpError | list[int]:
        is_waiting = self._topic.is_waiting  # then no rule runs now
        if len(batch) > 1 and not is_waiting and (error := self._too_much_work(batch)) is not None:
            return error
        return super().enqueue(batch, done, arguments, now_ms=now_ms)

    def _too_much_work(self, batch: Sequence[IncomingMessage]) -> AmqpError | None:
        """A batch is stored in one go, while all other clients wait."""
        topic = self._topic
        steps = scans = 0
        for subscription in topic.subscriptions.values():
            steps += subscription.work.steps
            scans += subscription.work.scans
        if not steps:
            return None
        work = RuleWork(steps, scans)
        needed = sum(work.for_properties(_properties_bytes(one)) for one in batch)
        if needed <= rules.BATCH_WORK_MAX:
            return None
        return AmqpError(
            "amqp:link:message-size-exceeded",
            f"the rules of {topic.description} need about {needed:,} steps for this batch of "
            f"{len(batch)} messages, but at most {rules.BATCH_WORK_MAX:,} are allowed: send fewer "
            "messages at once",
        )

    def store(
        self, one: IncomingMessage, number: int, times: lifecycle.Times, *, now_ms: int
    ) -> tuple[int, Placements]:
        topic = self._topic
        if topic.is_waiting and times.state == MessageState.ACTIVE:
            # It is due at once, so it is activated when the rules are compiled, also after a crash.
            times = lifecycle.Times(
                int(MessageState.SCHEDULED), now_ms, times.ttl_ms, None, due_ms=now_ms
            )
        if times.state == MessageState.SCHEDULED:
            return super().store(one, number, times, now_ms=now_ms)
        topic.runtime.store.keep_count(topic.main.counters)
        if one.parts.ttl_ms != times.ttl_ms:
            # A copy: if a subscription has forwarded it, its topic is still making other copies.
            one.parts = replace(one.parts, ttl_ms=times.ttl_ms)
        one.due_ms = None  # it is due now
        facts = Facts.from_parts(
            one.parts,
            sequence=number,
            enqueued_sequence=one.enqueued_sequence,
            enqueued_ms=now_ms,
            expires_ms=times.expires_ms,
            size=one.size,
            dead_letter_source=one.source,
        )
        one.partition_id = self._partition(one, number)
        placements = Placements()
        copies = Placements()
        for subscription in topic.subscriptions.values():
            if subscription.takes_copies:
                self._copy(subscription, one, facts, now_ms, copies, placements)
        self._share(copies)
        for owner, mailbox, message in copies:
            owner.place(mailbox, message)
        placements += copies
        if one.partition_id is not None:
            number |= one.partition_id << PARTITION_SHIFT
        return number, placements

    def _copy(
        self,
        subscription: Subscription,
        one: IncomingMessage,
        facts: Facts,
        now_ms: int,
        copies: Placements,
        placements: Placements,
    ) -> None:
        """Add copies that stay in the subscription to `copies`, and others to `placements`."""
        description = subscription.description
        try:
            matching = subscription.copies(one, facts)
        except EvaluationError as error:
            if description.dead_lettering_on_filter_evaluation_exceptions:
                placements += self._dead_letter(
                    subscription, one, now_ms, _REASON_EVALUATION, str(error)
                )
            return
        for each in matching:
            # Read again: an action may have set it.
            session_id = group_id(each.parts) if description.requires_session else None
            each.session_id = session_id
            if description.forward_to is not None:
                own = subscription.main.next_sequence()
                subscription.runtime.store.keep_count(subscription.main.counters)
                placements += forwarding.forward(subscription, replace(each), own, now_ms=now_ms)
            elif description.requires_session and session_id is None:
                text = f"{description} requires sessions, and the message has no session id"
                placements += self._dead_letter(subscription, each, now_ms, _REASON_SESSION, text)
            else:
                message = self._message(subscription, each, now_ms)
                copies.append((subscription, subscription.main, message))

    def _message(self, subscription: Subscription, one: IncomingMessage, now_ms: int) -> Message:
        times = subscription.enqueuer.plain_times(now_ms)
        if one.parts.ttl_ms is not None or one.due_ms is not None:
            times = lifecycle.times_at_enqueue(
                subscription.description,
                ttl_ms=one.parts.ttl_ms,
                due_ms=one.due_ms,
                now_ms=now_ms,
            )
        return to_message(one, subscription.main.next_sequence(), times, one.partition_id)

    def _dead_letter(
        self,
        subscription: Subscription,
        one: IncomingMessage,
        now_ms: int,
        reason: str,
        text: str,
    ) -> Placements:
        message = self._message(subscription, one, now_ms)
        subscription.runtime.store.keep_count(subscription.main.counters)
        hops = one.hops
        source = subscription.runtime.find(one.source or "")
        if (
            isinstance(source, Subscription)
            and source.description.topic_name.lower() == self._topic.name.lower()
        ):
            # It has been here before: each round would multiply it by the subscriptions that fail.
            hops = lifecycle.FORWARD_HOPS_MAX
        return forwarding.dead_letter(subscription, message, reason, text, now_ms=now_ms, hops=hops)

    def _share(self, copies: Placements) -> None:
        """Copies with the same bytes share one body."""
        alike: dict[bytes, list[Message]] = defaultdict(list)
        for _, _, message in copies:
            if len(message.bare) >= _SHARED_FROM_BYTES:
                alike[message.bare].append(message)
        for bare, messages in alike.items():
            if len(messages) > 1:
                body_id = self._topic.runtime.store.share(bare, len(messages))
                for message in messages:
                    message.body_id, message.bare = body_id, bare
