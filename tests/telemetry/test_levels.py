"""What stands at a moment, for one client and for several, for the late and the closed."""

from dataclasses import replace

import pytest

from pairbus.telemetry.levels import Level, Levels
from tests.telemetry import happenings as happened

BACK = happened.failed_back
OVER = happened.failed_over
PAIRED = happened.paired
CLOSED = happened.closed
BILLS_OVER = replace(OVER, path="bills")
ELSEWHERE = "fabrikam"

HISTORIES = {
    "nothing stands before anything happens": ([], 0, 0, 0),
    "a pairing is open": ([PAIRED], 1, 0, 0),
    "two are": ([PAIRED, PAIRED], 2, 0, 0),
    "one of two closes": ([PAIRED, PAIRED, CLOSED], 1, 0, 0),
    "an entity is failed over": ([PAIRED, OVER], 1, 1, 0),
    "two entities are": ([PAIRED, OVER, BILLS_OVER], 1, 2, 0),
    "one is back": ([PAIRED, OVER, BILLS_OVER, BACK], 1, 1, 0),
    "an entity for two clients": ([PAIRED, PAIRED, OVER, OVER], 2, 2, 0),
    "and back for one of them": ([PAIRED, PAIRED, OVER, OVER, BACK], 2, 1, 0),
    "closing ends what stands": ([PAIRED, OVER, happened.withdrawn, CLOSED], 0, 0, 0),
    "a closing client takes its share": ([PAIRED, PAIRED, OVER, OVER, CLOSED], 1, 1, 0),
    "a namespace's end is none of another's": (
        [PAIRED, OVER, replace(PAIRED, namespace=ELSEWHERE), replace(CLOSED, namespace=ELSEWHERE)],
        1, 1, 0,
    ),
    "what comes after the closing does not count": ([PAIRED, CLOSED, OVER], 0, 0, 0),
    "pairing anew does": ([PAIRED, CLOSED, PAIRED, OVER], 1, 1, 0),
    "a backlog queue is out": ([PAIRED, happened.withdrawn], 1, 0, 1),
    "and in again": ([PAIRED, happened.withdrawn, happened.readmitted], 1, 0, 0),
    "an observer that came after the pairing": ([OVER], 0, 1, 0),
    "that is told of it twice": ([OVER, OVER], 0, 1, 0),
    "one that came after the failover": ([BACK, OVER], 0, 1, 0),
    "its client closes": ([OVER, CLOSED], 0, 0, 0),
    "what has no level moves none": ([PAIRED, happened.diverted, happened.throttled], 1, 0, 0),
}  # fmt: skip


@pytest.mark.parametrize(
    ("history", "pairings", "entities", "queues"), HISTORIES.values(), ids=HISTORIES
)
def test_history_leads_to_levels(history, pairings, entities, queues):
    levels = Levels()

    moves = [move for event in history for move in levels.moves(event)]

    def total(level):
        return sum(move.by for move in moves if move.level is level)

    assert total(Level.PAIRINGS) == pairings
    assert total(Level.ENTITIES_FAILED_OVER) == entities
    assert total(Level.QUEUES_WITHDRAWN) == queues
