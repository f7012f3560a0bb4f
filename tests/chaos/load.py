"""`make chaos-load`: steady traffic with outages for ten minutes, and nothing may grow.

200 connections to the primary and 1,000 queues: 160 paired clients that send, half of them
blocking and half asyncio, and 40 connections that receive from 25 queues each. A syphon brings home
what was diverted. Outages hit both brokers, which are never restarted: a restart would hide a leak.
Memory, open files and threads of each process, and the latency of sends outside of outages, are
compared between the last two quarters of the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from azure.core.exceptions import AzureError

from pairbus.cli.administration import administration_client
from pairbus.cli.loading import INTERRUPTED
from pairbus.cli.message_client import connect, sdk_client
from pairbus.cli.signals import Interrupted, SignalFlag
from pairbus.cli.target import Target, parse_target
from pairbus.demo.processes import BrokerProcess, ChildProcess
from pairbus.errors import PairbusError
from pairbus.fast.receiver import wait_for_any
from pairbus.verify.journal import Fact, Journal, judge, read_journals
from pairbus.verify.messages import MessageMaker
from pairbus.verify.nemesis import Nemesis, PlannedFault, kinds, plan
from pairbus.verify.processes import LocalPair, RunProcesses
from pairbus.verify.worker import Pair, pairing_options
from tests.chaos.process import Usage, usage_of

PROCESSES = 4
SENDERS_EACH = 40
RECEIVERS_EACH = 10
ENTITIES = 1_000
RATE = 100.0
"""Messages a second, of all senders together."""
SAMPLE_SECONDS = 5.0
OUTAGE_PAUSE_SECONDS = (15.0, 30.0)
DRAIN_SECONDS = 180.0
PATHS = [f"load-{number:04d}" for number in range(ENTITIES)]


# --- one process of clients -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    number: int
    folder: str
    primary: str
    secondary: str
    primary_ca_file: str
    secondary_ca_file: str
    primary_name: str
    seed: int

    @property
    def targets(self) -> tuple[Target, Target]:
        files = (self.primary_ca_file, self.secondary_ca_file)
        texts = (self.primary, self.secondary)
        first, second = (parse_target(t, Path(f)) for t, f in zip(texts, files, strict=True))
        return first, second


class Sends:
    """The messages of one paired client, which sends to some queues in turn."""

    def __init__(self, work: Work, place: int, journal: Journal, latencies: Any) -> None:
        self._journal, self._latencies = journal, latencies
        self._maker = MessageMaker("load", f"{work.number}.{place}", seed=work.seed)
        own = work.number * SENDERS_EACH + place
        self.paths = PATHS[own :: PROCESSES * SENDERS_EACH]
        self.pause = PROCESSES * SENDERS_EACH / RATE
        self.first_pause = Random(f"{work.seed} {own}").uniform(0, self.pause)
        self._next = 0

    def next_path(self) -> str:
        self._next += 1
        return self.paths[self._next % len(self.paths)]

    @contextmanager
    def sending(self) -> Iterator[Any]:
        [made] = self._maker.group(has_session=False)[:1]
        self._journal.write(Fact.ATTEMPT, made.message_id)
        began = time.monotonic()
        try:
            yield made.message
        except Exception:
            self._journal.write(Fact.UNKNOWN, made.message_id)
        else:
            self._journal.write(Fact.ACKNOWLEDGED, made.message_id)
            line = f"{time.time():.3f} {time.monotonic() - began:.6f}\n"
            os.write(self._latencies, line.encode())


def send_blocking(work: Work, sends: Sends, stopping: threading.Event) -> None:
    from pairbus import ServiceBusClient

    primary, secondary = work.targets
    while not stopping.is_set():
        with suppress(AzureError, PairbusError), ExitStack() as stack:
            client = stack.enter_context(sdk_client(primary, ServiceBusClient))
            partner = stack.enter_context(sdk_client(secondary))
            manager = stack.enter_context(administration_client(secondary))
            client.pair_namespace(pairing_options(work.primary_name, partner, manager))
            senders = {path: client.get_queue_sender(path) for path in sends.paths}
            stopping.wait(sends.first_pause)
            while not stopping.is_set():
                with sends.sending() as message:
                    senders[sends.next_path()].send_messages(message)
                stopping.wait(sends.pause)
        stopping.wait(1)


async def send_asyncio(work: Work, sends: Sends, stopping: threading.Event) -> None:
    from azure.servicebus.aio import ServiceBusClient as PlainClient
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

    from pairbus.aio import ServiceBusClient

    primary, secondary = work.targets
    while not stopping.is_set():
        with suppress(AzureError, PairbusError):
            async with AsyncExitStack() as stack:
                enter = stack.enter_async_context
                client = await enter(sdk_client(primary, ServiceBusClient))
                partner = await enter(sdk_client(secondary, PlainClient))
                manager = await enter(
                    administration_client(secondary, ServiceBusAdministrationClient)
                )
                options = pairing_options(work.primary_name, partner, manager)
                await client.pair_namespace(options)
                senders = {path: client.get_queue_sender(path) for path in sends.paths}
                await asyncio.sleep(sends.first_pause)
                while not stopping.is_set():
                    with sends.sending() as message:
                        await senders[sends.next_path()].send_messages(message)
                    await asyncio.sleep(sends.pause)
        await asyncio.sleep(1)


def receive(work: Work, place: int, journal: Journal, stopping: threading.Event) -> None:
    """One connection with 25 links. With the fast client: a process has 250 links."""
    target, _ = work.targets
    own = work.number * RECEIVERS_EACH + place
    paths = PATHS[own :: PROCESSES * RECEIVERS_EACH]
    while not stopping.is_set():
        with suppress(AzureError, PairbusError), connect(target) as client:
            receivers = [client.receiver(path, credit=20) for path in paths]
            for receiver in receivers:
                receiver.open()
            while not stopping.is_set():
                for receiver in wait_for_any(receivers, max_wait_seconds=1.0):
                    received = receiver.receive(100, max_wait_seconds=0.0)
                    for message in received:
                        journal.write(Fact.RECEIVED, str(message.message_id))
                    receiver.complete(received)
        stopping.wait(1)


def work_until_stdin_ends() -> None:
    work = Work(**json.loads(sys.stdin.readline()))
    stopping, is_enough = threading.Event(), threading.Event()
    folder, name = Path(work.folder), f"load-{work.number}"
    journal = Journal(folder / f"{name}.journal")
    latencies = os.open(folder / f"{name}.latencies", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sends = [Sends(work, place, journal, latencies) for place in range(SENDERS_EACH)]
    threads = [
        threading.Thread(target=receive, args=(work, place, journal, stopping))
        for place in range(RECEIVERS_EACH)
    ]

    async def send_all() -> None:
        await asyncio.gather(*(send_asyncio(work, each, is_enough) for each in sends))

    if work.number % 2:
        threads.append(threading.Thread(target=lambda: asyncio.run(send_all())))
    else:
        threads += [
            threading.Thread(target=send_blocking, args=(work, each, is_enough)) for each in sends
        ]
    for thread in threads:
        thread.daemon = True
        thread.start()
    sys.stdin.readline()
    is_enough.set()
    sys.stdin.read()
    os._exit(0)


# --- what must not grow ---------------------------------------------------------------------------


def quarters(values: Sequence[tuple[float, float]], seconds: float) -> list[float]:
    """The medians of the four quarters of the run. 0: nothing was measured."""
    by_quarter: dict[int, list[float]] = {}
    for at, value in values:
        by_quarter.setdefault(int(4 * at // seconds), []).append(value)
    return [statistics.median(by_quarter.get(number, [0.0])) for number in range(4)]


LIMITS = {"MiB": (1.1, 10.0), "files": (1.1, 10.0), "threads": (1.1, 10.0), "ms": (1.5, 50.0)}
"""How much the last quarter may exceed the third one: a factor, and a number on top.

