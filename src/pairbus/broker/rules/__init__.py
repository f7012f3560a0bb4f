"""Stand-in until the rule language is complete: only filters that match everything or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pairbus.broker.rules.errors import EvaluationError, RuleError


@dataclass(frozen=True, slots=True)
class TrueFilter:
    pass


@dataclass(frozen=True, slots=True)
class FalseFilter:
    pass


@dataclass(frozen=True, slots=True)
class SqlFilter:
    expression: str
    parameters: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CorrelationFilter:
    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SqlAction:
    expression: str
    parameters: Mapping[str, object] = field(default_factory=dict)


class Facts:
    @classmethod
    def from_parts(cls, parts: Any, **more: Any) -> Facts:
        return cls()


class Changes:
    pass


def compile_filter(filter: Any) -> Callable[[Facts], bool]:
    return lambda facts: isinstance(filter, TrueFilter)


def compile_action(action: Any) -> Callable[[Facts], Changes]:
    return lambda facts: Changes()


def apply_changes(parts: Any, changes: Changes) -> Any:
    return parts


__all__ = ["EvaluationError", "RuleError"]
