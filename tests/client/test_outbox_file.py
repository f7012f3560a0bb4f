"""The file of an outbox: what it keeps, in which order, and which errors name what is wrong."""

from __future__ import annotations

import itertools
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pairbus.client import outbox_file
from pairbus.client.outbox_file import ROW_BYTES, OutboxFile
from pairbus.errors import OutboxError
from tests.client.lines import ctrl_c, run_and_interrupt

pytestmark = pytest.mark.req("X-04")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "outbox.db"


@pytest.fixture
def opened(path):
    """Makes files that are closed in the end."""
    made: list[OutboxFile] = []

    def make(**settings) -> OutboxFile:
        made.append(OutboxFile(path, **{"namespace": "contoso", **settings}))
        return made[-1]

    yield make
    for each in made:
        each.close()


def oldest(file: OutboxFile, entity: str, count: int = 100) -> list[str]:
    return [each.message_id for each in file.oldest(entity, count=count, bytes_max=10**6)]


def put(file: OutboxFile, entity: str, *ids: str, size: int = 10) -> None:
    file.put(entity, [(each, b"x" * size) for each in ids])


def test_nothing_is_opened_before_a_message_needs_it(path, opened):
    file = opened()

    assert not file.is_open
    assert file.file_bytes == 0
    assert not path.exists()


def test_messages_of_an_entity_come_out_in_their_order_and_without_regard_to_case(opened):
    file = opened()
    put(file, "orders", "1", "2")
    put(file, "invoices", "3")
    put(file, "Orders", "4")

    assert oldest(file, "ORDERS") == ["1", "2", "4"]
    assert oldest(file, "orders", count=2) == ["1", "2"]
    assert file.counts.waiting == {"orders": 3, "invoices": 1}
    assert file.entities == {"orders": "orders", "invoices": "invoices"}


def test_so_do_those_of_an_entity_whose_name_is_not_ascii(opened):
    file = opened()
    put(file, "\u00c4pfel", "1")
    put(file, "\u00e4pfel", "2")
    assert file.counts.waiting == {"\u00e4pfel": 2}
    assert oldest(file, "\u00e4pfel") == ["1", "2"]
    file.close()

    again = opened()
    put(again, "\u00c4PFEL", "3")
    assert oldest(again, "\u00e4pfel") == ["1", "2", "3"]


def test_a_portion_has_at_least_one_message_and_no_more_bytes_than_asked_for(opened):
    file = opened()
    put(file, "orders", "1", "2", "3", size=100)

    assert len(file.oldest("orders", count=10, bytes_max=1)) == 1
    assert len(file.oldest("orders", count=10, bytes_max=250)) == 2


def test_a_message_is_stored_as_the_bytes_that_it_was(opened):
    file = opened(clock=lambda: 1_700_000_000.5)
    file.put("orders", [("a", bytes(range(256)))])

    [found] = file.oldest("orders", count=1, bytes_max=1)
    assert (found.amqp, found.message_id, found.entity) == (bytes(range(256)), "a", "orders")
    assert found.stored_ms == file.counts.oldest_ms == 1_700_000_000_500


def test_what_was_stored_is_there_after_closing_and_opening_again(path, opened):
    file = opened()
    put(file, "orders", "1", "2")
    file.hold(file.oldest("orders", count=1, bytes_max=1), "refused")
    file.close()

    again = opened()
    again.open()
    assert oldest(again, "orders") == ["2"]
    assert again.counts.waiting == {"orders": 1}
    assert [(each.message_id, each.held) for each in again.messages()] == [
        ("1", "refused"),
        ("2", None),
    ]
    assert again.counts.held == 1


def test_only_the_owner_may_read_the_file_and_its_log(path, opened):
    put(opened(), "orders", "1")

    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    assert modes == {"outbox.db": 0o600, "outbox.db-wal": 0o600}


