"""The idle wait: one long poll of 15 minutes for each empty backlog queue, all on one connection,
or on a few if there are hundreds of queues.

A message that arrives ends the poll of its queue. The message is released, and a round brings it
home. The polls of the other queues continue, even while rounds run for queues whose messages have
to wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from azure.core.exceptions import AzureError

from pairbus.fast.client import FastClient
from pairbus.fast.connection import attach_each
from pairbus.fast.errors import SettleFailed
from pairbus.fast.receiver import Receiver, stop_all, wait_for_any

logger = logging.getLogger("pairbus.syphon")

# A poll that ends without a message is billed as one receive: 4 an hour for each queue.
LONG_POLL_SECONDS = 15 * 60.0
# How long the driver waits for an answer. A stop waits this long if a namespace does not answer.
ANSWER_SECONDS = 3.0
# The connection is cut if a link takes longer to close.
CLOSE_SECONDS = 1.0
# A queue that cannot be polled is skipped for this long. The others are polled.
SKIP_SECONDS = 5.0
# A poll is a link. Brokers limit the number of links on a connection, ours to 256.
QUEUES_MAX = 200


class LongPolls:
    """Use it in one thread. An AzureError means that the secondary fails: call again later."""

    def __init__(
        self,
        connect: Callable[..., FastClient],
        *,
        poll_seconds: float,
        stopping: threading.Event,
        clock: Callable[[], float],
    ) -> None:
        """`connect` makes a client of the secondary, as `Address.client` does."""
        self._new_connection = partial(
            PollConnection, connect, poll_seconds=poll_seconds, stopping=stopping, clock=clock
        )
        self._connections = [self._new_connection()]

    def wait_for_messages(self, queues: Iterable[str], *, seconds: float) -> list[str]:
        """Returns the queues with a message, as soon as there is one. Their polls have ended.

        If there are several connections, each gets its share of the time.
        """
        shares = self._shares(tuple(queues))
        found: list[str] = []
        for connection, share in zip(self._connections, shares, strict=True):
            wait = 0.0 if found else seconds / len(shares)
            try:
                found += connection.wait_for_messages(share, seconds=wait)
            except AzureError:
                if not found:  # otherwise the next call raises it: what was found can come home
                    raise
        return found

    def _shares(self, queues: tuple[str, ...]) -> list[list[str]]:
        """The queues of each connection. A queue stays where its poll is."""
        shares = [[each for each in queues if each in one.polled] for one in self._connections]
        polled = set[str]().union(*shares)
        for queue in [each for each in queues if each not in polled]:
            share = next((some for some in shares if len(some) < QUEUES_MAX), None)
            if share is None:
                self._connections.append(self._new_connection())
                shares.append(share := [])
            share.append(queue)
        return shares

    def close(self) -> None:
        """Release the messages that have arrived, if the secondary answers soon. Never raises."""
        for connection in self._connections:
            connection.close()


class PollConnection:
    """The polls on one connection."""

    def __init__(
        self,
        connect: Callable[..., FastClient],
        *,
        poll_seconds: float,
        stopping: threading.Event,
        clock: Callable[[], float],
    ) -> None:
        self._connect = connect
        self._poll_seconds = poll_seconds
        self._stopping = stopping
        self._clock = clock
        self._client: FastClient | None = None
        self._receivers: dict[str, Receiver] = {}
        self._began: dict[str, float] = {}
        self._skipped_until: dict[str, float] = {}
        self._last_errors: dict[str, type[Exception]] = {}

    @property
    def polled(self) -> Collection[str]:
        return self._receivers.keys()

    def wait_for_messages(self, queues: Sequence[str], *, seconds: float) -> list[str]:
        try:
            self._attach(queues)
            if not self._receivers:
                self._stopping.wait(seconds)
                return []
            seen = wait_for_any(list(self._receivers.values()), max_wait_seconds=seconds)
            found = [receiver.path for receiver in seen if self._has_message(receiver)]
            self._renew()
            return found
        except AzureError:
            self.close()
            raise

    def close(self) -> None:
        client, self._client = self._client, None
        self._receivers.clear()
        self._began.clear()
        if client is not None:
            with _cut_after(client, CLOSE_SECONDS):
                client.close()

    def _attach(self, queues: Sequence[str]) -> None:
        """Polls these queues, and no others. The new links are attached all at once: the secondary
        may be far away.
        """
        for queue in [each for each in self._receivers if each not in queues]:
            self._end(queue)
        now = self._clock()
        new = [
            queue
            for queue in queues
            if queue not in self._receivers and self._skipped_until.get(queue, 0.0) <= now
        ]
        if not new or self._stopping.is_set():
            return
        if self._client is None:
            self._client = self._connect(timeout_seconds=ANSWER_SECONDS)
        # The message that ends a poll is the only one that is received, locked and billed.
        receivers = [self._client.receiver(queue, credit=1, at_most=1) for queue in new]
        for receiver, error in zip(receivers, attach_each(receivers), strict=True):
            if error is not None:
                receiver.close()
                self._skip_for_a_while(receiver.path, error)
            else:
                self._receivers[receiver.path] = receiver
                self._began[receiver.path] = now
                self._last_errors.pop(receiver.path, None)

    def _has_message(self, receiver: Receiver) -> bool:
        """Whether a message has arrived. If so, the poll has ended. If not, the service has ended
        the link, and the poll starts again.
        """
        queue = receiver.path
        try:
            messages = receiver.receive(1, max_wait_seconds=0.0)
            if messages:
                receiver.release(messages)
        except SettleFailed:
            pass  # its lock has expired, but the message is there
        except AzureError as error:
            self._end(queue)
            self._skip_for_a_while(queue, error)
            return False
        if messages:
            self._end(queue)
        else:
            self._began[queue] = self._clock()
        return bool(messages)

    def _skip_for_a_while(self, queue: str, error: Exception) -> None:
        """Skip a queue that is at fault. If the connection is at fault, raise: all queues are
        affected.
        """
        if self._client is None or not self._client.is_open:
            raise error
        self._skipped_until[queue] = self._clock() + SKIP_SECONDS
        if self._last_errors.get(queue) is not type(error):  # once, and not every few seconds
            self._last_errors[queue] = type(error)
            logger.warning("cannot poll backlog queue %s: %s", queue, error)

    def _end(self, queue: str) -> None:
        assert self._client is not None
        del self._began[queue]
        with _cut_after(self._client, CLOSE_SECONDS):
            self._receivers.pop(queue).close()

    def _renew(self) -> None:
        """Restart the polls that have ended without a message, all at once. Most began together."""
        now = self._clock()
        due = [queue for queue in self._receivers if now - self._began[queue] >= self._poll_seconds]
        if due:
            assert self._client is not None
            with _cut_after(self._client, CLOSE_SECONDS):
                stop_all([self._receivers[queue] for queue in due])
            self._began |= dict.fromkeys(due, self._clock())


@contextmanager
def _cut_after(client: FastClient, seconds: float) -> Iterator[None]:
    """If the service does not answer, the connection is at fault, and not one queue."""
    timer = threading.Timer(seconds, client.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
