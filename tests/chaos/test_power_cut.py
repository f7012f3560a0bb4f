"""Power cuts at random moments while clients work: what was not synced is gone, or half there.

The broker is a real process whose work on its disk is recorded (`disk_log.c`). The clients are the
official SDK. Each notes where the log ended before an attempt and when its answer came. So the disk
can be rebuilt as of any moment (`disk.py`), and the ledger says what had been acknowledged by then.
A broker that starts on the rebuilt disk must have all of it.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.broker import Broker
from pairbus.demo.account import Account, Verdict
from tests.chaos.disk import Disk, Operation, Record, read_log, recorder
from tests.chaos.process import NAMESPACE, BrokerProcess
from tests.spark.world import Bus

CUTS = int(os.environ.get("PAIRBUS_POWER_CUTS", "60"))
SEED = int(os.environ.get("PAIRBUS_POWER_SEED", "1"))
QUEUES: dict[str, dict[str, Any]] = {"work": {"LockDuration": "PT5M"}}
# SQLite copies its log into the data file when it has 4,000 pages of 4 KiB, and begins it anew.
LIFE_BYTES = 17 * 1024 * 1024
BODY_BYTES = (100, 45_000)
BATCH = 5
STARTING = 60  # records
FATES = {0: "dead", 1: "deferred"}
"""By the number of a message modulo 8. All others are completed."""

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.timeout(60 + 2 * CUTS),
]
connect = ServiceBusClient.from_connection_string


def body_of(id_: str) -> bytes:
    """The same for each id, and different for different ones."""
    choice = random.Random(id_)
    return choice.randbytes(16) * (choice.choice(BODY_BYTES) // 16)


@dataclass(slots=True)
class History:
    """What the clients did, each with the position in the log of the disk."""

    log: Path
    entries: list[tuple[int, Callable[[Account], None]]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)

    def note(self, enter: Callable[[Account], None], *, is_answer: bool = False) -> None:
        position = self.log.stat().st_size
        self.entries.append((position, enter))
        if is_answer:
            self.answers.append(position)

    def ledger_at(self, position: int) -> Account:
        ledger = Account()
        for at, enter in self.entries:
            if at <= position:
                enter(ledger)
        return ledger


class Traffic:
    """One sender and one receiver. The sender's volume decides how long they work.

    The receiver completes most messages, and dead-letters or defers some, which must stay. The
    ledger has their fate as one more message, for example `m-00008 dead`.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._count = 0
        self._choice = random.Random(SEED)

    def run(self, connection_string: str, volume: int) -> None:
        stop = threading.Event()
        with connect(connection_string, retry_total=0) as client:
            receiver = threading.Thread(target=self._receive, args=(client, stop))
            receiver.start()
            try:
                self._send(client, volume)
            finally:
                stop.set()
                receiver.join()

    def _send(self, client: ServiceBusClient, volume: int) -> None:
        note = self._history.note
        with client.get_queue_sender("work") as sender:
            while volume > 0:
                ids = [self._next_id() for _ in range(self._choice.choice((1, BATCH)))]
                messages = [ServiceBusMessage(body_of(id_), message_id=id_) for id_ in ids]
                volume -= sum(len(body_of(id_)) for id_ in ids)
                note(lambda ledger, ids=ids: ledger.attempt(*ids))
                sender.send_messages(messages, timeout=30)
                note(lambda ledger, ids=ids: ledger.acknowledge(*ids), is_answer=True)

    def _receive(self, client: ServiceBusClient, stop: threading.Event) -> None:
        note = self._history.note
        with client.get_queue_receiver("work") as receiver:
            while not stop.is_set():
                for message in receiver.receive_messages(10, max_wait_time=0.5):
                    id_, number = str(message.message_id), message.sequence_number or 0
                    note(lambda ledger, id_=id_, n=number: ledger.deliver(id_, sequence_number=n))
                    if fate := FATES.get(int(id_.removeprefix("m-")) % 8):
                        moved = f"{id_} {fate}"
                        note(lambda ledger, id_=moved: ledger.attempt(id_))
                        if fate == "dead":
                            receiver.dead_letter_message(message)
                        else:
                            receiver.defer_message(message)
                        note(lambda ledger, id_=moved: ledger.acknowledge(id_), is_answer=True)
                        continue
                    note(lambda ledger, id_=id_: ledger.attempt_removal(id_))
                    receiver.complete_message(message)
                    note(lambda ledger, id_=id_: ledger.acknowledge_removal(id_), is_answer=True)

    def _next_id(self) -> str:
        self._count += 1
        return f"m-{self._count:05d}"


