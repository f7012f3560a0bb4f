"""Billed operations, counted: by entity and kind, in units of 64 KB.

`docs/cost.md` says what counts as what. A `Tally` is a handful of plain integers that one thread
adds to, on the way of every message; so it has no lock, and no method is called to add. Reading is
for any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

UNIT_BYTES: Final = 64 * 1024


def units_of(size: int) -> int:
    """How many operations a message of so many encoded bytes is: each begun 64 KB is one."""
    return (size + UNIT_BYTES - 1) // UNIT_BYTES or 1


@dataclass(slots=True)
class Tally:
    """Of one entity, or of all. The fields are the kinds of operations, in the order of tables."""

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

    @property
    def transfers(self) -> int:
        """Without what comes on top of bringing messages in and out, or asking for them."""
        return self.send + self.ping + self.receive + self.empty_receive

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
class Reading:
    """What a meter shows at a moment."""

    namespace: str
    since: float
    """When the counting began: seconds since the epoch."""
    entities: Mapping[str, Tally] = field(default_factory=dict)
    """Of those with any operation, by the path."""

    @property
    def total(self) -> Tally:
        return sum(self.entities.values(), Tally())

    def of(self, path: str) -> Tally:
        """Of one entity; nothing, where nothing was counted."""
        wanted = path.lower()
        found = (tally for name, tally in self.entities.items() if name.lower() == wanted)
        return next(found, Tally())

    def __sub__(self, earlier: Reading) -> Reading:
        """What was counted in between."""
        since = {name: tally - earlier.of(name) for name, tally in self.entities.items()}
        return Reading(
            namespace=self.namespace,
            since=self.since,
            entities={name: tally for name, tally in since.items() if tally.total},
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "namespace": self.namespace,
            "since": self.since,
            "unit_bytes": UNIT_BYTES,
            "entities": {
                name: {**tally.as_dict(), "total": tally.total}
                for name, tally in self.entities.items()
            },
            "total": {**self.total.as_dict(), "total": self.total.total},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `as_dict`. Raises KeyError or TypeError for anything else."""
        return cls(
            namespace=str(values["namespace"]),
            since=float(values["since"]),
            entities={
                str(name): Tally(*(int(counts[kind]) for kind in KINDS))
                for name, counts in values["entities"].items()
            },
        )


class Meter:
    """The tallies of one namespace. Entities that differ in case only are one."""

    def __init__(self, namespace: str, *, since: float) -> None:
        self._namespace = namespace
        self._since = since
        self._tallies: dict[str, tuple[str, Tally]] = {}

    def of(self, path: str) -> Tally:
        """To be added to. It outlives its entity: what was counted is billed."""
        return self._tallies.setdefault(path.lower(), (path, Tally()))[1]

    def add(self, reading: Reading) -> None:
        """What somebody else has counted for this namespace."""
        for path, tally in reading.entities.items():
            self.of(path).add(tally)

    def read(self) -> Reading:
        """From any thread. What is being counted meanwhile may be in it or not."""
        known = sorted(self._tallies.copy().values(), key=lambda each: each[0].lower())
        return Reading(
            namespace=self._namespace,
            since=self._since,
            entities={path: tally + Tally() for path, tally in known if tally.total},
        )
