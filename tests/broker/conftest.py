"""A world per test: `make_world(QueueDescription(...), ...)`, put away at the end."""

import shutil

import pytest

from pairbus.broker.entities.descriptions import QueueDescription
from tests.broker.world import World, scratch_folder


@pytest.fixture
def make_world():
    scratch, worlds = scratch_folder(), []

    def make(*queues):
        folder = scratch / f"world-{len(worlds)}"
        worlds.append(World(folder, *(queues or (QueueDescription(name="q"),))))
        return worlds[-1]

    yield make
    for world in worlds:
        world.end()
    shutil.rmtree(scratch)


@pytest.fixture
def world(make_world):
    """One queue, `q`, with every default."""
    return make_world()
