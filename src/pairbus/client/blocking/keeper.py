"""One thread per paired client, for what is due in the background: pings, probes, connections kept
ready.

It is also who ends a wait that the SDK would not end: the SDK's blocking client reads the first
bytes of a new connection without any time-out. Whoever might get stuck there is entered in `guards`
meanwhile; when its time is over, its socket is shut down.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.client.route.router import Chore
from pairbus.client.sdk import private as internals

logger = logging.getLogger("pairbus.client")

CHORES_AT_ONCE_MAX = 16
# Without anything due it looks around this often: at guards that were entered without waking it.
LOOK_SECONDS_MAX = 15.0
# What the SDK's own time-out gets before the socket is taken from under it.
GRACE_SECONDS = 1.0
JOIN_SECONDS_MAX = 10.0
CUT_AGAIN_SECONDS = 0.05

CLOSED = "the paired client has been closed; make a new one"


class Guard:
    """Within it, the sender's socket is shut down when the time is over, and again if it goes on.

    A class, and not a generator: it is on the way of every message.
    """

    __slots__ = ("_keeper", "_seconds", "deadline", "is_cut", "sender")

    def __init__(self, keeper: Keeper, sender: Any, seconds: float, deadline: float) -> None:
        self._keeper = keeper
        self._seconds = seconds
        self.sender = sender
        self.deadline = deadline
        self.is_cut = False

    def __enter__(self) -> None:
        keeper = self._keeper
        keeper._guards[id(self)] = self
        if keeper._stopped:  # looked at after entering: the last look at the guards may be over
            keeper._guards.pop(id(self), None)
            raise ValueError(CLOSED)
        if self.deadline < keeper._looks_at:
            keeper._woken.set()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._keeper._guards.pop(id(self), None)
        if not self.is_cut or not isinstance(error, Exception):
            return
        if self._keeper.is_stopped:
            raise ValueError(CLOSED) from error
        # The SDK says that the server closed the connection, which it did not.
        host = self.sender.fully_qualified_namespace
        raise OperationTimeoutError(
            message=f"{host!r} was silent for {self._seconds:g} seconds"
        ) from error


class Keeper:
    def __init__(
        self,
        name: str,
        *,
        clock: Callable[[], float],
        due: Callable[[], tuple[list[Chore], float | None]],
        do: Callable[[Chore], None],
    ) -> None:
        """`due` answers what is to be done now, and when next; `do` does one of it."""
        self._clock = clock
        self._due, self._do = due, do
        self._woken = threading.Event()
        # When it looks around next. Who must be freed earlier wakes it.
        self._looks_at = 0.0
        self._stopped = False
        self._guards: dict[int, Guard] = {}
        self._chores: set[threading.Thread] = set()
        self._waiting: deque[Chore] = deque()
        self._thread = threading.Thread(target=self._run, name=f"pairbus-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        """When it returns, no thread of it runs, unless one is stuck where nothing can reach it."""
        self._stopped = True
        self.wake()
        deadline = time.monotonic() + JOIN_SECONDS_MAX
        for thread in [*self._chores, self._thread]:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    def guard(self, sender: Any, seconds: float) -> Guard:
        return Guard(self, sender, seconds, self._clock() + seconds + GRACE_SECONDS)

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped:
            self._woken.clear()
            try:
                wait = self._turn()
            except Exception:
                logger.exception("the background of a paired client failed; it goes on")
                wait = 1.0
            self._woken.wait(wait)
        # Whoever is under way when the client closes would not be freed by anybody else, and may
        # get stuck again: the SDK tries anew.
        while self._cut(lambda deadline: True):
            time.sleep(CUT_AGAIN_SECONDS)

    def _turn(self) -> float:
        """Does what is due, and says for how long nothing will be."""
        self._looks_at = float("inf")  # who enters meanwhile wakes it again
        chores, next_due = self._due()
        self._waiting.extend(chores)
        soon: list[float] = []
        while self._waiting and len(self._chores) < CHORES_AT_ONCE_MAX:
            chore = self._waiting.popleft()
            thread = threading.Thread(
                target=self._run_chore, args=(chore,), name="pairbus-chore", daemon=True
            )
            self._chores.add(thread)
            try:
                thread.start()
            except RuntimeError:  # the system gives no more threads; later it may
                self._chores.discard(thread)
                self._waiting.appendleft(chore)
                logger.warning("no thread for %r; it is tried again", chore)
                soon.append(self._clock() + 1.0)
                break
        now = self._clock()
        self._cut(lambda deadline: deadline <= now)
        # One that is over already is cut again in a moment: the SDK may have begun a second try.
        soon += [max(each.deadline, now + GRACE_SECONDS) for each in list(self._guards.values())]
        if next_due is not None:
            soon.append(next_due)
        self._looks_at = min([*soon, now + LOOK_SECONDS_MAX])
        return max(0.0, self._looks_at - self._clock())

    def _run_chore(self, chore: Chore) -> None:
        try:
            if not self._stopped:
                self._do(chore)
        except Exception:
            logger.exception("%r failed", chore)
        finally:
            self._chores.discard(threading.current_thread())
            self.wake()

    def _cut(self, is_over: Callable[[float], bool]) -> bool:
        """Whether any guard stands whose time is over; those are cut."""
        over = [each for each in list(self._guards.values()) if is_over(each.deadline)]
        for guarded in over:
            guarded.is_cut = True  # first: who is woken looks at it at once
            internals.cut(guarded.sender)
        return bool(over)
