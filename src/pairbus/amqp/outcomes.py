"""Outcomes of deliveries, and errors, as plain values.

How they are written is in `performatives` and `frames`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final


@dataclass(frozen=True, slots=True)
class AmqpError:
    """An AMQP error. The engine adds a tracking id to each one that a server sends.

    The official Python SDK reads condition, description and info by their positions, and waits
    forever if the last of them is missing. So a server never sends an empty info map.
    """

    condition: str
    description: str = ""
    info: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.condition}: {self.description}" if self.description else self.condition


class OutcomeKind(IntEnum):
    """The descriptor codes of AMQP's delivery states, so that no table is needed to read them."""

    NONE = 0
    RECEIVED = 0x23
    ACCEPTED = 0x24
    REJECTED = 0x25
    RELEASED = 0x26
    MODIFIED = 0x27
    OTHER = 1
    """A state we do not know, for example a transaction's."""


@dataclass(frozen=True, slots=True)
class Outcome:
    kind: OutcomeKind
    error: AmqpError | None = None
    """Only of REJECTED."""

    failed: bool = False
    undeliverable: bool = False
    annotations: Mapping[str, object] | None = None
    """Only of MODIFIED, like the two flags."""


ACCEPTED: Final = Outcome(OutcomeKind.ACCEPTED)
RELEASED: Final = Outcome(OutcomeKind.RELEASED)
NO_OUTCOME: Final = Outcome(OutcomeKind.NONE)


def rejected(error: AmqpError) -> Outcome:
    return Outcome(OutcomeKind.REJECTED, error=error)


def modified(
    *,
    failed: bool = False,
    undeliverable: bool = False,
    annotations: Mapping[str, object] | None = None,
) -> Outcome:
    return Outcome(
        OutcomeKind.MODIFIED, failed=failed, undeliverable=undeliverable, annotations=annotations
    )
