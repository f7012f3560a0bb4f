"""The entities of a namespace: found by path, created, changed and removed.

Paths are compared without case and kept as they were written. A change takes effect at once and is
durable with the next commit; the caller acknowledges it only then.
"""

from __future__ import annotations

from collections.abc import Iterator

from pairbus.broker.entities.descriptions import (
    EntityDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.entities.stored import (
    bare_description,
    changed_fixed_setting,
    from_stored,
    to_stored,
)
from pairbus.broker.messages.entity import Runtime
from pairbus.broker.messages.lifecycle import MailboxKind
from pairbus.broker.messages.mailbox import Mailbox
from pairbus.broker.messages.queue import Queue
from pairbus.broker.messages.topic import Subscription, Topic
from pairbus.broker.storage.store import Counters, StoredEntity
from pairbus.errors import ConfigError


class EntityExists(ConfigError):
    """An entity with that name already exists."""


class Directory:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._entities: dict[str, Queue] = {}
        self._by_mailbox: dict[int, tuple[Queue, Mailbox]] = {}

    def __iter__(self) -> Iterator[Queue]:
        """Iterates over a copy, because entities may be removed in the meantime."""
        return iter(list(self._entities.values()))

    def find(self, path: str) -> Queue | None:
        return self._entities.get(path.lower())

    def mailbox(self, mailbox_id: int) -> tuple[Queue, Mailbox] | None:
        return self._by_mailbox.get(mailbox_id)

    def load(self) -> None:
        store = self._runtime.store
        for stored in store.entities():
            description = from_stored(stored.kind, stored.name, stored.description)
            self._add(stored, description, store.mailboxes(stored.entity_id))

    def ensure(self, description: EntityDescription, *, now_ms: int) -> None:
        """Create or update the entity. A description with only a name changes nothing."""
        entity = self.find(description.name)
        if entity is None:
            self.create(description, now_ms=now_ms)
        elif description not in (entity.description, bare_description(description)):
            self.update(entity, description, now_ms=now_ms)

    def create(self, description: EntityDescription, *, now_ms: int) -> Queue:
        if (other := self.find(description.name)) is not None:
            raise EntityExists(f"{other.description} exists already")
        if isinstance(description, SubscriptionDescription) and not isinstance(
            self.find(description.topic_name), Topic
        ):
            raise ConfigError(f"{description}: there is no topic {description.topic_name!r}")
        stored, counters = self._runtime.store.create_entity(
            description.name,
            description.noun,
            to_stored(description),
            len(MailboxKind),
            now_ms=now_ms,
        )
        return self._add(stored, description, counters)

    def update(self, entity: Queue, description: EntityDescription, *, now_ms: int) -> None:
        if type(description) is not type(entity.description):
            raise ConfigError(f"{entity.description} exists, and is not a {description.noun}")
        if fixed := changed_fixed_setting(entity.description, description):
            raise ConfigError(
                f"{entity.description} exists with another {fixed}, which cannot be changed: "
                f"delete the {description.noun} first"
            )
        self._runtime.store.update_entity(entity.entity_id, to_stored(description), now_ms=now_ms)
        entity.updated_ms = entity.available_ms = now_ms
        entity.set_description(description)

    def remove(self, entity: Queue) -> list[Queue]:
        """Returns what was removed: the entity, and a topic's subscriptions with it."""
        gone = [entity]
        if isinstance(entity, Topic):
            gone += entity.subscriptions.values()
        for one in reversed(gone):
            self.forget(one)
            self._runtime.store.drop_entity(one.entity_id)
        return gone

    def put_back(self, entities: list[Queue]) -> None:
        """Undo a removal that the disk refused."""
        for entity in entities:
            self._enter(entity)

    def forget(self, entity: Queue) -> None:
        """Also undoes a creation that the disk refused."""
        del self._entities[entity.name.lower()]
        for mailbox in entity.mailboxes.values():
            del self._by_mailbox[mailbox.counters.mailbox_id]
        topic = self._topic_of(entity)
        if isinstance(entity, Subscription) and topic is not None:
            del topic.subscriptions[entity.description.own_name.lower()]

    def _add(
        self, stored: StoredEntity, description: EntityDescription, counters: list[Counters]
    ) -> Queue:
        kinds: dict[type[EntityDescription], type[Queue]] = {
            SubscriptionDescription: Subscription,
            TopicDescription: Topic,
        }
        kind = kinds.get(type(description), Queue)
        entity = kind(self._runtime, stored, description, counters)
        self._enter(entity)
        return entity

    def _enter(self, entity: Queue) -> None:
        self._entities[entity.name.lower()] = entity
        for mailbox in entity.mailboxes.values():
            self._by_mailbox[mailbox.counters.mailbox_id] = (entity, mailbox)
        topic = self._topic_of(entity)
        if isinstance(entity, Subscription) and topic is not None:
            topic.subscriptions[entity.description.own_name.lower()] = entity

    def _topic_of(self, entity: Queue) -> Topic | None:
        if isinstance(entity, Subscription):
            topic = self.find(entity.description.topic_name)
            return topic if isinstance(topic, Topic) else None
        return None
