"""A pair in the blocking shell: its lanes, its keeper, pings and probes."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import Any

from azure.servicebus import ServiceBusClient

from pairbus.client.blocking.failing import QuickToFail
from pairbus.client.blocking.keeper import GRACE_SECONDS, Keeper
from pairbus.client.blocking.pool import Lanes
from pairbus.client.pairing import Pair
from pairbus.client.route.router import Chore, Ping, Way
from pairbus.client.sdk import private as internals
from pairbus.client.sdk.backlog_queues import Found
from pairbus.client.sdk.messages import ping_message
from pairbus.options import SendAvailabilityPairedNamespaceOptions

logger = logging.getLogger("pairbus.client")


class Pairing(Pair):
    """What `client.pairing` is."""

    def __init__(
        self,
        client: ServiceBusClient,
        options: SendAvailabilityPairedNamespaceOptions,
        found: Found,
    ) -> None:
        super().__init__(client, options, found)
        self._client = internals.twin_of(client)
        self._tls = internals.tls_for(client, self.send_seconds)
        secondary = options.messaging_factory
        self.lanes = Lanes(secondary, handshake_seconds=self.send_seconds, clock=self.clock)
        self.keeper = Keeper(self.namespace, clock=self.clock, due=self._due, do=self._do)
        self.closing = threading.Event()

    def start(self) -> None:
        """Raises if the secondary does not take a connection. It is kept, unless connections are
        to be made lazily."""
        self.keeper.start()
        queue = random.choice(self.backlog_queues)
        try:
            self._open_lane(queue, is_kept=self.is_ready_mode)
        except Exception as error:
            raise self.not_connected(queue, error) from error

    def follow_secondary(self) -> None:
        """If the secondary's client is one of ours: when it ends, so do the lanes on it."""
        state = getattr(self.options.messaging_factory, "_state", None)
        if state is not None:
            state.listen(self, lambda reason: self.lanes.drop())

    def register(self, path: str) -> None:
        """A sender for this entity exists: what it would divert to is made ready."""
        with self.deciding() as router:
            queue = router.register(path, now=self.clock())
        if self.is_ready_mode and queue is not None and not self.lanes.has_ready(queue):
            self.keeper.wake()

    def failed(self, path: str, way: Way, error: BaseException) -> bool:
        try:
            return super().failed(path, way, error)
        finally:
            self.keeper.wake()  # something may be due earlier than it knows

    def use_tls(self, sender: Any) -> None:
        internals.use_tls(sender, self._tls)

    def close(self) -> None:
        """Ends pings and the use of the secondary. When it returns, no thread or socket is left."""
        # Each step can be repeated: the call before may have been interrupted.
        self.closing.set()
        self.close_router()
        state = getattr(self.options.messaging_factory, "_state", None)
        if state is not None:
            state.forget(self)
        self.keeper.stop()
        self.lanes.close()

    # --- what the keeper runs ---------------------------------------------------------------------

    def _due(self) -> tuple[list[Chore], float | None]:
        chores, next_due, wanted = self.chores(self.lanes.has_ready)
        self.lanes.trim(keep=frozenset(wanted))
        return chores, next_due

    def _do(self, chore: Chore) -> None:
        if isinstance(chore, Ping):
            self._ping(chore)
        else:
            self._probe(chore.queue)

    def _ping(self, ping: Ping) -> None:
        with self.deciding() as router:
            if not router.is_wanted(ping):
                return
        # Not one of our senders, which would divert the ping.
        made = ServiceBusClient.get_queue_sender(self._client, ping.path)
        sender = internals.adopt(made, QuickToFail)
        internals.set_retries(sender, 0)
        self.use_tls(sender)
        try:
            with self.keeper.guard(sender, self.chore_seconds):
                if self.options.ping_mode == "link":
                    sender.__enter__()
                else:
                    sender.send_messages(ping_message(), timeout=self.chore_seconds)
        except Exception as error:
            with self.deciding() as router:
                router.ping_failed(ping, error, now=self.clock())
        else:
            self._open_links(ping)
            with self.deciding() as router:
                router.ping_answered(ping, now=self.clock())
        finally:
            sender.close()

    def _open_links(self, ping: Ping) -> None:
        """Of the senders that are about to send to the primary again, while their messages are
        still diverted. That they do so does not depend on it: a ping that is answered is."""
        threads = [
            threading.Thread(
                target=self._open_link, args=(sender, ping), name="pairbus-chore", daemon=True
            )
            for sender in self.to_be_opened(ping)
        ]
        begun = []
        for thread in threads:
            try:
                thread.start()
            except RuntimeError:  # the system gives no more threads
                break
            begun.append(thread)
        # They end by then: they are guarded. But for one whose sender somebody closes in the one
        # moment in which the guard cannot reach it; that is not waited for.
        deadline = time.monotonic() + self.link_seconds + GRACE_SECONDS + 1.0
        for thread in begun:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _open_link(self, sender: Any, ping: Ping) -> None:
        try:
            sender.make_ready(ping.epoch + 1, self)
        except Exception as error:
            logger.debug("opening a link to %s: %r", ping.path, error)

    def _probe(self, queue: str) -> None:
        try:
            self._open_lane(queue)
        except Exception as error:
            self.probed(queue, error)
        else:
            self.probed(queue, None)

    def _open_lane(self, queue: str, *, is_kept: bool = True) -> None:
        lane = self.lanes.borrow(queue, timeout=self.chore_seconds, fresh=True)
        internals.set_retries(lane.sender, 0)
        is_open = False
        try:
            with self.keeper.guard(lane.sender, self.chore_seconds):
                lane.sender.__enter__()
            is_open = is_kept
        finally:
            self.lanes.give_back(lane, is_usable=is_open)
