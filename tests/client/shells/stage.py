"""Two namespaces in this process, and one test's paired clients on them.

For tests that need a connection. `tests/pairing` tests what happens when a namespace fails.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from pairbus.broker import Broker
from pairbus.broker.server import Endpoint
from pairbus.events import Event
from tests.client.shells.both import AsyncioSide, Side
from tests.pairing.shells import bare

_numbers = itertools.count()


class Stage:
    def __init__(self, shell: Side, broker: Broker) -> None:
        self.shell = shell
        self.broker = broker
        self.name = f"stage{next(_numbers)}"
        """Of the primary in backlog paths, so that each test has queues of its own."""
        self.queue = "orders"
        self.events: list[Event] = []
        self._open = ExitStack()

    @property
    def primary(self) -> Endpoint:
        return self.broker["primary"]

    @property
    def secondary(self) -> Endpoint:
        return self.broker["secondary"]

    @property
    def primary_text(self) -> str:
        """Its connection string."""
        return self.primary.connection_string

    @property
    def secondary_text(self) -> str:
        return self.secondary.connection_string

    @property
    def outage(self) -> Any:
        """A context manager: the primary cannot be reached."""
        return self.primary.faults.unreachable()

    def client(self, text: str | None = None, **settings: Any) -> Any:
        """A client of the primary by default."""
        made = self.shell.client(
            text or self.primary.connection_string, **{"retry_total": 0, **settings}
        )
        self._open.callback(made.close)
        return made

    def options(self, *, factory: Any = None, manager: Any = None, **settings: Any) -> Any:
        if manager is None:
            manager = self.shell.manager(
                self.secondary_text, connection_verify=str(self.broker.ca_file), retry_total=0
            )
            self._open.callback(manager.close)
        settings = {
            "primary_namespace_name": self.name,
            "backlog_queue_count": 2,
            "failover_interval": timedelta(0),
            "ping_primary_interval": timedelta(minutes=30),
            "observers": [self.events.append],
            **settings,
        }
        factory = factory or self.client(self.secondary.connection_string)
        return self.shell.options(manager, factory, **settings)

    def pair(self, **settings: Any) -> Any:
        client = self.client()
        client.pair_namespace(self.options(**settings))
        return client

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """What is not under the blocking names: where the shell runs its own."""
        return self.shell.call(function, *args)

    def sender(self, client: Any, path: str = "orders") -> Any:
        """A sender that is closed at the end. Without a reference, the SDK would forget it, with
        its connection.
        """
        made = client.get_queue_sender(path)
        self._open.callback(made.close)
        return made

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    def close(self) -> None:
        self._open.close()

    # --- what is left in the background

    def has_left(self, before: list[str]) -> bool:
        """Whether something runs that did not before."""
        return bool(Counter(self.background()) - Counter(before))

    def background(self) -> list[str]:
        """The names of threads and tasks that are ours, or the SDK's."""
        if isinstance(self.shell, AsyncioSide):
            return sorted(self.shell.call(_tasks))
        return sorted(
            thread.name
            for thread in threading.enumerate()
            if thread.name.startswith(("pairbus-stage", "pairbus-task", "pairbus-partner"))
            or "_keep_alive" in thread.name
            or "_close_one" in thread.name
        )


def link_of(sender: Any) -> Any:
    """The SDK's object for the link of a sender, whatever its state; None if there is none."""
    return bare(sender)._handler


async def _tasks() -> list[str]:
    return [
        task.get_coro().__qualname__  # type: ignore[union-attr]
        for task in asyncio.all_tasks()
        if task is not asyncio.current_task()
    ]
