"""A pairing in the blocking shell: its connection pool, its background worker, and the waits of
`client/tasks.py`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from azure.servicebus import ServiceBusClient

from pairbus.client import tasks
from pairbus.client.blocking.background import BackgroundWorker
from pairbus.client.blocking.pool import ConnectionPool, PromptSender
from pairbus.client.outbox_file import OutboxFile
from pairbus.client.pairing import PairingCore
from pairbus.client.reentrant_event import ReentrantEvent
from pairbus.client.route.plans import BackgroundTask, Ping
from pairbus.client.state import state_of
from pairbus.client.steps import Result, run
from pairbus.client.timing import GRACE_SECONDS

logger = logging.getLogger("pairbus.client")


class Pairing(PairingCore):
    """What `client.pairing` is."""

    pool: ConnectionPool
    sdk_client = ServiceBusClient
    sender_class = PromptSender

    def make_parts(self) -> None:
        self.pool = ConnectionPool(
            lambda queue: self.new_sender(self.secondary_client, queue),
            client=self.options.messaging_factory,
            clock=self.clock,
        )
        self.worker = BackgroundWorker(
            self.namespace, clock=self.clock, take_due=self.take_due_tasks, perform=self.perform
        )
        self.closing = ReentrantEvent()

    def start(self) -> None:
        """Raises if the outbox cannot be used, or if the secondary accepts no connection."""
        self.open_outbox()
        self.worker.start()
        run(tasks.start(self))

    def follow_secondary(self) -> None:
        """If the secondary's client is a pairbus client and is closed, its connections are closed
        too.
        """
        state = state_of(self.options.messaging_factory)
        if state is not None:
            state.listen(self, lambda reason: self.pool.drop())

    def wake(self) -> None:
        self.worker.wake()

    def close(self) -> None:
        """Stop the pings and close the connections to the secondary. When this returns, no thread
        or socket is left.
        """
        # Each step can be repeated, because an earlier call may have been interrupted.
        self.closing.set()
        self.close_router()
        self.worker.stop()
        self.pool.close()
        if self.outbox is not None:
            self.outbox.close()

    # --- for the tasks ----------------------------------------------------------------------------

    def perform(self, task: BackgroundTask) -> None:
        run(tasks.steps_of(self, task))

    def new_sender(self, client: Any, path: str) -> PromptSender:
        sender: PromptSender = super().new_sender(client, path)
        sender.handshake_seconds = self.timing.send_seconds
        return sender

    def open_link(self, sender: Any, seconds: float, path: str) -> None:
        with self.worker.deadline(sender, seconds):
            sender.__enter__()

    def within(self, sender: Any, seconds: float, what: str, call: Callable[[], Any]) -> Any:
        with self.worker.deadline(sender, seconds):
            return call()

    def open_early(self, senders: Sequence[Any], ping: Ping) -> None:
        threads = []
        for sender in senders:
            thread = threading.Thread(
                target=self._open_one_early, args=(sender, ping), name="pairbus-task", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # the system gives no more threads
                break
            threads.append(thread)
        # Each thread has a deadline, so by then it has ended. The exception is a sender that is
        # closed in the moment in which the deadline cannot reach its socket; do not wait for that
        # one.
        deadline = time.monotonic() + self.timing.link_seconds + GRACE_SECONDS + 1.0
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _open_one_early(self, sender: Any, ping: Ping) -> None:
        try:
            sender.open_early(ping.epoch + 1, self)
        except Exception as error:
            logger.debug("opening a link to %s failed: %r", ping.path, error)

    def on_disk(self, work: Callable[[OutboxFile], Result]) -> Result:
        """What waits for the disk."""
        assert self.outbox is not None
        return work(self.outbox.file)
