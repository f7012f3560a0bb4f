"""When a receiver's poll counts as an empty receive, what a receiver costs in memory, and what is
left of links that the broker has ended.
"""

import gc
import sqlite3
import time
import tracemalloc
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.client.blocking import Connection, LinkLost
from pairbus.amqp.client.requests import RequestLinks
from pairbus.amqp.codec.types import Described, UInt, ULong
from pairbus.amqp.codec.values import encode
from pairbus.amqp.sasl import SaslClient
from pairbus.broker import Broker, QueueDescription
from pairbus.broker.entities.policies import DEFAULT_KEY, DEFAULT_POLICY_NAME
from pairbus.broker.links.receiver_link import SESSION_FILTER, Poll, ReceiverLink
from pairbus.broker.storage.store import Store
from pairbus.cost.meter import Tally
from pairbus.fast.address import Address
from pairbus.testing import ManualClock
from tests.broker.world import encoded
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
    """A broker with 30 MB in a queue."""
    with Broker(["q"]) as broker:
        with Address.from_connection_string(broker.connection_string).client() as client:
            for number in range(COUNT):
                client.sender("q").send(messages(1, body=BODY, first=number))
        yield broker


@pytest.fixture
def client(large):
    with Address.from_connection_string(large.connection_string).client() as client:
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
def test_a_receiver_with_much_credit_costs_the_broker_little_memory(client, mode):
    receiver = client.receiver("q", credit=COUNT, mode=mode)

    assert received_ids(receiver) == [f"m-{number}" for number in range(COUNT)]

    assert tracemalloc.get_traced_memory()[1] < COUNT * len(BODY) * 0.8


def test_large_messages_that_come_back_are_whole_and_in_order(client):
    receiver = client.receiver("q", credit=COUNT)
    locked = take(receiver, COUNT)
    receiver.dead_letter(locked[:1], reason="why")
    receiver.abandon(locked[1:2])
    receiver.release(locked[2:])

    again = take(receiver, COUNT - 1)
    assert names(again) == [f"m-{number}" for number in range(1, COUNT)]
    assert all(one.data.endswith(BODY) for one in again)
    [dead] = take(client.receiver("q/$deadletterqueue", credit=1), 1)
    assert dead.data.endswith(BODY)


# -- links that the broker has ended ------------------------------------------------------------


WITH_KEY = SaslClient("PLAIN", DEFAULT_POLICY_NAME, DEFAULT_KEY)


@contextmanager
def connected(broker, sasl=WITH_KEY):
    connection = Connection("localhost", broker.port, sasl=sasl)
    connection.open(30)
    try:
        yield connection
    finally:
        connection.close()


def soon():
    return time.monotonic() + 30


def ask_for_session(connection, session_id):
    """A link to the session; None stands for the next one that is available in 20 ms."""
    return connection.attach_receiver(
        "q",
        lambda *message: message,
        until=soon(),
        filter={SESSION_FILTER: session_id},
        properties={"com.microsoft:timeout": UInt(20)},
    )


def receiver_links():
    gc.collect()
    return sum(isinstance(one, ReceiverLink) for one in gc.get_objects())


@pytest.mark.parametrize("session_id", ["held", None], ids=["locked session", "no session"])
def test_a_session_that_nobody_gets_leaves_no_link_behind(session_id):
    queue = QueueDescription(name="q", requires_session=True)
    with Broker([queue]) as broker, connected(broker) as connection:
        ask_for_session(connection, "held")
        before = receiver_links()

        for _ in range(10):
            with pytest.raises(LinkLost):
                ask_for_session(connection, session_id)

        assert receiver_links() == before


def test_a_session_whose_lock_expires_leaves_no_link_behind():
    queue = QueueDescription(name="q", requires_session=True, lock_duration=timedelta(minutes=1))
    clock = ManualClock()
    with Broker([queue], clock=clock) as broker, connected(broker) as connection:
        before = receiver_links()
        link = ask_for_session(connection, "a")
        assert receiver_links() == before + 1

        clock.advance(61)
        connection.wait(lambda: link.is_over, soon(), "the end of the lock")

        assert link.error.condition == "com.microsoft:session-lock-lost"
        assert receiver_links() == before


def test_an_attach_that_a_fault_delays_until_its_link_was_closed_leaves_no_link_behind():
    with Broker(["q", "other"]) as broker, connected(broker) as connection:
        before = receiver_links()
        broker.faults.slow("q", latency_seconds=60)
        link = connection.start_receiver("q", lambda *message: message)
        connection.attach_sender("other", until=soon())  # the broker has read the first attach
        broker.faults.unreachable("q", mode="drop")
        link.grant(1)
        connection.attach_sender("other", until=soon())

        broker.faults.clear()
        connection.wait(lambda: link.is_over, soon(), "the end of the link")

        assert receiver_links() == before


def refuse(store):
    raise sqlite3.OperationalError("database or disk is full")


@pytest.mark.req("B-12")
@pytest.mark.parametrize("snd_settle_mode", [0, 1], ids=["with locks", "without"])
def test_a_receiver_that_waits_gets_its_message_when_the_disk_has_room_again(
    monkeypatch, snd_settle_mode
):
    clock = ManualClock()
    with Broker(["q"], clock=clock) as broker, connected(broker) as connection:
        sender = connection.attach_sender("q", until=soon())
        send(connection, sender, None)
        link = connection.attach_receiver(
            "q", lambda *message: message, until=soon(), snd_settle_mode=snd_settle_mode
        )
        if snd_settle_mode == 0:
            link.grant(1)
            connection.wait(lambda: link.inbox, soon(), "a message, whose lock will expire")
            link.inbox.clear()
        with monkeypatch.context() as patched:
            patched.setattr(Store, "commit", refuse)
            link.grant(1)
            send(connection, sender, None)  # the disk refuses it, like what the receiver asks for
            clock.advance(60)

        clock.advance(6)

        connection.wait(lambda: link.inbox, soon(), "the message")


