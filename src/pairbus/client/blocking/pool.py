"""Connections to backlog queues, each lent to one send at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from pairbus.client import pool as shelves
from pairbus.client.blocking.failing import QuickToFail
from pairbus.client.sdk import private as internals

logger = logging.getLogger("pairbus.client")

CLOSE_SECONDS_MAX = 10.0


class BacklogSender(QuickToFail):
    """The SDK's, but that a failure is told at once."""

    def _handle_exception(self, exception: BaseException) -> ServiceBusError:
        error = super()._handle_exception(exception)
        internals.raise_if_busy(error)  # how long to wait for a busy service is decided elsewhere
        return error


Lane = shelves.Lane[BacklogSender]


class Lanes:
    def __init__(
        self, client: Any, *, handshake_seconds: float, clock: Callable[[], float]
    ) -> None:
        self._client = internals.twin_of(client)
        self._clock = clock
        self._tls = internals.tls_for(client, handshake_seconds)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._shelves: shelves.Shelves[BacklogSender] = shelves.Shelves(self._new_sender)
        self._is_closed = False
        self._closers: set[threading.Thread] = set()

    @property
    def limits(self) -> tuple[int, int]:
        return self._shelves.limits

    def borrow(self, queue: str, *, timeout: float, fresh: bool = False) -> Lane:
        """An idle lane, or a new one that is not open yet. `fresh`: a new one at any rate."""
        internals.check_client_open(self._client)
        deadline = self._clock() + timeout
        with self._changed:
            discarded = self._shelves.clear(queue) if fresh else []
            while (lane := None if self._is_closed else self._shelves.take(queue)) is None:
                if self._is_closed:
                    raise ValueError("the paired client has been closed")
                self._waiting += 1
                try:
                    if not self._changed.wait(max(0.0, deadline - self._clock())):
                        raise shelves.AllBusy(queue, timeout)
                finally:
                    self._waiting -= 1
        self._end(discarded)
        return lane

    def borrow_at_once(self, queue: str) -> Lane | None:
        """An idle lane that is open; None: there is none, and `borrow` says more."""
        if internals.is_client_closed(self._client):
            return None
        with self._lock:
            return None if self._is_closed else self._shelves.take_open(queue)

    def give_back(self, lane: Lane, *, is_usable: bool) -> None:
        with self._lock:
            is_usable = is_usable and not self._is_closed
            self._shelves.put_back(lane, is_usable=is_usable, now=self._clock())
            if self._waiting:
                self._changed.notify_all()  # one alone might wait for another queue's
        if not is_usable:
            self._end([lane])

    def has_ready(self, queue: str) -> bool:
        with self._changed:
            return self._shelves.has_ready(queue)

    def trim(self, *, keep: frozenset[str]) -> None:
        with self._changed:
            gone = self._shelves.trim(keep=keep, now=self._clock())
        self._end(gone)

    def drop(self) -> None:
        """Ends all lanes, those that are lent too: what is sent on them fails."""
        with self._changed:
            idle, lent = self._shelves.empty()
            self._changed.notify_all()
        for lane in lent:
            internals.cut(lane.sender)
        self._end(idle)

    def close(self) -> None:
        """For good. When it returns, they are closed."""
        self._is_closed = True
        self.drop()
        deadline = time.monotonic() + CLOSE_SECONDS_MAX
        while (closers := list(self._closers)) and time.monotonic() < deadline:
            for thread in closers:
                if thread.is_alive():  # one that was added just now is not started yet
                    thread.join(max(0.0, deadline - time.monotonic()))

    def _end(self, lanes: Iterable[Lane]) -> None:
        """In threads of their own: the SDK takes a second to close one, and a send would wait."""
        for lane in lanes:
            thread = threading.Thread(target=self._close_one, args=(lane,), daemon=True)
            self._closers.add(thread)
            try:
                thread.start()
            except RuntimeError:  # the system gives no more threads
                self._closers.discard(thread)
                self._close_one(lane)

    def _close_one(self, lane: Lane) -> None:
        try:
            lane.sender.close()
        except Exception as error:  # its connection is gone already; nothing is lost with it
            logger.debug("closing a connection to %s: %r", lane.queue, error)
        finally:
            self._closers.discard(threading.current_thread())

    def _new_sender(self, queue: str) -> BacklogSender:
        # Not the client's own method: a secondary that is itself paired would divert the diverted.
        made = ServiceBusClient.get_queue_sender(self._client, queue)
        sender = internals.adopt(made, BacklogSender)
        internals.use_tls(sender, self._tls)
        return sender
