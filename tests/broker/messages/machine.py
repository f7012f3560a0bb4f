"""What the stateful tests of queues, sessions and topics share: a world and its end."""

import shutil
from itertools import count

import pytest
from hypothesis.stateful import RuleBasedStateMachine

from pairbus.broker.messages import window as window_module
from tests.broker.world import World, scratch_folder


class WorldMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.folder = scratch_folder()
        self.tags = count(1)
        self.world = None

    def open_world(self, *descriptions, room=3, read_count=2):
        """A window of a few messages has the same edges as one of a thousand."""
        self.patch.setattr(window_module, "COUNT_MAX", room)
        self.patch.setattr(window_module, "READ_COUNT", read_count)
        self.world = World(self.folder / "data", *descriptions)

    def teardown(self):
        if self.world is not None:
            self.world.end()
        shutil.rmtree(self.folder)
        self.patch.undo()

    @property
    def now_ms(self):
        return self.world.now_ms
