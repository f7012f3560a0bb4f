"""The filter of a command: all conditions must be true of a message. Pure.

--where uses the language of subscription rules. It is evaluated here with the local broker's code,
so it works the same for every namespace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from pairbus.cli.messages.message_json import parse_property, row_of
from pairbus.cli.parse import Numbers, parse_duration, parse_numbers
from pairbus.cli.shared_options import option, option_group
from pairbus.errors import UsageError
from pairbus.fast.rows import MessageView, UnreadableMessage, state

if TYPE_CHECKING:
    from pairbus.broker.rules import Facts

_STATES: Final = {"active": 0, "deferred": 1, "scheduled": 2}

WHERE = option(
    "CONDITION",
    "Only messages for which this is true, in the language of subscription rules: "
    "\"amount > 5 AND sys.Subject LIKE 'a%'\".",
)


@option_group
class FilterOptions:
    """The filter as it is typed."""

    reason: str | None = option("TEXT", "Only messages dead-lettered for this reason.")
    subject: str | None = option("TEXT", "Only messages with this subject.")
    property_: list[str] | None = option(
        "NAME[:TYPE]=VALUE",
        "Only messages with this application property; may be repeated.",
        "--property",
        "-p",
    )
    older_than: str | None = option(
        "DURATION", "Only messages enqueued longer ago than this, as in 2h."
    )
    newer_than: str | None = option(
        "DURATION", "Only messages enqueued within this time, as in 2h."
    )
    sequence: list[str] | None = option(
        "NUMBERS", "Only messages with these sequence numbers, as in 5,7,10-20; may be repeated."
    )
    where: str | None = WHERE

    def parse(self) -> Filter:
        """Raises UsageError."""
        numbers = (parse_numbers(text, "--sequence") for text in self.sequence or ())
        properties = dict(map(parse_property, self.property_ or ()))
        return Filter(
            reason=self.reason,
            subject=self.subject,
            properties={name: (str(one["type"]), one["value"]) for name, one in properties.items()},
            older_than=_duration(self.older_than, "--older-than"),
            newer_than=_duration(self.newer_than, "--newer-than"),
            numbers=tuple(one for some in numbers for one in some),
            where=None if self.where is None else _parse_condition(self.where),
        )


def _duration(text: str | None, option: str) -> timedelta | None:
    return None if text is None else parse_duration(text, option)


def _parse_condition(text: str) -> Callable[[Facts], bool]:
    # Imported only for a condition, because it loads a grammar.
    from pairbus.broker.rules import EvaluationError, SqlFilter, compile_filter

    if not text.strip():
        raise UsageError('--where is empty: use a condition such as "amount > 5"')
    evaluate = compile_filter(SqlFilter(text))

    def is_true(facts: Facts) -> bool:
        try:
            return evaluate(facts)
        except EvaluationError:  # such as 'a' > 5
            return False

    return is_true


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
    def matches_everything(self) -> bool:
        return self == Filter()

    @property
    def first_number(self) -> int:
        """No message with a lower sequence number matches."""
        return min((some.start for some in self.numbers), default=0)

    def matches(self, message: MessageView, *, now: float) -> bool:
        """A message that cannot be read matches only sequence numbers, and the empty filter.

        `now` is in seconds since 1970.
        """
        number = message.annotation("x-opt-sequence-number")
        if self.numbers and not any(number in some for some in self.numbers):
            return False
        if self == Filter(numbers=self.numbers):
            return True
        try:
            return self._matches(message, row_of(message), now)
        except UnreadableMessage:
            return False

    def _matches(self, message: MessageView, row: dict[str, Any], now: float) -> bool:
        reason = (row["deadLetterReason"] or "").lower()
        if self.reason is not None and self.reason.lower() != reason:
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


def _facts(message: MessageView, row: dict[str, Any]) -> Facts:
    from pairbus.broker.rules import Facts

    enqueued = row["enqueuedTime"]
    enqueued_ms = None if enqueued is None else enqueued // 1000
    ttl_ms = row["timeToLive"]
    return Facts.from_parts(
        message.parts,
        sequence=row["sequenceNumber"],
        enqueued_sequence=row["enqueuedSequenceNumber"] or row["sequenceNumber"],
        enqueued_ms=enqueued_ms,
        expires_ms=None if None in (enqueued_ms, ttl_ms) else enqueued_ms + ttl_ms,
        delivery_count=row["deliveryCount"] or 0,
        size=len(message.data),
        state=_STATES[state(message)],
        dead_letter_source=row["deadLetterSource"],
    )
