"""What clients and syphons publish, added up over all that were scraped. Pure.

docs/metrics.md says what each metric means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.samples import Sample

_OF_SYPHONS: Final = "pairbus_syphon_"
_BROUGHT_HOME: Final = "brought_home"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Of one process, or of several."""

    pairings: int = 0
    failed_over: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """For how many clients, by the primary's name and the entity."""
    withdrawn: Mapping[tuple[str, str], int] = field(default_factory=dict)
    diverted: int = 0
    moved: int | None = None
    """What syphons have brought home since they began; None: there is no syphon."""
    refusing: frozenset[tuple[str, str]] = frozenset()
    """Destinations that did not take the last message that a syphon sent them, with their
    primaries' names, where there are several."""


def told_by(samples: Iterable[Sample]) -> Told:
    pairings = diverted = 0.0
    moved: float | None = None
    refusing: set[tuple[str, str]] = set()
    failed_over: Counter[tuple[str, str]] = Counter()
    withdrawn: Counter[tuple[str, str]] = Counter()
    for sample in samples:
        label = sample.labels.get
        if sample.name.startswith(_OF_SYPHONS):
            moved = moved or 0.0  # it is there, and may have moved nothing yet
        match sample.name:
            case "pairbus_pairings":
                pairings += sample.value
            case "pairbus_diverted_messages_total":
                diverted += sample.value
            case "pairbus_failed_over" if sample.value > 0:
                failed_over[label("namespace", ""), label("entity", "")] += int(sample.value)
            case "pairbus_backlog_withdrawn" if sample.value > 0:
                withdrawn[label("namespace", ""), label("backlog_queue", "")] += int(sample.value)
            case "pairbus_syphon_messages_total" if label("outcome") == _BROUGHT_HOME:
                moved = (moved or 0.0) + sample.value
            case "pairbus_syphon_destination_up" if not sample.value:
                refusing.add((label("primary", ""), label("destination", "")))
    return Told(
        pairings=int(pairings),
        failed_over=dict(failed_over),
        withdrawn=dict(withdrawn),
        diverted=int(diverted),
        moved=None if moved is None else int(moved),
        refusing=frozenset(refusing),
    )


def together(several: Iterable[Told]) -> Told:
    failed_over: Counter[tuple[str, str]] = Counter()
    withdrawn: Counter[tuple[str, str]] = Counter()
    listed = list(several)
    for one in listed:
        failed_over.update(one.failed_over)
        withdrawn.update(one.withdrawn)
    moved = [one.moved for one in listed if one.moved is not None]
    return Told(
        pairings=sum(one.pairings for one in listed),
        failed_over=dict(failed_over),
        withdrawn=dict(withdrawn),
        diverted=sum(one.diverted for one in listed),
        moved=sum(moved) if moved else None,
        refusing=frozenset(key for one in listed for key in one.refusing),
    )
