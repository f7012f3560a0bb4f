"""Messages that move on: forwarding chains, and what is written of their times."""

from datetime import timedelta
from itertools import pairwise

import pytest

from pairbus.amqp.codec.sections import read_property, slice_message
from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.entities.descriptions import Status
from pairbus.broker.message import stamped
from pairbus.broker.messages.lifecycle import MailboxKind
from tests.broker.world import application_properties, encoded, queue

TRANSFER = MailboxKind.TRANSFER_DEAD_LETTER
ABSOLUTE_EXPIRY_TIME = 8


def test_a_chain_is_followed_to_its_end(make_world):
    world = make_world(
        queue("a", forward_to="B"), queue("b", forward_to="c"), queue("c", max_delivery_count=1)
    )
    world.send(encoded(b"other"), to="c")

    world.send(encoded(b"one"), encoded(b"two"), to="a")

    found = world.receive(9, of="c")
    assert [lock.message.sequence for lock in found] == [1, 2, 3]
    assert [lock.message.enqueued_sequence for lock in found] == [1, 1, 2]
    assert world.sequences(of="a") == world.sequences(of="b") == []
    world.check_counters()


def test_four_hops_are_allowed_and_five_are_not(make_world):
    names = "abcdef"
    chain = [queue(n, forward_to=m) for n, m in pairwise(names)]
    world = make_world(*chain, queue("f"))

    world.send(encoded(b"fifth"), to="a")
    world.send(encoded(b"fourth"), to="b")

    assert world.sequences(of="f") == [1]
    dead = world.receive(of="a", kind=TRANSFER)[0].message
    reason = application_properties(dead)
    assert reason["DeadLetterReason"] == "MaxTransferHopCountExceeded"
    assert "4 times" in reason["DeadLetterErrorDescription"]


DEAD_ENDS = {
    "does not exist": (None, encoded()),
    "is SendDisabled": (queue("t", status=Status.SEND_DISABLED), encoded()),
    "accepts at most": (queue("t", max_message_size_in_kilobytes=1), encoded(b"x" * 2000)),
    "requires sessions": (queue("t", requires_session=True), encoded()),
    "is full": (queue("t", max_size_in_megabytes=1), encoded(b"x" * 250_000)),
}


@pytest.mark.parametrize(("said", "case"), DEAD_ENDS.items(), ids=DEAD_ENDS)
def test_a_message_that_cannot_be_forwarded_is_kept_with_the_reason(make_world, said, case):
    target, message = case
    world = make_world(queue("a", forward_to="t"), *([target] if target else []))
    if said == "is full":
        for _ in range(4):
            world.send(message, to="t")

    assert world.send(message, to="a")

    dead = world.receive(of="a", kind=TRANSFER)[0].message
    assert application_properties(dead)["DeadLetterReason"] == "ForwardingFailed"
    assert said in application_properties(dead)["DeadLetterErrorDescription"]
    world.check_counters()


@pytest.mark.parametrize("ending", ["restart", "crash"])
def test_failed_forwarding_goes_on_after_a_restart(make_world, ending):
    """The forwarding queue's numbers go on, too: a number given twice would be one row twice."""
    world = make_world(queue("a", forward_to="missing"), queue("other"))
    world.send(encoded(), to="a")
    getattr(world, ending)()

    _, bystander = world.submit(encoded(), to="other")
    assert isinstance(world.send(encoded(), to="a"), list)

    assert bystander == [None]
    assert len(world.sequences(of="a", kind=TRANSFER)) == 2


@pytest.mark.req("B-10")
@pytest.mark.parametrize("bad", [encoded(session=5), encoded(message_id=5)], ids=["session", "id"])
def test_an_unreadable_id_does_no_harm_when_forwarded(make_world, bad):
    world = make_world(queue("a", forward_to="b"), queue("b"))

    answer = world.send(encoded(), bad, to="a")

    if isinstance(answer, AmqpError):
        assert answer.condition == "amqp:decode-error"
        assert world.sequences(of="b") == []
    world.check_counters()
    assert world.send(encoded(), to="a")


def test_a_session_is_available_only_when_its_scheduled_message_is(make_world):
    world = make_world(queue(requires_session=True))
    world.send(encoded(session="s", due_ms=world.now_ms + 1000))
    assert world.queue().main.sessions.next_available() is None

    world.pass_time(1)

    assert world.queue().main.sessions.next_available() == "s"


@pytest.mark.req("B-05")
def test_the_expiry_is_written_where_receivers_look_for_it(world):
    world.send(encoded(ttl_ms=60_000))

    lock = world.receive()[0]
    stored = lock.message

    parts = slice_message(stamped(stored, locked_until_ms=lock.until_ms))
    expiry = read_property(parts.bare, parts.properties, ABSOLUTE_EXPIRY_TIME)
    assert expiry == stored.enqueued_ms + 60_000
    assert stored.ttl_ms == 60_000


@pytest.mark.req("B-05")
def test_a_life_longer_than_its_field_is_kept_whole_and_shown_at_its_most(make_world):
    world = make_world(queue(default_message_time_to_live=timedelta(days=60)))
    world.send(encoded(), encoded(due_ms=world.now_ms + 1000))

    answer = world.ask("peek-message", {"from-sequence-number": 0, "message-count": 9})

    shown = [slice_message(entry["message"]).ttl_ms for entry in answer.body["messages"]]
    assert shown[0] == 2**32 - 1
    assert len(shown) == 2
    assert world.receive()[0].message.expires_ms == world.now_ms + 60 * 86_400_000
