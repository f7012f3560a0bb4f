"""Topics and subscriptions: one message in, a copy for each subscription whose rules match.

A topic takes messages like a queue and keeps only scheduled ones; a subscription gives them out
like a queue and takes none from senders. All copies of a message, and of a batch, are stored in
one transaction. Copies that are alike share one body on the disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pairbus.broker import lifecycle, passage
from pairbus.broker.entities import EntityDescription, Status
from pairbus.broker.incoming import Checked, to_message
from pairbus.broker.intake import Intake
from pairbus.broker.lifecycle import Kind
from pairbus.broker.message import Message, State
from pairbus.broker.queue import Queue
from pairbus.broker.rules import (
    Changes,
    EvaluationError,
    Facts,
    TrueFilter,
    apply_changes,
    compile_action,
    compile_filter,
)
from pairbus.broker.store import Counters, StoredEntity
from pairbus.broker.topic_entities import SubscriptionDescription, TopicDescription

if TYPE_CHECKING:
    from pairbus.broker.namespace import Namespace
    from pairbus.broker.passage import Placed

_SHARED_FROM_BYTES: Final = 256
"""A smaller body costs less to copy than to share."""
_REASON_EVALUATION: Final = "FilterEvaluationException"
_REASON_SESSION: Final = "SessionIdMissing"


@dataclass(frozen=True, slots=True)
class _Rule:
    matches: Callable[[Facts], bool] | None
    """None: always."""
    action: Callable[[Facts], Changes] | None


class Subscription(Queue):
    description: SubscriptionDescription

    def redescribe(self, description: EntityDescription) -> None:
        super().redescribe(description)
        assert isinstance(description, SubscriptionDescription)
        self._rules = [
            _Rule(
                None if isinstance(rule.filter, TrueFilter) else compile_filter(rule.filter),
                None if rule.action is None else compile_action(rule.action),
            )
            for rule in description.rules
        ]

    @property
    def takes_copies(self) -> bool:
        return self.description.status not in (Status.DISABLED, Status.SEND_DISABLED)

    def copies(self, one: Checked, facts: Facts) -> list[Checked]:
        """One for all rules without an action together, and one for each with an action.

        Raises EvaluationError.
        """
        found: list[Checked] = []
        is_plain = False
        for rule in self._rules:
            if rule.matches is not None and not rule.matches(facts):
                continue
            if rule.action is None:
                is_plain = True
            else:
                parts = apply_changes(one.parts, rule.action(facts))
                found.append(replace(one, parts=parts))
        if is_plain:
            found.insert(0, replace(one))
        return found


class Topic(Queue):
    description: TopicDescription

    def __init__(
        self,
        namespace: Namespace,
        stored: StoredEntity,
        description: EntityDescription,
        counters: Sequence[Counters],
    ) -> None:
        super().__init__(namespace, stored, description, counters)
        self.subscriptions: dict[str, Subscription] = {}
        self.intake = TopicIntake(self)

    @property
    def size_bytes(self) -> int:
        """What waits in its subscriptions counts towards the topic's quota."""
        own = self.main.counters.bytes
        return own + sum(other.size_bytes for other in self.subscriptions.values())

    @property
    def is_in_use(self) -> bool:
        return super().is_in_use or any(s.is_in_use for s in self.subscriptions.values())


@dataclass(slots=True)
class _Copy:
    subscription: Subscription
    one: Checked
    message: Message


class TopicIntake(Intake):
    def __init__(self, topic: Topic) -> None:
        super().__init__(topic)
        self._topic = topic

    def deposit(
        self,
        one: Checked,
        number: int,
        times: lifecycle.Times,
        *,
        enqueued_sequence: int,
        now_ms: int,
        source: str | None = None,
    ) -> tuple[int, Placed]:
        if times.state == State.SCHEDULED:
            return super().deposit(
                one,
                number,
                times,
                enqueued_sequence=enqueued_sequence,
                now_ms=now_ms,
                source=source,
            )
        topic = self._topic
        topic.namespace.store.keep_count(topic.main.counters)
        one.parts.ttl_ms = times.ttl_ms
        facts = Facts.from_parts(one.parts, sequence=number, enqueued_ms=now_ms, size=one.size)
        placed: Placed = []
        copies: list[_Copy] = []
        for subscription in topic.subscriptions.values():
            if subscription.takes_copies:
                self._copy(subscription, one, facts, number, copies, placed, now_ms=now_ms)
        self._share(copies)
        for copy in copies:
            copy.subscription.place(copy.subscription.main, copy.message)
            placed.append((copy.subscription, copy.subscription.main, copy.message))
        return number, placed

    def _copy(
        self,
        subscription: Subscription,
        one: Checked,
        facts: Facts,
        number: int,
        copies: list[_Copy],
        placed: Placed,
        *,
        now_ms: int,
    ) -> None:
        """Add what the subscription takes to `copies`, or to `placed` what goes another way."""
        description = subscription.description
        try:
            matching = subscription.copies(one, facts)
        except EvaluationError as error:
            if description.dead_lettering_on_filter_evaluation_exceptions:
                placed += self._bury(
                    subscription, one, number, _REASON_EVALUATION, str(error), now_ms
                )
            return
        for each in matching:
            own = subscription.main.next_sequence()
            if description.forward_to is not None:
                subscription.namespace.store.keep_count(subscription.main.counters)
                placed += passage.forward(subscription, each, own, now_ms=now_ms)
            elif description.requires_session and each.session_id is None:
                text = f"{description} requires sessions, and the message has no session id"
                placed += self._bury(subscription, each, own, _REASON_SESSION, text, now_ms)
            else:
                copies.append(
                    _Copy(
                        subscription,
                        each,
                        self._message(subscription, each, own, number, now_ms),
                    )
                )

    def _message(
        self, subscription: Subscription, one: Checked, own: int, number: int, now_ms: int
    ) -> Message:
        if not subscription.description.requires_session:
            one.session_id = None
        times = lifecycle.times_at_enqueue(
            subscription.description, ttl_ms=one.parts.ttl_ms, due_ms=None, now_ms=now_ms
        )
        return to_message(one, own, times, enqueued_sequence=number)

    def _bury(
        self,
        subscription: Subscription,
        one: Checked,
        number: int,
        reason: str,
        text: str,
        now_ms: int,
    ) -> Placed:
        own = subscription.main.next_sequence()
        subscription.namespace.store.keep_count(subscription.main.counters)
        message = self._message(subscription, replace(one), own, number, now_ms)
        return passage.bury_in(subscription, Kind.DEAD_LETTER, message, reason, text)

    def _share(self, copies: list[_Copy]) -> None:
        """The same bytes are stored once."""
        alike: dict[bytes, list[Message]] = defaultdict(list)
        for copy in copies:
            if len(copy.message.bare) >= _SHARED_FROM_BYTES:
                alike[copy.message.bare].append(copy.message)
        for bare, messages in alike.items():
            if len(messages) > 1:
                body_id = self._topic.namespace.store.share(bare, len(messages))
                for message in messages:
                    message.body_id, message.bare = body_id, bare
