"""A namespace: its entities, its data file, its clock, and what happens as time passes.

It lives on one event loop. A single timer calls `tick` when the next lock, schedule or expiry is
due, and at least every five seconds for housekeeping: expired tokens, auto-delete on idle, and
cleaning the data file.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

from pairbus.amqp.outcomes import AmqpError
from pairbus.broker import housekeeping
from pairbus.broker.clock import SystemClock
from pairbus.broker.directory import Directory
from pairbus.broker.entities.descriptions import (
    EntityDescription,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.entities.namespace_options import NamespaceOptions
from pairbus.broker.entities.policies import Policy
from pairbus.broker.faults.active_faults import ActiveFaults
from pairbus.broker.faults.controller import FaultController, FaultyClient
from pairbus.broker.faults.kinds import Operation
from pairbus.broker.hosts import HostNames
from pairbus.broker.messages.entity import Entity
from pairbus.broker.messages.mailbox import LockTokens, Mailbox
from pairbus.broker.messages.queue import Queue
from pairbus.broker.messages.topic import Subscription, Topic, leads_to_waiting_topic
from pairbus.broker.refusals import BadTokens, RefusalLog
from pairbus.broker.storage.committer import Committer
from pairbus.broker.storage.folder import make_folder
from pairbus.broker.storage.schema import find_damage, is_damage, readable
from pairbus.broker.storage.store import Store
from pairbus.cost.meter import Meter
from pairbus.errors import BrokerError, DataFileError

logger = logging.getLogger(__name__)

_TICK_GAP_MS: Final = 20
"""The minimum time between two ticks. Without it, a long sweep would keep the loop spinning."""
_HOUSEKEEPING_MS: Final = 5000
_CATCH_UP_SECONDS: Final = 5.0
_COMPILE_SECONDS: Final = 0.01
"""How much processor time goes into rules at a time after the start."""
_COMPILE_PAUSE_SECONDS: Final = 0.002


class ClientConnection(FaultyClient, Protocol):
    """What a namespace needs of a connection."""

    def flush(self) -> None: ...
    def entity_gone(self, queue: Queue) -> None: ...
    def entity_changed(self, queue: Queue) -> None: ...
    def rules_compiled(self) -> None: ...
    def check_tokens(self, *, now_ms: int) -> None: ...
    def offer_messages(self) -> None: ...


class Namespace:
    def __init__(
        self,
        options: NamespaceOptions,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        hosts: HostNames | None = None,
    ) -> None:
        """`hosts`: what clients may call it; None: anything."""
        self.options = options
        self.hosts = hosts or HostNames()
        self.name = options.name
        self.loop = loop
        self.clock = clock
        # A fault on demand may replace `clock`, but not this one.
        self._system_clock = clock if isinstance(clock, SystemClock) else None
        self.lock_tokens = LockTokens()
        self.meter = Meter(options.name, since=clock())
        self.connections: set[ClientConnection] = set()
        self.connections_opened = 0
        """So far, since the start."""
        self.refusals = RefusalLog(options.name)
        self.bad_tokens = BadTokens()
        self.store: Store
        self.committer: Committer
        self._temporary: str | None = None
        self.directory = Directory(self)
        self._woken: dict[Mailbox, Entity] = {}
        self._unsent: dict[ClientConnection, None] = {}
        self._next_ms: float = float("inf")
        self._timer: asyncio.TimerHandle | None = None
        self._compile_timer: asyncio.TimerHandle | None = None
        self._is_compiling = True
        self._checker: threading.Thread | None = None
        self._housekeeping_ms = 0
        self._is_closing = False
        self._is_cleaning = False
        self._unsubscribe: Callable[[], None] | None = None
        self.active_faults: ActiveFaults | None = None
        """The faults on demand that are active now; nearly always None."""
        self.faults = FaultController(self)

    def now_ms(self) -> int:
        return int(self.clock() * 1000)

    def fault_refusal(self, entity: str, *operations: Operation) -> AmqpError | None:
        """What an active fault refuses. Nearly always there is none, and this costs one test."""
        faults = self.active_faults
        return None if faults is None else faults.refusal(entity, *operations)

    # life

    def open(self) -> None:
        """Open the data file, load its entities, and create those of the options."""
        self.store = Store(self._data_file(), durable=self.options.data is not None)
        try:
            with readable(self.store.path):
                self.directory.load()
            for description in self.options.entities:
                self.directory.ensure(description, now_ms=self.now_ms())
            self.store.save()
        except BaseException:
            self.store.discard()  # a start that fails changes nothing
            self.store.close()
            self._remove_temporary()
            raise
        self.committer = Committer(self.store, self.loop, after_commit=self.run)
        for topic in self.topics:
            topic.is_waiting = topic.has_many_uncompiled_rules
        self._compile_rules(self._compile_loaded_rules())
        if not self.store.was_closed:
            self._checker = threading.Thread(target=self._check_data_file, daemon=True)
            self._checker.start()
        self.expect(self.now_ms())
        # A clock that can be moved calls its subscribers (`pairbus.testing.ManualClock`).
        subscribe = getattr(self.clock, "subscribe", None)
        if subscribe is not None:
            self._unsubscribe = subscribe(self._clock_moved)

    async def close(self) -> None:
        """Everything acknowledged is on the disk when this returns."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        self.faults.close()
        self._is_closing = True
        self.refusals.end_period()
        for timer in (self._timer, self._compile_timer):
            if timer is not None:
                timer.cancel()
        await self.committer.stop()
        if self._checker is not None:
            self._checker.join()
        if self.committer.refusal is None:
            for queue in self.directory:
                self.store.touch_entity(queue.entity_id, queue.accessed_ms)
        try:
            self.store.close()
        except sqlite3.Error as error:
            # Only the times when entities were last used are lost.
            logger.error("the data file %s cannot be written: %s", self.store.path, error)
        self._remove_temporary()

    def _compile_rules(self, steps: Iterator[None]) -> None:
        """Compile rules a few at a time, so that clients do not wait for 100,000 of them."""
        turn_ends = time.thread_time() + _COMPILE_SECONDS
        for _ in steps:
            if self._is_closing:
                return
            if time.thread_time() >= turn_ends:
                self._compile_timer = self.loop.call_later(
                    _COMPILE_PAUSE_SECONDS, self._compile_rules, steps
                )
                return

    def _compile_loaded_rules(self) -> Iterator[None]:
        """Topics with few rules come first: only the others let their senders wait."""
        for topic in sorted(self.topics, key=lambda topic: topic.is_waiting):
            yield from topic.compile_rules()
            if topic.is_waiting:
                topic.is_waiting = False
                self.expect(self.now_ms())  # messages may have waited for this
                for connection in list(self.connections):
                    connection.rules_compiled()
                self.run()
        self._is_compiling = False

    def must_wait(self, entity: Queue) -> bool:
        """Whether messages for the entity must wait until rules are compiled."""
        return self._is_compiling and leads_to_waiting_topic(entity)

    def _compile_rules_of(self, entity: Queue) -> None:
        """Otherwise the next message would have to wait for all new rules."""
        if isinstance(entity, Subscription):
            self._compile_rules(entity.compile_rules())

    def _check_data_file(self) -> None:
        """Runs on a thread of its own. A file that was not closed cleanly may be damaged."""
        damage = find_damage(self.store.path, should_stop=lambda: self._is_closing)
        if damage:
            self.loop.call_soon_threadsafe(self._refuse_changes, damage)

    def _refuse_changes(self, damage: list[str]) -> None:
        """Every change would make the damage worse. Senders get errors, and can divert."""
        if isinstance(self.committer.refusal, DataFileError):
            return  # it is known
        error = DataFileError(
            f"data file {self.store.path} is damaged: {damage[0]}. The broker changes nothing in "
            "it any more. Stop the broker, and restore the file from a backup; `pairbus broker "
            f"--check {self.store.path.parent}` shows all that is wrong"
        )
        logger.error("%s", error)
        self.committer.refusal = error

    def _remove_temporary(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _data_file(self) -> Path:
        folder = self.options.data
        if folder is None:
            self._temporary = tempfile.mkdtemp(prefix="pairbus-")
            return Path(self._temporary) / f"{self.name}.db"
        make_folder(folder, probe=f".{self.name}.probe")
        return folder / f"{self.name}.db"

    # entities

    def find(self, path: str) -> Queue | None:
        """A queue, a topic, or a subscription by `topic/Subscriptions/name`."""
        return self.directory.find(path)

    @property
    def queues(self) -> list[Queue]:
        return self._sorted(QueueDescription)

    @property
    def topics(self) -> list[Topic]:
        return [topic for topic in self._sorted(TopicDescription) if isinstance(topic, Topic)]

    def _sorted(self, kind: type[EntityDescription]) -> list[Queue]:
        found = [entity for entity in self.directory if type(entity.description) is kind]
        return sorted(found, key=lambda entity: entity.name.lower())

    def create(self, description: EntityDescription) -> Queue:
        entity = self.directory.create(description, now_ms=self.now_ms())
        self._undo_if_refused(lambda: self._forget(entity))
        self._compile_rules_of(entity)
        return entity

    def _forget(self, entity: Queue) -> None:
        """The disk has refused to create it. Clients may have attached to it meanwhile."""
        self.directory.forget(entity)
        self._end_links(entity)

    def update(self, entity: Queue, description: EntityDescription) -> None:
        before = entity.description
        self.directory.update(entity, description, now_ms=self.now_ms())
        self._undo_if_refused(
            lambda: entity.set_description(before) if entity.description is description else None
        )
        self._compile_rules_of(entity)
        for connection in list(self.connections):
            connection.entity_changed(entity)
        self.run()

    def delete(self, entity: Queue) -> None:
        gone = self.directory.remove(entity)
        self._undo_if_refused(lambda: self.directory.put_back(gone))
        for one in gone:
            self._end_links(one)
        self.run()

    def _end_links(self, entity: Queue) -> None:
        # A message for an entity that is gone would be acknowledged, and lost.
        for mailbox in entity.mailboxes.values():
            self._woken.pop(mailbox, None)
        for connection in list(self.connections):
            connection.entity_gone(entity)

    def _undo_if_refused(self, undo: Callable[[], None]) -> None:
        """Undo changes in memory that could not be stored."""

        def done(error: Exception | None) -> None:
            if error is not None:
                undo()

        self.committer.when_durable(done)

    async def durable(self) -> None:
        """Wait until all changes so far are on the disk."""
        outcome: asyncio.Future[None] = self.loop.create_future()

        def done(error: Exception | None) -> None:
            if outcome.done():
                return
            if error is None:
                outcome.set_result(None)
            else:
                outcome.set_exception(BrokerError(f"the data file cannot be written: {error}"))

        self.committer.when_durable(done)
        await outcome

    def policies_of(self, path: str) -> list[Policy]:
        """The policies of the entity at the path, and of its topic if it is a subscription."""
        found: list[Policy] = []
        entity = self.find(path)
        if entity is not None:
            found += entity.description.authorization_rules
            if isinstance(entity.description, SubscriptionDescription):
                found += self.policies_of(entity.description.topic_name)
        return found

    # work that is done once, at the end of a turn of the loop

    def wake(self, entity: Entity, mailbox: Mailbox) -> None:
        """The mailbox may have messages to deliver."""
        self._woken[mailbox] = entity

    def unsent(self, connection: ClientConnection) -> None:
        """The connection has output to flush."""
        self._unsent[connection] = None

    def run(self) -> None:
        """Serve the mailboxes that were woken, then flush each connection once."""
        while self._woken:
            mailbox, entity = self._woken.popitem()
            try:
                entity.serve(mailbox, now_ms=self.now_ms())
            except Exception:
                # One entity's failure must not affect the others.
                logger.exception("%s: messages could not be delivered", entity.description)
        while self._unsent:
            connection, _ = self._unsent.popitem()
            connection.flush()

    # time

    def expect(self, at_ms: int) -> None:
        """Call `tick` at that time at the latest."""
        if at_ms < self._next_ms and not self._is_closing:
            self._next_ms = at_ms
            if self._timer is not None:
                self._timer.cancel()
            delay = max(at_ms / 1000 - self.clock(), _TICK_GAP_MS / 1000)
            self._timer = self.loop.call_later(delay, self.tick)

    def set_clock(self, clock: Callable[[], float]) -> None:
        """A fault on demand moves the clock. The next turn of the loop handles the new time."""
        self.clock, self._housekeeping_ms = clock, 0
        self.loop.call_soon(self.tick)

    def _clock_moved(self) -> None:
        """Called from any thread. Returns when the namespace has caught up with its clock."""
        caught_up = threading.Event()

        def catch_up() -> None:
            self.tick()
            self.committer.when_durable(lambda error: caught_up.set())

        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self.loop:
            self.tick()
        else:
            self.loop.call_soon_threadsafe(catch_up)
            caught_up.wait(timeout=_CATCH_UP_SECONDS)

    def tick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._follow_clock()
        now_ms = self.now_ms()
        self._timer, self._next_ms = None, float("inf")
        must_continue = False
        try:
            self.faults.update()
            must_continue = self._pass_time(now_ms)
        except sqlite3.DatabaseError as error:
            self._housekeeping_ms = now_ms + _HOUSEKEEPING_MS  # not again at once
            if not is_damage(error):
                raise
            self._refuse_changes([str(error)])
        finally:  # the next tick must come, even after an error
            self.expect(now_ms if must_continue else self._next_deadline(now_ms))

    def _follow_clock(self) -> None:
        if self._system_clock is None:
            return
        step = self._system_clock.follow()
        if step:
            way = "forward" if step > 0 else "back"
            logger.warning("the clock of this machine was set %s by %.0f s", way, abs(step))
            self._housekeeping_ms = 0
            for queue in self.directory:
                queue.move_deadlines(round(step * 1000))

    def _pass_time(self, now_ms: int) -> bool:
        """Returns whether the next tick must continue at once."""
        has_more_due = housekeeping.activate_due_messages(self.store, self.directory, now_ms=now_ms)
        has_more_expired = housekeeping.expire_messages(self.store, self.directory, now_ms=now_ms)
        has_more_locks = housekeeping.expire_locks(self.directory, now_ms=now_ms)
        if now_ms >= self._housekeeping_ms:
            self._housekeeping_ms = now_ms + _HOUSEKEEPING_MS
            self._housekeeping(now_ms)
        self.run()
        return has_more_due or has_more_expired or has_more_locks

    def _next_deadline(self, now_ms: int) -> int:
        try:
            next_ms = housekeeping.next_deadline_ms(self.store, self.directory, now_ms=now_ms)
        except sqlite3.DatabaseError:
            next_ms = None  # the next housekeeping reads again, and reports the error
        return self._housekeeping_ms if next_ms is None else min(next_ms, self._housekeeping_ms)

    def _housekeeping(self, now_ms: int) -> None:
        self._clean(now_ms)
        for connection in list(self.connections):
            connection.check_tokens(now_ms=now_ms)
            # What the disk refused to delete or unlock is available, and receivers may wait for it.
            # Not at once: a full disk would refuse again and again.
            connection.offer_messages()
        housekeeping.delete_idle_entities(self.store, self.directory, self.delete, now_ms=now_ms)
        if self.store.has_changes:
            self.committer.request()

    def _clean(self, now_ms: int) -> None:
        if not self._is_cleaning:
            self._is_cleaning = True
            self.store.clean(now_ms=now_ms)
            self.committer.when_durable(self._cleaned)

    def _cleaned(self, error: Exception | None) -> None:
        self._is_cleaning = False
        if error is None and not self._is_closing:
            now_ms = self.now_ms()
            old = self.store.end_of_old_ids(now_ms=now_ms, count=1)
            if self.store.has_garbage or old is not None:
                self._clean(now_ms)  # the next portion
