"""Group commit: who learns what, when, and on which thread."""

import asyncio
import logging
import sqlite3
import threading
from contextlib import closing

import pytest

from pairbus.broker.storage.committer import Committer
from pairbus.broker.storage.store import Store
from tests.broker.world import StillLoop


class Bench:
    """A committer on a real store, whose disk can be held up and made to fail."""

    def __init__(self, path, after_commit=None):
        self.loop = StillLoop()
        self.store = Store(path, durable=False)
        self.after_commit = []
        self.committer = Committer(
            self.store,
            self.loop,
            after_commit=after_commit or (lambda: self.after_commit.append(list(self.reported))),
        )
        self.reported = []
        self.commits = []
        self.gate = threading.Event()
        self.gate.set()
        self.failures = []
        self._commit = self.store.commit
        self._has_begun = threading.Event()
        self.store.commit = self.commit

    def commit(self):
        self.commits.append(threading.current_thread().name)
        self._has_begun.set()
        assert self.gate.wait(timeout=60)
        if self.failures:
            raise self.failures.pop(0)
        self._commit()

    def change(self, name):
        self.store.create_entity(name, "queue", {}, 0, now_ms=0)

    def write(self, name):
        """A change, and somebody who waits for it."""
        self.change(name)
        self.committer.when_durable(lambda error, who: self.reported.append((who, error)), name)

    def turn(self, turns=1):
        for _ in range(turns):
            self.loop.run_until_complete(asyncio.sleep(0))

    def begin_commit(self):
        """Let the disk begin, and stay busy."""
        self.gate.clear()
        self._has_begun.clear()
        self.turn()
        assert self._has_begun.wait(timeout=60)

    def flush(self):
        self.gate.set()
        self.loop.run_until_complete(self.committer.flushed())

    def names(self):
        """What another process sees in the file."""
        with closing(sqlite3.connect(self.store.path)) as db:
            return [name for (name,) in db.execute("SELECT name FROM entity ORDER BY id")]

    def end(self):
        self.gate.set()
        self.loop.run_until_complete(self.committer.stop())
        self.store.close()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


def committing_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("commit:")]


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path / "local.db")
    yield bench
    bench.end()


@pytest.mark.req("B-12")
def test_no_callback_runs_before_the_commit(bench):
    bench.write("a")

    bench.begin_commit()
    bench.turn(3)
    assert bench.reported == []
    assert bench.names() == []
    bench.flush()

    assert bench.reported == [("a", None)]
    assert bench.names() == ["a"]


def test_callbacks_run_in_order_and_output_is_sent_once_after_them(bench):
    for name in "abc":
        bench.write(name)

    bench.flush()

    assert bench.reported == [("a", None), ("b", None), ("c", None)]
    assert bench.after_commit[-1] == bench.reported
    assert len(bench.commits) == 1


def test_changes_made_while_the_disk_is_busy_share_the_next_commit(bench):
    bench.write("first")
    bench.begin_commit()

    for number in range(50):
        bench.write(f"later-{number}")
    bench.flush()

    assert len(bench.commits) == 2
    assert len(bench.reported) == 51
    assert len(bench.after_commit) == 2


def test_commits_run_on_a_thread_of_their_own(bench):
    bench.write("a")
    bench.flush()

    assert bench.commits == ["commit:local"]


def test_without_a_change_nothing_is_committed(bench):
    bench.committer.when_durable(bench.reported.append)

    bench.flush()

    assert bench.reported == [None]
    assert bench.commits == []


@pytest.mark.req("B-12")
def test_a_callback_without_a_change_waits_for_earlier_changes(bench):
    bench.write("a")
    bench.begin_commit()
    bench.committer.when_durable(lambda error: bench.reported.append(("b", error)))

    bench.turn(3)
    assert bench.reported == []
    bench.flush()

    assert bench.reported == [("a", None), ("b", None)]


FAILURES = {
    "the disk is full": sqlite3.OperationalError("database or disk is full"),
    "something nobody thought of": MemoryError("no more"),
}


