"""Counts the calls that one message costs on the hot paths, and compares them with calls.json.

    python benchmarks/calls.py            fails if a path needs more calls than the table says, or
                                          so many fewer that the table must be renewed
    python benchmarks/calls.py --renew    writes the table

Time depends on the machine and its load; the number of calls hardly does. So `make check` notices a
change that makes each message more expensive, in a few seconds and on any machine. Counted are the
calls of functions in `src/pairbus` and those that they make to built-in functions, in one thread.
What waits for a socket is left out: how often it runs depends on time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import azure.servicebus._base_handler
import azure.servicebus.aio._base_handler_async
from azure.servicebus import ServiceBusMessage

import ours
from pairbus.amqp.codec.batches import BATCH_FORMAT
from pairbus.amqp.engine import Engine, EngineLimits, Link
from pairbus.amqp.outcomes import ACCEPTED
from pairbus.amqp.sasl import SaslClient
from pairbus.broker.entities.descriptions import QueueDescription
from pairbus.broker.entities.namespace_options import Limits, NamespaceOptions
from pairbus.broker.links.amqp_connection import AmqpConnection
from pairbus.broker.namespace import Namespace
from pairing_ends import DISABLED, QUEUE, SHELLS, Ends, done
from syphon_stage import backlog_message, data_section

TABLE = Path(__file__).with_suffix(".json")
MARGIN = 0.05
SOURCE = str(ours.SOURCE / "pairbus")
WAITING = tuple(f"{SOURCE}/amqp/client/{name}.py" for name in ("blocking", "transport"))

SENDS = 50
BATCH = 100
BROKER_MESSAGES = 2_000
IN_FLIGHT = 50
BACKLOG = "bench/x-servicebus-transfer/0"
BACKLOG_MESSAGES = 4_000


class CallCounter:
    """Counts in this thread, within `with`."""

    def __init__(self) -> None:
        self.count = 0
        self._is_counted: dict[str, bool] = {}

    def __enter__(self) -> CallCounter:
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_call"):
            file = frame.f_code.co_filename
            if file not in self._is_counted:
                is_ours = file.startswith(SOURCE) and not file.startswith(WAITING)
                self._is_counted[file] = is_ours
            self.count += self._is_counted[file]


# --- the broker: a connection in memory -----------------------------------------------------------


class Slot:
    """The connection's share of a limit that does not exist here, and its transport."""

    def __init__(self) -> None:
        self.written = bytearray()

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def authenticated(self) -> bool:
        return True

    def nothing(self, *_: object, **__: object) -> None: ...

    occupy = free = reset = nothing
    set_write_buffer_limits = pause_reading = resume_reading = close = abort = nothing


class Client:
    """An engine that talks to a connection of a namespace. Only the broker's calls are counted."""

    def __init__(self, namespace: Namespace) -> None:
        policy = namespace.options.policies[0]
        self.counter = CallCounter()
        self._namespace = namespace
        self._slot: Any = Slot()
        self._connection = AmqpConnection(namespace, self._slot, limits=Limits())
        self._connection.connection_made(self._slot)
        self.engine = Engine(
            server=False,
            container_id="calls",
            hostname="localhost",
            limits=EngineLimits(idle_timeout_ms=None),
            sasl=SaslClient("PLAIN", policy.name, policy.key),
        )
        self.engine.open()
        self.session = self.engine.session()

    def exchange(self) -> None:
        """Until neither side has anything to say, and everything is on the disk."""
        while True:
            said = self.engine.data_to_send()
            with self.counter:
                if said:
                    self._connection.data_received(said)
            flushed = self._namespace.committer.flushed()
            with self.counter:
                self._namespace.loop.run_until_complete(flushed)
            answer, self._slot.written = bytes(self._slot.written), bytearray()
            self.engine.receive(answer)
            if not said and not answer:
                return


