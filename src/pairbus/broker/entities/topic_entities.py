"""What topics, subscriptions and rules are told to be.

Like `entities.py`: frozen values, checked when they are made. A rule's filter and action are
checked by compiling them, so a bad expression cannot get any further than this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from pairbus.broker.entities.descriptions import EntityDescription, check_name
from pairbus.broker.rules import (
    CorrelationFilter,
    FalseFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
    compile_action,
    compile_filter,
)
from pairbus.errors import ConfigError

DEFAULT_RULE: Final = "$Default"
SUBSCRIPTIONS: Final = "Subscriptions"
RULES_MAX: Final = 2000
_RULE_NAME_LENGTH_MAX: Final = 50
_SUBSCRIPTION_NAME_LENGTH_MAX: Final = 50

Filter = TrueFilter | FalseFilter | SqlFilter | CorrelationFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription(EntityDescription):
    """A topic keeps no messages itself but scheduled ones; its subscriptions have the copies."""

    noun: ClassVar[str] = "topic"
    lacks: ClassVar[frozenset[str]] = frozenset(
        {
            "lock_duration",
            "requires_session",
            "max_delivery_count",
            "dead_lettering_on_message_expiration",
            "forward_to",
            "forward_dead_lettered_messages_to",
        }
    )

    support_ordering: bool = True
    """Kept for those who ask; the order of a topic's messages is always kept."""

    @property
    def reads_identifiers(self) -> bool:
        """Always: a subscription may need the session id, whenever it is made."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleDescription:
    """What a subscription takes, and how it changes what it takes."""

    name: str
    filter: Filter = field(default_factory=TrueFilter)
    action: SqlAction | None = None
    created_ms: int = 0

    def __post_init__(self) -> None:
        if self.name != DEFAULT_RULE:
            check_name(self.name, "rule")
        if len(self.name) > _RULE_NAME_LENGTH_MAX or "/" in self.name:
            raise ConfigError(
                f"rule name {self.name!r} is not valid: at most {_RULE_NAME_LENGTH_MAX} "
                "characters, and no '/'"
            )
        compile_filter(self.filter)
        if self.action is not None:
            compile_action(self.action)


def default_rules() -> tuple[RuleDescription, ...]:
    return (RuleDescription(name=DEFAULT_RULE),)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionDescription(EntityDescription):
    """A subscription. Its name is its whole path, `topic/Subscriptions/subscription`."""

    noun: ClassVar[str] = "subscription"
    lacks: ClassVar[frozenset[str]] = frozenset(
        {
            "requires_duplicate_detection",
            "duplicate_detection_history_time_window",
            "enable_partitioning",
            "max_size_in_megabytes",
            "max_message_size_in_kilobytes",
            "authorization_rules",
            "enable_express",
        }
    )

    dead_lettering_on_filter_evaluation_exceptions: bool = True
    rules: Sequence[RuleDescription] = field(default_factory=default_rules)

    def __post_init__(self) -> None:
        # Named, because `super()` without arguments does not work in a dataclass with slots.
        EntityDescription.__post_init__(self)
        names = [rule.name.lower() for rule in self.rules]
        if len(set(names)) != len(names):
            raise ConfigError(f"{self}: two of its rules have the same name")
        if len(names) > RULES_MAX:
            raise ConfigError(f"{self}: {len(names)} rules are more than {RULES_MAX}")

    def _check_name(self) -> None:
        check_name(self.name, self.noun)
        topic, _, own = self.name.partition(f"/{SUBSCRIPTIONS}/")
        if not own or "/" in own or len(own) > _SUBSCRIPTION_NAME_LENGTH_MAX:
            raise ConfigError(
                f"subscription name {own or topic!r} is not valid: at most "
                f"{_SUBSCRIPTION_NAME_LENGTH_MAX} characters, and no '/'"
            )

    @property
    def topic_name(self) -> str:
        return self.name.partition(f"/{SUBSCRIPTIONS}/")[0]

    @property
    def own_name(self) -> str:
        return self.name.partition(f"/{SUBSCRIPTIONS}/")[2]


def subscription_path(topic: str, subscription: str) -> str:
    return f"{topic}/{SUBSCRIPTIONS}/{subscription}"
