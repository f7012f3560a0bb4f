"""The background worker of a paired client: one thread that runs what is due (pings, probes, and
connections that are kept open) and enforces socket deadlines.

The SDK's blocking client reads the first bytes of a new connection without a time limit. A call
that might get stuck there enters a deadline; when its time is over, the worker shuts down its
socket.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.client.reentrant_event import ReentrantEvent
from pairbus.client.route.plans import BackgroundTask
from pairbus.client.sdk import private
from pairbus.client.timing import GRACE_SECONDS

logger = logging.getLogger("pairbus.client")

TASKS_AT_ONCE_MAX = 16
# If nothing is due, the worker wakes this often, to see deadlines that were entered without waking
# it.
LOOK_SECONDS_MAX = 15.0
JOIN_SECONDS_MAX = 10.0
CUT_AGAIN_SECONDS = 0.05

CLOSED = "the paired client has been closed; make a new one"


@dataclass(slots=True)
class SocketDeadline:
    sender: Any
    at: float
    is_cut: bool = False


class BackgroundWorker:
    def __init__(
        self,
        name: str,
        *,
        clock: Callable[[], float],
        take_due: Callable[[], tuple[list[BackgroundTask], float | None]],
        perform: Callable[[BackgroundTask], None],
    ) -> None:
        """`take_due` returns the tasks that are due and when the next one is; `perform` runs
        one."""
        self._clock = clock
        self._take_due, self._perform = take_due, perform
        self._woken = ReentrantEvent()
        # When the worker wakes next. An earlier deadline wakes it.
        self._looks_at = 0.0
        self._is_stopped = False
        # By sender, of which each call has one for itself: if an interrupt at the end of a call
        # leaves a deadline here, the next call on the sender replaces it.
        self._deadlines: dict[int, SocketDeadline] = {}
        self._running: set[threading.Thread] = set()
        self._waiting: deque[BackgroundTask] = deque()
        self._thread = threading.Thread(target=self._run, name=f"pairbus-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        """Stop the worker. When this returns, its threads have ended, except one that is stuck
        where no socket can be cut.
        """
        self._is_stopped = True
        self.wake()
        deadline = time.monotonic() + JOIN_SECONDS_MAX
        for thread in [*self._running, self._thread]:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    @contextmanager
    def deadline(self, sender: Any, seconds: float) -> Iterator[None]:
        """Shuts down the sender's socket when the time for a call is over, and again if the call
        continues.
        """
        deadline = SocketDeadline(sender, self._clock() + seconds + GRACE_SECONDS)
        try:
            self._deadlines[id(sender)] = deadline
            # Checked after entering: the worker may already have made its last check.
            if self._is_stopped:
                raise ValueError(CLOSED)
            if deadline.at < self._looks_at:
                self.wake()
            yield
        except Exception as error:
            if not deadline.is_cut:
                raise
            if self._is_stopped:
                raise ValueError(CLOSED) from error
            # The SDK would report that the server closed the connection. It was our deadline.
            host = sender.fully_qualified_namespace
            raise OperationTimeoutError(
                message=f"{host!r} did not answer within {seconds:g} seconds"
            ) from error
        finally:
            self._deadlines.pop(id(sender), None)

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_stopped:
            self._woken.clear()
            try:
                wait = self._work()
            except Exception:
                logger.exception("the background worker of a paired client failed; it continues")
                wait = 1.0
            self._woken.wait(wait)
        # Nothing else frees a call that runs while the client closes. Cut it repeatedly: it may get
        # stuck again, because the SDK retries. The bound is for a deadline that an interrupt has
        # left: its call has ended.
        last = max((each.at for each in [*self._deadlines.values()]), default=0.0)
        until = last + JOIN_SECONDS_MAX
        while self._cut(lambda deadline: True) and self._clock() < until:
            time.sleep(CUT_AGAIN_SECONDS)

    def _work(self) -> float:
        """Start the tasks that are due, and return the seconds until the next one."""
        self._looks_at = float("inf")  # a deadline that is entered meanwhile wakes it again
        tasks, next_due = self._take_due()
        self._waiting.extend(tasks)
        soon: list[float] = []
        while self._waiting and len(self._running) < TASKS_AT_ONCE_MAX:
            if not self._start(self._waiting[0]):
                soon.append(self._clock() + 1.0)
                break
            self._waiting.popleft()
        now = self._clock()
        self._cut(lambda deadline: deadline <= now)
        # A deadline that has passed is cut again after a moment: the SDK may have started another
        # attempt.
        soon += [max(each.at, now + GRACE_SECONDS) for each in [*self._deadlines.values()]]
        if next_due is not None:
            soon.append(next_due)
        self._looks_at = min([*soon, now + LOOK_SECONDS_MAX])
        return max(0.0, self._looks_at - self._clock())

    def _start(self, task: BackgroundTask) -> bool:
        thread = threading.Thread(
            target=self._run_task, args=(task,), name="pairbus-task", daemon=True
        )
        self._running.add(thread)
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads; it may later
            self._running.discard(thread)
            logger.warning("could not start a thread for %r; the worker tries again later", task)
            return False
        return True

    def _run_task(self, task: BackgroundTask) -> None:
        try:
            if not self._is_stopped:
                self._perform(task)
        except Exception:
            logger.exception("%r failed", task)
        finally:
            self._running.discard(threading.current_thread())
            self.wake()

    def _cut(self, is_over: Callable[[float], bool]) -> bool:
        """Cut the calls whose deadline has passed. Returns False if there are none."""
        over = [each for each in [*self._deadlines.values()] if is_over(each.at)]
        for each in over:
            each.is_cut = True  # set first: the freed call reads it at once
            private.cut(each.sender)
        return bool(over)