@pytest.mark.req("B-12")
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_a_failed_commit_fails_its_changes_and_all_later_ones(bench, failure, caplog):
    bench.failures = [failure]
    bench.write("a")
    bench.write("b")
    bench.begin_commit()
    bench.write("c")
    with caplog.at_level(logging.ERROR):
        bench.flush()
    bench.write("d")
    bench.flush()

    # c may build on a and b, so it is refused with them, and taken back first; d is new.
    assert bench.reported == [("c", failure), ("b", failure), ("a", failure), ("d", None)]
    assert bench.names() == ["d"]
    assert "local.db cannot be written" in caplog.text


def test_the_log_does_not_repeat_an_error_at_once(bench, caplog):
    full, broken = FAILURES["the disk is full"], sqlite3.OperationalError("disk I/O error")
    failures = bench.failures = [full, full, broken, full]
    for name in "abcd":
        bench.write(name)
        bench.flush()

    assert failures == []
    texts = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert ["disk is full" in text for text in texts] == [True, False, True]


@pytest.mark.req("B-12")
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_failed_statements_fail_their_group_and_later_ones_work(bench, failure, monkeypatch):
    real = bench.store.apply

    def apply(group):
        raise failure

    monkeypatch.setattr(bench.store, "apply", apply)
    bench.write("a")
    bench.write("b")
    bench.flush()
    assert bench.reported == [("b", failure), ("a", failure)]
    monkeypatch.setattr(bench.store, "apply", real)
    bench.write("c")

    bench.flush()

    assert bench.reported[2:] == [("c", None)]
    assert bench.names() == ["c"]


def test_a_value_that_the_file_cannot_hold_fails_its_group_and_no_other(bench):
    bench.store.create_entity("huge", "queue", {}, 0, now_ms=2**64)
    bench.committer.when_durable(lambda error: bench.reported.append(type(error)))
    bench.flush()
    assert bench.reported == [OverflowError]

    bench.write("a")
    bench.flush()

    assert bench.reported[1:] == [("a", None)]


def test_a_failing_callback_does_not_stop_the_others(bench, caplog):
    def stumble(error):
        raise RuntimeError("over my own feet")

    bench.change("a")
    bench.committer.when_durable(stumble)
    bench.write("b")

    with caplog.at_level(logging.ERROR):
        bench.flush()

    assert bench.reported == [("b", None)]
    assert "over my own feet" in caplog.text


def test_changes_made_in_a_callback_go_with_the_next_commit(bench):
    bench.change("a")
    bench.committer.when_durable(lambda error: bench.write("b"))

    bench.flush()

    assert bench.reported == [("b", None)]
    assert len(bench.commits) == 2


def test_a_failure_after_the_commit_does_not_stop_the_committer(tmp_path, caplog):
    def fail():
        raise RuntimeError("cannot send")

    bench = Bench(tmp_path / "local.db", after_commit=fail)
    bench.change("a")
    bench.committer.when_durable(lambda error: bench.write("b"))
    with caplog.at_level(logging.ERROR):
        bench.flush()

    assert bench.reported == [("b", None)]
    bench.end()


def test_changes_without_a_callback_are_stored_on_request(bench):
    bench.change("a")
    bench.committer.request()
    bench.committer.request()

    bench.flush()

    assert bench.names() == ["a"]
    assert len(bench.commits) == 1


def test_stopping_flushes_and_ends_the_thread(tmp_path):
    bench = Bench(tmp_path / "local.db")
    bench.write("a")
    bench.change("b")

    bench.loop.run_until_complete(bench.committer.stop())

    assert bench.reported == [("a", None)]
    assert bench.names() == ["a", "b"]
    assert committing_threads() == []
    bench.store.close()
    bench.loop.run_until_complete(bench.loop.shutdown_default_executor())
    bench.loop.close()


def test_a_closed_loop_ends_the_thread(tmp_path):
    bench = Bench(tmp_path / "local.db")
    bench.write("a")
    bench.begin_commit()

    [thread] = committing_threads()

    bench.loop.close()
    bench.gate.set()
    thread.join(timeout=60)

    assert not thread.is_alive()
    bench.store.close()
