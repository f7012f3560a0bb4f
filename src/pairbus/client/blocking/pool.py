"""Connections to backlog queues, each lent to one send at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from azure.servicebus import ServiceBusSender

from pairbus.client.pool import BacklogConnection, PoolExhausted, PoolState
from pairbus.client.sdk import private
from pairbus.client.state import check_open

logger = logging.getLogger("pairbus.client")

CLOSE_SECONDS_MAX = 10.0


class PromptSender(private.PromptFailures, ServiceBusSender):  # type: ignore[misc]
    """The SDK's sender for pings and backlog queues: it reports a failure at once."""

    handshake_seconds: float | None = None


Connection = BacklogConnection[PromptSender]


class ConnectionPool:
    def __init__(
        self, make: Callable[[str], PromptSender], *, client: Any, clock: Callable[[], float]
    ) -> None:
        """`make` makes a sender for a backlog queue; `client` is the secondary's."""
        self._client = client
        self._clock = clock
        # `with` takes the lock and not the condition, as in `ReentrantEvent`.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._state: PoolState[PromptSender] = PoolState(make)
        self._is_closed = False
        self._closers: set[threading.Thread] = set()

    @property
    def batch_bytes_max(self) -> int:
        return self._state.batch_bytes_max

    def borrow(
        self, queue: str, seconds: float, *, is_fresh: bool = False, call: object = None
    ) -> Connection:
        """Returns an idle connection, or a new one that is not open yet. With `is_fresh`, the idle
        ones are closed first: one of them has just failed. If `call` is gone before the connection
        is given back, `trim` closes the connection.
        """
        check_open(self._client)
        if is_fresh:
            with self._lock:
                self._state.clear(queue)
            self._close_ended()
        deadline, place = self._clock() + seconds, object()
        with self._lock:
            try:
                while not self._is_closed:
                    connection = self._state.take(queue, place, call=call)
                    if connection is not None:
                        return connection
                    if not self._changed.wait(max(0.0, deadline - self._clock())):
                        raise PoolExhausted(queue, seconds)
                raise ValueError("the paired client has been closed")
            finally:
                if self._state.stop_waiting(queue, place):
                    self._changed.notify_all()  # the next in line may get another one

    def give_back(self, connection: Connection, *, is_usable: bool) -> None:
        with self._lock:
            is_usable = is_usable and not self._is_closed
            self._state.put_back(connection, is_usable=is_usable, now=self._clock())
            self._changed.notify_all()  # notify all: a single waiter might wait for another queue
        self._close_ended()

    def has_ready(self, queue: str) -> bool:
        with self._lock:
            return self._state.has_ready(queue)

    def trim(self, *, keep: frozenset[str]) -> None:
        """Close connections that were idle for too long, except one for each queue in `keep`, and
        those that an interrupted call has left.
        """
        with self._lock:
            self._state.trim(keep=keep, now=self._clock())
        self._close_ended()

    def drop(self) -> None:
        """Close all connections. A send that is using one of them fails."""
        with self._lock:
            self._state.clear_all()
            lent = self._state.lent
            self._changed.notify_all()
        for connection in lent:
            private.cut(connection.sender)
        self._close_ended()

    def close(self) -> None:
        """Close the pool for good. When this returns, the idle connections are closed."""
        self._is_closed = True
        self.drop()
        deadline = time.monotonic() + CLOSE_SECONDS_MAX
        while (closers := list(self._closers)) and time.monotonic() < deadline:
            for thread in closers:
                if thread.is_alive():  # a thread that was just added has not started yet
                    thread.join(max(0.0, deadline - time.monotonic()))

    def close_soon(self, sender: Any) -> None:
        """Close a sender or a receiver on another thread: the SDK takes a second for it, and a send
        would wait.
        """
        thread = threading.Thread(target=self._close_one, args=(sender,), daemon=True)
        try:
            self._closers.add(thread)
            thread.start()
        except RuntimeError:  # the system gives no more threads
            self._closers.discard(thread)
            self._close_one(sender)
        except BaseException:
            self._closers.discard(thread)  # after a Ctrl-C, it may never start: `close` would wait
            raise

    def _close_ended(self) -> None:
        with self._lock:
            while self._state.ended:
                self.close_soon(self._state.ended[0].sender)
                self._state.ended.pop(0)

    def _close_one(self, sender: Any) -> None:
        try:
            sender.close()
        except Exception as error:  # the connection is already gone, and nothing is lost with it
            logger.debug("closing %s failed: %r", sender, error)
        finally:
            self._closers.discard(threading.current_thread())