In the first half, connections and caches grow to what the worst outage needs."""


def grown(rows: Mapping[str, Sequence[float]]) -> list[str]:
    """The rows that grow. The unit of a row is the last word of its name."""
    found = []
    for name, (*_, third, last) in rows.items():
        factor, more = LIMITS[name.rpartition(" ")[2]]
        if last > third * factor + more:
            found.append(name)
    return found


# --- the run --------------------------------------------------------------------------------------


class LoadRun:
    def __init__(self, folder: Path, *, seconds: float, seed: int, flag: SignalFlag) -> None:
        self._folder, self._seconds, self._seed, self._flag = folder, seconds, seed, flag
        queues = [{"Name": path, "Properties": {"MaxDeliveryCount": 1000}} for path in PATHS]
        self._local = LocalPair(
            BrokerProcess("east", folder, {"Queues": queues}), BrokerProcess("west", folder)
        )
        self._rig = RunProcesses(folder, self._local)
        self._usage: dict[str, list[tuple[float, Usage]]] = {}

    def run(self) -> dict[str, Any]:
        pair = self._local.start(self._wait_for)
        self._rig.pair_started(pair)
        self._rig.start_syphon()
        for number in range(PROCESSES):
            self._rig.processes[f"clients {number}"] = self._start_clients(pair, number)
        self._wait_for(self._are_all_sending, "the clients")
        table = [kind for kind in kinds([]) if kind.group == "broker"]
        faults = plan(
            table, seconds=self._seconds, seed=self._seed, pause_seconds=OUTAGE_PAUSE_SECONDS
        )
        nemesis = Nemesis(self._rig, table, faults, note=note)
        started_at, began, sampled_at = time.time(), time.monotonic(), float("-inf")
        while (at := time.monotonic() - began) < self._seconds:
            nemesis.step(at)
            self._step(nemesis)
            if at - sampled_at >= SAMPLE_SECONDS:
                sampled_at = at
                self._sample(at)
        nemesis.end_all()
        self._drain(nemesis)
        return self._result(started_at, nemesis)

    def close(self) -> None:
        self._rig.close()

    def _start_clients(self, pair: Pair, number: int) -> ChildProcess:
        process = ChildProcess(f"clients {number}", self._folder)
        work = {
            "number": number,
            "folder": str(self._folder),
            "primary": pair.primary,
            "secondary": pair.secondary,
            "primary_ca_file": pair.primary_ca_file,
            "secondary_ca_file": pair.secondary_ca_file,
            "primary_name": pair.primary_name,
            "seed": self._seed,
        }
        path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
        process.spawn(
            ["--clients"],
            {"PYTHONPATH": path},
            module="tests.chaos.load",
            first_line=json.dumps(work),
        )
        return process

    def _wait_for(self, is_done: Any, what: str) -> None:
        deadline = time.monotonic() + 180
        while not is_done():
            self._step(None)
            assert time.monotonic() < deadline, f"{what} did not start"

    def _step(self, nemesis: Nemesis | None) -> None:
        self._flag.check()
        self._rig.check((lambda name: False) if nemesis is None else nemesis.is_down)
        time.sleep(0.05)

    def _are_all_sending(self) -> bool:
        """Whether each sender has begun: an id has the number of its sender."""
        found = {entry.message_id.rpartition("-")[0] for entry in read_journals(self._folder)}
        time.sleep(1)
        return len(found) == PROCESSES * SENDERS_EACH

    def _sample(self, at: float) -> None:
        for name, process in self._rig.processes.items():
            # Of the syphon, this is the driver. Java's memory is bounded by its heap.
            with suppress(OSError):  # it has ended
                self._usage.setdefault(name, []).append((at, usage_of(process.pid)))

    def _drain(self, nemesis: Nemesis) -> None:
        """Stop sending, and receive until all is there."""
        note("draining")
        clients = [each for name, each in self._rig.processes.items() if "clients" in name]
        for process in clients:
            process.write_line("enough")
        deadline, lost = time.monotonic() + DRAIN_SECONDS, -1
        while lost and time.monotonic() < deadline:
            end = time.monotonic() + 5
            while time.monotonic() < end:
                self._step(nemesis)
            lost = len(judge(read_journals(self._folder), late_seconds=5).lost)
        for process in clients:
            process.kill()

    # --- the result -------------------------------------------------------------------------------

    def _result(self, started_at: float, nemesis: Nemesis) -> dict[str, Any]:
        rows: dict[str, list[float]] = {}
        for name, usages in self._usage.items():
            for unit in ("MiB", "files", "threads"):
                values = [(at, getattr(usage, unit)) for at, usage in usages]
                rows[f"{name} {unit}"] = quarters(values, self._seconds)
        latencies = list(self._latencies(started_at, nemesis.faults))
        rows["a send, median, ms"] = quarters(latencies, self._seconds)
        rows["a send, 99th percentile, ms"] = quarters(list(_worst(latencies)), self._seconds)
        verdict = judge(read_journals(self._folder), late_seconds=5)
        return {
            "seconds": self._seconds,
            "seed": self._seed,
            "connections": PROCESSES * (SENDERS_EACH + RECEIVERS_EACH),
            "entities": ENTITIES,
            "faults": len(nemesis.faults),
            "attempts": verdict.attempts,
            "acknowledged": verdict.acknowledged,
            "lost": len(verdict.lost),
            "duplicated": verdict.duplicated,
            "restarts": Counter(self._rig.restarts),
            "longestGapSeconds": round(verdict.longest_gap_seconds, 2),
            "quarters": {name: [round(each, 1) for each in row] for name, row in rows.items()},
            "grown": grown(rows),
        }

    def _latencies(
        self, started_at: float, faults: Iterable[PlannedFault]
    ) -> Iterator[tuple[float, float]]:
        """When a send returned, and how long it took, in ms; not during and right after a fault."""
        busy = [(each.begins - 1, each.begins + each.seconds + 5) for each in faults]
        for path in self._folder.glob("*.latencies"):
            for line in path.read_text().splitlines():
                at_text, _, seconds = line.partition(" ")
                at = float(at_text) - started_at
                if not any(begin <= at <= end for begin, end in busy):
                    yield at, 1000 * float(seconds)


def _worst(latencies: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """The 99th percentile of each stretch of ten seconds."""
    by_time: dict[int, list[float]] = {}
    for at, value in latencies:
        by_time.setdefault(int(at // 10), []).append(value)
    for stretch, values in sorted(by_time.items()):
        if len(values) >= 100:
            yield stretch * 10.0, sorted(values)[int(0.99 * len(values))]


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--clients", action="store_true", help="for internal use")
    options = parser.parse_args()
    if options.clients:
        work_until_stdin_ends()
    folder = Path(tempfile.mkdtemp(prefix="pairbus-load-"))
    note(f"seed {options.seed}, files in {folder}")
    with SignalFlag() as flag:
        run = LoadRun(folder, seconds=options.seconds, seed=options.seed, flag=flag)
        try:
            result = run.run()
        except Interrupted:
            return INTERRUPTED
        finally:
            run.close()
            shutil.rmtree(folder, ignore_errors=True)
    text = json.dumps(result, indent=1)
    if options.json is not None:
        options.json.write_text(text)
    print(text)
    return 0 if not result["grown"] and not result["lost"] else 1


if __name__ == "__main__":
    sys.exit(main())