# -- credit that comes before the session -------------------------------------------------------


@pytest.fixture
def sessions():
    """A queue whose session a has two messages. A receiver holds it, and has one of them."""
    queue = QueueDescription(name="q", requires_session=True)
    with Broker([queue]) as broker, connected(broker) as connection:
        sender = connection.attach_sender("q", until=soon())
        send(connection, sender, "a", "a")
        holder = ask_for_session(connection, "a")
        holder.grant(1)
        connection.wait(lambda: holder.inbox, soon(), "a message")
        yield SimpleNamespace(broker=broker, connection=connection, sender=sender, holder=holder)


def send(connection, sender, *session_ids):
    for session_id in session_ids:
        delivery = sender.send(encoded(session=session_id))
        connection.wait(lambda d=delivery: d.outcome, soon(), "an outcome")


def wait_with_credit(connection, *, seconds, session_id=None):
    """A link that asks for a session, by default the next one, and grants credit at once, as
    Proton's clients do.
    """
    link = connection.start_receiver(
        "q",
        lambda *message: message,
        filter={SESSION_FILTER: session_id},
        properties={"com.microsoft:timeout": UInt(int(seconds * 1000))},
    )
    link.grant(5)
    return link


def test_a_receiver_that_waits_for_a_session_does_not_hold_back_the_others(sessions):
    connection, holder = sessions.connection, sessions.holder
    waiting = wait_with_credit(connection, seconds=60)

    holder.grant(1)

    connection.wait(lambda: len(holder.inbox) == 2, soon(), "a message")
    assert not waiting.attached


def test_credit_that_was_granted_before_the_session_counts(sessions):
    connection = sessions.connection
    waiting = wait_with_credit(connection, seconds=60)

    send(connection, sessions.sender, "b", "b")

    connection.wait(lambda: len(waiting.inbox) == 2, soon(), "messages")


def test_a_receiver_that_drains_before_it_has_a_session_keeps_its_connection(sessions):
    connection = sessions.connection
    waiting = wait_with_credit(connection, seconds=60)
    waiting.drain()

    send(connection, sessions.sender, "b")

    connection.wait(
        lambda: waiting.attached and waiting.credit == 0, soon(), "the end of the drain"
    )
    assert len(waiting.inbox) == 1


def test_no_session_in_time_is_one_empty_receive(sessions):
    connection = sessions.connection
    waiting = wait_with_credit(connection, seconds=0.1)

    connection.wait(lambda: waiting.is_over, soon(), "the end of the wait")

    assert sessions.broker.meter.of("q").empty_receive == 1


def test_credit_that_comes_together_with_the_wish_for_a_session_is_one_poll(sessions):
    connection = sessions.connection
    link = wait_with_credit(connection, seconds=60, session_id="empty")
    connection.wait(lambda: link.attached, soon(), "a session")

    link.drain()
    connection.wait(lambda: link.credit == 0, soon(), "the end of the drain")

    assert sessions.broker.meter.of("q").empty_receive == 1


MANAGEMENT = "q/$management"


def leave_unread(connection, request, address=MANAGEMENT):
    """Ask until the broker has had enough of replies without credit. Returns how often."""
    unread = connection.attach_receiver(
        address, lambda *message: message, until=soon(), target=address, is_shared=True
    )
    requests = connection.attach_sender(address, until=soon(), source=address, is_shared=True)
    asked = 0
    while not unread.is_over:
        connection.wait(lambda: requests.credit or unread.is_over, soon(), "credit")
        if requests.credit:
            delivery = requests.send(request)
            asked += 1
            connection.wait(lambda d=delivery: d.outcome or unread.is_over, soon(), "an outcome")
    assert unread.error.condition == "amqp:resource-limit-exceeded"
    return asked


def test_after_a_client_has_left_its_replies_unread_it_can_start_again():
    with Broker(["q"]) as broker, connected(broker) as connection:
        leave_unread(connection, encoded(message_id="1", properties={"operation": "x"}))

        links = RequestLinks(connection, MANAGEMENT)
        links.wait_attached(soon())
        answer = links.ask({"operation": "x"}, None, until=soon())

        assert answer.properties["statusCode"] == 501


@pytest.mark.parametrize(
    ("address", "description"),
    [("$cbs", "status-description"), (MANAGEMENT, "statusDescription")],
)
def test_the_name_of_an_unknown_operation_is_cut_in_the_reply(address, description):
    with Broker(["q"]) as broker, connected(broker) as connection:
        links = RequestLinks(connection, address)
        links.wait_attached(soon())
        answer = links.ask({"operation": "x" * 30_000}, None, until=soon())

    assert len(answer.properties[description]) < 200


def test_replies_that_nobody_reads_cost_little_memory(large):
    body = {"from-sequence-number": 0, "message-count": 250}
    request = encoded(
        body=None, message_id="1", properties={"operation": "com.microsoft:peek-message"}
    ) + encode(Described(ULong(0x77), body))
    with connected(large) as connection:
        assert leave_unread(connection, request) < 100  # each reply has nearly a megabyte


def test_without_a_token_few_replies_may_be_left_unread():
    request = encoded(message_id="x" * 30_000, properties={"operation": "x"})  # in the reply, too
    with Broker(["q"]) as broker, connected(broker, sasl=None) as connection:
        assert leave_unread(connection, request, "$cbs") < 10
