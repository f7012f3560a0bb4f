"""A task opens both of its connections at once, and waits for a namespace no longer than needed."""

from __future__ import annotations

import time

import pytest

from pairbus.broker import Broker
from pairbus.syphon.task_clients import EarlyOpening
from tests.syphon.stage import Stage, backlog_names

BACKLOGS = backlog_names(2)


@pytest.fixture
def stage():
    with Broker(queues=["orders"]) as primary, Broker(queues=BACKLOGS) as secondary:
        yield Stage(primary, secondary, BACKLOGS)


def soon() -> float:
    return time.monotonic() + 60


def test_the_primary_is_opened_while_the_secondary_is(stage):
    opening = EarlyOpening(client := stage.address(stage.primary).client())
    opening.start(deadline=soon())
    assert not opening.wait()
    assert client.is_open
    assert not opening.abandon()
    opening.start(deadline=soon())
    assert not opening.wait(), "it is open"
    client.close()


def test_a_primary_that_refuses_connections_has_not_timed_out(stage):
    with stage.primary.faults.unreachable():
        opening = EarlyOpening(client := stage.address(stage.primary).client())
        opening.start(deadline=soon())
        assert not opening.wait()
        assert not client.is_open
        client.close()


def test_nobody_waits_for_a_primary_that_does_not_answer(stage):
    with stage.primary.faults.hang():
        opening = EarlyOpening(client := stage.address(stage.primary).client())
        opening.start(deadline=time.monotonic() + 0.05)
        assert opening.wait()
        client.close()

        abandoned = EarlyOpening(client := stage.address(stage.primary).client())
        abandoned.start(deadline=soon())
        assert abandoned.abandon()
    assert abandoned.wait() is False
    with pytest.raises(ValueError, match="is closed"):
        client.open()


def test_a_task_without_messages_does_not_wait_for_a_silent_primary(stage):
    with stage.primary.faults.hang():
        began = time.monotonic()
        drained = stage.drain(open_seconds=60.0)
        assert time.monotonic() - began < 50
    assert drained.emptied == tuple(BACKLOGS)
    assert drained.errors == ()
    assert not drained.primary_error
