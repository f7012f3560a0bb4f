"""When one client of a pair ends, and its partner does not.

Where a syphon runs, half a pair is of no use: it receives from the one and sends to the other. So
the partner gets a moment to follow, and is then to be faulted. Decides only; closes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Which = Literal["primary", "secondary"]

GRACE_SECONDS: Final = 5.0
_PARTNER: Final[dict[Which, Which]] = {"primary": "secondary", "secondary": "primary"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    which: Which
    """The one to be faulted."""
    reason: str


class Partners:
    def __init__(self, grace_seconds: float = GRACE_SECONDS) -> None:
        self._grace_seconds = grace_seconds
        self._ended: set[Which] = set()
        self._fault: Fault | None = None
        self._deadline: float | None = None

    def ended(self, which: Which, *, now: float, reason: str) -> None:
        """It was closed, or broke. Only the first time counts: the grace never begins anew."""
        if which in self._ended:
            return
        self._ended.add(which)
        if len(self._ended) > 1:
            self._deadline = self._fault = None
            return
        self._deadline = now + self._grace_seconds
        self._fault = Fault(
            which=_PARTNER[which],
            reason=f"the {which} namespace's client ended ({reason}), and its partner did not "
            f"within {self._grace_seconds:g} seconds",
        )

    @property
    def deadline(self) -> float | None:
        """When a partner is to be faulted, unless it ends before."""
        return self._deadline

    def due(self, *, now: float) -> Fault | None:
        """Whom to fault now. Answered once."""
        if self._deadline is None or now < self._deadline:
            return None
        fault = self._fault
        self._deadline = self._fault = None
        return fault
