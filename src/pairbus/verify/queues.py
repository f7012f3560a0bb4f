"""The queues of a run: creates them, counts what is under way, reads what is left."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from azure.core.exceptions import AzureError, ServiceRequestError

from pairbus.cli.administration import (
    AccessDenied,
    Administration,
    EntityKind,
    EntityNotFound,
    administration,
    answer_within,
)
from pairbus.cli.entity_path import EntityPath, SubQueue
from pairbus.cli.message_client import connect, peek_messages
from pairbus.cli.target import Target
from pairbus.errors import NamespaceError
from pairbus.verify.journal import Fact, Journal
from pairbus.verify.worker import Pair

SAMPLE_SECONDS: Final = 0.5
_ANSWER_SECONDS: Final = 3
_CHECK_SECONDS: Final = 15
_READ_ATTEMPTS: Final = 5
_SETTINGS: Final = {
    # A send in progress at an outage is diverted under the same id: drop the second copy.
    "requires_duplicate_detection": True,
    "lock_duration": timedelta(seconds=30),
    "max_delivery_count": 1_000,
}


class RunQueues:
    """Two queues on the primary, one of them with sessions, and the backlog queues."""

    def __init__(self, pair: Pair, run: str) -> None:
        self._run = run
        self._primary, self._secondary = pair.targets
        self._backlog_prefix = f"{pair.primary_name}/x-servicebus-transfer/".lower()
        self.plain = f"pairbus-verify-{run}"
        self.with_sessions = f"{self.plain}-sessions"
        self._left: list[str] = []
        """The queues that may be on the primary."""
        self._lock = threading.Lock()  # while queues are created or deleted
        self._is_ending = False

    def create(self, *, deletes_itself: bool) -> None:
        """`deletes_itself`: nothing stays behind if the run is killed."""
        try:  # otherwise the senders would wait for the secondary, and nobody would know why
            with administration(self._secondary, seconds=_CHECK_SECONDS) as admin:
                self._backlog_queues(admin)
        except NamespaceError as error:
            raise NamespaceError(f"the secondary: {error}") from error
        settings: dict[str, Any] = dict(_SETTINGS)
        if deletes_itself:
            settings["auto_delete_on_idle"] = timedelta(hours=1)
        with self._lock, administration(self._primary) as admin:
            self._create(admin, self.plain, settings)
            self._create(admin, self.with_sessions, settings | {"requires_session": True})

    def _create(self, admin: Administration, queue: str, settings: dict[str, Any]) -> None:
        if self._is_ending:
            return
        self._left.append(queue)
        try:
            admin.create(EntityKind.QUEUE, (queue,), **settings)
        except NamespaceError as error:
            # It was refused, or never asked. After any other error, the queue may be there.
            if isinstance(error, AccessDenied) or isinstance(error.__cause__, ServiceRequestError):
                self._left.remove(queue)
            raise

    def delete(self, *, seconds: float) -> list[str]:
        """Returns those that may be left, because the primary did not answer in this time.

        `create` may still be waiting for an answer, on another thread.
        """
        self._is_ending = True
        if self._left:
            answer_within(seconds, self._delete)
        return list(self._left)

    def _delete(self) -> None:
        with self._lock, administration(self._primary) as admin:
            for queue in list(self._left):
                with suppress(NamespaceError):
                    with suppress(EntityNotFound):
                        admin.delete(EntityKind.QUEUE, (queue,))
                    self._left.remove(queue)

    # --- counting ---------------------------------------------------------------------------------

    def backlog(self) -> int | None:
        """The messages in the backlog queues; None if the secondary does not answer."""
        with (
            suppress(Exception),
            administration(self._secondary, seconds=_ANSWER_SECONDS) as admin,
        ):
            return sum(each.total_message_count or 0 for each in self._backlog_queues(admin))
        return None

    def waiting(self) -> int | None:
        """The messages that are still under way, on both namespaces; None: one does not answer.

        Dead letters do not move, so they do not count.
        """
        with (
            suppress(Exception),
            administration(self._primary, seconds=_ANSWER_SECONDS) as here,
            administration(self._secondary, seconds=_ANSWER_SECONDS) as there,
        ):
            own = [
                here.get_counts(EntityKind.QUEUE, (queue,))
                for queue in (self.plain, self.with_sessions)
            ]
            return sum(
                each.active_message_count or 0 for each in (*own, *self._backlog_queues(there))
            )
        return None

    def _backlog_queues(self, admin: Administration) -> list[Any]:
        return [
            each
            for each in admin.all_counts(EntityKind.QUEUE)
            if each.name.lower().startswith(self._backlog_prefix)
        ]

    # --- what is left -----------------------------------------------------------------------------

    def read_what_is_left(self, journal: Journal) -> None:
        """Messages of this run in its queues, in the backlog, and in all dead-letter queues.

        The namespaces may be slow after the last fault, so it tries several times. A message that
        is recorded twice counts once.
        """
        for is_last in [*[False] * (_READ_ATTEMPTS - 1), True]:
            try:
                self._read_what_is_left(journal)
                return
            except (AzureError, NamespaceError) as error:
                if is_last:
                    raise NamespaceError(f"cannot read what is left: {error}") from error
                time.sleep(1)

    def _read_what_is_left(self, journal: Journal) -> None:
        for target in (self._primary, self._secondary):
            with administration(target) as admin:
                found = self._backlog_queues(admin)
                if target is self._primary:
                    for queue in (self.plain, self.with_sessions):
                        # A namespace that loses even the queue must not end the account.
                        with suppress(EntityNotFound):
                            found.append(admin.get_counts(EntityKind.QUEUE, (queue,)))
            with connect(target) as client:
                for each in found:
                    # As bytes: the SDK cannot peek at all sessions of a queue.
                    for count, sub_queue, fact in (
                        (each.active_message_count, None, Fact.LEFT),
                        (each.dead_letter_message_count, SubQueue.DEAD_LETTER, Fact.DEAD_LETTERED),
                    ):
                        if count:
                            path = EntityPath(entity=each.name, sub_queue=sub_queue)
                            self._record(client, target, path, fact, journal)

    def _record(
        self, client: Any, target: Target, path: EntityPath, fact: Fact, journal: Journal
    ) -> None:
        for message in peek_messages(client, target, path):
            message_id = str(message.field(0))
            if message_id.startswith(f"{self._run}-"):
                journal.write(fact, message_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    at: float
    """Seconds after the start."""
    backlog: int | None
    """None: the secondary did not answer."""


class BacklogCurve:
    """Counts the backlog all the time, on a thread: the secondary may be silent."""

    def __init__(self, queues: RunQueues, began: float) -> None:
        """`began`: monotonic."""
        self._queues = queues
        self._began = began
        self._stopping = threading.Event()
        self._samples: list[Sample] = []
        self._thread = threading.Thread(target=self._count, daemon=True)
        self._thread.start()

    def _count(self) -> None:
        while not self._stopping.is_set():
            at = time.monotonic() - self._began
            self._samples.append(Sample(at=at, backlog=self._queues.backlog()))
            self._stopping.wait(SAMPLE_SECONDS)

    def stop(self) -> tuple[Sample, ...]:
        self._stopping.set()
        self._thread.join(3 * _ANSWER_SECONDS)
        return tuple(self._samples)
