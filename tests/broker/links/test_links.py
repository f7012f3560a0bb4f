"""When a receiver's poll counts as an empty receive, and what a receiver costs in memory."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker import Broker
from pairbus.broker.links.links import Poll
from pairbus.cost.meter import Tally
from pairbus.fast.address import Address
from tests.fast.world import messages, names, take

# What was granted: credit, whether anything was delivered since, and whether it is a drain.
# Then, for each end of the poll, whether anything was delivered before. Last, the empty receives.
POLLS = {
    "taken back without a message, and detached as well": (
        [(1, False, False), (1, False, True)],
        [False, False],
        1,
    ),
    "taken back by granting nothing": ([(10, False, False), (0, False, False)], [], 1),
    "answered: it costs nothing but its messages": ([(10, False, False)], [True], 0),
    "asked again without an answer": ([(1, False, False)] * 4, [False], 4),
    "asked for the same again, after an answer too": (
        [(10, False, False), (10, True, False), (10, False, False)],
        [],
        1,
    ),
    "more credit after an answer is the same poll": (
        [(100, False, False), (125, True, False), (150, False, False), (175, False, False)],
        [False],
        0,
    ),
}


@pytest.mark.req("M-01")
@pytest.mark.parametrize(("grants", "ends", "empty_receives"), POLLS.values(), ids=POLLS)
def test_a_poll_is_counted_if_it_was(grants, ends, empty_receives):
    tally = Tally()
    poll = Poll(tally)

    for credit, delivered, drain in grants:
        poll.granted(credit, delivered=delivered, drain=drain)
    for delivered in ends:
        poll.end(delivered=delivered)

    assert tally.empty_receive == empty_receives


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=20), st.booleans())
def test_a_receiver_that_only_tops_up_can_tell_the_number_itself(grants, gave_at_end):
    """The broker and a receiver agree whether anything was delivered between begin and end."""
    tally = Tally()
    poll = Poll(tally)
    limit, has_given, is_first = 0, False, True
    for more, gave in grants:
        gave = gave and not is_first
        if not is_first and not (gave or has_given):
            continue  # without a message there is nothing to top up
        has_given |= gave
        limit += more
        poll.granted(limit, delivered=gave, drain=False)
        is_first = False
    gave_at_end = gave_at_end and bool(grants)
    poll.end(delivered=gave_at_end)

    assert tally.empty_receive == int(bool(grants) and not has_given and not gave_at_end)


# -- memory -----------------------------------------------------------------------------------

COUNT, BODY = 150, bytes(200_000)


@pytest.fixture
def large():
    """A client of a broker with 30 MB in a queue."""
    with (
        Broker(["q"]) as broker,
        Address.from_connection_string(broker.connection_string).client() as client,
    ):
        for number in range(COUNT):
            client.sender("q").send(messages(1, body=BODY, first=number))
        tracemalloc.start()
        try:
            yield client
        finally:
            tracemalloc.stop()


def received_ids(receiver):
    """The ids of all messages, which are not kept here."""
    found = []
    while len(found) < COUNT and (some := receiver.receive(COUNT, max_wait_seconds=20)):
        found += names(some)
    return found


@pytest.mark.parametrize("mode", ["peekLock", "receiveAndDelete"])
def test_a_receiver_with_much_credit_costs_the_broker_little_memory(large, mode):
    receiver = large.receiver("q", credit=COUNT, mode=mode)

    assert received_ids(receiver) == [f"m-{number}" for number in range(COUNT)]

    assert tracemalloc.get_traced_memory()[1] < COUNT * len(BODY) * 0.8


def test_large_messages_that_come_back_are_whole_and_in_order(large):
    receiver = large.receiver("q", credit=COUNT)
    locked = take(receiver, COUNT)
    receiver.dead_letter(locked[:1], reason="why")
    receiver.abandon(locked[1:2])
    receiver.release(locked[2:])

    again = take(receiver, COUNT - 1)
    assert names(again) == [f"m-{number}" for number in range(1, COUNT)]
    assert all(one.data.endswith(BODY) for one in again)
    [dead] = take(large.receiver("q/$deadletterqueue", credit=1), 1)
    assert dead.data.endswith(BODY)
