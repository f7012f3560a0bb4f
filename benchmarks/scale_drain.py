"""How long a simulated syphon needs: the real `Schedule` decides which queues each round takes, and
each task moves messages at a given rate. Nothing is received or sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pairbus.syphon.receipts import Drained, Receipt, ReceiptOutcome
from pairbus.syphon.schedule import Schedule, TaskPlan

ROUND_SECONDS = 2
HOURS_MAX = 48


def drain(
    arrivals: Mapping[str, Sequence[float]],
    *,
    is_down: Callable[[float], bool],
    slots: int,
    rate: float,
) -> list[float]:
    """The depth of the backlog after each round. `arrivals`: messages by queue and second; `rate`:
    messages a second of all tasks together."""
    schedule = Schedule(["contoso"])
    schedule.found(arrivals, are_pending=False)
    depths = dict.fromkeys(arrivals, 0.0)
    seconds = max(at for each in arrivals.values() for at, count in enumerate(each) if count)
    history: list[float] = []
    for now in range(0, HOURS_MAX * 3600, ROUND_SECONDS):
        for queue, each in arrivals.items():
            depths[queue] += sum(each[now : now + ROUND_SECONDS])
        schedule.arrived(queue for queue, depth in depths.items() if depth >= 1)
        if not is_down(now):
            for primary, paths in schedule.to_probe(now=now).items():
                schedule.answered(primary, paths, now=now)
        for queue in schedule.to_peek(now=now):
            schedule.peeked(queue, {"entity": 0}, now=now)
        plans = schedule.tasks(slots, now=now) if schedule.pending else []
        each_task = rate / slots * ROUND_SECONDS
        results = [(plan, _task(plan, depths, each_task, is_down=is_down(now))) for plan in plans]
        schedule.round_ended(results, now=now + ROUND_SECONDS)
        history.append(sum(depths.values()))
        if now > seconds and max(depths.values()) < 1:
            return history
    raise AssertionError(f"the backlog is not empty after {HOURS_MAX} hours")


def _task(plan: TaskPlan, depths: dict[str, float], messages: float, *, is_down: bool) -> Drained:
    if is_down:
        return Drained(
            receipts=(), destinations=(), emptied=(), errors=(), primary_error="it is down"
        )
    receipts, emptied = [], []
    share = messages if plan.at_most is None else min(messages, plan.at_most)
    for queue in plan.queues:
        moved = min(depths[queue], share / len(plan.queues))
        depths[queue] -= moved
        if depths[queue] < 1:
            depths[queue] = 0.0
            emptied.append(queue)
        receipts.append(
            Receipt(
                run="",
                round=0,
                queue=queue,
                path="entity",
                outcome=ReceiptOutcome.BROUGHT_HOME,
                count=round(moved),
                at_ms=0,
            )
        )
    return Drained(
        receipts=tuple(receipts),
        destinations=(),
        emptied=tuple(emptied),
        errors=(),
        has_reached_primary=True,
    )
