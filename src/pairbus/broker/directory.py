"""The entities of a namespace: found by path, made, changed and removed.

Paths are compared without case and kept as they were written. A change is in effect at once and
durable with the next commit; the caller answers for it only then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pairbus.broker.descriptions import bare_description, changed_for_good, from_stored, to_stored
from pairbus.broker.entities import EntityDescription
from pairbus.broker.lifecycle import Kind
from pairbus.broker.mailbox import Mailbox
from pairbus.broker.queue import Queue
from pairbus.broker.store import Counters, StoredEntity
from pairbus.broker.topic import Subscription, Topic
from pairbus.broker.topic_entities import SubscriptionDescription, TopicDescription
from pairbus.errors import ConfigError

if TYPE_CHECKING:
    from pairbus.broker.namespace import Namespace


class EntityExists(ConfigError):
    """One of that name is there already."""


class Directory:
    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._entities: dict[str, Queue] = {}
        self._by_mailbox: dict[int, tuple[Queue, Mailbox]] = {}

    def __iter__(self) -> Iterator[Queue]:
        """A copy: entities may go while it is walked."""
        return iter(list(self._entities.values()))

    def find(self, path: str) -> Queue | None:
        return self._entities.get(path.lower())

    def mailbox(self, mailbox_id: int) -> tuple[Queue, Mailbox] | None:
        return self._by_mailbox.get(mailbox_id)

    def load(self, *, now_ms: int) -> None:
        store = self._namespace.store
        for stored in store.entities():
            description = from_stored(stored.kind, stored.name, stored.description)
            entity = self._add(stored, description, store.mailboxes(stored.entity_id))
            entity.accessed_ms = now_ms  # nobody can use it while the broker is down

    def ensure(self, description: EntityDescription, *, now_ms: int) -> None:
        """Make it, or bring it in line. One that says nothing but its name changes nothing."""
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
        stored, counters = self._namespace.store.create_entity(
            description.name, description.noun, to_stored(description), len(Kind), now_ms=now_ms
        )
        return self._add(stored, description, counters)

    def update(self, entity: Queue, description: EntityDescription, *, now_ms: int) -> None:
        if type(description) is not type(entity.description):
            raise ConfigError(f"{entity.description} exists, and is not a {description.noun}")
        if fixed := changed_for_good(entity.description, description):
            raise ConfigError(
                f"{entity.description} exists with another {fixed}, which cannot be changed: "
                f"delete the {description.noun} first"
            )
        self._namespace.store.update_entity(entity.entity_id, to_stored(description), now_ms=now_ms)
        entity.updated_ms = now_ms
        entity.redescribe(description)

    def remove(self, entity: Queue) -> list[Queue]:
        """What is gone: the entity, and a topic's subscriptions with it."""
        gone = [entity]
        if isinstance(entity, Topic):
            gone += entity.subscriptions.values()
        elif isinstance(entity, Subscription):
            topic = self.find(entity.description.topic_name)
            if isinstance(topic, Topic):
                del topic.subscriptions[entity.description.own_name.lower()]
        for one in gone:
            del self._entities[one.name.lower()]
            for mailbox in one.mailboxes.values():
                del self._by_mailbox[mailbox.counters.mailbox_id]
            self._namespace.store.drop_entity(one.entity_id)
        return gone

    def _add(
        self, stored: StoredEntity, description: EntityDescription, counters: list[Counters]
    ) -> Queue:
        entity: Queue
        if isinstance(description, SubscriptionDescription):
            entity = Subscription(self._namespace, stored, description, counters)
            topic = self.find(description.topic_name)
            assert isinstance(topic, Topic), description
            topic.subscriptions[description.own_name.lower()] = entity
        elif isinstance(description, TopicDescription):
            entity = Topic(self._namespace, stored, description, counters)
        else:
            entity = Queue(self._namespace, stored, description, counters)
        self._entities[description.name.lower()] = entity
        for mailbox in entity.mailboxes.values():
            self._by_mailbox[mailbox.counters.mailbox_id] = (entity, mailbox)
        return entity
