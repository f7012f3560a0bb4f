"""What queues, topics and subscriptions have in common: mailboxes, and how messages get there.

A message is placed (written to the store), and shown to receivers when it is durable. If the disk
refuses it, it is taken back. Times are epoch milliseconds.

`Runtime` is what an entity needs of its namespace. It is here because the two depend on each other:
a namespace finds entities, and an entity asks its namespace for the target of a forward.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.entities.descriptions import EntityDescription
from pairbus.broker.entities.durations import milliseconds
from pairbus.broker.message import Message, MessageState
from pairbus.broker.messages.incoming import IncomingMessage
from pairbus.broker.messages.lifecycle import MailboxKind, Times
from pairbus.broker.messages.mailbox import LockTokens, Mailbox
from pairbus.broker.storage.committer import Committer
from pairbus.broker.storage.store import Counters, Store, StoredEntity
from pairbus.cost.meter import Meter, Tally

Done = Callable[..., None]
"""Called as `done(error, *arguments)` when the change is durable, or has failed."""


class DelaysVisibility(Protocol):
    """The only fault on demand that entities check themselves."""

    def visible_at_ms(self, name: str, *, now_ms: int) -> int | None: ...


class Runtime(Protocol):
    """What an entity needs of its namespace."""

    @property
    def name(self) -> str: ...
    @property
    def store(self) -> Store: ...
    @property
    def committer(self) -> Committer: ...
    @property
    def lock_tokens(self) -> LockTokens: ...
    @property
    def meter(self) -> Meter: ...
    @property
    def active_faults(self) -> DelaysVisibility | None: ...

    def now_ms(self) -> int: ...

    def find(self, path: str) -> Entity | None: ...

    def wake(self, entity: Entity, mailbox: Mailbox) -> None:
        """Serve the mailbox at the end of this turn of the loop."""

    def expect(self, at_ms: int) -> None:
        """Call `tick` at that time at the latest."""


class StoresMessages(Protocol):
    """How an entity accepts what another one forwards to it. `enqueue.py` implements it."""

    def is_new(self, one: IncomingMessage, *, now_ms: int) -> bool:
        """False if duplicate detection knows the message id."""

    def store(
        self, one: IncomingMessage, number: int, times: Times, *, now_ms: int
    ) -> tuple[int, Placements]:
        """Place the message here: its sequence number, and what was placed."""


class Entity(ABC):
    enqueuer: StoresMessages

    def __init__(
        self,
        runtime: Runtime,
        stored: StoredEntity,
        description: EntityDescription,
        counters: Sequence[Counters],
    ) -> None:
        self.runtime = runtime
        self.entity_id = stored.entity_id
        self.tally: Tally = runtime.meter.of(description.name)
        self.lock_ms = 0
        self.mailboxes = {
            kind: Mailbox(
                kind,
                counters[kind.value],
                runtime.store,
                runtime.lock_tokens,
                has_sessions=description.requires_session and kind is MailboxKind.MAIN,
            )
            for kind in MailboxKind
        }
        self.main = self.mailboxes[MailboxKind.MAIN]
        self._counters = tuple(counters)
        self.description = description
        self.set_description(description)
        self.created_ms: int = stored.created_ms
        self.updated_ms: int = stored.updated_ms
        self.accessed_ms: int = stored.accessed_ms
        """When it was last used; 0 for never."""
        self.saved_access_ms = stored.accessed_ms
        """`accessed_ms` as the data file has it."""
        self.available_ms = runtime.now_ms()
        """Since when clients could use it as it is: idle time starts here at the earliest."""

    @property
    def name(self) -> str:
        return self.description.name

    def set_description(self, description: EntityDescription) -> None:
        self.description = description
        before, self.lock_ms = self.lock_ms, milliseconds(description.lock_duration) or 0
        if self.lock_ms < before:
            for mailbox in self.mailboxes.values():
                mailbox.expect_unordered_locks()

    @property
    def size_bytes(self) -> int:
        """Dead letters count towards the quota, too."""
        main, dead, transfer = self._counters
        return main.bytes + dead.bytes + transfer.bytes

    @property
    def message_counts(self) -> dict[str, int]:
        """By state. Dead letters include those that are deferred."""
        main, dead, transfer = self._counters
        return {
            "active": main.active,
            "scheduled": main.scheduled,
            "deferred": main.deferred,
            "dead_letter": dead.active + dead.deferred,
            "transfer_dead_letter": transfer.active + transfer.deferred,
        }

    # auto-delete on idle

    @property
    def is_in_use(self) -> bool:
        """A client is attached, it forwards, or it has scheduled messages: it is not idle."""
        return (
            self.description.forward_to is not None
            or self.main.counters.scheduled > 0
            or any(mailbox.attached for mailbox in self.mailboxes.values())
        )

    @property
    def idle_since_ms(self) -> int:
        return max(self.accessed_ms, self.available_ms)

    def is_idle_for_too_long(self, *, now_ms: int) -> bool:
        """Whether it must be deleted because it was not used for the time of AutoDeleteOnIdle."""
        idle_ms = milliseconds(self.description.auto_delete_on_idle)
        return idle_ms is not None and not self.is_in_use and self.idle_since_ms + idle_ms <= now_ms

    # messages

    @abstractmethod
    def serve(self, mailbox: Mailbox, *, now_ms: int) -> None:
        """Deliver what the mailbox has to the links that wait for it."""

    def place(self, mailbox: Mailbox, message: Message) -> None:
        """Store a new message, which `arrived` will show once it is durable."""
        counters = mailbox.counters
        counters.add(message.state, message.size)
        if message.sequence > counters.last_sequence:  # dead letters keep their number
            counters.last_sequence = message.sequence
        self.runtime.store.insert(counters, message)
        # The disk has the message before the loop is notified. While it is held and busy, it cannot
        # be read from the disk as well, so it is not delivered twice.
        message.busy = True
        mailbox.held[message.sequence] = message

    def unplace(self, mailbox: Mailbox, message: Message) -> None:
        """The disk refused it."""
        mailbox.counters.add(message.state, message.size, -1)
        mailbox.held.pop(message.sequence, None)

    def arrived(self, mailbox: Mailbox, message: Message) -> None:
        """It is durable."""
        message.busy = False
        if message.state == MessageState.ACTIVE:
            mailbox.arrive(message)
            self.runtime.wake(self, mailbox)
        else:
            mailbox.held.pop(message.sequence, None)
            if message.due_ms is not None:
                self.runtime.expect(message.due_ms)
        if message.expires_ms is not None:
            self.runtime.expect(message.expires_ms)


class Placements(list[tuple[Entity, Mailbox, Message]]):
    """Messages placed by one change: shown when it is durable, taken back if the disk refuses."""

    def finish(self, error: Exception | None) -> AmqpError | None:
        for entity, mailbox, message in self:
            if error is None:
                entity.arrived(mailbox, message)
            else:
                entity.unplace(mailbox, message)
        return None if error is None else cannot_store(error)


def cannot_store(error: Exception) -> AmqpError:
    return AmqpError("amqp:internal-error", f"the broker cannot write its data file: {error}")