def test_a_full_outbox_stores_nothing_of_the_call(opened):
    file = opened(bytes_max=2 * (ROW_BYTES + 10))
    put(file, "orders", "1")

    with pytest.raises(OutboxError, match=r"outbox\.db is full: .* max_bytes is 532"):
        put(file, "orders", "2", "3")

    assert oldest(file, "orders") == ["1"]
    put(file, "orders", "4")
    file.delete(file.oldest("orders", count=2, bytes_max=1000))
    put(file, "orders", "5", "6")
    assert oldest(file, "orders") == ["5", "6"]


def test_another_client_of_this_process_is_refused(opened):
    put(opened(), "orders", "1")

    with pytest.raises(OutboxError, match="is in use by another client or process"):
        opened().open()


def test_another_process_is_refused(path, opened):
    put(opened(), "orders", "1")

    ran = run(f"OutboxFile(Path({str(path)!r}), namespace='contoso').open()")

    assert "is in use by another client or process: give each client a file" in ran.stderr


def test_the_file_of_a_killed_process_can_be_opened_at_once(path, opened):
    ran = run(
        f"""
        file = OutboxFile(Path({str(path)!r}), namespace="contoso")
        for number in range(3):
            file.put("orders", [(str(number), b"x")])
        os.kill(os.getpid(), 9)
        """
    )

    assert ran.returncode == -signal.SIGKILL
    assert oldest(opened(), "orders") == ["0", "1", "2"]


def test_a_child_process_that_ends_leaves_the_parents_file_alone(path, opened):
    ran = run(
        f"""
        file = OutboxFile(Path({str(path)!r}), namespace="contoso")
        file.put("orders", [("1", b"x")])
        child = os.fork()
        if child == 0:
            del file
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        file.put("orders", [("2", b"x")])
        os.kill(os.getpid(), 9)
        """
    )

    assert ran.returncode == -signal.SIGKILL, ran.stderr
    assert oldest(opened(), "orders") == ["1", "2"]


def run(program: str) -> subprocess.CompletedProcess[str]:
    head = (
        "import os, sys; from pathlib import Path; "
        "from pairbus.client.outbox_file import OutboxFile\n"
    )
    return subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("content", [b"not a database, " * 500, b"SQLite format 3\0" + b"x" * 5000])
def test_a_damaged_file_is_named_and_not_touched(path, opened, content):
    path.write_bytes(content)

    with pytest.raises(
        OutboxError, match=r"outbox\.db is (damaged|not the file of an outbox).*backup"
    ):
        opened().open()

    assert path.read_bytes() == content


def test_a_damaged_page_is_found_when_the_file_is_opened(path, opened):
    file = opened()
    put(file, "orders", *map(str, range(50)), size=500)
    file.close()
    content = bytearray(path.read_bytes())
    for page in range(4096, len(content), 4096):
        content[page : page + 12] = b"\xff" * 12
    path.write_bytes(content)

    with pytest.raises(OutboxError, match="is damaged"):
        opened().open()


def test_another_database_is_refused(path, opened):
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE something (id INTEGER)")
    db.close()

    with pytest.raises(OutboxError, match="is not the file of an outbox: give the outbox another"):
        opened().open()


def test_the_file_of_a_newer_pairbus_is_refused(path, opened, monkeypatch):
    file = opened()
    put(file, "orders", "1")
    file.close()
    monkeypatch.setattr(outbox_file, "VERSION", 0)

    with pytest.raises(OutboxError, match=r"has format 1, made by a newer pairbus; .* up to 0"):
        opened().open()


def test_messages_for_another_namespace_are_refused_and_an_empty_file_is_not(path, opened):
    file = opened()
    put(file, "orders", "1")
    file.close()

    with pytest.raises(
        OutboxError,
        match=r"holds 1 messages for namespace 'contoso', and this client .* 'fabrikam'",
    ):
        opened(namespace="fabrikam").open()

    file = opened()
    file.delete(file.oldest("orders", count=1, bytes_max=1))
    file.close()
    other = opened(namespace="fabrikam")
    other.open()
    assert other.namespace == "fabrikam"


def test_an_operator_opens_the_file_of_any_namespace_and_creates_none(path, opened):
    with pytest.raises(OutboxError, match="unable to open"):
        opened(namespace=None).open()
    assert not path.exists()

    file = opened()
    put(file, "orders", "1")
    file.close()
    assert opened(namespace=None).namespace == "contoso"


