"""The processes of a run: paired senders in both shells, and receivers with the official SDK.

`python -m pairbus.verify.worker` reads one line of JSON from stdin (a connection string on the
command line would be visible to others) and works until stdin is closed. So it also ends when the
process that started it dies.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any, Final

from azure.core.exceptions import AzureError

from pairbus.cli.administration import administration_client
from pairbus.cli.message_client import sdk_client
from pairbus.cli.target import Target, parse_target
from pairbus.errors import PairbusError
from pairbus.verify.journal import Fact, Journal
from pairbus.verify.messages import Made, MessageMaker, read

_RETRY_SECONDS: Final = 0.5
_SESSION_THREADS: Final = 8
"""The SDK takes half a second to open a session, so one thread could not keep up."""


class Role(StrEnum):
    BLOCKING = "blocking"
    """A sender with the blocking client."""
    ASYNCIO = "asyncio"
    RECEIVER = "receiver"
    SESSION_RECEIVER = "session receiver"

    @property
    def is_sender(self) -> bool:
        return self in (Role.BLOCKING, Role.ASYNCIO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The namespaces of a run, as the options give them."""

    primary: str
    secondary: str
    primary_ca_file: str | None
    secondary_ca_file: str | None
    primary_name: str

    @property
    def targets(self) -> tuple[Target, Target]:
        files = [
            None if text is None else Path(text)
            for text in (self.primary_ca_file, self.secondary_ca_file)
        ]
        return parse_target(self.primary, files[0]), parse_target(self.secondary, files[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What one process does. Sent to it as JSON."""

    role: Role
    name: str
    run: str
    folder: str
    pair: Pair
    queue: str
    session_queue: str
    rate: float
    seed: int

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Assignment:
        values = json.loads(line)
        return cls(**{**values, "role": Role(values["role"]), "pair": Pair(**values["pair"])})


def main() -> None:
    # The SDK logs each lost connection, and without a handler that goes to stderr.
    logging.getLogger().addHandler(logging.NullHandler())
    work = Assignment.from_line(sys.stdin.readline())
    stopping = threading.Event()
    threading.Thread(target=_wait_for_end, args=(stopping,), daemon=True).start()
    journal = Journal(Path(work.folder) / f"{work.name}.journal")
    match work.role:
        case Role.BLOCKING:
            send_blocking(work, journal, stopping)
        case Role.ASYNCIO:
            asyncio.run(send_asyncio(work, journal, stopping))
        case Role.RECEIVER:
            receive(work, journal, stopping, [_open_queue])
        case Role.SESSION_RECEIVER:
            receive(work, journal, stopping, [_open_session] * _SESSION_THREADS)


def _wait_for_end(stopping: threading.Event) -> None:
    sys.stdin.read()
    stopping.set()


# -- senders -----------------------------------------------------------------------------------


class Recorder:
    """Makes the messages of one sender, and writes down what becomes of them."""

    def __init__(self, work: Assignment, journal: Journal) -> None:
        self._journal = journal
        self._maker = MessageMaker(work.run, work.name, seed=work.seed)
        self._random = Random(f"{work.seed} {work.name} pace")
        self._pause = 1 / work.rate
        self._due = time.monotonic()

    def next_group(self) -> list[Made]:
        group = self._maker.group(has_session=self._random.random() < 0.5)
        for one in group:
            self._journal.write(Fact.ATTEMPT, one.message_id, one.session_id, one.order)
        return group

    def wait_seconds(self, sent: int) -> float:
        """How long to wait before the next call. Calls that an outage delayed are not made up."""
        now = time.monotonic()
        self._due = max(self._due + sent * self._pause, now)
        return self._due - now

    @contextmanager
    def pairing(self) -> Iterator[None]:
        """Around a client's life. If it was started during an outage, it cannot be paired."""
        try:
            yield
        except (AzureError, PairbusError) as error:
            # On stderr, which the run shows if this process ends.
            print(f"cannot pair, will try again: {error}", file=sys.stderr, flush=True)

    @contextmanager
    def outcome(self, group: list[Made]) -> Iterator[None]:
        """Around a call of the SDK."""
        from azure.servicebus.exceptions import MessageSizeExceededError

        from pairbus import BacklogExhausted

        fact, safe_count = Fact.ACKNOWLEDGED, 0
        try:
            yield
        except (TypeError, ValueError, MessageSizeExceededError):
            fact = Fact.FAILED  # the SDK refuses the message before it sends anything
        except BacklogExhausted as error:
            # A namespace may have the others, too: its answer may have been lost.
            fact, safe_count = Fact.UNKNOWN, error.diverted_count
        except Exception:
            fact = Fact.UNKNOWN
        for place, one in enumerate(group):
            known = Fact.ACKNOWLEDGED if place < safe_count else fact
            self._journal.write(known, one.message_id, one.session_id, one.order)


def _clients(work: Assignment, kind: Any, partner: Any, manager: Any) -> tuple[Any, Any, Any]:
    """The paired client, and the two clients of the secondary."""
    primary, secondary = work.pair.targets
    return (
        sdk_client(primary, kind),
        sdk_client(secondary, partner),
        administration_client(secondary, manager),
    )


def pairing_options(primary_name: str, partner: Any, manager: Any) -> Any:
    from pairbus import SendAvailabilityPairedNamespaceOptions

    return SendAvailabilityPairedNamespaceOptions(
        manager,
        partner,
        backlog_queue_count=3,
        failover_interval=timedelta(0),
        ping_primary_interval=timedelta(seconds=1),
        primary_namespace_name=primary_name,
    )


def _senders(client: Any, work: Assignment) -> dict[bool, Any]:
    """By whether a message has a session."""
    return {
        False: client.get_queue_sender(work.queue),
        True: client.get_queue_sender(work.session_queue),
    }


def send_blocking(work: Assignment, journal: Journal, stopping: threading.Event) -> None:
    from pairbus import ServiceBusClient

    recorder = Recorder(work, journal)
    while not stopping.is_set():
        with recorder.pairing(), ExitStack() as stack:
            clients = _clients(work, ServiceBusClient, None, None)
            client, partner, manager = map(stack.enter_context, clients)
            client.pair_namespace(pairing_options(work.pair.primary_name, partner, manager))
            senders = _senders(client, work)
            while not stopping.is_set():
                group = recorder.next_group()
                with recorder.outcome(group):
                    senders[bool(group[0].session_id)].send_messages(_content(group))
                stopping.wait(recorder.wait_seconds(len(group)))
        stopping.wait(_RETRY_SECONDS)


async def send_asyncio(work: Assignment, journal: Journal, stopping: threading.Event) -> None:
    from azure.servicebus.aio import ServiceBusClient as PlainClient
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

    from pairbus.aio import ServiceBusClient

    recorder = Recorder(work, journal)
    while not stopping.is_set():
        with recorder.pairing():
            async with AsyncExitStack() as stack:
                clients = _clients(
                    work, ServiceBusClient, PlainClient, ServiceBusAdministrationClient
                )
                client, partner, manager = [
                    await stack.enter_async_context(each) for each in clients
                ]
                await client.pair_namespace(
                    pairing_options(work.pair.primary_name, partner, manager)
                )
                senders = _senders(client, work)
                while not stopping.is_set():
                    group = recorder.next_group()
                    with recorder.outcome(group):
                        await senders[bool(group[0].session_id)].send_messages(_content(group))
                    await asyncio.sleep(recorder.wait_seconds(len(group)))
        await asyncio.sleep(_RETRY_SECONDS)


def _content(group: list[Made]) -> Any:
    return group[0].message if len(group) == 1 else [one.message for one in group]


# -- the receiver ------------------------------------------------------------------------------


OpenReceiver = Callable[[Any, Assignment], Any]


def receive(
    work: Assignment,
    journal: Journal,
    stopping: threading.Event,
    opens: Sequence[OpenReceiver],
) -> None:
    """Receives with a thread for each of `opens`. A session is received by one at a time."""
    threads = [
        threading.Thread(target=_keep_receiving, args=(work, each, journal, stopping), daemon=True)
        for each in opens
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _open_queue(client: Any, work: Assignment) -> Any:
    return client.get_queue_receiver(work.queue)


def _open_session(client: Any, work: Assignment) -> Any:
    from azure.servicebus import NEXT_AVAILABLE_SESSION

    return client.get_queue_receiver(
        work.session_queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=2
    )


def _keep_receiving(
    work: Assignment,
    open_receiver: OpenReceiver,
    journal: Journal,
    stopping: threading.Event,
) -> None:
    """Connects again after each failure, as every receiving application must."""
    target, _ = work.pair.targets
    while not stopping.is_set():
        # A broken connection raises more kinds of errors than the SDK's own.
        with suppress(Exception), sdk_client(target) as client:
            while not stopping.is_set():
                with open_receiver(client, work) as receiver:
                    _receive_all(receiver, journal, stopping)
        stopping.wait(_RETRY_SECONDS)


def _receive_all(receiver: Any, journal: Journal, stopping: threading.Event) -> None:
    while not stopping.is_set():
        messages = receiver.receive_messages(max_message_count=50, max_wait_time=1)
        for message in messages:
            found = read(message)
            fact = Fact.DAMAGED if found.is_damaged else Fact.RECEIVED
            # Before it is completed: after a kill in between it is received again, which counts as
            # a repeat and not as a loss.
            journal.write(fact, found.message_id, found.session_id, found.order)
            receiver.complete_message(message)
        if not messages and receiver.session is not None:
            return  # on to the next session


if __name__ == "__main__":
    main()
