"""The quiet wait: one long poll for each backlog queue that is empty, all on one connection.

A message that arrives ends the poll of its queue: it is released, and a round will take it. The
polls of the other queues go on, also while rounds run for queues whose messages have to wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from azure.core.exceptions import AzureError

from pairbus.fast.client import FastClient
from pairbus.fast.errors import SettleFailed
from pairbus.fast.message import read_annotations_of
from pairbus.fast.receiver import Receiver, wait_for_any

logger = logging.getLogger("pairbus.syphon")

# The most that an answer is waited for. A stop has to wait that long, if nobody is there.
ANSWER_SECONDS = 3.0
# A goodbye that takes longer is none: the connection is cut.
FAREWELL_SECONDS = 1.0
# A queue that cannot be watched is left alone for so long, and the others are watched.
ASIDE_SECONDS = 5.0
# Messages in a page, and pages in one go: a stop waits for no more.
_PAGE = 250
_PAGES_MAX = 40


class Watch:
    """For one thread. An AzureError of it is trouble with the secondary: call again later."""

    def __init__(
        self,
        connect: Callable[..., FastClient],
        *,
        poll_seconds: float,
        stopping: threading.Event,
        clock: Callable[[], float],
    ) -> None:
        """`connect` makes a client of the secondary; `Address.client` does."""
        self._connect = connect
        self._poll_seconds = poll_seconds
        self._stopping = stopping
        self._clock = clock
        self._client: FastClient | None = None
        self._polls: dict[str, Receiver] = {}
        self._polled: dict[str, float] = {}
        self._aside: dict[str, float] = {}
        self._told: dict[str, str] = {}

    def look(self, queues: Iterable[str], *, seconds: float) -> list[str]:
        """Those of these queues that have a message now; waits for one. Their polls have ended."""
        try:
            self._attach(tuple(queues))
            if not self._polls:
                self._stopping.wait(seconds)
                return []
            seen = wait_for_any(list(self._polls.values()), max_wait_seconds=seconds)
            found = [receiver.path for receiver in seen if self._has_message(receiver)]
            self._renew()
            return found
        except AzureError:
            self.close()
            raise

    def close(self) -> None:
        """What has arrived is released, if the secondary takes it back soon. Never raises."""
        client, self._client = self._client, None
        self._polls.clear()
        self._polled.clear()
        if client is not None:
            with _cut_after(client, FAREWELL_SECONDS):
                client.close()

    def _attach(self, queues: tuple[str, ...]) -> None:
        for queue in [each for each in self._polls if each not in queues]:
            self._end(queue)
        for queue in queues:
            if queue in self._polls or self._aside.get(queue, 0.0) > self._clock():
                continue
            if self._stopping.is_set():
                return
            self._begin(queue)

    def _begin(self, queue: str) -> None:
        if self._client is None:
            self._client = self._connect(timeout_seconds=ANSWER_SECONDS)
        receiver = self._client.receiver(queue, credit=1)
        try:
            wait_for_any([receiver], max_wait_seconds=0.0)
        except AzureError as error:
            self._put_aside(queue, error)
        else:
            self._polls[queue] = receiver
            self._polled[queue] = self._clock()
            self._told.pop(queue, None)

    def _has_message(self, receiver: Receiver) -> bool:
        """If so, its poll is over. If not, the service has ended its link, and it begins anew."""
        queue = receiver.path
        try:
            messages = receiver.receive(1, max_wait_seconds=0.0)
            if messages:
                receiver.release(messages)
        except SettleFailed:
            pass  # its lock has run out: it is there all the same
        except AzureError as error:
            self._end(queue)
            self._put_aside(queue, error)
            return False
        if messages:
            self._end(queue)
        else:
            self._polled[queue] = self._clock()
        return bool(messages)

    def _put_aside(self, queue: str, error: AzureError) -> None:
        """Where it is the queue; if it is the secondary, all of them have that trouble."""
        if self._client is None or not self._client.is_open:
            raise error
        self._aside[queue] = self._clock() + ASIDE_SECONDS
        if self._told.get(queue) != str(error):
            self._told[queue] = str(error)
            logger.warning("backlog queue %s cannot be watched: %s", queue, error)

    def _end(self, queue: str) -> None:
        assert self._client is not None
        del self._polled[queue]
        with _cut_after(self._client, FAREWELL_SECONDS):
            self._polls.pop(queue).close()

    def _renew(self) -> None:
        """Polls that have ended without a message begin anew."""
        for queue, receiver in self._polls.items():
            if self._clock() - self._polled[queue] < self._poll_seconds:
                continue
            assert self._client is not None
            with _cut_after(self._client, FAREWELL_SECONDS):
                receiver.stop()
            self._polled[queue] = self._clock()


class Tails:
    """Where queues end, to see whether something has come since. By peeking: hundreds of messages
    for an operation or two, and nothing is locked."""

    def __init__(self, connect: Callable[..., FastClient], *, stopping: threading.Event) -> None:
        self._connect = connect
        self._stopping = stopping
        self._tails: dict[str, int] = {}

    def without_news(self, queues: Iterable[str]) -> list[str]:
        """Those to which nothing has come since this was last asked. The first time nobody knows,
        nor where there is trouble."""
        try:
            with self._connect(timeout_seconds=ANSWER_SECONDS) as client:
                return [queue for queue in queues if not self._has_news(client, queue)]
        except AzureError as error:
            logger.info("whether something has come cannot be seen: %s", error)
            return []

    def _has_news(self, client: FastClient, queue: str) -> bool:
        has_news = queue not in self._tails
        management = client.management(queue)
        for _ in range(_PAGES_MAX):
            at = self._tails.setdefault(queue, 0)
            if self._stopping.is_set() or not (page := management.peek(at + 1, _PAGE)):
                return has_news
            numbers = [read_annotations_of(one).get("x-opt-sequence-number") for one in page]
            last = max((one for one in numbers if isinstance(one, int)), default=0)
            has_news = True
            if last <= at:
                break  # numbers that tell no order
            self._tails[queue] = last
        return True


@contextmanager
def _cut_after(client: FastClient, seconds: float) -> Iterator[None]:
    """Nobody answers: that is a matter of the connection, and not of one queue."""
    timer = threading.Timer(seconds, client.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
