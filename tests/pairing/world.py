"""What a test of the paired client has: entities and backlog queues of its own on two shared
namespaces, paired clients, their events, and the account of all messages.

Every test here ends with the account. A message whose send has returned is *acknowledged*: it must
be on the primary or in the backlog, under its id, with its envelope.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage

from pairbus.client.timing import Timing
from pairbus.events import Event
from tests.pairing.namespaces import NamespaceProcess
from tests.pairing.shells import Shell
from tests.waiting import wait_until

QUICK: dict[str, Any] = {"retry_total": 0}
"""A failure that is expected should not be waited for."""
AT_ONCE = timedelta(0)
SECOND = timedelta(seconds=1)
NEVER = timedelta(minutes=30)
"""No ping comes during a test, unless it wants one."""
QUEUES = 3
ALIASES = (b"x-ms-path", b"x-ms-sessionid", b"x-ms-timetolive", b"x-ms-scheduledenqueuetimeutc")


def ids(messages: Iterable[ServiceBusReceivedMessage]) -> list[str]:
    return sorted(str(message.message_id) for message in messages)


def aliases(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    """The envelope of a message in the backlog; what the SDK shows as bytes is text."""
    properties = message.application_properties or {}
    return {
        name.decode(): value.decode() if isinstance(value, bytes) else value
        for name in ALIASES
        if (value := properties.get(name)) is not None
    }


def together(work: Callable[[Any], Any], each: Sequence[Any]) -> list[Any]:
    """Does slow work on all at once: the SDK takes half a second to open a link."""
    with ThreadPoolExecutor(max(1, len(each))) as pool:
        return list(pool.map(work, each))


def short_throttle_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A throttled send waits for half a second instead of ten. `tests/client/test_send.py` proves
    the ten: `Wait(10.0)`."""
    timing_of = Timing.of
    monkeypatch.setattr(
        Timing,
        "of",
        lambda *args, **settings: replace(timing_of(*args, **settings), throttle_wait_seconds=0.5),
    )


