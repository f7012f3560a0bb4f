"""What a paired client knows and decides, in either shell: one router under one lock.

The router makes every decision. The lock is held during a decision and never during a wait;
observers are notified after it is released. The shells add the I/O: connections to backlog queues
(`pool.py`), the background worker (`background.py`), and the steps of a send (`sender.py`).
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from pairbus.client import checks
from pairbus.client.billing import BilledUnits
from pairbus.client.observers import Observers
from pairbus.client.outbox import ClientOutbox
from pairbus.client.outbox_file import OutboxFile
from pairbus.client.route.plans import (
    BackgroundTask,
    Nowhere,
    PeekBacklog,
    Ping,
    Plan,
    Probe,
    ToBacklog,
    Way,
)
from pairbus.client.route.router import Router
from pairbus.client.route.status import PairingStatus, SyphonStatus
from pairbus.client.sdk import private
from pairbus.client.sdk.backlog_queues import BacklogQueues
from pairbus.client.sdk.failures import is_unreachable
from pairbus.client.sdk.messages import body_bytes, peeked_page
from pairbus.client.sdk.pairing_errors import PairingError
from pairbus.client.state import state_of
from pairbus.client.timing import (
    FIRST_PING_PHASE_MIN,
    QUEUE_REST_SECONDS,
    READY_RETRY_SECONDS,
    Timing,
)
from pairbus.cost.meter import MeterReading
from pairbus.errors import OutboxError
from pairbus.events import Event, Observer, Paired
from pairbus.options import SendAvailabilityPairedNamespaceOptions

logger = logging.getLogger("pairbus.pairing")

# At most this many senders get a new link before their entity fails back. The others open theirs on
# the next send.
EARLY_LINKS_MAX = 16


class PairingCore:
    """The base class of `client.pairing`, without the I/O of the shells."""

    pool: Any
    """The shell's connections to backlog queues."""
    sdk_client: Any
    """The SDK's client class. Its methods are called unbound: the sender of a paired client
    would divert messages.
    """

    # In asyncio, these are awaited. `within(sender, seconds, what, call)` limits how long a call
    # may take.
    open_link: Callable[[Any, float, str], Any]
    within: Callable[[Any, float, str, Callable[[], Any]], Any]
    open_early: Callable[[Sequence[Any], Ping], Any]
    on_disk: Callable[[Callable[[OutboxFile], Any]], Any]

    sender_class: Any
    """The SDK's sender, for pings and backlog queues: it reports a failure at once."""

    def __init__(
        self,
        client: Any,
        options: SendAvailabilityPairedNamespaceOptions,
        backlog: BacklogQueues,
        *,
        paired_sender_class: Any = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`paired_sender_class` also sends what waits in the outbox."""
        self.options = options
        self.namespace = checks.namespace_name(client, options)
        self.secondary = options.messaging_factory.fully_qualified_namespace
        self.backlog_queues = backlog.queues
        self.clock = clock
        self.timing = Timing.of(options, retries=private.retries_of(client))
        self.is_ordered = options.fail_back == "ordered"
        self.is_ready_mode = options.secondary_connections == "ready"

        # The application's `close` does not close the senders and receivers of these.
        self.primary_client = private.with_own_handlers(client)
        self.secondary_client = private.with_own_handlers(options.messaging_factory)
        self._paired_sender_class = paired_sender_class
        self._token = uuid4().hex[:16]
        """Marks the messages that this client diverts."""
        self._backlog = backlog
        self._state = state_of(client)
        self._process_id = os.getpid()
        # Reentrant: a signal handler may send or read the status while its thread holds the lock.
        self._lock = threading.RLock()
        self._router = Router(
            self.namespace,
            backlog.queues,
            failover_seconds=self.timing.failover_seconds,
            ping_seconds=self.timing.ping_seconds,
            rest_seconds=QUEUE_REST_SECONDS,
            choose=random.choice,
            fails_over_together=options.failover_scope == "namespace",
            fail_back_pings=options.fail_back_pings,
            phase=lambda: random.uniform(FIRST_PING_PHASE_MIN, 1.0),
            is_ordered=self.is_ordered,
            wait_seconds_max=self.timing.fail_back_wait_seconds,
        )
        self._observers = Observers(
            self.namespace,
            primary=client.fully_qualified_namespace,
            secondary=self.secondary,
            observers=options.observers,
        )
        self._backlog_retries = private.retries_of(options.messaging_factory)
        self._billed = BilledUnits()
        self._began = time.time()
        self._is_announced = False
        self._syphon: SyphonStatus | None = None
        self.outbox: ClientOutbox | None = None
        if options.outbox is not None:
            self.outbox = ClientOutbox(
                options.outbox,
                namespace=self.namespace,
                clock=clock,
                notify=lambda event: self._observers.notify([event]),
            )
        # By backlog queue: when to retry a connection that could not be opened in advance.
        self._ready_retry_at: dict[str, float] = {}
        self.make_parts()

    def make_parts(self) -> None:
        """For the shell: make its pool and its background worker."""

    # --- what an application sees -----------------------------------------------------------------

    def status(self) -> PairingStatus:
        """A snapshot of every entity, of the rotation of backlog queues, of the pings, of the
        syphon in this process, and of the outbox.
        """
        outbox = None if self.outbox is None else self.outbox.status()
        with self._lock:
            began = time.time() - self.clock()  # when the router's clock was at 0
            status = self._router.status(
                secondary=self.secondary,
                date=lambda moment: datetime.fromtimestamp(began + moment, UTC),
            )
            return replace(status, syphon=self._syphon, outbox=outbox)

    def spent(self) -> tuple[MeterReading, MeterReading]:
        """The billed operations of this client, on the primary and on the secondary."""
        status = self.status()
        with self._lock:
            is_message = self.options.ping_mode == "message"
            primary = self._billed.primary(status, pings_are_messages=is_message)
            secondary = self._billed.secondary()
        return (
            MeterReading(namespace=self.namespace, since=self._began, entities=primary),
            MeterReading(namespace=self.secondary, since=self._began, entities=secondary),
        )

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call `observer(event)` for every event from now on. Returns a function that removes the
        observer.
        """
        return self._observers.add(observer)

    def mark_path_healthy(self, path: str) -> bool:
        """Send the entity's messages to the primary again. False if they already go there."""
        try:
            with self._lock:
                is_changed = self._router.mark_healthy(path, now=self.clock())
        except KeyError:
            known = ", ".join(repr(entity.path) for entity in self.status().entities) or "none"
            raise PairingError(
                f"no sender of this client sends to {path!r}; the entities it knows: {known}",
                namespace=self.namespace,
            ) from None
        self.notify_observers()
        self.wake()
        return is_changed

    # --- for a send -------------------------------------------------------------------------------

    def notify_observers(self) -> None:
        """Notify the observers of all events since the last call."""
        if not self._router.has_events:  # no lock: this thread sees its own events
            return
        with self._lock:
            events = self._router.take_events()
        self._observers.notify(events)

    def plan(
        self, path: str, *, is_begun: bool = False, notify: bool = True, can_hold: bool = True
    ) -> Plan:
        """`is_begun`: a part of the call is in the backlog. With `notify=False`, the caller must
        call `notify_observers` after it has released its own lock.
        """
        with self._lock:
            ask = self._router.plan_backlog if is_begun else self._router.plan
            plan = ask(path, now=self.clock(), can_hold=can_hold)
        if notify:
            self.notify_observers()
        return plan

    def sent(
        self, path: str, way: Way, *, count: int, seconds: float = 0.0, extra: int = 0
    ) -> None:
        """`extra`: billed operations in addition to one per message."""
        with self._lock:
            self._router.sent(path, way, count=count, now=self.clock(), seconds=seconds)
            self._billed.sent(path, way, count=count, extra=extra)
        self.notify_observers()

    # These three only with ordered failback: sends to the backlog that are under way.

    def backlog_begins(self, path: str, way: ToBacklog, call: object) -> bool:
        with self._lock:
            return self._router.ordered.backlog_begins(path, way, call, now=self.clock())

    def backlog_attempt_ended(self, path: str, call: object) -> None:
        with self._lock:
            self._router.ordered.backlog_attempt_ended(path, call, now=self.clock())

    def backlog_call_ended(self, path: str, call: object) -> None:
        with self._lock:
            self._router.ordered.backlog_call_ended(path, call, now=self.clock())
        self.notify_observers()

    def diverted_by(self) -> str | None:
        """The mark for a message that is diverted now. None without ordered failback."""
        return f"{self._token}:{self.clock():.3f}" if self.is_ordered else None

    def failed(self, path: str, way: Way, error: BaseException) -> bool:
        unreachable = is_unreachable(error)
        with self._lock:
            plan_again = self._router.failed(
                path, way, error, now=self.clock(), is_unreachable=unreachable
            )
        self.notify_observers()
        self.wake()
        return plan_again

    def throttled(self, path: str, way: Way, error: BaseException) -> None:
        seconds = self.timing.throttle_wait_seconds
        with self._lock:
            self._router.throttled(path, way, error, wait_seconds=seconds, now=self.clock())
        self.notify_observers()
        self.wake()

    def send_failed(self, path: str, causes: Nowhere) -> None:
        with self._lock:
            self._router.send_failed(path, causes, now=self.clock())
        self.notify_observers()

    def causes(self, path: str) -> Nowhere:
        with self._lock:
            return self._router.causes(path, now=self.clock())

    @property
    def queues_left(self) -> int:
        """The number of backlog queues in the rotation."""
        return self._router.queues_left

    def backlog_retries(self) -> int:
        """How often the SDK may retry on one backlog queue: 0 while there is another queue."""
        return 0 if self.queues_left > 1 else self._backlog_retries

    @property
    def is_of_parent(self) -> bool:
        """Whether this process was forked after the pairing. Its connections then belong to the
        parent.
        """
        return os.getpid() != self._process_id

    def check_process(self) -> None:
        if self.is_of_parent:
            raise PairingError(
                "this client was paired before the process was forked, and its connections "
                "belong to the parent; make and pair a client in the child process",
                namespace=self.namespace,
            )

    # --- for the life of a pairing ----------------------------------------------------------------

    def open_outbox(self) -> None:
        """Raises PairingError if the outbox could not be used. Opens its file only if it exists."""
        if self.outbox is None:
            return
        try:
            self.outbox.open_existing()
        except OutboxError as error:
            raise PairingError(str(error), namespace=self.namespace, error=error) from error
        with self._lock:
            for path in self.outbox.file.entities.values():
                self._router.register(path, now=self.clock())

    def announce(self, paths: Sequence[str] = ()) -> None:
        """The client is paired: warn about dangerous backlog queues, and notify the observers.
        `paths`: the entities of the senders that exist.
        """
        self.options.bind(self.mark_path_healthy, len(self.backlog_queues))
        self._is_announced = True
        for warning in self._backlog.warnings:
            logger.warning("%s", warning)
        paired = Paired(
            namespace=self.namespace,
            backlog_queues=self._backlog.queues,
            made=self._backlog.made,
            warnings=self._backlog.warnings,
        )
        self._observers.notify([paired])
        # Not a method of this object: metrics outlive a client that is dropped without `close`.
        self._observers.watch_sends(self._router.sends)
        if self.outbox is not None:
            self.outbox.announce()
            self.wake()
        for path in paths:
            self.register(path)

    def syphon_changed(self, status: SyphonStatus, *events: Event) -> None:
        with self._lock:
            self._syphon = status
        self._observers.notify(events)

    def close_router(self) -> None:
        state = state_of(self.options.messaging_factory)
        if state is not None:
            state.forget(self)
        with self._lock:
            self._router.close()
        if self._is_announced:
            self.notify_observers()
        self._observers.end()

    # --- for the background -----------------------------------------------------------------------

    @contextmanager
    def decide(self) -> Iterator[Router]:
        """Lends the router, under the lock, for one decision. Then notifies the observers. Not for
        a thread of the application: a Ctrl-C between two of its steps would leave the lock held.
        """
        with self._lock:
            yield self._router
        self.notify_observers()

    def wake(self) -> None:
        """Something may be due earlier than the shell's background worker knows."""

    def register(self, path: str) -> None:
        """A sender for this entity exists: open a connection to its backlog queue in advance."""
        with self._lock:
            queue = self._router.register(path, now=self.clock())
        self.notify_observers()
        if self.is_ready_mode and queue is not None and not self.pool.has_ready(queue):
            self.wake()

    def take_due_tasks(self) -> tuple[list[BackgroundTask], float | None]:
        """What is due now, and when something is due next. Also closes idle connections."""
        now = self.clock()
        with self.decide() as router:
            tasks = router.take_due_tasks(now=now)
            wanted = router.wanted_queues() if self.is_ready_mode else ()
            next_due = router.next_due
            if self.outbox is not None and self._is_announced:
                drains, drain_due = self.outbox.take_due(
                    now=now,
                    can_send=lambda path: (
                        not isinstance(router.plan(path, now=now, can_hold=False), Nowhere)
                    ),
                )
                tasks += drains
                next_due = min((at for at in (next_due, drain_due) if at is not None), default=None)
        for queue in wanted:
            if self._ready_retry_at.get(queue, now) <= now and not self.pool.has_ready(queue):
                self._ready_retry_at[queue] = now + READY_RETRY_SECONDS
                tasks.append(Probe(queue))
        self.pool.trim(keep=frozenset(wanted))
        return tasks, next_due

    def is_wanted(self, ping: Ping) -> bool:
        with self.decide() as router:
            return router.is_wanted(ping)

    def ping_ended(self, ping: Ping, error: BaseException | None) -> None:
        with self.decide() as router:
            if error is None:
                router.ping_answered(ping, now=self.clock())
            else:
                router.ping_failed(ping, error, now=self.clock())

    def peeked(self, peek: PeekBacklog, messages: Sequence[Any]) -> None:
        """Takes in a page of messages of a backlog queue."""
        size = sum(body_bytes(message.raw_amqp_message) or 0 for message in messages)
        with self.decide() as router:
            self._billed.peeked(peek.queue, size=size)
            page = peeked_page(messages, token=self._token, path=peek.path)
            router.ordered.peeked(peek, page, now=self.clock())

    def peek_failed(self, peek: PeekBacklog, error: BaseException) -> None:
        with self.decide() as router:
            router.ordered.peek_failed(peek, error, now=self.clock())

    def probe_ended(self, queue: str, error: BaseException | None) -> None:
        """Records that a connection to a backlog queue was opened, or could not be opened."""
        with self.decide() as router:
            if error is not None:
                router.probe_failed(queue, error, now=self.clock())
                return
            router.probe_answered(queue)
        self._ready_retry_at.pop(queue, None)

    def senders_to_open(self, ping: Ping) -> list[Any]:
        """The senders in use of an entity that is about to fail back: each needs a new link."""
        with self._lock:
            if self._state is None or not self._router.would_fail_back(ping):
                return []
        senders = self._state.senders_of(ping.path)
        return [each for each in senders if each.is_in_use][:EARLY_LINKS_MAX]

    def new_sender(self, client: Any, path: str) -> Any:
        return private.adopt(self.sdk_client.get_queue_sender(client, path), self.sender_class)

    def new_paired_sender(self, path: str) -> Any:
        made = self.sdk_client.get_queue_sender(self.primary_client, path)
        sender = private.adopt(made, self._paired_sender_class)
        sender.bind(self._state)
        return sender

    def new_receiver(self, queue: str) -> Any:
        return self.sdk_client.get_queue_receiver(self.secondary_client, queue)
