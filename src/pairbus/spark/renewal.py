"""Renews the locks of a batch while it is processed: a thread with a connection of its own.

A lock is renewed when half of its time is over, for as long as the options allow. A lost lock is
not renewed any more: its message is delivered again, and settling it raises an error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from azure.core.exceptions import AzureError
from azure.servicebus.exceptions import MessageLockLostError

from pairbus.fast.management import Management
from pairbus.fast.message import ReceivedMessage
from pairbus.spark.options import ReadOptions

log = logging.getLogger("pairbus.spark")

_LOCKS_MAX: Final = 200
_RETRY_SECONDS: Final = 2.0
_SECONDS_MIN: Final = 0.2
_GATHER_SECONDS: Final = 1.0
"""Locks that are due within this time of each other are renewed together."""


@dataclass(slots=True)
class _Lock:
    token: bytes
    due: float
    until: float
    give_up: float


class LockRenewal:
    def __init__(self, options: ReadOptions, *, clock: Callable[[], float] = time.time) -> None:
        self._options = options
        self._clock = clock
        self._locks: dict[bytes, _Lock] = {}
        self._changed = threading.Condition()
        self._is_stopped = False
        self._thread: threading.Thread | None = None

    def watch(self, received: Iterable[ReceivedMessage]) -> None:
        now = self._clock()
        with self._changed:
            for one in received:
                locked_until = one.locked_until
                if locked_until is not None:
                    until = locked_until.timestamp()
                    give_up = now + self._options.renewal_seconds
                    due = now + max(until - now, 0.0) / 2
                    self._locks[one.lock_token_bytes] = _Lock(
                        one.lock_token_bytes, due, until, give_up
                    )
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"renew {self._options.path}", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def forget(self, received: Iterable[ReceivedMessage]) -> None:
        with self._changed:
            for one in received:
                self._locks.pop(one.lock_token_bytes, None)

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._locks.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout=self._options.timeout_seconds)

    # -- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        options = self._options
        client = options.address.client(timeout_seconds=min(options.timeout_seconds, 15.0))
        management = client.management(options.path)
        try:
            while (tokens := self._next()) is not None:
                try:
                    self._renew(tokens, management)
                except MessageLockLostError:
                    for token in tokens:  # the service does not say which of them is lost
                        self._renew_one(token, management)
        finally:
            client.close()

    def _renew_one(self, token: bytes, management: Management) -> None:
        try:
            self._renew([token], management)
        except MessageLockLostError:
            with self._changed:
                self._locks.pop(token, None)

    def _renew(self, tokens: list[bytes], management: Management) -> None:
        """Raises MessageLockLostError. After any other error, it is tried again soon."""
        try:
            moments = management.renew_locks(tokens)
        except MessageLockLostError:
            raise
        except (AzureError, OSError) as error:
            log.warning("the locks of %r could not be renewed: %s", self._options.path, error)
            self._retry_later(tokens)
        else:
            self._renewed(tokens, moments)

    def _next(self) -> list[bytes] | None:
        """Wait for the locks that are due; None when it is stopped."""
        with self._changed:
            while not self._is_stopped:
                now = self._clock()
                for lock in [one for one in self._locks.values() if now >= one.give_up]:
                    del self._locks[lock.token]
                first = min((lock.due for lock in self._locks.values()), default=None)
                if first is not None and first <= now:
                    # The earliest first: short locks that were just renewed are due again soon.
                    soon = [one for one in self._locks.values() if one.due <= now + _GATHER_SECONDS]
                    soon.sort(key=lambda one: one.due)
                    return [one.token for one in soon[:_LOCKS_MAX]]
                self._changed.wait(None if first is None else min(first - now, 60.0))
            return None

    def _renewed(self, tokens: list[bytes], moments: list[datetime]) -> None:
        now = self._clock()
        with self._changed:
            for token, moment in zip(tokens, moments, strict=False):
                lock = self._locks.get(token)
                if lock is not None:
                    lock.until = moment.astimezone(UTC).timestamp()
                    lock.due = now + max(lock.until - now, _SECONDS_MIN) / 2

    def _retry_later(self, tokens: list[bytes]) -> None:
        with self._changed:
            for token in tokens:
                lock = self._locks.get(token)
                if lock is not None:
                    lock.due = self._clock() + _RETRY_SECONDS
                    if lock.due >= lock.until:
                        del self._locks[token]
