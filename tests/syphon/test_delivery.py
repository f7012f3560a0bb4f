"""How much is sent to a destination at once, and what is left if the secondary is lost."""

import time
from dataclasses import dataclass

import pytest

from pairbus.broker import Broker
from pairbus.fast.receiver import Receiver
from pairbus.syphon.delivery import PART_BYTES_MAX, sendable
from tests.syphon.stage import Stage, backlog_names, numbered

BACKLOGS = backlog_names(3)


@dataclass
class Message:
    size: int
    is_expired: bool = False


@pytest.mark.parametrize(
    ("messages", "end"),
    [
        ([Message(500)] * 3, 3),
        ([Message(500), Message(500, is_expired=True), Message(500)], 1),
        ([Message(PART_BYTES_MAX)], 1),
        ([Message(PART_BYTES_MAX + 1)] * 2, 1),
        ([Message(PART_BYTES_MAX // 4)] * 6, 4),
    ],
    ids=["small ones", "before one that has expired", "a large one", "larger ones", "many"],
)
def test_a_part_ends_before_an_expired_message_and_at_a_megabyte(messages, end):
    assert sendable([(None, message) for message in messages]) == end


def test_a_lost_secondary_is_an_error_of_all_queues_and_no_message_is_lost(monkeypatch):
    with Broker(queues=["orders"]) as primary, Broker(queues=BACKLOGS) as secondary:
        stage = Stage(primary, secondary, BACKLOGS)
        for place, queue in enumerate(BACKLOGS):
            stage.divert(numbered(60, f"{place}-"), queue=queue)
        take, calls = Receiver.take, 0

        def lost_later(self, *args, **settings):
            nonlocal calls
            calls += 1
            if calls == 4:
                secondary.faults.unreachable(seconds=0.5)
                while True:  # until what had come already is taken, and the end is seen
                    self.receive(1000, max_wait_seconds=0.2)
            return take(self, *args, **settings)

        monkeypatch.setattr(Receiver, "take", lost_later)
        drained = stage.drain(seconds=2.0, chunk=20)
        monkeypatch.undo()
        assert {queue for queue, _ in drained.errors} <= set(BACKLOGS)
        assert drained.errors

        time.sleep(0.5)
        home = set(stage.home())
        for place, queue in enumerate(BACKLOGS):
            brought = sum(one.startswith(f"{place}-") for one in home)
            assert brought + stage.left(queue) >= 60  # locked for a while, with the connection gone
