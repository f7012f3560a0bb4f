import random

import pytest

from pairbus.client.route.backlog import Rotation

A, B, C = "contoso/x-servicebus-transfer/0", "contoso/x-servicebus-transfer/1", "contoso/.../2"


def first(queues):
    return queues[0]


@pytest.fixture
def rotation():
    return Rotation([A, B, C], choose=first, rest_seconds=30.0)


def test_all_queues_start_in_the_rotation(rotation):
    assert rotation.in_rotation == (A, B, C)
    assert rotation.withdrawn == {}
    assert rotation.last_error is None
    assert rotation.next_due is None
    assert rotation.take_due(now=1e9) == []


@pytest.mark.req("Q-05")
def test_the_dice_that_were_handed_in_pick():
    dice = random.Random(4)
    rotation = Rotation([A, B, C], choose=dice.choice, rest_seconds=30.0)

    picks = [rotation.pick() for _ in range(3000)]

    assert all(picks.count(queue) > 800 for queue in (A, B, C))


@pytest.mark.req("F-06")
def test_a_withdrawn_queue_is_never_picked(rotation):
    error = OSError("full")

    assert rotation.withdraw(A, error, now=5.0) is True
    assert rotation.in_rotation == (B, C)
    assert rotation.pick() == B
    assert not rotation.has(A)
    assert rotation.last_error is error
    withdrawal = rotation.withdrawn[A]
    assert (withdrawal.error, withdrawal.at, withdrawal.retry_at) == (error, 5.0, 35.0)


@pytest.mark.req("A-04", "F-07")
def test_with_one_queue_there_is_no_other_one():
    rotation = Rotation([A], choose=first, rest_seconds=30.0)
    rotation.withdraw(A, OSError("full"), now=0.0)

    assert rotation.pick() is None
    assert rotation.in_rotation == ()


def test_a_second_failure_is_remembered_but_the_rest_does_not_begin_anew(rotation):
    rotation.withdraw(A, OSError("first"), now=5.0)
    second = OSError("second")

    assert rotation.withdraw(A, second, now=20.0) is False
    assert rotation.last_error is second
    withdrawal = rotation.withdrawn[A]
    assert (withdrawal.error, withdrawal.at, withdrawal.retry_at) == (second, 5.0, 35.0)


def test_a_stranger_cannot_be_withdrawn(rotation):
    with pytest.raises(AssertionError, match="'elsewhere' is not one of the backlog queues"):
        rotation.withdraw("elsewhere", OSError(), now=0.0)
    assert not rotation.has("elsewhere")


def test_after_its_rest_a_queue_is_named_once(rotation):
    rotation.withdraw(B, OSError(), now=0.0)
    rotation.withdraw(A, OSError(), now=10.0)

    assert rotation.next_due == 30.0
    assert rotation.take_due(now=29.999) == []
    assert rotation.take_due(now=30.0) == [B]
    assert rotation.next_due == 40.0
    assert rotation.take_due(now=41.0) == [A]
    assert rotation.take_due(now=1e9) == []
    assert rotation.next_due is None


def test_a_look_that_fails_lets_it_rest_again(rotation):
    rotation.withdraw(A, OSError("first"), now=0.0)
    rotation.take_due(now=30.0)
    still = OSError("still")
    rotation.probe_failed(A, still, now=32.0)

    assert rotation.last_error is still
    assert rotation.withdrawn[A].error is still
    assert rotation.withdrawn[A].at == 0.0
    assert rotation.next_due == 62.0
    assert rotation.take_due(now=61.0) == []
    assert rotation.take_due(now=62.0) == [A]


def test_a_queue_that_answers_comes_back_to_its_place(rotation):
    rotation.withdraw(A, OSError(), now=0.0)
    rotation.take_due(now=30.0)

    assert rotation.readmit(A) is True
    assert rotation.in_rotation == (A, B, C)
    assert rotation.readmit(A) is False
    assert rotation.generation(A) == 1
    assert rotation.generation(B) == 0


def test_the_next_time_it_is_looked_at_again(rotation):
    rotation.withdraw(A, OSError(), now=0.0)
    rotation.take_due(now=30.0)
    rotation.readmit(A)
    rotation.withdraw(A, OSError(), now=100.0)

    assert rotation.take_due(now=130.0) == [A]


def test_a_look_that_fails_after_the_queue_is_back_means_nothing(rotation):
    rotation.probe_failed(A, OSError(), now=0.0)

    assert rotation.in_rotation == (A, B, C)
    assert rotation.last_error is None


def test_what_is_reported_of_the_withdrawn_is_a_copy(rotation):
    rotation.withdrawn[A] = None

    assert rotation.withdrawn == {}
