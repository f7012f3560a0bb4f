"""The client and the broker count the same operations."""

import random
import time

import pytest

from pairbus.broker import Broker
from pairbus.cost.meter import Meter, Tally
from pairbus.fast.address import Address
from pairbus.fast.errors import SendIncomplete
from tests.broker.world import encoded
from tests.fast.world import take

pytestmark = pytest.mark.req("M-01")

KB = 1024
SECONDS = 30.0
SIZES = (0, 1, 500, 63 * KB, 64 * KB, 130 * KB)


@pytest.fixture(scope="module")
def broker():
    with Broker(queues=[f"q{n}" for n in range(20)]) as broker:
        yield broker


@pytest.fixture
def meter():
    return Meter("local", since=0.0)


@pytest.fixture
def client(broker, meter):
    address = Address.from_connection_string(broker.connection_string)
    with address.client(meter=meter, timeout_seconds=SECONDS) as client:
        yield client


def agreed(broker, meter, queue):
    """The counts of both; the broker notices the end of a link a moment later."""
    until = time.monotonic() + SECONDS
    while (theirs := broker.meter.read().of(queue)) != (ours := meter.read().of(queue)):
        assert time.monotonic() < until, (ours, theirs)
        time.sleep(0.005)
    return ours


def test_what_is_sent_received_and_settled(broker, client, meter):
    client.sender("q0").send([encoded(b"x" * size) for size in SIZES])
    receiver = client.receiver("q0", credit=10)
    some = take(receiver, len(SIZES))
    receiver.complete(some[:2])
    receiver.abandon(some[2:3])
    receiver.dead_letter(some[3:4], reason="tried")
    receiver.release(some[4:])
    receiver.close()

    counted = agreed(broker, meter, "q0")
    assert counted.send == 1 + 1 + 1 + 1 + 2 + 3
    assert counted.settle >= len(SIZES)  # and what came again before it was closed


@pytest.mark.req("S-02")
def test_polls_that_end_without_a_message(broker, client, meter):
    receiver = client.receiver("q1", credit=1)
    for _ in range(3):
        receiver.receive(1, max_wait_seconds=0.01)
        receiver.stop()
    client.receiver("q1", credit=5).receive(1, max_wait_seconds=0.01)
    client.close()

    assert agreed(broker, meter, "q1") == Tally(empty_receive=4)


def test_messages_that_are_put_back_unread(broker, client, meter):
    client.sender("q2").send([encoded()] * 50)
    receiver = client.receiver("q2", credit=50)
    take(receiver, 1)
    receiver.stop()

    counted = agreed(broker, meter, "q2")
    assert counted.send == 50
    assert counted.receive == counted.settle + 1 > 1


def test_a_batch_that_is_accepted_in_part(broker, client, meter):
    large = encoded(b"x" * 300 * KB)
    with pytest.raises(SendIncomplete):
        client.sender("q3").send([*[encoded(b"x" * 60 * KB)] * 10, large], window=1)

    assert agreed(broker, meter, "q3") == Tally(send=10)


def test_requests_to_management(broker, client, meter):
    client.sender("q4").send([encoded(b"x" * 60 * KB)] * 3)
    management = client.management("q4")
    assert len(management.peek(0, 10)) == 3
    assert management.peek(1000, 10) == []
    receiver = client.receiver("q4", credit=3)
    some = take(receiver, 3)
    management.renew_locks([one.lock_token_bytes for one in some])
    management.settle([one.lock_token_bytes for one in some], "completed")
    receiver.close()

    assert agreed(broker, meter, "q4") == Tally(send=3, receive=3, peek=3 + 1, renew=3, settle=3)


@pytest.mark.parametrize("seed", range(12))
def test_random_operations(broker, client, meter, seed):
    """Top-ups race with deliveries, and stops with arrivals."""
    dice, queue = random.Random(seed), f"q{5 + seed}"
    sender = client.sender(queue)
    receiver = client.receiver(queue, credit=dice.choice([1, 3, 10, 100]))
    locked = []
    for _ in range(40):
        match dice.choice(["send", "receive", "receive", "settle", "settle", "stop", "peek"]):
            case "send":
                sizes = dice.choices(SIZES, k=dice.randint(1, 4))
                sender.send([encoded(b"x" * size) for size in sizes])
            case "receive":
                wait = dice.choice([0.0, 0.002])
                locked += receiver.receive(dice.randint(1, 20), max_wait_seconds=wait)
            case "settle":
                count = dice.randint(0, len(locked))
                how = dice.choice([receiver.complete, receiver.abandon, receiver.release])
                if count:
                    how(locked[:count])
                    del locked[:count]
            case "stop":
                receiver.stop()
            case "peek":
                client.management(queue).peek(0, 3)
    receiver.close()

    assert agreed(broker, meter, queue).total > 0
