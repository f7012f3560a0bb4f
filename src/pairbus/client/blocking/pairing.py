"""A pairing in the blocking shell: its connection pool and its background worker, which pings and
probes."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from azure.servicebus import ServiceBusClient

from pairbus.client.blocking.background import BackgroundWorker
from pairbus.client.blocking.pool import ConnectionPool, PromptSender
from pairbus.client.outbox import drain
from pairbus.client.outbox_file import OutboxFile
from pairbus.client.pairing import PairingCore
from pairbus.client.route.plans import BackgroundTask, Drain, PeekBacklog, Ping
from pairbus.client.sdk import private
from pairbus.client.sdk.backlog_queues import BacklogQueues
from pairbus.client.sdk.messages import ping_message
from pairbus.client.state import state_of
from pairbus.client.steps import OnDisk, SendStored, run
from pairbus.client.timing import GRACE_SECONDS, PEEK_PAGE
from pairbus.options import SendAvailabilityPairedNamespaceOptions

logger = logging.getLogger("pairbus.client")

Result = TypeVar("Result")


class Pairing(PairingCore):
    """What `client.pairing` is."""

    def __init__(
        self,
        client: ServiceBusClient,
        options: SendAvailabilityPairedNamespaceOptions,
        backlog: BacklogQueues,
        *,
        sender_class: Any = None,
    ) -> None:
        """`sender_class`: the paired sender, which also sends what waits in the outbox."""
        super().__init__(client, options, backlog)
        self._sender_class = sender_class
        self._primary = private.with_own_handlers(client)
        self._secondary = private.with_own_handlers(options.messaging_factory)
        self.pool: ConnectionPool = ConnectionPool(
            self._new_sender, client=options.messaging_factory, clock=self.clock
        )
        self.worker = BackgroundWorker(
            self.namespace, clock=self.clock, take_due=self.take_due_tasks, perform=self.perform
        )
        self.closing = threading.Event()

    def start(self) -> None:
        """Raises if the secondary accepts no connection. The connection stays open, except with
        `lazy` in the options.
        """
        self.worker.start()
        queue = random.choice(self.backlog_queues)
        try:
            self._open_connection(queue, is_kept=self.is_ready_mode)
        except Exception as error:
            raise self.not_connected(queue, error) from error
        if self.is_ordered:
            try:
                self._peek_page(queue, from_sequence=1, count=1)
            except Exception as error:
                raise self.not_readable(queue, error) from error

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
        state = state_of(self.options.messaging_factory)
        if state is not None:
            state.forget(self)
        self.worker.stop()
        self.pool.close()
        if self.outbox is not None:
            self.outbox.close()

    # --- what the worker runs ---------------------------------------------------------------------

    def perform(self, task: BackgroundTask) -> None:
        if isinstance(task, Ping):
            self._ping(task)
        elif isinstance(task, Drain):
            self._drain(task)
        elif isinstance(task, PeekBacklog):
            self._peek(task)
        else:
            self._probe(task.queue)

    def _ping(self, ping: Ping) -> None:
        if not self.is_wanted(ping):
            return
        seconds = self.timing.task_seconds
        sender = PromptSender.of(
            self._primary, ping.path, handshake_seconds=self.timing.send_seconds
        )
        private.set_retries(sender, 0)
        try:
            with self.worker.deadline(sender, seconds):
                if self.options.ping_mode == "link":
                    sender.__enter__()
                else:
                    sender.send_messages(ping_message(), timeout=seconds)
        except Exception as error:
            self.ping_ended(ping, error)
        else:
            # Report first, then close: closing the sender takes up to a second and would delay the
            # failback.
            self._open_links(ping)
            self.ping_ended(ping, None)
        finally:
            sender.close()

    def _open_links(self, ping: Ping) -> None:
        """Open links for the senders that are about to send to the primary again, while their
        messages are still diverted. The failback does not depend on it: the ping was answered."""
        threads = []
        for sender in self.senders_to_open(ping):
            thread = threading.Thread(
                target=self._open_link, args=(sender, ping), name="pairbus-task", daemon=True
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

    def _open_link(self, sender: Any, ping: Ping) -> None:
        try:
            sender.open_early(ping.epoch + 1, self)
        except Exception as error:
            logger.debug("opening a link to %s failed: %r", ping.path, error)

    def _peek(self, peek: PeekBacklog) -> None:
        try:
            messages = self._peek_page(peek.queue, from_sequence=peek.from_sequence)
        except Exception as error:
            self.peek_failed(peek, error)
        else:
            self.peeked(peek, messages)

    def _peek_page(self, queue: str, *, from_sequence: int, count: int = PEEK_PAGE) -> list[Any]:
        seconds = self.timing.task_seconds
        receiver = ServiceBusClient.get_queue_receiver(self._secondary, queue)
        private.grant_no_credit(receiver)
        private.set_retries(receiver, 0)
        try:
            with self.worker.deadline(receiver, seconds):
                return receiver.peek_messages(
                    count, sequence_number=max(1, from_sequence), timeout=seconds
                )
        finally:
            receiver.close()

    def _probe(self, queue: str) -> None:
        try:
            self._open_connection(queue)
        except Exception as error:
            self.probe_ended(queue, error)
        else:
            self.probe_ended(queue, None)

    def on_disk(self, work: Callable[[OutboxFile], Result]) -> Result:
        """What waits for the disk."""
        assert self.outbox is not None
        return work(self.outbox.file)

    def _drain(self, task: Drain) -> None:
        assert self.outbox is not None
        path = self.outbox.file.entities[task.path]
        sender = self._sender_class.of(self._primary, path, self._state)
        failure: Exception | None = None
        try:
            steps = drain(self.outbox, task)
            run(steps, lambda step: self._perform_drain(sender, step))
        except Exception as error:
            failure = error
        finally:
            self.outbox.drain_ended(task, failure)
            sender.close()

    def _perform_drain(self, sender: Any, step: OnDisk | SendStored) -> Any:
        if isinstance(step, OnDisk):
            return self.on_disk(step.work)
        return sender.send_stored(self, step.messages)

    def _open_connection(self, queue: str, *, is_kept: bool = True) -> None:
        seconds = self.timing.task_seconds
        connection = self.pool.borrow(queue, seconds, is_fresh=True)
        private.set_retries(connection.sender, 0)
        is_open = False
        try:
            with self.worker.deadline(connection.sender, seconds):
                connection.sender.__enter__()
            is_open = is_kept
        finally:
            self.pool.give_back(connection, is_usable=is_open)

    def _new_sender(self, queue: str) -> PromptSender:
        return PromptSender.of(self._secondary, queue, handshake_seconds=self.timing.send_seconds)
