"""Topics and subscriptions by name alone, for those who do not care to describe them.

Used by `Broker(topics=...)` and by the command line. A subscription stands for its topic as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pairbus.broker.entities.descriptions import EntityDescription
from pairbus.broker.entities.topic_entities import (
    SubscriptionDescription,
    TopicDescription,
    subscription_path,
)

_SUBSCRIPTION = re.compile(r"(?P<topic>.+?)/subscriptions/(?P<own>.*)", re.IGNORECASE | re.DOTALL)


def described_topics(given: Iterable[str | EntityDescription]) -> list[EntityDescription]:
    """Topics first, then their subscriptions; a topic that only a subscription names is added.

    `events` is a topic, and `events/Subscriptions/audit` a subscription of it.
    """
    entities = [_described(one) if isinstance(one, str) else one for one in given]
    topics = [one for one in entities if not isinstance(one, SubscriptionDescription)]
    subscriptions = [one for one in entities if isinstance(one, SubscriptionDescription)]
    known = {topic.name.lower() for topic in topics}
    for subscription in subscriptions:
        if subscription.topic_name.lower() not in known:
            topics.append(TopicDescription(name=subscription.topic_name))
            known.add(subscription.topic_name.lower())
    return [*topics, *subscriptions]


def _described(name: str) -> EntityDescription:
    found = _SUBSCRIPTION.fullmatch(name)
    if found is None:
        return TopicDescription(name=name)
    return SubscriptionDescription(name=subscription_path(found["topic"], found["own"]))
