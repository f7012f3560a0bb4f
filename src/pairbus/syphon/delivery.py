"""Half chunks on their way to the primary: sent to all destinations at once, then waited for.

Of one destination, things happen in order: a part that is refused is taken apart and tried again
before what follows it, and what follows a message that has to wait because of its destination
waits as well. One that has to wait because of itself, and may be at fault, is overtaken. Other
destinations do not notice. What has gone home is for the source to settle.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.fast.client import FastClient
from pairbus.fast.connection import attach_all
from pairbus.fast.errors import SendFailed
from pairbus.fast.message import ReceivedMessage
from pairbus.fast.sender import PendingSend, Sender, wait_all
from pairbus.syphon.backlog_queue import RENEW_SECONDS, Pair, Source
from pairbus.syphon.policy import (
    DeadLetter,
    Destination,
    Destinations,
    Failure,
    Step,
    after_failure,
    failure_of,
    next_step,
)
from pairbus.syphon.receipts import Outcome, TaskReport

PART_BYTES_MAX = 1_000_000
"""Of what is sent in one go: large messages go one by one, and the time must be looked at."""


@dataclass(slots=True, eq=False)
class Course:
    """What of a half is meant for one destination."""

    destination: Destination
    parts: list[list[Pair]]
    """What is left, in the order in which it is to be tried."""
    part: list[Pair] = field(default_factory=list)
    flight: PendingSend | None = None
    """What is in the air: the messages of `part`."""
    since: float = 0.0
    """... and since when (monotonic)."""


@dataclass(slots=True, eq=False)
class Half:
    """Messages of one source that are sent together, and then settled together."""

    source: Source
    began: float
    groups: dict[str, list[Pair]] = field(default_factory=dict)
    """By destination, in lower case."""
    done: list[ReceivedMessage] = field(default_factory=list)
    dead_letters: dict[DeadLetter, list[ReceivedMessage]] = field(default_factory=dict)
    courses: list[Course] = field(default_factory=list)


class Delivery:
    def __init__(self, home: FastClient, destinations: Destinations, report: TaskReport) -> None:
        self._home = home
        self._destinations = destinations
        self._report = report
        self._senders: dict[str, Sender] = {}
        self.is_home_lost = False
        """The primary does not answer at all: no destination needs to be tried for that."""
        self.mistake: BaseException | None = None
        """Neither the primary's nor a message's, but ours. What is left is held."""
        self.ends_at = math.inf
        """Nothing is sent any more from then on."""

    def begin(self, half: Half) -> None:
        """Send the first part of each destination. What cannot go is held."""
        self._keep_locked(half)
        courses: list[Course] = []
        for path, pairs in half.groups.items():
            if path in half.source.held:
                half.source.hold(path, pairs)
            else:
                courses.append(Course(self._destinations[pairs[0][1].path], [pairs]))
        self._reach(courses)
        half.courses = [course for course in courses if self._start(half, course)]

    def _reach(self, courses: Sequence[Course]) -> None:
        """Attach what is needed for the first time, all at once: the primary may be far away."""
        now = self._report.now()
        paths = [one.destination.path for one in courses if one.destination.is_open(now=now)]
        if not self.is_home_lost and any(path not in self._senders for path in paths):
            attach_all([self._sender(path) for path in paths])

    def _sender(self, path: str) -> Sender:
        sender = self._senders.get(path)
        if sender is None:
            sender = self._senders[path] = self._home.sender(path)
        return sender

    def land(self, half: Half) -> None:
        """Until nothing of it is in the air, nor to be tried again."""
        while half.courses:
            wait_all([course.flight for course in half.courses if course.flight is not None])
            self._keep_locked(half)
            for course in half.courses:
                self._landed(half, course)
            half.courses = [course for course in half.courses if self._start(half, course)]

    def _keep_locked(self, half: Half) -> None:
        now = self._report.now()
        if now - half.began > RENEW_SECONDS:
            half.began = now
            half.source.renew([one for pairs in half.groups.values() for one, _ in pairs])

    # --- one destination --------------------------------------------------------------------------

    def _start(self, half: Half, course: Course) -> bool:
        """Send the next part of it. False: there is none, or none that may go now."""
        destination, parts = course.destination, course.parts
        while parts:
            now = self._report.now()
            if self.is_home_lost or self.mistake is not None or now > self.ends_at:
                self._hold(half, course, parts)
                return False
            part = parts.pop(0)
            step = next_step(part[0][1], destination, now=now)
            if step is Step.DROP:
                half.done.append(part[0][0])
                self._tell(half, destination.path, Outcome.EXPIRED, part[:1])
                if part[1:]:
                    parts.insert(0, part[1:])
            elif step is Step.WAIT:
                self._hold(half, course, [part, *parts])
                return False
            elif isinstance(step, DeadLetter):
                self._dead_letter(half, step, part)
            else:
                self._send(course, part)
                return True
        return False

    def _send(self, course: Course, part: list[Pair]) -> None:
        end = _end_of_sending(part)
        if end < len(part):
            course.parts.insert(0, part[end:])
            part = part[:end]
        if not all(message.data for _, message in part):
            # No assert: sent empty, acknowledged and then settled, it would be lost.
            raise RuntimeError(f"what is held for {course.destination.path!r} was to be sent")
        course.part = part
        course.since = time.monotonic()
        course.flight = self._sender(course.destination.path).start(
            [message.data for _, message in part]
        )

    def _landed(self, half: Half, course: Course) -> None:
        assert course.flight is not None
        failed, course.flight = course.flight.failure(), None
        took = time.monotonic() - course.since
        if failed is None:
            course.destination.answered(after=took)
            self._taken(half, course, course.part)
        else:
            if failed.doubtful_ranges and isinstance(failed.error, OperationTimeoutError):
                course.destination.was_late(waited=took)
            course.parts[:0] = self._after(half, course, failed)

    def _taken(self, half: Half, course: Course, pairs: list[Pair]) -> None:
        course.destination.sent(now=self._report.now())
        half.done.extend([received for received, _ in pairs])
        self._tell(half, course.destination.path, Outcome.BROUGHT_HOME, pairs)

    def _after(self, half: Half, course: Course, failed: SendFailed) -> list[list[Pair]]:
        """What is left of a part that has failed, in parts to be tried in this order."""
        part, destination = course.part, course.destination
        accepted = [part[i] for indexes in failed.accepted_ranges for i in indexes]
        if accepted:
            self._taken(half, course, accepted)
        doubtful = sum(map(len, failed.doubtful_ranges))
        self._report.record_possible_duplicates(half.source.queue, destination.path, doubtful)
        ranges = (*failed.doubtful_ranges, *failed.refused_ranges)
        left = [part[i] for i in sorted(i for indexes in ranges for i in indexes)]
        failure = failure_of(failed.error)
        if failure is None:
            self.mistake = self.mistake or failed.error
            return [left]
        now, detail = self._report.now(), str(failed.error)
        self.is_home_lost |= failure is Failure.UNREACHABLE and not self._home.is_open
        step = after_failure(destination, failure, count=len(left), now=now, detail=detail)
        if isinstance(step, DeadLetter):
            self._dead_letter(half, step, left)
            return []
        if step is Step.WAIT:
            self._hold(half, course, [left])
            return []
        middle = len(left) // 2
        return [left[:middle], left[middle:]]

    # --- what becomes of them ---------------------------------------------------------------------

    def _hold(self, half: Half, course: Course, parts: Sequence[list[Pair]]) -> None:
        path = course.destination.path.lower()
        half.source.hold(path, [pair for part in parts for pair in part])

    def _dead_letter(self, half: Half, step: DeadLetter, pairs: Sequence[Pair]) -> None:
        half.dead_letters.setdefault(step, []).extend(received for received, _ in pairs)
        self._tell(half, pairs[0][1].path, Outcome.DEAD_LETTERED, pairs, step.reason)

    def _tell(
        self, half: Half, path: str, outcome: Outcome, pairs: Sequence[Pair], reason: str = ""
    ) -> None:
        messages = [restored for _, restored in pairs]
        self._report.record(half.source.queue, path, outcome, messages, reason)


def _end_of_sending(part: Sequence[Pair]) -> int:
    """How many of it go now. The first one does: it was looked at, and has not expired."""
    size = 0
    for place, (_, message) in enumerate(part):
        size += message.size
        if message.is_expired or (size > PART_BYTES_MAX and place):
            return place
    return len(part)
