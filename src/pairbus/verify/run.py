"""Carries a run out: prepares two queues, starts the processes, causes trouble, and drains all.

The calling thread does everything, and never waits for long, so it reacts to Ctrl-C at any time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError

from pairbus.cli.administration import administration_client, answer_text
from pairbus.cli.broker.fault_client import FaultClient
from pairbus.cli.connection import sdk_client
from pairbus.cli.target import Target, cannot_reach, parse_target, why_unreachable
from pairbus.demo.processes import BrokerProcess, SyphonProcess
from pairbus.errors import NamespaceError, PairbusError
from pairbus.verify.account import Verdict, judge
from pairbus.verify.journal import Fact, Journal, read_journals
from pairbus.verify.nemesis import Trouble, plan
from pairbus.verify.worker import Assignment

START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 60.0
SAMPLE_SECONDS: Final = 0.5
LATE_SECONDS: Final = 5.0
_STEP_SECONDS: Final = 0.05
_JUDGE_SECONDS: Final = 1.0
"""How often the journals are read while the run drains."""
_QUIET_SECONDS: Final = 2.0
"""A drain is over when nothing has been received for this long, and nothing is left."""


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


class LocalPair:
    """Two brokers on this machine, for `--local`."""

    def __init__(self, folder: Path) -> None:
        self.primary = BrokerProcess("east", folder)
        self.secondary = BrokerProcess("west", folder)

    def start(self, wait_for: Callable[[Callable[[], object], str], None]) -> Pair:
        for broker in (self.primary, self.secondary):
            broker.start()
        wait_for(lambda: self.primary.is_ready and self.secondary.is_ready, "the local brokers")
        return Pair(
            primary=self.primary.connection_string,
            secondary=self.secondary.connection_string,
            primary_ca_file=str(self.primary.ca_file),
            secondary_ca_file=str(self.secondary.ca_file),
            primary_name="east",
        )

    def kill(self) -> None:
        self.primary.kill()
        self.secondary.kill()


class Worker:
    """A sender or the receiver, in a process of its own."""

    def __init__(self, assignment: Assignment) -> None:
        self.name = assignment.name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pairbus.verify.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(assignment.to_line())
        self._process.stdin.flush()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def exit_message(self) -> str:
        _, errors = self._process.communicate()
        last = errors.strip().splitlines()[-1] if errors.strip() else "no error output"
        return f"{self.name} ended with exit code {self._process.returncode}: {last}"

    def stop(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The state of the run at one time."""

    at: float
    """Seconds after the start."""
    backlog: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    verdict: Verdict
    started_at: float
    """Seconds since the epoch."""
    samples: tuple[Sample, ...]
    troubles: tuple[Trouble, ...]
    note: str
    """Why the drain ended early; empty if everything was received."""