def test_a_folder_that_is_missing_is_named(tmp_path):
    file = OutboxFile(tmp_path / "missing" / "outbox.db", namespace="contoso")

    with pytest.raises(OutboxError, match=r"missing/outbox\.db cannot be used: No such file"):
        file.open()


def test_a_closed_file_says_so(opened):
    file = opened()
    file.close()

    with pytest.raises(OutboxError, match="has been closed with its client"):
        put(file, "orders", "1")


def test_an_interrupt_at_any_line_stores_the_message_or_not_and_leaves_the_file_usable(opened):
    file, stored = opened(), ["0"]
    put(file, "orders", "0")

    for line in itertools.count(1):
        store = partial(put, file, "orders", str(line))
        try:
            if not run_and_interrupt(store, outbox_file, ctrl_c, before_line=line):
                break
        except KeyboardInterrupt:
            pass
        found = oldest(file, "orders")
        assert found in (stored, [*stored, str(line)])
        assert file.counts.waiting == {"orders": len(found)}
        stored = found

    assert line > 20
    assert oldest(file, "orders") == [*stored, str(line)]


def test_an_interrupt_at_any_line_of_a_refused_call_leaves_the_file_usable(opened):
    file = opened(bytes_max=10 + ROW_BYTES)
    put(file, "orders", "0")

    for line in itertools.count(1):
        store = partial(put, file, "orders", str(line))
        try:
            run_and_interrupt(store, outbox_file, ctrl_c, before_line=line)
        except KeyboardInterrupt:
            file.delete(file.oldest("orders", count=1, bytes_max=1))
            put(file, "orders", str(line))
        except OutboxError:
            break  # it ran to its end

    assert line > 10


class InterruptedMessages(list[tuple[str, bytes]]):
    """A signal arrives when they are read for the second time, in the transaction."""

    reads = 0

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        self.reads += 1
        if self.reads == 2:
            signal.raise_signal(signal.SIGUSR1)
        return super().__iter__()


