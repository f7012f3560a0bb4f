"""What happens to entities as time passes: schedules, expiry, lock expiry, auto-delete on idle.

`Namespace.tick` calls these functions. A message that is locked or being changed is handled on a
later tick: its entity asks for one when the message is free again. Times are epoch milliseconds.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from pairbus.broker.directory import Directory
from pairbus.broker.messages.mailbox import Mailbox
from pairbus.broker.messages.queue import Queue
from pairbus.broker.storage.schema import is_damage
from pairbus.broker.storage.store import Store

logger = logging.getLogger(__name__)

SWEEP_COUNT: Final = 500
SWEEP_PAGES_MAX: Final = 20
_SWEEP_SECONDS: Final = 0.05
"""Of processor time. A message may go to a topic, whose rules may need 30 ms for it."""


def activate_due_messages(store: Store, directory: Directory, *, now_ms: int) -> bool:
    """Enqueue scheduled messages that are due. Returns whether the next tick must continue."""

    def activate(queue: Queue, mailbox: Mailbox, sequence: int) -> bool:
        return queue.activate(sequence, now_ms=now_ms)

    read = partial(store.read_due, now_ms=now_ms)
    return _sweep(directory, read, activate, "scheduled message %d could not be enqueued")


def expire_messages(store: Store, directory: Directory, *, now_ms: int) -> bool:
    """Delete or dead-letter messages whose time to live is over. Returns whether the next tick must
    continue.
    """

    def expire(queue: Queue, mailbox: Mailbox, sequence: int) -> bool:
        return queue.expire(mailbox, sequence, now_ms=now_ms)

    read = partial(store.read_expired, now_ms=now_ms)
    return _sweep(directory, read, expire, "expired message %d could not be removed")


def _sweep(
    directory: Directory,
    read: Callable[..., list[tuple[int, int]]],
    handle: Callable[[Queue, Mailbox, int], bool],
    problem: str,
) -> bool:
    """`handle` returns False for a message that has to wait. The others are not delayed."""
    ends = time.thread_time() + _SWEEP_SECONDS
    for page in range(SWEEP_PAGES_MAX):
        keys = read(count=SWEEP_COUNT, skip=page * SWEEP_COUNT)
        is_moving = False
        for mailbox_id, sequence in keys:
            if (found := directory.mailbox(mailbox_id)) is None:
                continue
            queue, mailbox = found
            try:
                has_moved = handle(queue, mailbox, sequence)
            except Exception as error:
                _log(error, queue, problem % sequence)
                continue
            is_moving |= has_moved
            if has_moved and time.thread_time() >= ends:
                return True
        if is_moving or len(keys) < SWEEP_COUNT:
            return len(keys) == SWEEP_COUNT
    return False


def expire_locks(directory: Directory, *, now_ms: int) -> bool:
    """Release messages that receivers did not settle in time, and end the waits for a session.
    Returns whether the next tick must continue.
    """
    ends = time.thread_time() + _SWEEP_SECONDS
    for queue in directory:
        if queue.has_deadlines:
            try:
                queue.give_up_waiting(now_ms=now_ms)
                for _ in queue.expire_locks(now_ms=now_ms):
                    if time.thread_time() >= ends:
                        return True
            except Exception as error:
                _log(error, queue, "expired locks could not be ended")
    return False


def _log(error: Exception, queue: Queue, what: str) -> None:
    """Does not raise: the other entities get their turn. A damaged data file affects them all."""
    if isinstance(error, sqlite3.DatabaseError) and is_damage(error):
        raise error
    logger.error("%s: %s", queue.description, what, exc_info=error)


def next_deadline_ms(store: Store, directory: Directory, *, now_ms: int) -> int | None:
    """The next time at which one of the functions above has work, without overdue work."""
    times = [store.next_due_ms(after_ms=now_ms), store.next_expiry_ms(after_ms=now_ms)]
    for queue in directory:
        if queue.has_deadlines:
            times += [queue.next_lock_expiry_ms, queue.next_wait_end_ms]
    return min((time for time in times if time is not None and time > now_ms), default=None)


def delete_idle_entities(
    store: Store, directory: Directory, delete: Callable[[Queue], None], *, now_ms: int
) -> None:
    """Auto-delete idle entities, and store when each of the others was last used."""
    for entity in directory:
        if directory.find(entity.name) is not entity:
            continue  # it was deleted with its topic a moment ago
        if entity.is_in_use:
            entity.available_ms = now_ms
        elif entity.is_idle_for_too_long(now_ms=now_ms):
            idle_seconds = (now_ms - entity.idle_since_ms) // 1000
            logger.info("%s was idle for %d s: deleted", entity.description, idle_seconds)
            delete(entity)
        elif entity.accessed_ms > entity.saved_access_ms:
            entity.saved_access_ms = entity.accessed_ms
            store.touch_entity(entity.entity_id, entity.accessed_ms)
