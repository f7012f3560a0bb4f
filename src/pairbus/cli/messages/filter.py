"""Which messages a command is about: all that is said must be true of one. Pure.

Conditions are in the language of subscription rules, which the local broker knows, so they are
judged here, alike for any namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from pairbus.broker.rules import EvaluationError, Facts, SqlFilter, compile_filter
from pairbus.cli.messages.message_json import parse_property, row_of
from pairbus.cli.parse import Numbers, parse_duration, parse_numbers
from pairbus.errors import UsageError
from pairbus.fast.rows import MessageView, UnreadableMessage, state

_STATES: Final = {"active": 0, "deferred": 1, "scheduled": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """As it was typed."""

    reason: str | None = None
    subject: str | None = None
    properties: Sequence[str] = ()
    older_than: str | None = None
    newer_than: str | None = None
    numbers: Sequence[str] = ()
    where: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    reason: str | None = None
    subject: str | None = None
    properties: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    older_than: timedelta | None = None
    newer_than: timedelta | None = None
    numbers: Numbers = ()
    where: Callable[[Facts], bool] | None = None

    @property
    def is_all(self) -> bool:
        return self == Filter()

    def takes(self, message: MessageView, *, now: float) -> bool:
        """What cannot be read is taken by nothing but a list of numbers, or everything.

        `now` is in seconds since 1970. Raises EvaluationError where a condition fails.
        """
        number = message.annotation("x-opt-sequence-number")
        if self.numbers and not any(number in some for some in self.numbers):
            return False
        if self == Filter(numbers=self.numbers):
            return True
        try:
            row = row_of(message)
        except UnreadableMessage:
            return False
        return self._takes(message, row, now)

    def _takes(self, message: MessageView, row: dict[str, Any], now: float) -> bool:
        if (
            self.reason is not None
            and self.reason.lower() != (row["deadLetterReason"] or "").lower()
        ):
            return False
        if self.subject is not None and self.subject != row["subject"]:
            return False
        if self.properties:
            own = dict(row["applicationProperties"])
            for name, (kind, text) in self.properties.items():
                found_kind, found = own.get(name, ("", None))
                if text != found or (kind != "string" and kind != found_kind):
                    return False
        age = now - (row["enqueuedTime"] or 0) / 1_000_000
        if self.older_than is not None and age <= self.older_than.total_seconds():
            return False
        if self.newer_than is not None and age >= self.newer_than.total_seconds():
            return False
        return self.where is None or self.where(_facts(message, row))


def parse_filter(choice: Choice) -> Filter:
    """Raises UsageError."""
    numbers = tuple(one for text in choice.numbers for one in parse_numbers(text, "--sequence"))
    named = dict(map(parse_property, choice.properties))
    where = None
    if choice.where is not None:
        if not choice.where.strip():
            raise UsageError('--where is empty: a condition such as "amount > 5" is expected')
        where = compile_filter(SqlFilter(choice.where))
    return Filter(
        reason=choice.reason,
        subject=choice.subject,
        properties={name: (str(one["type"]), one["value"]) for name, one in named.items()},
        older_than=_span(choice.older_than, "--older-than"),
        newer_than=_span(choice.newer_than, "--newer-than"),
        numbers=numbers,
        where=where,
    )


def _span(text: str | None, option: str) -> timedelta | None:
    return None if text is None else parse_duration(text, option)


def _facts(message: MessageView, row: dict[str, Any]) -> Facts:
    enqueued = row["enqueuedTime"]
    enqueued_ms = None if enqueued is None else enqueued // 1000
    ttl_ms = row["timeToLive"]
    return Facts.from_parts(
        message.parts,
        sequence=row["sequenceNumber"],
        enqueued_sequence=row["enqueuedSequenceNumber"],
        enqueued_ms=enqueued_ms,
        expires_ms=None if None in (enqueued_ms, ttl_ms) else enqueued_ms + ttl_ms,
        delivery_count=row["deliveryCount"] or 0,
        size=len(message.data),
        state=_STATES[state(message)],
        dead_letter_source=row["deadLetterSource"],
    )


def chosen(filter: Filter, message: MessageView, *, now: float) -> bool:
    """A condition that cannot be judged (`'a' > 5`) is not true."""
    try:
        return filter.takes(message, now=now)
    except EvaluationError:
        return False
