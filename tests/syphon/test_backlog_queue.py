"""Messages held for destinations that are down: how many, without their bytes, and finally free."""

import pytest

from pairbus.broker import Broker
from pairbus.syphon import drain as drain_module
from pairbus.syphon.backlog_queue import BacklogQueue
from pairbus.syphon.receipts import ReceiptOutcome
from tests.syphon.stage import Stage, backlog_names, count, numbered

BACKLOGS = backlog_names(2)


@pytest.fixture(scope="module")
def stage():
    with (
        Broker(queues=["orders", "invoices"]) as primary,
        Broker(queues=BACKLOGS) as secondary,
    ):
        yield Stage(primary, secondary, BACKLOGS)


@pytest.mark.req("S-04")
def test_a_task_that_holds_too_many_messages_stops_and_reports_it(stage, monkeypatch):
    monkeypatch.setattr(drain_module, "HELD_MAX", 40)
    ids = numbered(100)
    stage.divert(ids)

    with stage.primary.faults.cannot_send(entity="orders"):
        drained = stage.drain(chunk=20, held_max=1_000)

    assert BACKLOGS[0] in drained.full
    assert drained.emptied in ((), (BACKLOGS[1],))
    assert 40 <= count(drained.receipts, ReceiptOutcome.WAITING) < 100
    assert stage.free() == ids


@pytest.mark.req("S-04")
def test_too_many_held_messages_of_one_queue_do_not_affect_another(stage):
    stage.divert(numbered(100))
    stage.divert(numbered(100, "i"), "invoices", BACKLOGS[1])

    with stage.primary.faults.cannot_send(entity="orders"):
        drained = stage.drain(chunk=20, held_max=20)

    assert drained.full == (BACKLOGS[0],)
    assert drained.emptied == (BACKLOGS[1],)
    assert stage.home("invoices") == numbered(100, "i")
    assert stage.free() == numbered(100)


def test_the_bytes_of_held_messages_are_dropped_and_still_counted(stage, monkeypatch):
    kept = []
    release = BacklogQueue.release

    def looked_at(self, destinations):
        kept.extend(pair for pairs in self.held.values() for pair in pairs)
        release(self, destinations)

    monkeypatch.setattr(BacklogQueue, "release", looked_at)
    stage.divert(numbered(30))

    with stage.primary.faults.cannot_send(entity="orders"):
        drained = stage.drain()

    assert len(kept) == 30
    assert not any(received.data or restored.data for received, restored in kept)
    [waiting] = [one for one in drained.receipts if one.outcome is ReceiptOutcome.WAITING]
    assert waiting.count == 30
    assert waiting.bytes > 30 * 100
    assert stage.free() == numbered(30)