@dataclass(frozen=True, slots=True)
class Recording:
    folder: Path
    records: list[Record]
    history: History

    def checkpoints(self) -> int:
        """How often the first broker copied its log into the data file: also when it stopped."""
        synced = [one for one in self.records if one.operation is Operation.SYNCED]
        first_log = next(n for n, one in enumerate(synced) if one.path.endswith("-wal"))
        return sum(one.path.endswith(".db") for one in synced[first_log:])

    def moments(self, choice: random.Random) -> set[int]:
        """Right after an answer, when a lost sync shows; while a broker starts; and anywhere."""
        ends = [record.end for record in self.records]
        starts = [n for n, one in enumerate(self.records) if one.operation is Operation.START]
        answered = [bisect_left(ends, position) for position in self.history.answers]
        starting = [n for start in starts for n in range(start, start + STARTING)]
        groups = (answered, starting, range(len(ends)))
        chosen = [n for group in groups for n in choice.choices(group, k=CUTS // len(groups))]
        return {ends[min(n, len(ends) - 1)] for n in chosen}

    def after_cut(self, disk: Disk, at: int, target: Path, kept: float) -> Verdict:
        """What a broker has on the disk that is left."""
        disk.restore(target, random.Random(f"{SEED}/{at}"), kept)
        try:
            return self.history.ledger_at(at).verdict(survivors(target / "data"))
        finally:
            shutil.rmtree(target)


def record_broker(folder: Path, *volumes: int, module: str = "pairbus") -> Recording:
    """Let a broker work, once for each volume; the first one is stopped, the others are killed."""
    disk, log = folder / "disk", folder / "disk.log"
    disk.mkdir()
    variables = recorder(disk, log, folder / "disk_log.so")
    broker = BrokerProcess(folder, QUEUES, data=disk / "data", module=module, variables=variables)
    history = History(log)
    traffic = Traffic(history)
    for life, volume in enumerate(volumes):
        broker.start()
        history.note(Account.restart)
        try:
            traffic.run(broker.connection_string, volume)
        finally:
            if life:
                broker.kill()
            else:
                broker.stop()
    return Recording(disk, list(read_log(log)), history)


def survivors(data: Path) -> set[str]:
    """The ids and fates of the messages that a broker finds in its data folder, which must be
    undamaged."""
    found: set[str] = set()
    with Broker(QUEUES, data=data, name=NAMESPACE) as broker:
        for path in ("work", "work/$deadletterqueue"):
            for row in Bus(broker).peek(path):
                id_ = row["messageId"]
                assert row["body"] == body_of(id_), "a damaged message"
                assert id_ not in found, "one message in two places"
                found.add(id_)
                if path != "work":
                    found.add(f"{id_} dead")
                elif row["state"] == "deferred":
                    found.add(f"{id_} deferred")
    return found


@pytest.mark.req("B-12")
def test_what_was_acknowledged_outlives_every_power_cut(tmp_path: Path) -> None:
    recording = record_broker(tmp_path, LIFE_BYTES, LIFE_BYTES // 16, LIFE_BYTES // 16)
    assert recording.checkpoints() > 1, "too little traffic to prove anything"
    acknowledged = recording.history.ledger_at(recording.records[-1].end).acknowledged
    assert {id_.partition(" ")[2] for id_ in acknowledged} == {"", *FATES.values()}
    choice = random.Random(SEED)
    cuts = recording.moments(choice)
    disk = Disk(recording.folder)

    for record in recording.records:
        disk.play(record)
        if record.end in cuts:
            kept = choice.choice((0.0, 0.0, 0.5, 0.95, 1.0))
            verdict = recording.after_cut(disk, record.end, tmp_path / "left", kept)
            assert verdict.is_exact, f"seed {SEED}, cut at {record.end}, kept {kept}\n{verdict}"
    # Nothing that the broker did escaped the recording.
    disk.restore(tmp_path / "all", choice, kept=1.0)
    assert contents(tmp_path / "all") == contents(recording.folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith("-shm")
    }


@pytest.mark.parametrize("level", ["OFF", "NORMAL"])
def test_a_broker_that_does_not_sync_each_commit_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    monkeypatch.setenv("SYNCHRONOUS", level)
    recording = record_broker(tmp_path, LIFE_BYTES // 16, module="tests.chaos.unsynced_broker")
    disk = Disk(recording.folder)
    cut = recording.history.answers[len(recording.history.answers) // 2]
    for record in recording.records:
        if record.end <= cut:
            disk.play(record)

    verdict = recording.after_cut(disk, cut, tmp_path / "left", kept=0.0)

    assert verdict.lost


MAKE_CERTIFICATES = """
import sys, time
from pathlib import Path
from pairbus.broker.port.certificates import Certificates

Certificates(Path(sys.argv[1]), ["localhost"]).ca_file(now=time.time())
"""


def test_the_certificates_outlive_a_power_cut(tmp_path: Path) -> None:
    """An empty key file would make every TLS connection fail after the next start."""
    folder, log = tmp_path / "disk", tmp_path / "disk.log"
    folder.mkdir()
    variables = {**os.environ, **recorder(folder, log, tmp_path / "disk_log.so")}
    command = [sys.executable, "-c", MAKE_CERTIFICATES, str(folder / "certificates")]
    subprocess.run(command, check=True, env=variables)
    disk = Disk(folder)
    for record in read_log(log):
        disk.play(record)

    disk.restore(tmp_path / "left", random.Random(SEED), kept=0.0)

    assert contents(tmp_path / "left") == contents(folder)
    assert len(contents(folder)) >= 3
