"""The course of one call, in either shell: where it goes next, and what a failure means for it.

What happens to a message if the process dies on its way: before a namespace has answered, it is the
caller's, who got no answer; afterwards it is stored there. Where the outcome is unknown, it goes to
the backlog under the id that it had.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from azure.servicebus.exceptions import MessageSizeExceededError, OperationTimeoutError

from pairbus.client.backlog_batch import Parcel, pack
from pairbus.client.errand import Errand, Patience, TurnTaken
from pairbus.client.pairing import Pair
from pairbus.client.pool import AllBusy
from pairbus.client.route.router import Nowhere, Plan, ToBacklog, ToPrimary, Way
from pairbus.client.sdk import private as internals
from pairbus.client.sdk.errors import BacklogExhausted, EnvelopeTooLarge
from pairbus.client.sdk.failures import Kind, kind_of

Attempt = TypeVar("Attempt")
Result = TypeVar("Result")


class Course(Generic[Attempt, Result]):
    def __init__(
        self, pair: Pair, path: str, errand: Errand[Attempt, Result], timeout: float | None
    ) -> None:
        pair.check_process()
        self.pair = pair
        self.path = path
        self.errand = errand
        self.time = Patience(timeout, pair.send_seconds)
        self.parcels: list[Parcel] | None = None
        """What is left to be diverted; None as long as nothing was packed."""
        self._diverted_count = 0
        self._throttled = 0

    def plan(self) -> Plan:
        # Once a part is in the backlog, the rest follows it, lest the part be sent twice.
        plan = self.pair.plan(self.path, is_begun=bool(self._diverted_count))
        if isinstance(plan, Nowhere) and self.errand.count:
            raise self._exhausted(plan)
        return plan

    # --- the primary ------------------------------------------------------------------------------

    def primary_failed(self, plan: Plan, error: Exception) -> float:
        """The seconds to wait before it goes on; raises the SDK's own error if it does not."""
        if not isinstance(plan, ToPrimary):
            return 0.0  # it has failed over while this call waited for its turn
        kind = kind_of(error)
        if kind is Kind.THROTTLED:
            return self._wait(plan, error)
        if isinstance(error, TurnTaken) and not error.is_stuck:
            raise error
        if kind is Kind.OUTAGE and self.pair.failed(self.path, plan, error):
            self.time.forget_primary()
            return 0.0
        raise error

    # --- the backlog ------------------------------------------------------------------------------

    def pack(self, lane: Any, way: ToBacklog) -> list[Parcel]:
        if self.parcels is None:
            messages = self.errand.diverted()
            self.parcels = pack(lane, messages, path=self.path, queue=way.queue)
        return self.parcels

    def diverted(self, way: ToBacklog, *, seconds: float) -> None:
        """The backlog queue has taken the first parcel."""
        assert self.parcels
        parcel = self.parcels.pop(0)
        self._diverted_count += parcel.count
        self.pair.sent(self.path, way, count=parcel.count, seconds=seconds, extra=parcel.extra)

    def backlog_failed(self, way: ToBacklog, error: Exception) -> float:
        """The seconds to wait before it goes on; raises what is the message's own fault. Anything
        else is the queue's, and there are others."""
        if isinstance(error, AllBusy):
            raise error
        kind = kind_of(error)
        if kind is Kind.THROTTLED:
            return self._wait(way, error)
        if kind in (Kind.OUTAGE, Kind.SETUP) or internals.is_not_allowed(error):
            self.pair.failed(self.path, way, error)
            if self.time.in_backlog(now=self.pair.clock()) <= 0:
                raise self._exhausted(self.pair.causes(self.path))
            return 0.0
        # The service says so, of what was small enough to be packed.
        if isinstance(error, MessageSizeExceededError) and internals.condition_of(error):
            raise EnvelopeTooLarge(
                entity=self.path, backlog_queue=way.queue, error=error
            ) from error
        raise error

    def told(self, error: Exception) -> Exception:
        """The error for the caller: if a part is in the backlog, one that tells how much."""
        if not self._diverted_count or isinstance(error, BacklogExhausted):
            return error
        return self._exhausted(Nowhere(self.pair.causes(self.path).primary_error, error))

    def _exhausted(self, causes: Nowhere) -> BacklogExhausted:
        self.pair.undeliverable(self.path, causes)
        error = BacklogExhausted(
            entity=self.path,
            primary_error=causes.primary_error,
            backlog_error=causes.backlog_error,
            diverted_count=self._diverted_count,
            queue_count=len(self.pair.backlog_queues),
        )
        error.__cause__ = causes.backlog_error or causes.primary_error
        return error

    # --- patience ---------------------------------------------------------------------------------

    def _wait(self, way: Way, error: Exception) -> float:
        """As long as a busy service asks for; raises its error where that is too long."""
        seconds = self.pair.throttle_seconds
        self._throttled += 1
        if self._throttled > self.pair.throttle_laps_max or not self.time.can_wait(
            seconds, is_backlog=isinstance(way, ToBacklog), now=self.pair.clock()
        ):
            raise error
        self.pair.throttled(self.path, way)
        return seconds


def is_stale(error: Exception) -> bool:
    """Whether a link that was kept may have failed for no other reason than its age."""
    return kind_of(error) is Kind.OUTAGE and not isinstance(error, OperationTimeoutError)


def leaves_usable(error: Exception) -> bool:
    """Whether a link that told this error can be used again."""
    return kind_of(error) in (Kind.THROTTLED, Kind.MESSAGE)