class World:
    """One test's view of the pair, through one shell."""

    def __init__(
        self, *, shell: Shell, primary: NamespaceProcess, secondary: NamespaceProcess, name: str
    ) -> None:
        self.shell = shell
        self.primary = primary
        self.secondary = secondary
        self.name = name
        """Of the primary in backlog paths: so that each test has backlog queues of its own."""
        self.events: list[Event] = []
        self.acknowledged: defaultdict[str, list[str]] = defaultdict(list)
        self._open = ExitStack()
        self._senders: list[Any] = []

    # entities on the primary

    def queue(self, suffix: str = "queue", **settings: Any) -> str:
        path = f"{self.name}.{suffix}"
        self.primary.admin.create_queue(path, **settings)
        return path

    def topic(self, *subscriptions: str) -> str:
        path = f"{self.name}.topic"
        self.primary.admin.create_topic(path)
        for subscription in subscriptions:
            self.primary.admin.create_subscription(path, subscription)
        return path

    def backlog_path(self, index: int) -> str:
        return f"{self.name}/x-servicebus-transfer/{index}"

    # clients

    def enter(self, opened: Any) -> Any:
        return self._open.enter_context(opened)

    def client(self, connection_string: str | None = None, **options: Any) -> Any:
        """A client of the primary, not paired yet."""
        text = connection_string or self.primary.connection_string()
        return self.enter(self.shell.client(text, **{**QUICK, **options}))

    def factory(self, connection_string: str | None = None, **options: Any) -> Any:
        text = connection_string or self.secondary.connection_string()
        return self.enter(self.shell.client(text, **{**QUICK, **options}))

    def manager(self, connection_string: str | None = None, **options: Any) -> Any:
        text = connection_string or self.secondary.connection_string()
        options = {"connection_verify": self.secondary.ca_file, "retry_total": 1, **options}
        return self.enter(self.shell.manager(text, **options))

    def options(self, *, manager: Any = None, factory: Any = None, **settings: Any) -> Any:
        """By default, fails over at once and never pings."""
        defaults = {
            "primary_namespace_name": self.name,
            "backlog_queue_count": QUEUES,
            "failover_interval": AT_ONCE,
            "ping_primary_interval": NEVER,
            "observers": [self.events.append],
        }
        return self.shell.options(
            manager or self.manager(), factory or self.factory(), **{**defaults, **settings}
        )

    def pair(self, client: Any = None, **settings: Any) -> Any:
        """Pairs a client, a new one by default."""
        client = client or self.client()
        client.pair_namespace(self.options(**settings))
        return client

    def sender(self, client: Any, path: str, **options: Any) -> Any:
        sender = client.get_queue_sender(path, **options)
        self._senders.append(sender)
        return sender.__enter__()

    def unopened(self, client: Any, path: str) -> Any:
        """A sender that opens on first use, and is closed at the end of the test."""
        sender = client.get_queue_sender(path)
        self._senders.append(sender)
        return sender

    def senders(self, client: Any, *paths: str) -> list[Any]:
        """One sender for each, opened at the same time."""
        made = [self.unopened(client, path) for path in paths]
        return together(lambda sender: sender.__enter__(), made)

    def send(
        self, sender: Any, *bodies: str, timeout: float | None = None, **settings: Any
    ) -> None:
        """One send for each; by default, the id of a message is its text."""
        for body in bodies:
            message = ServiceBusMessage(body, **{"message_id": body, **settings})
            sender.send_messages(message, timeout=timeout)
            self.acknowledge(sender.entity_name, body)

    def acknowledge(self, path: str, *ids: str) -> None:
        self.acknowledged[path].extend(ids)

    def close(self) -> None:
        together(lambda sender: sender.close(), self._senders)
        self._open.close()

    # what was observed

    def events_of(self, kind: type[Any], path: str | None = None) -> list[Any]:
        return [
            event
            for event in list(self.events)
            if isinstance(event, kind) and (path is None or getattr(event, "path", None) == path)
        ]

    def wait_for(self, kind: type[Any], path: str | None = None, *, count: int = 1) -> list[Any]:
        wait_until(lambda: len(self.events_of(kind, path)) >= count, f"{count} {kind.__name__}")
        return self.events_of(kind, path)

    # the account

    def backlog(self, path: str | None = None) -> list[ServiceBusReceivedMessage]:
        """All messages in this test's backlog queues, or those of one entity."""
        queues = []
        while self.secondary.has_queue(self.backlog_path(len(queues))):
            queues.append(self.backlog_path(len(queues)))
        found = [each for page in together(self.secondary.peek, queues) for each in page]
        if path is None:
            return found
        return [each for each in found if aliases(each).get("x-ms-path") == path]

    def check(self, path: str, *, primary: Iterable[str] = (), backlog: Iterable[str] = ()) -> None:
        """These ids are on the primary's queue, and those in the backlog, once each. Nothing that
        was acknowledged is missing, and nothing else is there.
        """
        self.check_all({path: (primary, backlog)})

    def check_all(self, expected: Mapping[str, tuple[Iterable[str], Iterable[str]]]) -> None:
        """The same for several queues: the ids on the primary and those in the backlog of each."""
        in_backlog, *pages = together(
            lambda work: work(),
            [self.backlog, *(partial(self.primary.peek, path) for path in expected)],
        )
        for (path, (primary, backlog)), on_primary in zip(expected.items(), pages, strict=True):
            diverted = [each for each in in_backlog if aliases(each).get("x-ms-path") == path]
            for message in diverted:
                assert aliases(message) == {"x-ms-path": path}
            assert (ids(on_primary), ids(diverted)) == (sorted(primary), sorted(backlog))
            found = Counter(ids(on_primary) + ids(diverted))
            missing = Counter(self.acknowledged[path]) - found
            assert not missing, f"acknowledged and nowhere: {missing}"

    def bring_home(self, path: str) -> None:
        """Like the syphon: what is in the backlog goes to the primary under its own id."""
        home: list[ServiceBusMessage] = []
        for index in range(QUEUES):
            queue = self.backlog_path(index)
            for message in self.secondary.take(queue, self.secondary.count(queue)):
                kept = aliases(message)
                assert kept.pop("x-ms-path") == path
                session = kept.pop("x-ms-sessionid", None)
                assert not kept
                body, id_ = b"".join(message.body), message.message_id
                home.append(ServiceBusMessage(body, message_id=id_, session_id=session))
        self.primary.send(path, *(home[at : at + 100] for at in range(0, len(home), 100)))

    # the state of a paired client

    def entity(self, client: Any, path: str) -> Any:
        """What the status says of one entity."""
        [found] = [each for each in client.pairing.status().entities if each.path == path]
        return found

    def queue_in_use(self, client: Any, path: str) -> str:
        queue = self.entity(client, path).backlog_queue
        assert queue is not None, "no backlog queue is left"
        return str(queue)
