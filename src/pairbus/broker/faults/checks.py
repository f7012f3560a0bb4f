"""Fields that check themselves: what a fault's description is made of.

Each function makes a keyword field for `dataclasses`: a default, a check that says what would
be right, and, where a value has several spellings, how to make it one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from enum import StrEnum
from typing import Any, Final

CHECK: Final = "check"
"""In a field's metadata: value -> what would be right, or None if it is."""
MAKE: Final = "make"
"""In a field's metadata: a value that is right -> the form in which it is kept."""
TEXT_LENGTH_MAX: Final = 1024

Check = Callable[[Any], str | None]


def _field(default: Any, check: Check, make: Callable[[Any], Any] | None = None) -> Any:
    metadata: dict[str, Any] = {CHECK: check}
    if make is not None:
        metadata[MAKE] = make
    return field(default=default, kw_only=True, metadata=metadata)


def number(default: float | None, *, least: float, most: float, is_whole: bool = False) -> Any:
    """A default of None: it may be left out."""
    noun = "a whole number" if is_whole else "a number"
    right = f"{noun} from {_plain(least)} to {_plain(most)}"

    def check(value: Any) -> str | None:
        if value is None and default is None:
            return None
        is_number = isinstance(value, int if is_whole else int | float)
        if is_number and not isinstance(value, bool) and least <= value <= most:
            return None
        return f"{right}, or nothing" if default is None else right

    return _field(default, check)


def choice(default: StrEnum) -> Any:
    options = [str(option) for option in type(default)]

    def check(value: Any) -> str | None:
        is_right = isinstance(value, str) and value in options
        return None if is_right else f"one of {', '.join(options)}"

    return _field(default, check, type(default))


def choices(kind: type[StrEnum], *default: StrEnum) -> Any:
    """One or more, given as a list or alone."""
    options = [str(option) for option in kind]

    def listed(value: Any) -> list[Any]:
        return list(value) if isinstance(value, list | tuple) else [value]

    def check(value: Any) -> str | None:
        given = listed(value)
        is_right = given and all(isinstance(one, str) and one in options for one in given)
        return None if is_right else f"one or more of {', '.join(options)}"

    def make(value: Any) -> tuple[StrEnum, ...]:
        return tuple(dict.fromkeys(kind(one) for one in listed(value)))

    return _field(default, check, make)


def text(default: str) -> Any:
    def check(value: Any) -> str | None:
        is_right = isinstance(value, str) and 0 < len(value) <= TEXT_LENGTH_MAX
        return None if is_right else f"text of 1 to {TEXT_LENGTH_MAX} characters"

    return _field(default, check)


def path(value: Any) -> str | None:
    """A check; the one field that may be given without its name is not made here."""
    if value is None:
        return None
    if isinstance(value, str) and value.strip("/") and len(value) <= TEXT_LENGTH_MAX:
        return None
    return "the path of an entity, like 'orders' or 'events/Subscriptions/audit', or nothing"


def _plain(value: float) -> str:
    return f"{value:,.0f}".replace(",", "_") if value == int(value) else f"{value:g}"
