"""What a paired client knows and decides, in either shell: one router under one lock.

Every decision is the router's. The lock is held around it and never while anything waits; what the
router tells is told on when the lock is free again. The shells add what acts: connections to
backlog queues (`lanes.py`), what runs in the background (`keeper.py`), and calls on their way
(`delivery.py`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pairbus.client import checks as setup
from pairbus.client.billing import Extras
from pairbus.client.observers import Audience
from pairbus.client.route.router import (
    Chore,
    Nowhere,
    Ping,
    Plan,
    Probe,
    Router,
    ToBacklog,
    ToPrimary,
    Way,
)
from pairbus.client.sdk import private as internals
from pairbus.client.sdk.backlog_queues import Found
from pairbus.client.sdk.errors import PairingError
from pairbus.client.sdk.failures import Kind, kind_of
from pairbus.client.status import PairingStatus, snapshot
from pairbus.cost.meter import Reading
from pairbus.events import Observer, Paired
from pairbus.options import SendAvailabilityPairedNamespaceOptions

logger = logging.getLogger("pairbus.pairing")

# A connection that could not be made ready is tried again after this long.
READY_AGAIN_SECONDS = 30.0
# Senders that an entity's way back finds without a link get one first: so many, and this long.
LINKS_AT_ONCE_MAX = 16
LINKS_SECONDS_MAX = 5.0
# A ping or a probe has this long, or as long as a send if that is less.
CHORE_SECONDS_MAX = 30.0


_REACH = "it must be up, and messaging_factory must lead to it"
_HINTS = {
    Kind.SETUP: "check the key and the policy's name in messaging_factory, which needs the Send "
    "claim, and that the queue is on its namespace",
    Kind.THROTTLED: "it is busy: try again in a while",
}


# How often the processes that led to this one were forked. Asking the system for its number instead
# would cost every message more than all that is decided about it.
_forks = 0


def _note_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):  # where processes can be forked
    os.register_at_fork(after_in_child=_note_fork)


class Pair:
    """What `client.pairing` is, but for what the shells add."""

    def __init__(
        self,
        client: Any,
        options: SendAvailabilityPairedNamespaceOptions,
        found: Found,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options
        self.namespace = setup.namespace_name(client, options)
        self.secondary = internals.host_of(options.messaging_factory)
        self.backlog_queues = found.queues
        self.clock = clock
        self.send_seconds = options.send_timeout.total_seconds()
        self.chore_seconds = min(self.send_seconds, CHORE_SECONDS_MAX)
        self.throttle_seconds = options.throttle_wait.total_seconds()
        self.throttle_laps_max = max(1, internals.retries_of(client))
        self.is_ready_mode = options.secondary_connections == "ready"
        self.link_seconds = min(self.send_seconds, LINKS_SECONDS_MAX)

        self._found = found
        self._state = getattr(client, "_state", None)
        self._forks = _forks
        # Reentrant, for a signal's handler that sends or looks while its own thread decides.
        self._lock = threading.RLock()
        self._router: Router = setup.router_for(self.namespace, found.queues, options)
        self._audience = Audience(
            self.namespace,
            primary=internals.host_of(client),
            secondary=self.secondary,
            observers=options.observers,
        )
        self._backlog_retries = internals.retries_of(options.messaging_factory)
        self._extras = Extras()
        self._began = time.time()
        self._is_told = False
        # When a connection to a backlog queue that was to be made ready is due for another try.
        self._ready_again: dict[str, float] = {}

    # --- what an application sees -----------------------------------------------------------------

    def status(self) -> PairingStatus:
        """A snapshot of every entity, of the rotation of backlog queues, and of the pings."""
        with self._lock:
            now = self.clock()
            seen = self._router.status()
        return snapshot(
            seen,
            namespace=self.namespace,
            secondary=self.secondary,
            epoch_seconds=time.time() - now,
        )

    def spent(self) -> tuple[Reading, Reading]:
        """The operations of this client as they are billed, on the primary and on the secondary."""
        with self._lock:
            seen = self._router.status()
            is_message = self.options.ping_mode == "message"
            here = self._extras.primary(seen, pings_are_messages=is_message)
            there = self._extras.secondary()
        return (
            Reading(namespace=self.namespace, since=self._began, entities=here),
            Reading(namespace=self.secondary, since=self._began, entities=there),
        )

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Have `observer(event)` called for all that happens from now on; the result ends that."""
        return self._audience.observe(observer)

    def mark_path_healthy(self, path: str) -> bool:
        """Send the entity's messages to the primary again. False when they went there already."""
        try:
            with self.deciding() as router:
                return router.mark_healthy(path, now=self.clock())
        except KeyError:
            known = ", ".join(repr(entity.path) for entity in self.status().entities) or "none"
            raise PairingError(
                f"no sender of this client sends to {path!r}; the entities it knows: {known}",
                namespace=self.namespace,
            ) from None

    # --- for the shells ---------------------------------------------------------------------------

    @contextmanager
    def deciding(self) -> Iterator[Router]:
        """The router, for one decision; what it has to tell is told afterwards."""
        with self._lock:
            try:
                yield self._router
            finally:
                events = self._router.take_events()
        if events:
            self._audience.tell(events)

    # The next four are on the way of messages; `deciding` would cost each a microsecond.

    def direct(self, path: str) -> ToPrimary | None:
        """For an entity that is healthy: where almost every message goes."""
        return None if _forks != self._forks else self._router.direct(path)

    def detour(self, path: str) -> ToBacklog | None:
        """For an entity that is failed over: where its messages go meanwhile."""
        return None if _forks != self._forks else self._router.detour(path)

    def plan(self, path: str, *, is_begun: bool = False) -> Plan:
        """`is_begun`: a part of the call is in the backlog."""
        router = self._router
        with self._lock:
            ask = router.plan_backlog if is_begun else router.plan
            plan = ask(path, now=self.clock())
            events = router.take_events() if router.has_events else None
        if events:
            self._audience.tell(events)
        return plan

    def sent(
        self, path: str, way: Way, *, count: int, seconds: float = 0.0, extra: int = 0
    ) -> None:
        """`extra`: operations that are billed beyond one for each message."""
        router = self._router
        is_diverted = isinstance(way, ToBacklog)
        is_told = is_diverted and self._audience.hears_each()
        with self._lock:
            router.sent(path, way, count=count, now=self.clock(), seconds=seconds, is_told=is_told)
            if extra or is_diverted:
                self._extras.sent(path, way, count=count, extra=extra)
            events = router.take_events() if router.has_events else None
        if events:
            self._audience.tell(events)

    def failed(self, path: str, way: Way, error: BaseException) -> bool:
        with self.deciding() as router:
            return router.failed(path, way, error, now=self.clock())

    def throttled(self, path: str, way: Way) -> None:
        with self.deciding() as router:
            router.throttled(path, way, wait_seconds=self.throttle_seconds, now=self.clock())

    def undeliverable(self, path: str, nowhere: Nowhere) -> None:
        with self.deciding() as router:
            router.undeliverable(path, nowhere, now=self.clock())

    def causes(self, path: str) -> Nowhere:
        with self._lock:
            return self._router.causes(path, now=self.clock())

    def backlog_retries(self) -> int:
        """How often the SDK may retry on one backlog queue: as long as there is another, never."""
        # One look, which needs no lock.
        return 0 if self._router.queues_left > 1 else self._backlog_retries

    @property
    def is_of_parent(self) -> bool:
        """Whether this process was forked from the one that paired: nothing here is its own."""
        return _forks != self._forks

    def check_process(self) -> None:
        if self.is_of_parent:
            raise PairingError(
                "this client was paired before the process was forked, and its connections are "
                "the parent's; make and pair a client in the child process",
                namespace=self.namespace,
            )

    def not_connected(self, queue: str, error: BaseException) -> PairingError:
        return PairingError(
            f"the secondary {self.secondary!r} does not take a sender's link to backlog queue "
            f"{queue!r}: {str(error).rstrip('.')}; {_HINTS.get(kind_of(error), _REACH)}",
            namespace=self.secondary,
            queue=queue,
            error=error,
        )

    def close_router(self) -> None:
        with self._lock:
            self._router.close(now=self.clock())
            events = self._router.take_events()
        if self._is_told:
            self._audience.tell(events)
        self._audience.end()

    def tell_paired(self) -> None:
        self._is_told = True
        for caution in self._found.cautions:
            logger.warning("%s", caution)
        queues, made = self._found.queues, self._found.made
        self._audience.tell([Paired(namespace=self.namespace, backlog_queues=queues, made=made)])

    def chores(
        self, has_ready: Callable[[str], bool]
    ) -> tuple[list[Chore], float | None, tuple[str, ...]]:
        """What is due now, when something is due next, and the queues to keep connections to."""
        now = self.clock()
        with self.deciding() as router:
            chores = router.due(now=now)
            wanted = router.wanted_queues() if self.is_ready_mode else ()
            next_due = router.next_due(now=now)
        for queue in wanted:
            if self._ready_again.get(queue, now) <= now and not has_ready(queue):
                self._ready_again[queue] = now + READY_AGAIN_SECONDS
                chores.append(Probe(queue))
        return chores, next_due, wanted

    def to_be_opened(self, ping: Ping) -> list[Any]:
        """The senders of an entity that is about to come back which need a link for that."""
        senders = [] if self._state is None else self._state.senders_of(ping.path)
        return [each for each in senders if each.is_in_use][:LINKS_AT_ONCE_MAX]

    def probed(self, queue: str, error: BaseException | None) -> None:
        """A connection to a backlog queue was made, or could not be."""
        with self.deciding() as router:
            if error is not None:
                router.probe_failed(queue, error, now=self.clock())
                return
            router.probe_answered(queue, now=self.clock())
        self._ready_again.pop(queue, None)
