"""The driver's loop on real brokers, in this process."""

import threading
from dataclasses import replace

import pytest

from pairbus.broker import Broker
from pairbus.syphon.job import Job
from pairbus.syphon.ledger import ParquetLedger, read_ledger
from pairbus.syphon.policy import POLICY, Failure
from pairbus.syphon.receipts import ReceiptOutcome
from pairbus.syphon.runner import InProcessRunner
from tests.syphon.stage import Stage, backlog_names, count, numbered

QUEUES = backlog_names(3)


@pytest.fixture
def brokers(monkeypatch):
    monkeypatch.setattr("pairbus.syphon.job.ONCE_REST_SECONDS_MAX", 0.05)
    with Broker(queues=["orders", "invoices"]) as primary, Broker(queues=QUEUES) as secondary:
        yield primary, secondary


@pytest.fixture
def stage(brokers):
    return Stage(*brokers, QUEUES)


@pytest.mark.req("S-01")
def test_once_drains_all_backlog_queues_and_ends(stage, tmp_path):
    for number, queue in enumerate(QUEUES):
        stage.divert(numbered(5, str(number)), queue=queue)
    rounds = []
    job = Job(
        stage.options(),
        InProcessRunner(),
        lambda: QUEUES,
        ledger=ParquetLedger(tmp_path),
        progress=rounds.append,
    )

    receipts = job.run(once=True)

    assert count(receipts, ReceiptOutcome.BROUGHT_HOME) == 15
    assert len(stage.home()) == 15
    assert rounds[-1].pending == ()
    rows = read_ledger(tmp_path)
    assert count(rows, ReceiptOutcome.BROUGHT_HOME) == 15
    assert {row.run for row in rows} == {job.run_id}


@pytest.mark.req("S-02")
@pytest.mark.parametrize("begins_with_a_round", [True, False])
def test_a_message_that_arrives_between_rounds_starts_a_round(stage, begins_with_a_round):
    ended = threading.Event()
    options = stage.options(begins_with_a_round=begins_with_a_round)
    job = Job(options, InProcessRunner(), lambda: QUEUES, progress=lambda _: ended.set())
    thread = threading.Thread(target=job.run)
    thread.start()
    try:
        if begins_with_a_round:
            assert ended.wait(60), "the first round finds nothing"
            ended.clear()
        stage.divert(["late"], queue=QUEUES[1])
        assert ended.wait(60)
    finally:
        job.stop()
        thread.join(60)

    assert not thread.is_alive()
    assert stage.home() == ["late"]


def test_a_task_knows_the_size_of_the_messages_of_earlier_rounds(stage):
    rounds = []

    class Runner(InProcessRunner):
        def run(self, tasks):
            rounds.append(
                {name: task.message_bytes.get(name) for task in tasks for name in task.queues}
            )
            return super().run(tasks)

    job = Job(stage.options(), Runner(), lambda: QUEUES)
    stage.divert(["first"], queue=QUEUES[1])
    job.run(once=True)
    stage.divert(["second"], queue=QUEUES[0])
    stage.divert(["third"], queue=QUEUES[1])
    job.schedule.arrived(QUEUES[:2])
    job.run(once=True)

    assert rounds[0] == dict.fromkeys(QUEUES)
    first, second = rounds[1][QUEUES[0]], rounds[1][QUEUES[1]]
    assert first is None
    assert 100 < second < 300
    assert sorted(stage.home()) == ["first", "second", "third"]


@pytest.mark.req("S-04")
def test_messages_that_wait_go_home_when_their_destination_is_back(stage):
    stage.divert(["a"])
    stage.divert(["b"], "invoices")
    fault = stage.primary.faults.cannot_send(entity="orders")
    rounds = []

    def progress(ended):
        rounds.append(ended)
        if len(rounds) == 1:
            fault.clear()

    job = Job(stage.options(), InProcessRunner(), lambda: QUEUES, progress=progress)
    receipts = job.run(once=True)

    assert count(receipts, ReceiptOutcome.BROUGHT_HOME) == 2
    assert count(rounds[0].receipts, ReceiptOutcome.WAITING) == 1


@pytest.mark.req("S-04")
def test_the_end_of_an_outage_is_noticed_long_before_the_next_message_is_tried(stage, monkeypatch):
    """By the real clock. What is waited for is reported."""
    rule = replace(POLICY[Failure.UNREACHABLE], first_seconds=3600, seconds_max=3600)
    monkeypatch.setitem(POLICY, Failure.UNREACHABLE, rule)
    stage.divert(["a"])
    waits, came_home = threading.Event(), threading.Event()
    found = []

    def waiting(each):
        found.append(each)
        if each:
            waits.set()

    def progress(ended):
        if count(ended.receipts, ReceiptOutcome.BROUGHT_HOME):
            came_home.set()

    job = Job(
        stage.options(), InProcessRunner(), lambda: QUEUES, progress=progress, waiting=waiting
    )
    thread = threading.Thread(target=job.run)
    with stage.primary.faults.unreachable():
        thread.start()
        assert waits.wait(60)
    try:
        assert came_home.wait(60)
    finally:
        job.stop()
        thread.join(60)

    [first, *_] = [each for each in found if each]
    assert [each.name for each in first] == ["the primary contoso"]
    assert "refused" in first[0].reason
    assert found[-1] == ()


def test_once_waits_for_locked_messages_and_reports_them_if_they_stay_locked(stage, monkeypatch):
    monkeypatch.setattr("pairbus.syphon.job.LOCKED_SECONDS", 0.05)
    monkeypatch.setattr("pairbus.syphon.job.LOCKED_CHECKS_MAX", 2)
    stage.divert(["locked"])
    with stage.client(stage.secondary) as client:
        receiver, locked = stage.lock(client, 1)
        job = Job(stage.options(), InProcessRunner(), lambda: QUEUES)
        job.run(once=True)
        assert job.left == f"other receivers have locked the messages left in {QUEUES[0]}"

        receiver.release(locked)
        job = Job(stage.options(), InProcessRunner(), lambda: QUEUES)
        assert count(job.run(once=True), ReceiptOutcome.BROUGHT_HOME) == 1
        assert job.left == ""


@pytest.mark.req("X-10")
@pytest.mark.parametrize("is_mended", [True, False])
def test_a_ledger_that_cannot_be_written_holds_up_no_message(stage, tmp_path, caplog, is_mended):
    stage.divert(numbered(5))
    folder = tmp_path / "ledger"
    ledger = ParquetLedger(folder)
    folder.rmdir()
    folder.write_text("in the way")

    def progress(ended):
        if is_mended:
            folder.unlink(missing_ok=True)

    job = Job(stage.options(), InProcessRunner(), lambda: QUEUES, ledger=ledger, progress=progress)
    receipts = job.run(once=True)

    assert count(receipts, ReceiptOutcome.BROUGHT_HOME) == 5
    assert caplog.text.count("cannot write to the ledger") == 1
    if is_mended:
        assert count(read_ledger(folder), ReceiptOutcome.BROUGHT_HOME) == 5
        assert job.left == ""
    else:
        assert "the ledger lacks the last rounds" in job.left
        assert str(folder) in job.left
