"""A broker for each test, and clients that are closed at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest

from pairbus.broker import Broker, Policy, QueueDescription, Right, TopicDescription
from pairbus.broker.entities.policies import default_policy
from pairbus.fast.address import Address
from pairbus.fast.client import FastClient
from pairbus.testing import ManualClock

POLICIES = (
    default_policy(),
    Policy(name="sender", key="c2VuZA==", rights=frozenset({Right.SEND})),
    Policy(name="listener", key="bGlzdGVu", rights=frozenset({Right.LISTEN})),
)
SECONDS = 30.0
"""How long a client waits for an answer."""

Connect = Callable[..., FastClient]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(runs=True)


@pytest.fixture
def broker(clock: ManualClock) -> Iterator[Broker]:
    queues = [
        QueueDescription(name="q", lock_duration=timedelta(minutes=1)),
        QueueDescription(name="other"),
        QueueDescription(name="sessions", requires_session=True),
    ]
    topics = [TopicDescription(name="events"), "events/Subscriptions/audit"]
    with Broker(queues=queues, topics=topics, policies=POLICIES, clock=clock) as running:
        yield running


@pytest.fixture
def connect(broker: Broker, clock: ManualClock) -> Iterator[Connect]:
    """Makes clients of the broker, by connection string."""
    with ExitStack() as opened:

        def connect(text: str | None = None, **options: Any) -> FastClient:
            where = {key: options.pop(key) for key in ("port", "ca_file") if key in options}
            address = Address.from_connection_string(text or broker.connection_string, **where)
            client = address.client(**{"timeout_seconds": SECONDS, "clock": clock, **options})
            opened.callback(client.close)
            return client

        yield connect


@pytest.fixture
def client(connect: Connect) -> FastClient:
    return connect()
