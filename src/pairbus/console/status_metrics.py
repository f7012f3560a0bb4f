"""What clients and syphons publish, added up over all that were scraped. Pure.

docs/metrics.md says what each metric means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pairbus.console.scrape import Sample

_MOVED: Final = "moved"


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
    left: int | None = None
    """What they say is left."""


def told_by(samples: Iterable[Sample]) -> Told:
    pairings = diverted = 0.0
    moved: float | None = None
    left: float | None = None
    failed_over: Counter[tuple[str, str]] = Counter()
    withdrawn: Counter[tuple[str, str]] = Counter()
    for sample in samples:
        label = sample.labels.get
        match sample.name:
            case "pairbus_pairings":
                pairings += sample.value
            case "pairbus_diverted_messages_total":
                diverted += sample.value
            case "pairbus_failed_over" if sample.value > 0:
                failed_over[label("namespace", ""), label("entity", "")] += int(sample.value)
            case "pairbus_backlog_withdrawn" if sample.value > 0:
                withdrawn[label("namespace", ""), label("backlog_queue", "")] += int(sample.value)
            case "pairbus_syphon_messages_total":
                is_moved = label("outcome", _MOVED) == _MOVED
                moved = (moved or 0.0) + (sample.value if is_moved else 0.0)
            case "pairbus_syphon_left_messages":
                left = (left or 0.0) + sample.value
    return Told(
        pairings=int(pairings),
        failed_over=dict(failed_over),
        withdrawn=dict(withdrawn),
        diverted=int(diverted),
        moved=None if moved is None else int(moved),
        left=None if left is None else int(left),
    )


def together(several: Iterable[Told]) -> Told:
    failed_over: Counter[tuple[str, str]] = Counter()
    withdrawn: Counter[tuple[str, str]] = Counter()
    listed = list(several)
    for one in listed:
        failed_over.update(one.failed_over)
        withdrawn.update(one.withdrawn)
    moved = [one.moved for one in listed if one.moved is not None]
    left = [one.left for one in listed if one.left is not None]
    return Told(
        pairings=sum(one.pairings for one in listed),
        failed_over=dict(failed_over),
        withdrawn=dict(withdrawn),
        diverted=sum(one.diverted for one in listed),
        moved=sum(moved) if moved else None,
        # All syphons of a secondary see the same queues.
        left=max(left) if left else None,
    )
