"""Peeks at backlog queues between rounds.

A page of 250 messages costs an operation or two, and nothing is locked.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from azure.core.exceptions import AzureError

from pairbus.fast.client import FastClient
from pairbus.fast.message import read_annotations_of
from pairbus.syphon.long_poll import ANSWER_SECONDS

logger = logging.getLogger("pairbus.syphon")

# Messages in a page, and pages per call. They limit how long a stop waits.
_PAGE = 250
_PAGES_MAX = 40


class BacklogPeek:
    def __init__(self, connect: Callable[..., FastClient], *, stopping: threading.Event) -> None:
        self._connect = connect
        self._stopping = stopping
        self._last_numbers: dict[str, int] = {}
        """The last sequence number of each queue that was peeked at."""

    def non_empty(self, queues: Iterable[str]) -> list[str]:
        """The queues that hold messages, locked or not. Raises AzureError."""
        with self._connect(timeout_seconds=ANSWER_SECONDS) as client:
            return [
                queue
                for queue in queues
                if not self._stopping.is_set() and client.management(queue).peek(0, 1)
            ]

    def without_arrivals(self, queues: Iterable[str]) -> list[str]:
        """Returns the queues in which no message has arrived since the last call.

        It omits a queue if that is unknown: in the first call, or if the secondary does not answer.
        """
        try:
            with self._connect(timeout_seconds=ANSWER_SECONDS) as client:
                return [queue for queue in queues if not self._has_arrivals(client, queue)]
        except AzureError as error:
            logger.info("cannot peek at the backlog queues: %s", error)
            return []

    def _has_arrivals(self, client: FastClient, queue: str) -> bool:
        has_arrivals = queue not in self._last_numbers
        management = client.management(queue)
        for _ in range(_PAGES_MAX):
            last = self._last_numbers.setdefault(queue, 0)
            if self._stopping.is_set() or not (page := management.peek(last + 1, _PAGE)):
                return has_arrivals
            numbers = [read_annotations_of(one).get("x-opt-sequence-number") for one in page]
            newest = max((one for one in numbers if isinstance(one, int)), default=0)
            has_arrivals = True
            if newest <= last:
                break  # the numbers of a partitioned queue have no order
            self._last_numbers[queue] = newest
        return True
