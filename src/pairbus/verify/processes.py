"""Everything that runs during a verification: brokers, senders, receivers, and a syphon."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from pairbus.cli.broker.fault_client import FaultClient
from pairbus.cli.target import parse_target
from pairbus.demo.processes import BrokerProcess, ChildProcess, SyphonProcess
from pairbus.errors import NamespaceError
from pairbus.verify.nemesis import LINKS
from pairbus.verify.proxy import CuttableLink, Network
from pairbus.verify.worker import Assignment, Pair

_FAULT_SECONDS: Final = 5.0
_PASSING_REASONS: Final = ("already in use", "No space left", "disk is full")
"""Why a broker cannot start now, but can later."""
_RETRY_SECONDS: Final = 1.0
"""How long to wait before a process that has ended by itself is started again."""


class LocalPair:
    """Two brokers on this machine, and a link to each of them for each kind of client."""

    def __init__(self, primary: BrokerProcess, secondary: BrokerProcess) -> None:
        self.brokers: dict[str, BrokerProcess] = {"primary": primary, "secondary": secondary}
        self.links: dict[str, CuttableLink] = {}
        self._network = Network()

    @classmethod
    def in_folder(cls, folder: Path) -> LocalPair:
        return cls(BrokerProcess("east", folder), BrokerProcess("west", folder))

    def start(self, wait_for: Callable[[Callable[[], object], str], None]) -> Pair:
        for broker in self.brokers.values():
            broker.start()
        wait_for(lambda: all(b.is_ready for b in self.brokers.values()), "the local brokers")
        for name in LINKS:
            broker = self.brokers[name.rpartition(" ")[2]]
            self.links[name] = self._network.link_to(broker.port)
        return self._pair()

    def _pair(self) -> Pair:
        primary, secondary = self.brokers.values()
        return Pair(
            primary=primary.connection_string,
            secondary=secondary.connection_string,
            primary_ca_file=str(primary.ca_file),
            secondary_ca_file=str(secondary.ca_file),
            primary_name=primary.name,
        )

    def through_links(self, pair: Pair, client: str) -> Pair:
        """The pair as a kind of client sees it."""
        texts = {"primary": pair.primary, "secondary": pair.secondary}
        for name, text in texts.items():
            link = self.links.get(f"{client} to {name}")
            if link is not None:
                texts[name] = re.sub(r":\d+", f":{link.port}", text, count=1)
        return replace(pair, **texts)

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.kill()
        self._network.close()


class WorkerProcess(ChildProcess):
    """A sender or a receiver. Each of its lives has a journal and messages of its own."""

    def __init__(self, folder: Path, assignment: Assignment) -> None:
        super().__init__(assignment.name, folder)
        self._assignment = assignment
        self._life = 0
        self.journal = folder

    def start(self) -> None:
        self._life += 1
        name = f"{self._assignment.name}.{self._life}".replace(" ", "-")
        self.journal = self.folder / f"{name}.journal"
        line = replace(self._assignment, name=name).to_line()
        self.spawn([], module="pairbus.verify.worker", first_line=line)


class RunProcesses:
    """Is what a nemesis works on. Without local brokers there are no links."""

    def __init__(self, folder: Path, local: LocalPair | None) -> None:
        self._folder = folder
        self._local = local
        self._pair: Pair | None = None
        brokers = {} if local is None else local.brokers
        self.processes: dict[str, ChildProcess] = {**brokers}
        self._starts: dict[str, Callable[[], None]] = {
            name: broker.start for name, broker in brokers.items()
        }
        self.links: Mapping[str, CuttableLink] = {} if local is None else local.links
        self._ended_at: dict[str, float] = {}
        self.restarts: list[str] = []
        """Why processes that had ended by themselves were started again."""

    def pair_started(self, pair: Pair) -> None:
        self._pair = pair

    def pair_of(self, client: str) -> Pair:
        assert self._pair is not None
        return self._pair if self._local is None else self._local.through_links(self._pair, client)

    def start_syphon(self) -> None:
        pair = self.pair_of("syphon")
        syphon = SyphonProcess(self._folder, pair.primary_name)
        ca_files = pair.primary_ca_file, pair.secondary_ca_file
        self.processes["syphon"] = syphon
        self._starts["syphon"] = partial(
            syphon.start, pair.primary, pair.secondary, ca_files=ca_files
        )
        self.restart("syphon")

    def start_worker(self, assignment: Assignment) -> None:
        worker = WorkerProcess(self._folder, assignment)
        self.processes[worker.name] = worker
        self._starts[worker.name] = worker.start
        self.restart(worker.name)

    def workers(self, role: str) -> list[WorkerProcess]:
        return [
            each
            for name, each in self.processes.items()
            if isinstance(each, WorkerProcess) and role in name
        ]

    def restart(self, name: str) -> None:
        self._starts[name]()

    def fault_client(self, broker: str) -> FaultClient:
        assert self._local is not None
        process = self._local.brokers[broker]
        target = parse_target(process.connection_string, process.ca_file)
        return FaultClient(target, seconds=_FAULT_SECONDS)

    def check(self, is_down: Callable[[str], bool]) -> None:
        """Raises if a process has ended by itself, which no fault explains.

        On local brokers, a syphon may end by itself: it was started during an outage, or its Java
        was killed. It is started again, as a service manager would do. A broker is, too, if it was
        started while its disk was full, or while another program had its port for a moment.
        """
        for name, process in self.processes.items():
            if is_down(name) or not process.has_ended:
                self._ended_at.pop(name, None)
                continue
            message = process.exit_message
            may_recover = isinstance(process, BrokerProcess) and any(
                reason in message for reason in _PASSING_REASONS
            )
            is_syphon = name == "syphon" and self._local is not None
            if not may_recover and not is_syphon:
                raise NamespaceError(f"the run cannot continue: {message}")
            now = time.monotonic()
            if now - self._ended_at.setdefault(name, now) >= _RETRY_SECONDS:
                process.kill()
                self.restart(name)
                self.restarts.append(message)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        if self._local is not None:
            self._local.close()
