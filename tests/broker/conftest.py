"""A world per test: `make_world(QueueDescription(...), ...)`, put away at the end."""

import pytest

from pairbus.broker.entities import QueueDescription
from tests.broker.world import World


@pytest.fixture
def make_world(tmp_path):
    worlds = []

    def make(*queues):
        folder = tmp_path / f"world-{len(worlds)}"
        worlds.append(World(folder, *(queues or (QueueDescription(name="q"),))))
        return worlds[-1]

    yield make
    for world in worlds:
        world.end()


@pytest.fixture
def world(make_world):
    """One queue, `q`, with every default."""
    return make_world()