class VerifyRun:
    def __init__(
        self,
        folder: Path,
        pair: Pair | LocalPair,
        *,
        run: str,
        seconds: float,
        rate: float,
        senders: int,
        seed: int,
        drain_seconds: float,
        has_syphon: bool,
        check_interrupt: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        """`check_interrupt` is called often, and raises to end the run."""
        self._folder = folder
        self._local = pair if isinstance(pair, LocalPair) else None
        self._pair = pair if isinstance(pair, Pair) else None
        self._run = run
        self._seconds = seconds
        self._rate = rate
        self._sender_count = senders
        self._seed = seed
        self._drain_seconds = drain_seconds
        self._check_interrupt = check_interrupt
        self._note = note
        self._queue = f"pairbus-verify-{run}"
        self._session_queue = f"{self._queue}-sessions"
        self._senders: list[Worker] = []
        self._sender_number = 0
        self._receiver: Worker | None = None
        self._has_syphon = has_syphon
        self._syphon: SyphonProcess | None = None
        self._journal = Journal(folder / "end.journal")
        self._samples: list[Sample] = []
        self._sampled_at = float("-inf")
        self._ends: list[tuple[float, Callable[[], None]]] = []
        """What ends a trouble, and when."""
        self._troubles: list[Trouble] = []

    # --- from start to end ------------------------------------------------------------------------

    def run(self) -> RunResult:
        if self._local is not None:
            self._pair = self._local.start(self._wait_for)
        assert self._pair is not None
        self._primary, self._secondary = self._pair.targets
        self._create_queues()
        self._start_syphon()
        self._receiver = Worker(self._assignment("receiver", "receiver"))
        for _ in range(self._sender_count):
            self._start_sender()
        self._wait_for(self._are_sending, "a sender")
        started_at, began = time.time(), time.monotonic()
        self._note(f"sending for {self._seconds:g} s: {self._sender_count} processes")
        troubles = plan(seconds=self._seconds, seed=self._seed) if self._local else []
        while (at := time.monotonic() - began) < self._seconds:
            while troubles and troubles[0].begins <= at:
                self._begin(troubles.pop(0))
            self._step(at)
        for _, end in self._ends:
            end()
        self._ends.clear()
        self._stop_senders()
        self._note("draining: waiting until every message is home")
        note = self._drain(began)
        self._read_what_is_left()
        verdict = judge(read_journals(self._folder), late_seconds=LATE_SECONDS)
        return RunResult(
            verdict=verdict,
            started_at=started_at,
            samples=tuple(self._samples),
            troubles=tuple(self._troubles),
            note=note,
        )

    def close(self) -> None:
        """Ends all processes, and removes the two queues."""
        for worker in self._workers():
            worker.kill()
        if self._syphon is not None:
            self._syphon.kill()
        if self._pair is not None and self._local is None:
            with suppress(Exception), administration_client(self._primary) as admin:
                for queue in (self._queue, self._session_queue):
                    admin.delete_queue(queue)
        if self._local is not None:
            self._local.kill()
        self._journal.close()

    def _workers(self) -> Iterator[Worker]:
        yield from self._senders
        if self._receiver is not None:
            yield self._receiver

    def _step(self, at: float) -> None:
        self._check_interrupt()
        self._check_processes()
        now = time.monotonic()
        due = [end for when, end in self._ends if when <= now]
        self._ends = [one for one in self._ends if one[0] > now]
        for end in due:
            end()
        if at - self._sampled_at >= SAMPLE_SECONDS:
            self._sampled_at = at
            self._samples.append(Sample(at=at, backlog=self._backlog()))
        time.sleep(_STEP_SECONDS)

    def _are_sending(self) -> bool:
        self._check_processes()
        journals = [self._folder / f"{sender.name}.journal" for sender in self._senders]
        return all(path.exists() and path.stat().st_size for path in journals)

    def _wait_for(self, is_done: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not is_done():
            self._check_interrupt()
            if time.monotonic() >= deadline:
                raise NamespaceError(f"{what} did not start within {START_SECONDS_MAX:g} s")
            time.sleep(_STEP_SECONDS)

    def _check_processes(self) -> None:
        for process in (*self._workers(), self._syphon):
            if process is not None and process.has_ended:
                raise NamespaceError(f"the run cannot continue: {process.exit_message}")

    # --- the processes ----------------------------------------------------------------------------

    def _create_queues(self) -> None:
        settings = {
            # A send in progress at an outage is diverted under the same id; the queue drops the
            # second copy.
            "requires_duplicate_detection": True,
            "lock_duration": timedelta(seconds=30),
            # If this run is killed, nothing stays behind.
            "auto_delete_on_idle": timedelta(hours=1),
        }
        try:
            with administration_client(self._primary) as admin:
                admin.create_queue(self._queue, **settings)
                admin.create_queue(self._session_queue, requires_session=True, **settings)
        except ClientAuthenticationError as error:
            raise NamespaceError(f"the primary {self._primary.rejection('Manage')}") from error
        except HttpResponseError as error:
            reason = answer_text(error, self._primary)
            raise NamespaceError(
                f"cannot create {self._queue} on {self._primary.address}: {reason}"
            ) from error
        except AzureError as error:
            raise NamespaceError(cannot_reach(self._primary, why_unreachable(error))) from error

    def _start_syphon(self) -> None:
        if self._has_syphon:
            pair = self._pair
            assert pair is not None
            files = (pair.primary_ca_file, pair.secondary_ca_file)
            self._syphon = SyphonProcess(self._folder, pair.primary_name)
            self._syphon.start(pair.primary, pair.secondary, ca_files=files)

    def _assignment(self, role: str, name: str) -> Assignment:
        assert self._pair is not None
        return Assignment(
            role=role,
            name=name,
            run=self._run,
            folder=str(self._folder),
            primary=self._pair.primary,
            secondary=self._pair.secondary,
            primary_ca_file=self._pair.primary_ca_file,
            secondary_ca_file=self._pair.secondary_ca_file,
            primary_name=self._pair.primary_name,
            queue=self._queue,
            session_queue=self._session_queue,
            rate=self._rate / self._sender_count,
            seed=self._seed,
        )

    def _start_sender(self) -> None:
        self._sender_number += 1
        # An identity's token is for the blocking shell: the asyncio one needs another credential.
        is_blocking = self._sender_number % 2 or self._primary.identity is not None
        role = "blocking" if is_blocking else "asyncio"
        name = f"sender-{self._sender_number}"
        self._senders.append(Worker(self._assignment(role, name)))

    def _stop_senders(self) -> None:
        for sender in self._senders:
            sender.stop()
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while any(not sender.has_ended for sender in self._senders):
            self._check_interrupt()
            if time.monotonic() >= deadline:
                break
            time.sleep(_STEP_SECONDS)
        for sender in self._senders:
            sender.kill()
        self._senders.clear()

    # --- trouble ----------------------------------------------------------------------------------

    def _begin(self, trouble: Trouble) -> None:
        assert self._local is not None
        self._note(str(trouble))
        self._troubles.append(trouble)
        ends_at = time.monotonic() + trouble.seconds
        match trouble.kind:
            case "kill primary":
                self._kill(self._local.primary, ends_at)
            case "kill secondary":
                self._kill(self._local.secondary, ends_at)
            case "stop primary":
                self._pause(self._local.primary, ends_at)
            case "kill sender":
                self._senders.pop(0).kill()
                self._start_sender()
            case "kill syphon":
                if self._syphon is not None:
                    self._syphon.kill()
                    self._ends.append((ends_at, self._start_syphon))
            case _:
                with suppress(PairbusError):  # the primary is down already
                    FaultClient(self._primary).add(trouble.to_fault())

    def _kill(self, broker: BrokerProcess, ends_at: float) -> None:
        if broker.is_running:
            broker.kill()
            self._ends.append((ends_at, broker.start))

    def _pause(self, broker: BrokerProcess, ends_at: float) -> None:
        pid = broker.pid

        def resume() -> None:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGCONT)

        if broker.is_running:
            os.killpg(pid, signal.SIGSTOP)
            self._ends.append((ends_at, resume))

    # --- the end ----------------------------------------------------------------------------------

    def _drain(self, began: float) -> str:
        deadline = time.monotonic() + self._drain_seconds
        quiet_since, received = time.monotonic(), -1
        while (now := time.monotonic()) < deadline:
            while time.monotonic() < now + _JUDGE_SECONDS:
                self._step(time.monotonic() - began)
            verdict = judge(read_journals(self._folder), late_seconds=LATE_SECONDS)
            if verdict.received != received:
                quiet_since, received = time.monotonic(), verdict.received
            is_quiet = time.monotonic() - quiet_since >= _QUIET_SECONDS
            if is_quiet and not verdict.lost and self._waiting() == 0:
                return ""
        return f"messages were still under way after {self._drain_seconds:g} s"

    def _backlog(self) -> int:
        """The messages in the backlog queues; the last known number if it cannot be asked."""
        last = self._samples[-1].backlog if self._samples else 0
        with suppress(Exception), administration_client(self._secondary, retry_total=0) as admin:
            return sum(
                each.total_message_count or 0
                for each in admin.list_queues_runtime_properties()
                if self._is_backlog(each.name)
            )
        return last

    def _is_backlog(self, queue: str) -> bool:
        assert self._pair is not None
        return queue.lower().startswith(f"{self._pair.primary_name}/x-servicebus-transfer/".lower())

    def _waiting(self) -> int:
        """The messages that are still under way, on both namespaces. Dead letters do not move."""
        try:
            with administration_client(self._primary, retry_total=0) as admin:
                properties = [
                    admin.get_queue_runtime_properties(queue)
                    for queue in (self._queue, self._session_queue)
                ]
                here = sum(each.active_message_count or 0 for each in properties)
            with administration_client(self._secondary, retry_total=0) as admin:
                away = sum(
                    each.active_message_count or 0
                    for each in admin.list_queues_runtime_properties()
                    if self._is_backlog(each.name)
                )
        except Exception:  # a namespace that does not answer has not been drained
            return 1
        return here + away

    def _read_what_is_left(self) -> None:
        """Messages of this run in the backlog, and in all dead-letter queues."""
        from azure.servicebus import ServiceBusSubQueue

        own = (self._queue, self._session_queue)
        for target in (self._primary, self._secondary):
            with administration_client(target) as admin:
                queues = [
                    each
                    for each in admin.list_queues_runtime_properties()
                    if each.name in own or self._is_backlog(each.name)
                ]
            with sdk_client(target) as client:
                # Only where something is: the SDK takes a second to open and close a receiver.
                for each in queues:
                    if each.active_message_count and each.name not in own:
                        self._record(client.get_queue_receiver(each.name), Fact.LEFT)
                    if each.dead_letter_message_count:
                        receiver = client.get_queue_receiver(
                            each.name, sub_queue=ServiceBusSubQueue.DEAD_LETTER
                        )
                        self._record(receiver, Fact.DEAD_LETTERED)

    def _record(self, receiver: Any, fact: Fact) -> None:
        with receiver:
            start = 0
            while messages := receiver.peek_messages(250, sequence_number=start):
                for message in messages:
                    if str(message.message_id).startswith(f"{self._run}-"):
                        self._journal.write(fact, str(message.message_id))
                    start = int(message.sequence_number or 0) + 1
