"""A pair in the asyncio shell: as `blocking/pairing.py`."""

from __future__ import annotations

import asyncio
import logging
import random

from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

from pairbus.client.aio.bounds import bounded
from pairbus.client.aio.failing import QuickToFail
from pairbus.client.aio.keeper import Keeper
from pairbus.client.aio.pool import Lanes
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
        self.lanes = Lanes(options.messaging_factory, clock=self.clock)
        self.keeper = Keeper(self.namespace, clock=self.clock, due=self._due, do=self._do)
        self.closing = asyncio.Event()

    async def start(self) -> None:
        """Raises if the secondary does not take a connection. It is kept, unless connections are
        to be made lazily."""
        self.keeper.start()
        queue = random.choice(self.backlog_queues)
        try:
            await self._open_lane(queue, is_kept=self.is_ready_mode)
        except Exception as error:
            raise self.not_connected(queue, error) from error

    async def follow_secondary(self) -> None:
        """If the secondary's client is one of ours: when it ends, so do the lanes on it."""
        state = getattr(self.options.messaging_factory, "_state", None)
        if state is not None:
            told = state.listen(self, lambda reason: self.lanes.drop())
            if told is not None:
                await told

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

    async def close(self) -> None:
        """Ends pings and the use of the secondary. When it returns, no task or socket is left."""
        # Each step can be repeated: the call before may have been interrupted.
        self.closing.set()
        self.close_router()
        state = getattr(self.options.messaging_factory, "_state", None)
        if state is not None:
            state.forget(self)
        await self.keeper.stop()
        await self.lanes.close()

    # --- what the keeper runs ---------------------------------------------------------------------

    def _due(self) -> tuple[list[Chore], float | None]:
        chores, next_due, wanted = self.chores(self.lanes.has_ready)
        self.lanes.trim(keep=frozenset(wanted))
        return chores, next_due

    async def _do(self, chore: Chore) -> None:
        if isinstance(chore, Ping):
            await self._ping(chore)
        else:
            await self._probe(chore.queue)

    async def _ping(self, ping: Ping) -> None:
        with self.deciding() as router:
            if not router.is_wanted(ping):
                return
        # Not one of our senders, which would divert the ping.
        made = ServiceBusClient.get_queue_sender(self._client, ping.path)
        sender = internals.adopt(made, QuickToFail)
        internals.set_retries(sender, 0)
        try:
            async with bounded(self.chore_seconds, f"pinging {ping.path!r}"):
                if self.options.ping_mode == "link":
                    await sender.__aenter__()
                else:
                    await sender.send_messages(ping_message(), timeout=self.chore_seconds)
        except Exception as error:
            with self.deciding() as router:
                router.ping_failed(ping, error, now=self.clock())
        else:
            await self._open_links(ping)
            with self.deciding() as router:
                router.ping_answered(ping, now=self.clock())
        finally:
            await sender.close()

    async def _open_links(self, ping: Ping) -> None:
        """Of the senders that are about to send to the primary again, while their messages are
        still diverted. That they do so does not depend on it: a ping that is answered is."""
        senders = self.to_be_opened(ping)
        links = [sender.make_ready(ping.epoch + 1, self) for sender in senders]
        for outcome in await asyncio.gather(*links, return_exceptions=True):
            if outcome is not None:
                logger.debug("opening a link to %s: %r", ping.path, outcome)

    async def _probe(self, queue: str) -> None:
        try:
            await self._open_lane(queue)
        except Exception as error:
            self.probed(queue, error)
        else:
            self.probed(queue, None)

    async def _open_lane(self, queue: str, *, is_kept: bool = True) -> None:
        lane = await self.lanes.borrow(queue, timeout=self.chore_seconds, fresh=True)
        internals.set_retries(lane.sender, 0)
        is_open = False
        try:
            await open_link(lane.sender, self.chore_seconds)
            is_open = is_kept
        finally:
            self.lanes.give_back(lane, is_usable=is_open)


async def open_link(sender: ServiceBusSender, seconds: float) -> None:
    """What the SDK's context manager does, with an end."""
    async with bounded(seconds, f"opening a link to {sender.entity_name!r}"):
        await sender.__aenter__()
