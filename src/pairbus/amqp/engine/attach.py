"""The content of an attach: reads the peer's, and makes the source and target of our own. It has no
state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as with_default
from typing import Any, Final

from pairbus.amqp.codec.types import Described, Symbol, UByte, UInt, ULong
from pairbus.amqp.frames import FrameError, string_map, symbol_map

SOURCE, TARGET, COORDINATOR = 0x28, 0x29, 0x30
_FILTER: Final = 7
_ENTRIES_MAX: Final = 32
_DEFAULTS: Final = (None, UInt(0), None, UInt(0), False)
"""Spelled out: the Python SDK takes an empty source or target for none at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteAttach:
    """What the peer's attach said."""

    source_address: str | None = None
    target_address: str | None = None
    has_source: bool = False
    has_target: bool = False
    target_is_coordinator: bool = False
    source_filter: Mapping[str, object] = with_default(default_factory=dict)
    """Without the descriptors of its values. A list, map or array is not kept: it reads as ()."""

    properties: Mapping[str, object] = with_default(default_factory=dict)
    """Like `source_filter`. Both are empty when the link is over."""

    snd_settle_mode: int = 2
    """0 unsettled, 1 settled, 2 mixed."""

    rcv_settle_mode: int = 0
    """0 first, 1 second."""

    max_message_size: int = 0
    """0: none given."""


def terminus(
    kind: int, like: Described | None, *, filter: Mapping[str, object] | None = None
) -> Described:
    """A source or target like the peer's, with this filter."""
    fields = list(like.value) if like is not None and like.value else list(_DEFAULTS)
    if filter is not None:
        fields += [None] * (_FILTER + 1 - len(fields))
        fields[_FILTER] = symbol_map(filter)
    return Described(ULong(kind), fields)


def field(
    fields: list[Any], index: int, kind: type, frame: str, name: str, *, optional: bool = False
) -> Any:
    value = fields[index] if index < len(fields) else None
    if value is None and optional:
        return None
    if not isinstance(value, kind) or isinstance(value, Symbol):
        raise FrameError(
            "amqp:invalid-field", f"{name} of {frame} is {value!r:.60}, not of type {kind.__name__}"
        )
    return value


def read_attach(fields: list[Any]) -> tuple[RemoteAttach, Described | None, Described | None]:
    """What the peer's attach says, with its source and target as they came."""
    fields = fields + [None] * (14 - len(fields))
    source, target = (_read_terminus(value) for value in fields[5:7])
    source_fields: list[Any] = source.value if source else []
    target_fields: list[Any] = target.value if target else []
    is_coordinator = target is not None and target.descriptor == COORDINATOR
    remote = RemoteAttach(
        has_source=source is not None,
        has_target=target is not None,
        source_address=_address(source_fields),
        target_address=None if is_coordinator else _address(target_fields),
        target_is_coordinator=is_coordinator,
        source_filter=_scalars(source_fields[7] if len(source_fields) > 7 else None),
        properties=_scalars(fields[13]),
        snd_settle_mode=_settle_mode(fields[3], default=2, most=2),
        rcv_settle_mode=_settle_mode(fields[4], default=0, most=1),
        max_message_size=int(fields[10]) if isinstance(fields[10], ULong) else 0,
    )
    return remote, source, target


def _scalars(value: object) -> dict[str, object]:
    """What is kept of a map for as long as the link lives: an attach needs no token, so not much.

    A list of one-byte values takes 60 times its size in memory.
    """
    entries = string_map(value)
    if len(entries) > _ENTRIES_MAX:
        said = f"an attach with a map of {len(entries)} entries; {_ENTRIES_MAX} are allowed"
        raise FrameError("amqp:resource-limit-exceeded", said)
    scalars: dict[str, object] = {}
    for key, item in entries.items():
        plain = item.value if isinstance(item, Described) else item
        scalars[key] = () if isinstance(plain, list | dict | Described) else plain
    return scalars


def _read_terminus(value: object) -> Described | None:
    if value is None or (isinstance(value, Described) and isinstance(value.value, list)):
        return value
    raise FrameError("amqp:invalid-field", f"a source or target that is {value!r:.60}")


def _address(fields: list[Any]) -> str | None:
    return str(fields[0]) if fields and isinstance(fields[0], str) else None


def _settle_mode(value: object, *, default: int, most: int) -> int:
    if value is None:
        return default
    if not isinstance(value, UByte) or value > most:
        raise FrameError("amqp:invalid-field", f"a settle mode that is {value!r:.60}")
    return int(value)
