"""The outbox of a paired client: its file, when its messages are sent, and what observers learn.

`drain` decides how the messages of one entity leave. What happens to a message if the process dies:
before the commit of `put`, the call has not returned; after it, the message is in the file until a
namespace has acknowledged it and the deletion is on the disk. Between those two it is sent again
at the next start, under the same id.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from azure.servicebus.amqp import AmqpAnnotatedMessage

from pairbus.client.outbox_file import OutboxFile, StoredMessage
from pairbus.client.route.drains import DrainSchedule
from pairbus.client.route.plans import Drain
from pairbus.client.route.status import OutboxStatus
from pairbus.client.sdk import encoded
from pairbus.client.sdk.failures import Kind, kind_of
from pairbus.client.sdk.pairing_errors import BacklogExhausted, EnvelopeTooLarge
from pairbus.client.steps import Steps
from pairbus.errors import OutboxError, one_line
from pairbus.events import (
    Event,
    HeldInOutbox,
    LeftOutbox,
    OutboxOpened,
    OutboxStalled,
    StoredInOutbox,
)
from pairbus.options import Outbox

logger = logging.getLogger("pairbus.outbox")

# One send of stored messages: well below the smallest limit of a batch.
BATCH_COUNT: Final = 100
BATCH_BYTES: Final = 128 * 1024
# Then another entity gets its turn.
DRAIN_SECONDS_MAX: Final = 5.0

_claimed: set[Path] = set()
# Reentrant: a signal handler may close the client while its thread is in here.
_claiming = threading.RLock()


class ClientOutbox:
    def __init__(
        self,
        options: Outbox,
        *,
        namespace: str,
        clock: Callable[[], float],
        notify: Callable[[Event], None],
    ) -> None:
        self.options = options
        self.path = Path(options.path)
        self.file = OutboxFile(self.path, namespace=namespace, bytes_max=options.max_bytes)
        self.clock = clock
        self._namespace = namespace
        self._notify = notify
        self._schedule = DrainSchedule()
        self._lock = threading.RLock()
        self._claim: Path | None = None
        self._is_closed = False

    # --- the file ---------------------------------------------------------------------------------

    def open_existing(self) -> None:
        """Raises OutboxError if the file could not be used. Opens it only if it exists."""
        folder = self.path.parent
        if not folder.is_dir():
            raise OutboxError(f"the folder of outbox file {self.path} does not exist: create it")
        if self.path.is_dir():
            raise OutboxError(f"outbox file {self.path} is a folder: name a file in it")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise OutboxError(
                f"outbox file {self.path} could not be created: this process may not write to its "
                "folder"
            )
        claim = self.path.resolve()
        with _claiming:
            if claim in _claimed:
                raise OutboxError(
                    f"outbox file {self.path} is in use by another client of this process: give "
                    "each client a file of its own"
                )
            _claimed.add(claim)
            self._claim = claim
        if self.path.exists():
            self.file.open()

    def announce(self) -> None:
        counts = self.file.counts
        if counts.message_bytes:
            self._notify(OutboxOpened(held=counts.held, **self._state()))

    def close(self) -> None:
        """The messages stay in the file. May wait for the disk."""
        is_first, self._is_closed = not self._is_closed, True
        if self.waiting and is_first:
            logger.warning(
                "%d messages for %s are left in the outbox file %s: they are sent when a client "
                "with this outbox is paired again, or with `pairbus outbox drain`",
                self.waiting,
                self._namespace,
                self.path,
            )
        self.file.close()
        with _claiming:
            _claimed.discard(self._claim or Path())
            self._claim = None

    # --- what waits -------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return sum(self.file.counts.waiting.values())

    def has(self, path: str) -> bool:
        """Whether messages of this entity wait. Later ones then go behind them."""
        waiting = self.file.counts.waiting
        return bool(waiting) and path.lower() in waiting

    def check_accepts(self, path: str) -> None:
        """Raises OutboxError if messages of this entity wait and it refuses them: it does not
        exist, for example. The caller would not learn it otherwise.
        """
        # No lock: `take_due` is called with the lock of the pairing, which a signal handler takes.
        refusal = self._schedule.refusal(path.lower())
        if refusal is not None:
            raise OutboxError(
                f"earlier messages for {path!r} wait in the outbox, and the primary refuses them: "
                f"{one_line(refusal)}; they are sent when it accepts them, or delete "
                "them with `pairbus outbox purge`"
            ) from refusal

    def status(self) -> OutboxStatus:
        counts = self.file.counts
        oldest = counts.oldest_ms
        return OutboxStatus(
            file=str(self.path),
            waiting=sum(counts.waiting.values()),
            held=counts.held,
            oldest=None if oldest is None else datetime.fromtimestamp(oldest / 1000, UTC),
            file_bytes=self.file.file_bytes,
            entities={self.file.entities[path]: count for path, count in counts.waiting.items()},
        )

    # --- for the background -----------------------------------------------------------------------

    def take_due(
        self, *, now: float, can_send: Callable[[str], bool]
    ) -> tuple[list[Drain], float | None]:
        """What to drain now, and when to ask again."""
        if self._is_closed:
            return [], None
        with self._lock:
            tasks = self._schedule.take_due(
                self.file.counts.waiting.keys(),
                now=now,
                can_send=lambda path: can_send(self.file.entities[path]),
            )
            return tasks, self._schedule.next_due(now=now)

    def drain_ended(self, task: Drain, error: BaseException | None) -> None:
        is_refused = error is not None and kind_of(error) is Kind.SETUP
        with self._lock:
            rest = self._schedule.ended(
                task.path, now=self.clock(), error=error, is_refused=is_refused
            )
        if error is not None and not self._is_closed:
            self._notify(
                OutboxStalled(
                    namespace=self._namespace,
                    path=self.file.entities[task.path],
                    error=error,
                    waiting=self.file.counts.waiting.get(task.path, 0),
                    retry_in_seconds=rest,
                )
            )

    # --- what happened ----------------------------------------------------------------------------

    def stored(self, path: str, count: int) -> None:
        self._notify(StoredInOutbox(path=path, count=count, **self._state()))

    def left(self, path: str, count: int) -> None:
        self._notify(LeftOutbox(path=path, count=count, **self._state()))

    def held(self, message: StoredMessage, reason: str) -> None:
        self._notify(
            HeldInOutbox(
                path=message.entity,
                message_id=message.message_id,
                reason=reason,
                **self._state(),
            )
        )

    def _state(self) -> dict[str, Any]:
        """The fields that all events of an outbox have."""
        oldest_ms = self.file.counts.oldest_ms
        return {
            "namespace": self._namespace,
            "file": str(self.path),
            "waiting": self.waiting,
            "oldest_seconds": 0.0
            if oldest_ms is None
            else max(0.0, self.file.clock() - oldest_ms / 1000),
            "file_bytes": self.file.file_bytes,
        }


OnDisk = Callable[[Callable[[OutboxFile], Any]], Any]
"""Calls a function with the file. It may wait for the disk; in asyncio, it is awaited."""


def drain(
    outbox: ClientOutbox,
    task: Drain,
    *,
    on_disk: OnDisk,
    send: Callable[[Sequence[AmqpAnnotatedMessage]], Any],
) -> Steps[None]:
    """The steps that send the messages of one entity, oldest first.

    A message that any namespace would refuse at any time is held, and so is one that is too old.
    Every other failure ends the drain; it continues later.
    """
    until = outbox.clock() + DRAIN_SECONDS_MAX
    count = BATCH_COUNT
    while outbox.clock() < until:
        oldest = partial(OutboxFile.oldest, entity=task.path, count=count, bytes_max=BATCH_BYTES)
        found: list[StoredMessage] = yield partial(on_disk, oldest)
        if not found:
            if outbox.has(task.path):  # they were sent, and could not be deleted at that time
                yield partial(on_disk, lambda file: file.delete([]))
            return
        if (reason := _too_old(outbox, found[0])) is not None:
            yield from _hold(outbox, on_disk, found[0], reason)
            continue
        try:
            messages = _first_of_one_partition(found)
        except ValueError as error:
            yield from _hold(outbox, on_disk, found[0], one_line(error))
            continue
        sent = found[: len(messages)]
        try:
            yield partial(send, messages)
        except BacklogExhausted as error:
            yield from _delete(outbox, on_disk, sent[: error.diverted_count])
            raise
        except Exception as error:
            # If the primary could accept what does not fit a backlog queue, it waits for that.
            if kind_of(error) is not Kind.MESSAGE or isinstance(error, EnvelopeTooLarge):
                raise
            if len(sent) > 1:
                count = 1  # one of them is at fault
                continue
            yield from _hold(outbox, on_disk, sent[0], one_line(error))
            count = BATCH_COUNT
        else:
            yield from _delete(outbox, on_disk, sent)


def _too_old(outbox: ClientOutbox, message: StoredMessage) -> str | None:
    limit = outbox.options.max_age
    if limit is None:
        return None
    age = outbox.file.clock() - message.stored_ms / 1000
    return f"it waited longer than max_age ({limit})" if age > limit.total_seconds() else None


def _first_of_one_partition(found: Sequence[StoredMessage]) -> list[AmqpAnnotatedMessage]:
    """The first messages that may be sent in one batch: a partitioned entity refuses one whose
    messages are of several sessions or partition keys. Raises ValueError if the first one cannot be
    read.
    """
    first = encoded.decode(found[0].amqp)
    messages = [first]
    for each in found[1:]:
        try:
            message = encoded.decode(each.amqp)
        except ValueError:
            break
        if _partition(message) != _partition(first):
            break
        messages.append(message)
    return messages


def _partition(message: AmqpAnnotatedMessage) -> tuple[Any, Any]:
    properties, annotations = message.properties, message.annotations or {}
    session = None if properties is None else properties.group_id
    return session, annotations.get(b"x-opt-partition-key")


def _hold(
    outbox: ClientOutbox, on_disk: OnDisk, message: StoredMessage, reason: str
) -> Steps[None]:
    yield partial(on_disk, lambda file: file.hold([message], reason))
    outbox.held(message, reason)


def _delete(outbox: ClientOutbox, on_disk: OnDisk, sent: Sequence[StoredMessage]) -> Steps[None]:
    if sent:
        yield partial(on_disk, lambda file: file.delete(sent))
        outbox.left(sent[0].entity, len(sent))