@contextlib.contextmanager
def namespace() -> Iterator[Namespace]:
    loop = asyncio.new_event_loop()
    options = NamespaceOptions(queues=[QueueDescription(name=QUEUE)])
    made = Namespace(options, loop=loop, clock=time.time)
    made.open()
    try:
        yield made
    finally:
        loop.run_until_complete(made.close())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def broker_calls() -> dict[str, float]:
    message = data_section(backlog_message("id", "orders"))
    with namespace() as made:
        client = Client(made)
        engine, session = client.engine, client.session
        sender = engine.attach_sender(session, "out", QUEUE, snd_settle_mode=0)
        receiver = engine.attach_receiver(
            session, "in", QUEUE, snd_settle_mode=0, rcv_settle_mode=1
        )
        arrived: list[int] = []
        receiver.receive_into(lambda number, tag, data: arrived.append(number))
        client.exchange()
        client.counter.count = 0
        for _ in range(BROKER_MESSAGES // BATCH):
            sender.send(b"tag", message * BATCH, message_format=BATCH_FORMAT)
            client.exchange()
        batched, client.counter.count = client.counter.count, 0
        _receive_all(client, receiver, arrived)
        settled, client.counter.count = client.counter.count, 0
        for _ in range(BROKER_MESSAGES // IN_FLIGHT):
            for _ in range(IN_FLIGHT):
                sender.send(b"tag", message)
            client.exchange()
        single = client.counter.count
    return {
        "broker: enqueue a single message": single / BROKER_MESSAGES,
        "broker: enqueue a message of a batch": batched / BROKER_MESSAGES,
        "broker: deliver and complete a message": settled / BROKER_MESSAGES,
    }


def _receive_all(client: Client, receiver: Link, arrived: list[int]) -> None:
    done = 0
    while done < BROKER_MESSAGES:
        receiver.grant(BATCH)
        client.exchange()
        assert len(arrived) == BATCH, f"{len(arrived)} messages arrived"
        client.session.settle(arrived, ACCEPTED)
        done += len(arrived)
        arrived.clear()
    client.exchange()


# --- the client: an SDK that stops short of the wire ----------------------------------------------


async def client_calls(ends: Ends, name: str) -> dict[str, float]:
    """Counts the calls in one shell. Those for a message of a batch are counted in the blocking
    shell only."""
    shell = ends.shell(name)
    client = shell.unpaired(retry_total=0)
    await done(client.pair_namespace(shell.options()))
    senders = {
        "a healthy": client.get_queue_sender(QUEUE),
        "a diverted": client.get_queue_sender(DISABLED),
    }
    for sender in senders.values():
        await done(sender.send_messages(_message()))
    found: dict[str, float] = {}
    with _without_wire(name):
        for kind, sender in senders.items():
            messages, counter = [_message() for _ in range(SENDS)], CallCounter()
            with counter:
                for message in messages:
                    await done(sender.send_messages(message))
            found[f"client: {kind} send, {name}"] = counter.count / SENDS
            if name != "blocking":
                continue
            messages, counter = [_message() for _ in range(BATCH)], CallCounter()
            with counter:
                batch = sender.create_message_batch()
                for message in messages:
                    batch.add_message(message)
                sender.send_messages(batch)
            found[f"client: a message of {kind} batch"] = counter.count / BATCH
    for sender in senders.values():
        await done(sender.close())
    await done(client.close())
    return found


def _message() -> ServiceBusMessage:
    return ServiceBusMessage(bytes(500))


@contextlib.contextmanager
def _without_wire(shell: str) -> Iterator[None]:
    def nothing(*_: Any, **__: Any) -> None: ...

    async def nothing_asyncio(*_: Any, **__: Any) -> None: ...

    handler: Any = azure.servicebus._base_handler.BaseHandler
    instead: Any = nothing
    if shell == "asyncio":
        handler = azure.servicebus.aio._base_handler_async.BaseHandler
        instead = nothing_asyncio
    before = handler._do_retryable_operation
    handler._do_retryable_operation = instead
    try:
        yield
    finally:
        handler._do_retryable_operation = before


# --- the syphon: one backlog queue, in this process -----------------------------------------------


def syphon_calls(ends: Ends) -> dict[str, float]:
    from pairbus.fast.address import Address
    from pairbus.syphon.job import Job
    from pairbus.syphon.options import SyphonOptions
    from pairbus.syphon.runner import InProcessRunner

    primary, secondary = map(Address.from_connection_string, (ends.primary, ends.secondary))
    with secondary.client() as client:
        sender = client.sender(BACKLOG)
        sender.send([backlog_message(str(number), QUEUE) for number in range(BACKLOG_MESSAGES)])
    options = SyphonOptions(primaries={"contoso": primary}, secondary=secondary)
    counter = CallCounter()
    with counter:
        receipts = Job(options, InProcessRunner(), lambda: [BACKLOG]).run(once=True)
    home = sum(each.count for each in receipts if each.outcome.value == "brought_home")
    assert home == BACKLOG_MESSAGES, f"{home} messages came home"
    return {"syphon: bring a message home": counter.count / BACKLOG_MESSAGES}


# --- the table ------------------------------------------------------------------------------------


def measure() -> dict[str, float]:
    found = broker_calls()
    with (
        tempfile.TemporaryDirectory(prefix="pairbus-calls-") as folder,
        ours.broker(Path(folder) / "primary", [QUEUE]) as primary,
        ours.broker(Path(folder) / "secondary", [QUEUE, BACKLOG]) as secondary,
    ):
        ends = Ends.of(primary, secondary)
        with ends.administration() as administration:
            administration.create_queue(DISABLED, status="Disabled")
        found |= syphon_calls(ends)
        for shell in SHELLS:
            found |= asyncio.run(client_calls(ends, shell))
    return {name: round(calls, 1) for name, calls in found.items()}


def complaints(found: dict[str, float], table: dict[str, float], margin: float) -> list[str]:
    """What is wrong with these figures. Empty if nothing is."""
    said = [f"{name}: not measured any more" for name in table if name not in found]
    for name, calls in found.items():
        if name not in table:
            said.append(f"{name}: {calls:.1f} calls, and calls.json does not have it")
        elif calls > table[name] * (1 + margin):
            more = calls / table[name] - 1
            said.append(f"{name}: {calls:.1f} calls, {more:.0%} more than {table[name]:.1f}")
        elif calls < table[name] * (1 - margin):
            said.append(f"{name}: {calls:.1f} calls, and {table[name]:.1f} would allow an increase")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--renew", action="store_true", help="write what is measured to calls.json")
    options = parser.parse_args()
    logging.disable()  # that an entity fails over is what is wanted here
    found = measure()
    if options.renew:
        TABLE.write_text(json.dumps({"margin": MARGIN, "calls": found}, indent=1) + "\n")
    kept = json.loads(TABLE.read_text())
    said = complaints(found, kept["calls"], kept["margin"])
    if said:
        # On a busy machine, the syphon's batches may be smaller, so that each message costs more.
        again = measure()
        found = {name: min(calls, again[name]) for name, calls in found.items()}
        said = complaints(found, kept["calls"], kept["margin"])
    for name, calls in found.items():
        print(f"{calls:7.1f} calls ({kept['calls'].get(name, 0):.1f} in calls.json)  {name}")
    if said:
        print(f"\nNot within {kept['margin']:.0%} of calls.json:", *said, sep="\n  ")
        print("If that is worth it, renew the table: python benchmarks/calls.py --renew")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
