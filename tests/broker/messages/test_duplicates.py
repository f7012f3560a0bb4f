"""Duplicate detection: a message id counts once within the window."""

import pytest

from pairbus.amqp.codec.types import ULong
from pairbus.broker.entities.descriptions import QueueDescription
from pairbus.broker.messages.lifecycle import Settlement
from tests.broker.world import encoded


def queue(name="q", **settings):
    return QueueDescription(name=name, **settings)


def without_duplicates(**settings):
    return queue(requires_duplicate_detection=True, **settings)


@pytest.mark.req("B-07")
def test_a_duplicate_is_accepted_and_dropped_within_the_window(make_world):
    world = make_world(without_duplicates())
    assert world.send(encoded(message_id="x")) == [1]

    world.clock.advance(599)
    assert isinstance(world.send(encoded(message_id="x")), list)
    assert world.sequences() == [1]
    world.clock.advance(1)
    world.send(encoded(message_id="x"))

    assert len(world.sequences()) == 2
    world.check_counters()


@pytest.mark.req("B-07")
def test_a_duplicate_of_a_message_that_was_consumed_is_still_one(make_world):
    world = make_world(without_duplicates())
    world.send(encoded(message_id="x"))
    world.settle(world.receive()[0], Settlement.COMPLETE)

    world.send(encoded(message_id="x"))

    assert world.sequences() == []


@pytest.mark.req("B-07")
def test_duplicates_within_one_batch_and_while_the_first_is_on_its_way(make_world):
    world = make_world(without_duplicates())

    _, first = world.submit(encoded(message_id="x"), encoded(message_id="x"))
    _, second = world.submit(encoded(message_id="x"), encoded(message_id="y"))
    world.flush()

    assert (first, second) == ([None], [None])
    assert len(world.sequences()) == 2


@pytest.mark.req("B-07")
@pytest.mark.parametrize("ending", ["restart", "crash"])
def test_the_window_goes_on_after_a_restart(make_world, ending):
    world = make_world(without_duplicates())
    world.send(encoded(message_id="x"))

    getattr(world, ending)()
    world.clock.advance(300)
    world.send(encoded(message_id="x"))
    assert world.sequences() == [1]
    world.pass_time(300)
    world.send(encoded(message_id="x"))

    assert len(world.sequences()) == 2


def test_an_id_of_another_type_is_another_id(make_world):
    world = make_world(without_duplicates())

    world.send(encoded(message_id="5"), encoded(message_id=ULong(5)), encoded(message_id=b"5"))

    assert len(world.sequences()) == 3


def test_messages_without_an_id_are_no_duplicates_of_each_other(make_world):
    world = make_world(without_duplicates())

    world.send(encoded(b"same"), encoded(b"same"))

    assert len(world.sequences()) == 2


def test_without_duplicate_detection_an_id_may_be_used_twice(world):
    world.send(encoded(message_id="x"), encoded(message_id="x"))

    assert world.sequences() == [1, 2]


def test_a_refused_batch_leaves_no_ids_behind(make_world):
    world = make_world(without_duplicates())
    world.send(encoded(message_id="x"), encoded(b"x" * 300_000))

    world.send(encoded(message_id="x"))

    assert len(world.sequences()) == 1
