"""The settings of queues, topics and subscriptions, in one table.

Config.json, the XML of the administration API and `pairbus config` use the same names; each reads
and writes the values in its own way, by `ValueKind`. Which kind of entity has which setting follows
from the fields of its description (`descriptions.settings_of`).

The values are checked by hand. A validation library would save a few lines, but lose the texts,
which name the entity, the value and the range, and in Config.json the line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import Any, Final

from pairbus.broker.entities.durations import INFINITE, format_duration

_INT32_MAX: Final = 2**31 - 1
_FIELD_NAME: Final = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")


class ValueKind(Enum):
    BOOLEAN = auto()
    INTEGER = auto()
    DURATION = auto()
    STATUS = auto()
    TEXT = auto()
    TARGET = auto()
    """The name of another entity of the namespace."""


@dataclass(frozen=True, slots=True)
class Setting:
    field: str
    """The field of the description."""
    kind: ValueKind
    least: Any = None
    most: Any = None
    """The service's range of a number or duration, or of the length of a text."""

    @property
    def name(self) -> str:
        """The service's name for it: `LockDuration` is the field `lock_duration`."""
        return self.field.title().replace("_", "")

    def problem_with(self, value: Any) -> str | None:
        """Returns what is wrong with the value. The text follows the setting's name."""
        if self.kind is ValueKind.TEXT and value is not None and len(value) > self.most:
            return f"has {len(value)} characters, but at most {self.most} are possible"
        if self.kind is ValueKind.DURATION:
            if not isinstance(value, timedelta):
                return self._outside(repr(value))
            if not self.least <= value <= self.most:
                return self._outside(format_duration(value))
        if self.kind is ValueKind.INTEGER:
            is_integer = isinstance(value, int) and not isinstance(value, bool)
            if not is_integer or not self.least <= value <= self.most:
                return self._outside(repr(value))
        return None

    def _outside(self, shown: str) -> str:
        ends = [
            format_duration(end) if isinstance(end, timedelta) else end
            for end in (self.least, self.most)
        ]
        return f"is {shown}, but must be between {ends[0]} and {ends[1]}"


_BOOLEAN, _INTEGER, _DURATION, _STATUS, _TEXT, _TARGET = ValueKind
_SECOND, _DAY = timedelta(seconds=1), timedelta(days=1)

# In the order of the emulator's Config.json; it has the first nine.
SETTINGS: Final = (
    Setting("dead_lettering_on_message_expiration", _BOOLEAN),
    Setting("default_message_time_to_live", _DURATION, _SECOND, INFINITE),
    Setting("duplicate_detection_history_time_window", _DURATION, 20 * _SECOND, 7 * _DAY),
    Setting("forward_dead_lettered_messages_to", _TARGET),
    Setting("forward_to", _TARGET),
    Setting("lock_duration", _DURATION, _SECOND, 300 * _SECOND),
    Setting("max_delivery_count", _INTEGER, 1, _INT32_MAX),
    Setting("requires_duplicate_detection", _BOOLEAN),
    Setting("requires_session", _BOOLEAN),
    Setting("auto_delete_on_idle", _DURATION, 300 * _SECOND, INFINITE),
    Setting("enable_batched_operations", _BOOLEAN),
    Setting("enable_express", _BOOLEAN),
    Setting("enable_partitioning", _BOOLEAN),
    Setting("max_message_size_in_kilobytes", _INTEGER, 1, 102_400),
    Setting("max_size_in_megabytes", _INTEGER, 1, 81_920),
    Setting("status", _STATUS),
    Setting("user_metadata", _TEXT, 0, 1024),
    Setting("support_ordering", _BOOLEAN),
    Setting("dead_lettering_on_filter_evaluation_exceptions", _BOOLEAN),
)
EMULATOR_SETTINGS: Final = frozenset(one.name for one in SETTINGS[:9])
"""Those that the official emulator's Config.json has, too."""

_NAMES: Final = {one.field: one.name for one in SETTINGS}


def in_service_names(text: str) -> str:
    """An error text with the service's names, for a user who does not know the fields."""
    return _FIELD_NAME.sub(lambda found: _NAMES.get(found[0], found[0]), text)
