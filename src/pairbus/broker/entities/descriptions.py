"""Descriptions of queues, topics, subscriptions and rules, with the ranges that Service Bus allows.

Descriptions are frozen values, checked once when they are made: an invalid one cannot exist. A
rule's filter and action are checked by compiling them. This module knows nothing of messages,
storage or the wire.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from typing import ClassVar, Final

from pairbus.broker.entities.durations import INFINITE
from pairbus.broker.entities.policies import Policy
from pairbus.broker.entities.settings import SETTINGS, Setting
from pairbus.broker.rules import Filter, SqlAction, TrueFilter, compile_action, compile_filter
from pairbus.errors import ConfigError

DEFAULT_RULE: Final = "$Default"
SUBSCRIPTIONS: Final = "Subscriptions"
RULES_MAX: Final = 2000
_RULE_NAME_LENGTH_MAX: Final = 50
_SUBSCRIPTION_NAME_LENGTH_MAX: Final = 50
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?")
_NAME_LENGTH_MAX = 260
_SUBSCRIPTION = re.compile(r"(?P<topic>.+?)/subscriptions/(?P<own>.*)", re.IGNORECASE | re.DOTALL)


class Status(StrEnum):
    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"


def check_name(name: str, kind: str = "queue") -> None:
    if not _NAME.fullmatch(name) or len(name) > _NAME_LENGTH_MAX or "//" in name:
        raise ConfigError(
            f"{kind} name {name!r} is not valid: 1 to {_NAME_LENGTH_MAX} letters, digits, '.', "
            "'-', '_' and '/', starting and ending with a letter or digit"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityDescription:
    """The settings of all kinds of entities. The defaults are the service's."""

    noun: ClassVar[str] = "entity"

    name: str
    lock_duration: timedelta = timedelta(minutes=1)
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_message_time_to_live: timedelta = INFINITE
    dead_lettering_on_message_expiration: bool = False
    duplicate_detection_history_time_window: timedelta = timedelta(minutes=10)
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: Status = Status.ACTIVE
    auto_delete_on_idle: timedelta = INFINITE
    enable_partitioning: bool = False
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    user_metadata: str | None = None
    max_message_size_in_kilobytes: int = 256
    authorization_rules: tuple[Policy, ...] = ()
    """Policies of this entity, in addition to those of the namespace."""
    enable_express: bool = False
    """Lets the service keep messages in memory for a while. It has no effect in this broker."""

    lacks: ClassVar[frozenset[str]] = frozenset()
    """Settings that this kind of entity does not have."""

    def __post_init__(self) -> None:
        self._check_name()
        for setting in fields(self):
            if setting.name in self.lacks and getattr(self, setting.name) != setting.default:
                raise ConfigError(f"{self}: a {self.noun} has no setting {setting.name}")
        if self.enable_express and self.requires_duplicate_detection:
            raise ConfigError(
                f"{self}: enable_express and requires_duplicate_detection cannot be combined"
            )
        for one in settings_of(type(self)).values():
            problem = one.problem_with(getattr(self, one.field))
            if problem is not None:
                raise ConfigError(f"{self}: {one.field} {problem}")

    def _check_name(self) -> None:
        check_name(self.name, self.noun)
        if "/subscriptions/" in self.name.lower():
            raise ConfigError(
                f"{self.noun} name {self.name!r} is not valid: '/subscriptions/' separates a "
                "topic from its subscription"
            )

    @property
    def reads_identifiers(self) -> bool:
        """Whether the entity must read the message and session ids of what it accepts."""
        return bool(
            self.requires_session
            or self.requires_duplicate_detection
            or self.enable_partitioning
            or self.forward_to
        )

    def __str__(self) -> str:
        return f"{self.noun} {self.name!r}"


def settings_of(kind: type[EntityDescription]) -> dict[str, Setting]:
    """The settings that this kind of entity has, by the service's names."""
    own = {field.name for field in fields(kind)} - kind.lacks
    return {one.name: one for one in SETTINGS if one.field in own}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDescription(EntityDescription):
    """One queue."""

    noun: ClassVar[str] = "queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription(EntityDescription):
    """A topic keeps only scheduled messages; its subscriptions have copies of the others."""

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
    """Has no effect: a topic always keeps the order of its messages."""

    @property
    def reads_identifiers(self) -> bool:
        """Always True: a subscription that is created later may need the session id."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleDescription:
    """Which messages a subscription gets, and how they are changed."""

    name: str
    filter: Filter = field(default_factory=TrueFilter)
    action: SqlAction | None = None
    created_ms: int = 0
    is_checked: bool = field(default=False, compare=False, repr=False)
    """It comes from the data file and was checked when it was created. Parsing 100,000 rules takes
    ten seconds."""

    def __post_init__(self) -> None:
        if self.is_checked:
            return
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
            raise ConfigError(f"{self}: {len(names)} rules, but at most {RULES_MAX} are possible")

    def _check_name(self) -> None:
        check_name(self.name, self.noun)
        topic, _, own = self.name.partition(f"/{SUBSCRIPTIONS}/")
        if not own or "/" in own or len(own) > _SUBSCRIPTION_NAME_LENGTH_MAX:
            raise ConfigError(
                f"subscription name {own or topic!r} is not valid: at most "
                f"{_SUBSCRIPTION_NAME_LENGTH_MAX} characters, and no '/'"
            )

    def find_rule(self, name: str) -> RuleDescription | None:
        """Names of rules are compared without case."""
        return next((rule for rule in self.rules if rule.name.lower() == name.lower()), None)

    @property
    def topic_name(self) -> str:
        return self.name.partition(f"/{SUBSCRIPTIONS}/")[0]

    @property
    def own_name(self) -> str:
        return self.name.partition(f"/{SUBSCRIPTIONS}/")[2]


def subscription_path(topic: str, subscription: str) -> str:
    return f"{topic}/{SUBSCRIPTIONS}/{subscription}"


def topics_from_names(given: Iterable[str | EntityDescription]) -> list[EntityDescription]:
    """Descriptions of topics first, then of their subscriptions.

    `events` is a topic, and `events/Subscriptions/audit` is one of its subscriptions. A topic that
    only a subscription names is added.
    """
    entities = [_from_name(one) if isinstance(one, str) else one for one in given]
    topics = [one for one in entities if not isinstance(one, SubscriptionDescription)]
    subscriptions = [one for one in entities if isinstance(one, SubscriptionDescription)]
    known = {topic.name.lower() for topic in topics}
    for subscription in subscriptions:
        if subscription.topic_name.lower() not in known:
            topics.append(TopicDescription(name=subscription.topic_name))
            known.add(subscription.topic_name.lower())
    return [*topics, *subscriptions]


def _from_name(name: str) -> EntityDescription:
    found = _SUBSCRIPTION.fullmatch(name)
    if found is None:
        return TopicDescription(name=name)
    return SubscriptionDescription(name=subscription_path(found["topic"], found["own"]))
