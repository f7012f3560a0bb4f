"""Counts billed operations: by entity and by kind, in units of 64 KiB.

`docs/cost.md` explains what counts as what. A `Tally` is a set of plain integers, which one thread
increments for every message, without a lock and without a call. Any thread may read it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from pairbus.json_style import camel_case_keys, utc_text

UNIT_BYTES: Final = 64 * 1024


def units_of(size: int) -> int:
    """The number of operations that a message of `size` encoded bytes counts as."""
    return (size + UNIT_BYTES - 1) // UNIT_BYTES or 1


def units_of_all(sizes: Collection[int]) -> int:
    """Like `units_of`, for several messages. Most are smaller than a unit, so this takes a
    shortcut.
    """
    if not sizes or max(sizes) <= UNIT_BYTES:
        return len(sizes)
    return sum(map(units_of, sizes))


@dataclass(slots=True)
class Tally:
    """The operations of one entity, or of several. The fields are the kinds, in table order."""

    send: int = 0
    ping: int = 0
    receive: int = 0
    empty_receive: int = 0
    forward: int = 0
    settle: int = 0
    renew: int = 0
    peek: int = 0
    session: int = 0
    manage: int = 0

    @property
    def total(self) -> int:
        return sum(self.as_dict().values())

    def as_dict(self) -> dict[str, int]:
        return {kind: getattr(self, kind) for kind in KINDS}

    def add(self, other: Tally) -> None:
        for kind in KINDS:
            setattr(self, kind, getattr(self, kind) + getattr(other, kind))

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, kind) + getattr(other, kind) for kind in KINDS))

    def __sub__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, kind) - getattr(other, kind) for kind in KINDS))


KINDS: Final = tuple(each.name for each in fields(Tally))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterReading:
    """The counts of a meter at one moment."""

    namespace: str
    since: float
    """When counting began, in seconds since the epoch."""
    entities: Mapping[str, Tally] = field(default_factory=dict)
    """By path, for the entities that have any operation."""

    @property
    def total(self) -> Tally:
        return sum(self.entities.values(), Tally())

    def of(self, path: str) -> Tally:
        """The counts of one entity; zeros if it has none."""
        key = path.lower()
        found = (tally for name, tally in self.entities.items() if name.lower() == key)
        return next(found, Tally())

    def __sub__(self, earlier: MeterReading) -> MeterReading:
        """Returns the operations between the two readings."""
        differences = {name: tally - earlier.of(name) for name, tally in self.entities.items()}
        return MeterReading(
            namespace=self.namespace,
            since=self.since,
            entities={name: tally for name, tally in differences.items() if tally.total},
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "namespace": self.namespace,
            "since": utc_text(self.since),
            "unitBytes": UNIT_BYTES,
            "entities": {name: _with_total(tally) for name, tally in self.entities.items()},
            "total": _with_total(self.total),
        }


def _with_total(tally: Tally) -> dict[str, int]:
    return {**camel_case_keys(tally.as_dict()), "total": tally.total}


class Meter:
    """The tallies of one namespace. Paths that differ only in case are one entity."""

    def __init__(self, namespace: str, *, since: float) -> None:
        self._namespace = namespace
        self._since = since
        self._tallies: dict[str, tuple[str, Tally]] = {}

    def of(self, path: str) -> Tally:
        """The tally to increment. It is kept after its entity is deleted, because its operations
        are billed.
        """
        return self._tallies.setdefault(path.lower(), (path, Tally()))[1]

    def add(self, reading: MeterReading) -> None:
        """Adds the operations that another process has counted for this namespace."""
        for path, tally in reading.entities.items():
            self.of(path).add(tally)

    def read(self) -> MeterReading:
        """May be called by any thread. Operations counted meanwhile may or may not be included."""
        known = sorted(self._tallies.copy().values(), key=lambda each: each[0].lower())
        return MeterReading(
            namespace=self._namespace,
            since=self._since,
            entities={path: tally + Tally() for path, tally in known if tally.total},
        )