@pytest.fixture
def on_signal():
    """Sets what a signal handler does."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda work: signal.signal(signal.SIGUSR1, lambda *_: work())
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_handler_may_close_the_file_while_its_thread_stores(opened, on_signal):
    file = opened()
    put(file, "orders", "1")
    on_signal(file.close)

    with pytest.raises(OutboxError, match="has been closed with its client"):
        file.put("orders", InterruptedMessages([("2", b"x")]))

    assert [each.message_id for each in opened().messages()] == ["1"], "no half transaction"


def test_a_signal_handler_that_stores_while_its_thread_stores_is_refused(opened, on_signal):
    file = opened()
    refused: list[str] = []

    def store() -> None:
        with pytest.raises(OutboxError, match="send again when the handler has returned") as caught:
            put(file, "orders", "2")
        refused.append(str(caught.value))

    on_signal(store)

    file.put("orders", InterruptedMessages([("1", b"x")]))

    assert len(refused) == 1
    assert oldest(file, "orders") == ["1"]


def test_on_a_full_disk_nothing_is_stored_and_nothing_lost(opened, full_disk):
    file = opened()
    put(file, "orders", "1", size=5000)

    with full_disk(), pytest.raises(OutboxError, match=r"outbox\.db cannot be "):
        put(file, "orders", "2", size=5000)
    assert file.counts.waiting == {"orders": 1}

    put(file, "orders", "3")
    assert oldest(file, "orders") == ["1", "3"]


def test_a_sent_message_that_cannot_be_deleted_is_not_sent_again(opened, full_disk):
    file = opened()
    put(file, "orders", "1", "2", size=5000)

    with full_disk(), pytest.raises(OutboxError):
        file.delete(file.oldest("orders", count=1, bytes_max=1))
    assert oldest(file, "orders") == ["2"]

    file.delete([])
    assert [each.message_id for each in file.messages()] == ["2"]


def test_an_emptied_file_gives_its_disk_space_back(opened):
    file = opened()
    put(file, "orders", *map(str, range(40)), size=100_000)
    assert file.file_bytes > 4_000_000

    file.delete(file.oldest("orders", count=100, bytes_max=10**8))

    assert file.file_bytes < 100_000
    assert file.counts.message_bytes == 0


def test_the_counts_hold_while_threads_store_and_delete(opened):
    file = opened()

    def work(entity: str) -> None:
        for number in range(15):
            put(file, entity, str(number))
            file.delete(file.oldest(entity, count=1, bytes_max=1))

    threads = [threading.Thread(target=work, args=(f"q{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert list(file.messages()) == []
    assert (file.counts.waiting, file.counts.message_bytes) == ({}, 0)


def test_storing_takes_no_longer_with_many_messages(opened, monkeypatch):
    """No statement reads all rows."""
    connect, connections = sqlite3.connect, []

    def recorded(*args, **settings):
        connections.append(connect(*args, **settings))
        return connections[-1]

    monkeypatch.setattr(sqlite3, "connect", recorded)
    file = opened()
    put(file, "orders", *map(str, range(20_000)))
    [db] = connections
    steps = 0

    def count_steps() -> int:
        nonlocal steps
        steps += 1
        return 0

    db.set_progress_handler(count_steps, 100)
    put(file, "orders", "last")
    file.delete(file.oldest("orders", count=1, bytes_max=1))
    assert steps < 50


class Model(RuleBasedStateMachine):
    """A file beside lists that do the same."""

    entities = st.sampled_from(["orders", "invoices", "topics/audit"])

    @initialize()
    def start(self) -> None:
        # In memory where that is possible: what is on a disk when is another test's matter.
        memory = Path("/dev/shm")
        self.folder = tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)
        self.path = Path(self.folder.name) / "outbox.db"
        self.file = self._made()
        self.model: list[tuple[str, str, bool]] = []
        self.number = 0

    def _made(self) -> OutboxFile:
        return OutboxFile(self.path, namespace="contoso", bytes_max=12 * (ROW_BYTES + 10))

    def _waiting(self, entity: str) -> list[tuple[str, str, bool]]:
        return [each for each in self.model if each[0] == entity and not each[2]]

    @rule(entity=entities, count=st.integers(1, 4))
    def put(self, entity: str, count: int) -> None:
        ids = [str(self.number + at) for at in range(count)]
        self.number += count
        is_full = len(self.model) + count > 12
        try:
            put(self.file, entity, *ids)
            assert not is_full
            self.model += [(entity, each, False) for each in ids]
        except OutboxError:
            assert is_full

    @rule(entity=entities, count=st.integers(1, 3))
    def delete(self, entity: str, count: int) -> None:
        found = self.file.oldest(entity, count=count, bytes_max=1000)
        expected = self._waiting(entity)[:count]
        assert [each.message_id for each in found] == [each[1] for each in expected]
        self.file.delete(found)
        self.model = [each for each in self.model if each not in expected]

    @rule(entity=entities)
    def hold(self, entity: str) -> None:
        found = self.file.oldest(entity, count=1, bytes_max=1)
        self.file.hold(found, "refused")
        for each in self._waiting(entity)[:1]:
            self.model[self.model.index(each)] = (each[0], each[1], True)

    @rule()
    def reopen(self) -> None:
        self.file.close()
        self.file = self._made()
        self.file.open()

    @invariant()
    def agrees(self) -> None:
        if self.number:
            found = [
                (each.entity, each.message_id, bool(each.held)) for each in self.file.messages()
            ]
            assert found == self.model
        counts = self.file.counts
        assert counts.held == sum(held for _, _, held in self.model)
        assert counts.message_bytes == len(self.model) * (ROW_BYTES + 10)
        names = {entity for entity, _, held in self.model if not held}
        assert counts.waiting == {name: len(self._waiting(name)) for name in names}
        assert (counts.oldest_ms is not None) == bool(names)

    def teardown(self) -> None:
        self.file.close()
        self.folder.cleanup()


TestModel = Model.TestCase
TestModel.settings = settings(stateful_step_count=20)
