"""The client in conversation with a server: messages, credit, settlements."""

from __future__ import annotations

import pytest

from pairbus.amqp.codec.batches import BATCH_FORMAT
from pairbus.amqp.codec.types import UInt
from pairbus.amqp.engine import ConnectionClosed, Disposed, Flowed
from pairbus.amqp.frames import DISPOSITION, encode_frame
from pairbus.amqp.outcomes import ACCEPTED, RELEASED, AmqpError, OutcomeKind, modified, rejected
from tests.amqp.client.clientpair import ClientPair

ERROR = AmqpError("amqp:internal-error", "sorry", {"k": "v"})


@pytest.fixture
def pair():
    with ClientPair() as pair:
        yield pair


def dispositions(data: bytes) -> int:
    return data.count(bytes((0x00, 0x53, DISPOSITION)))


# -- receiving --------------------------------------------------------------------------------


def test_messages_arrive_with_their_tags_and_numbers(pair):
    link, far = pair.receiver()
    sent = pair.deliver(far, b"one", b"", b"two" * 1000)
    assert [data for _, _, data in link.inbox] == [b"one", b"", b"two" * 1000]
    assert [tag for _, tag, _ in link.inbox] == [delivery.tag for delivery in sent]
    assert [number for number, _, _ in link.inbox] == [0, 1, 2]
    assert link.credit == 97


@pytest.mark.parametrize("tag", [b"x", b"15 bytes of tag", b"y" * 32])
def test_any_tag_will_do(pair, tag):
    link, far = pair.receiver()
    for number in range(300):  # so that delivery-ids of each size come by
        far.send(tag + bytes((number % 256,)) if len(tag) < 32 else tag, b"data")
        pair.run()
        if not link.credit:
            link.grant(100)
    assert len(link.inbox) == 100 + 200
    assert [number for number, _, _ in link.inbox] == list(range(300))


def test_large_messages_of_several_links_come_interleaved(pair):
    one, far_one = pair.receiver()
    other, far_other = pair.receiver()
    far_one.send(b"1", b"a" * 300_000)
    far_other.send(b"2", b"b" * 300_000)
    far_one.send(b"3", b"c")
    pair.run()
    assert [data for _, _, data in one.inbox] == [b"a" * 300_000, b"c"]
    assert [data for _, _, data in other.inbox] == [b"b" * 300_000]


def test_a_message_beyond_the_limit_ends_the_connection():
    with ClientPair(message_size_max=1_500_000) as pair:
        _, far = pair.receiver()
        pair.deliver(far, b"x" * 2_000_000)
        assert pair.client.is_over
        assert "more than 1500000 bytes" in str(pair.client.error)
        [closed] = pair.at_server(ConnectionClosed)
        assert closed.error.condition == "amqp:link:message-size-exceeded"


def test_credit_is_what_the_client_says_it_is(pair):
    link, far = pair.receiver(credit=2)
    assert far.credit == 2
    pair.deliver(far, b"a", b"b")
    assert (far.credit, link.credit) == (0, 0)
    link.grant(5)
    pair.run()
    assert far.credit == 5
    link.grant(1)
    pair.run()
    assert far.credit == 1


def test_credit_is_called_back(pair):
    link, far = pair.receiver(credit=10)
    pair.deliver(far, b"a")
    link.drain()
    pair.run()
    assert far.drain
    far.send(b"late", b"b")
    far.drained()
    pair.run()
    assert link.credit == 0
    assert len(link.inbox) == 2
    link.grant(3)
    pair.run()
    assert far.credit == 3
    assert not far.drain
    pair.deliver(far, b"c")
    assert len(link.inbox) == 3


def test_both_sides_count_the_same_credit_if_some_is_granted_before_the_drain_is_answered(pair):
    link, far = pair.receiver(credit=10)
    link.drain()
    asked = pair.client.engine.data_to_send()
    link.grant(20)  # the answer is on its way
    pair.server.receive(asked)
    far.drained()
    pair.run()
    assert far.credit == link.credit == 10
    pair.deliver(far, *[b"x"] * 10)
    assert (far.credit, link.credit) == (0, 0)


def test_two_drains_with_a_grant_between_are_both_answered(pair):
    link, far = pair.receiver(credit=10)
    link.drain()
    first = pair.client.engine.data_to_send()
    link.grant(20)
    link.drain()
    second = pair.client.engine.data_to_send()
    for asked in (first, second):
        pair.server.receive(asked)
        far.drained()
    pair.run()
    assert far.credit == link.credit == 0


def test_without_credit_nothing_is_called_back(pair):
    link, _ = pair.receiver(credit=0)
    seen = len(pair.at_server(Flowed))
    link.drain()
    pair.run()
    assert len(pair.at_server(Flowed)) == seen


# -- settling ---------------------------------------------------------------------------------


def settled_by_peer(pair):
    return [delivery for event in pair.at_server(Disposed) for delivery in event.deliveries]


def answer(pair, outcome=None):
    for delivery in settled_by_peer(pair):
        if not delivery.settled:
            if outcome is None:
                delivery.echo()
            else:
                delivery.settle(outcome)
    pair.run()


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (ACCEPTED, OutcomeKind.ACCEPTED),
        (RELEASED, OutcomeKind.RELEASED),
        (modified(failed=True), OutcomeKind.MODIFIED),
        (modified(failed=True, annotations={"k": "v"}), OutcomeKind.MODIFIED),
        (rejected(ERROR), OutcomeKind.REJECTED),
    ],
)
def test_a_settlement_waits_for_its_answer(pair, outcome, kind):
    link, far = pair.receiver()
    pair.deliver(far, *[b"x"] * 10)
    pair.to_server = b""
    settlement = link.settle(range(10), outcome)
    pair.run()
    assert dispositions(pair.to_server) == 1
    assert settlement.left == 10
    (reported,) = pair.at_server(Disposed)
    assert (reported.outcome.kind, reported.outcome) == (kind, outcome)
    assert len(reported.deliveries) == 10
    answer(pair)
    assert (settlement.left, settlement.refusals) == (0, {})


def test_one_frame_speaks_for_each_run_of_numbers(pair):
    link, far = pair.receiver()
    pair.deliver(far, *[b"x"] * 10)
    pair.to_server = b""
    settlement = link.settle([0, 1, 2, 5, 6, 9], ACCEPTED)
    pair.run()
    assert dispositions(pair.to_server) == 3
    assert [len(event.deliveries) for event in pair.at_server(Disposed)] == [3, 2, 1]
    answer(pair)
    assert settlement.left == 0


def test_refusals_are_told_by_number(pair):
    link, far = pair.receiver()
    pair.deliver(far, *[b"x"] * 4)
    settlement = link.settle(range(4), ACCEPTED)
    pair.run()
    first, *others = settled_by_peer(pair)
    first.settle(rejected(ERROR))
    others[0].settle(RELEASED)
    others[1].settle()
    others[2].echo()
    pair.run()
    refusals = settlement.refusals
    assert set(refusals) == {0, 1, 2}
    assert refusals[0].description == "sorry"
    assert "accepted was answered with released" in str(refusals[1])
    assert "accepted was answered with none" in str(refusals[2])


def test_settlements_that_are_under_way_at_once_are_answered_each_by_itself(pair):
    link, far = pair.receiver()
    pair.deliver(far, *[b"x"] * 4)
    first = link.settle([0, 2], ACCEPTED)
    second = link.settle([1, 3], RELEASED)
    pair.run()
    reported = settled_by_peer(pair)
    reported[0].settle(rejected(ERROR))
    reported[1].echo()
    pair.run()
    assert (first.left, set(first.refusals)) == (0, {0})
    assert (second.left, second.refusals) == (2, {})


# -- sending ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 255, 65_000, 65_499, 65_500, 65_501, 65_536, 200_000])
def test_messages_of_any_size_are_sent_whole(pair, size):
    link, _ = pair.sender()
    payload = bytes(index % 251 for index in range(size))
    sent = link.send(payload)
    pair.run()
    [event] = pair.arrived()
    assert (event.data, event.message_format) == (payload, 0)
    assert sent.outcome is None
    event.delivery.accept()
    pair.run()
    assert sent.outcome == ACCEPTED


@pytest.mark.parametrize("size", [100, 200_000])
def test_a_batch_is_marked_as_one(pair, size):
    link, _ = pair.sender()
    link.send(bytes(size), message_format=BATCH_FORMAT)
    pair.run()
    [event] = pair.arrived()
    assert event.message_format == BATCH_FORMAT


def test_outcomes_come_in_any_order(pair):
    link, _ = pair.sender()
    sent = [link.send(b"x") for _ in range(3)]
    pair.run()
    events = pair.arrived()
    assert link.credit == 97
    events[2].delivery.accept()
    events[0].delivery.reject(ERROR)
    pair.run()
    assert sent[0].outcome.error.description == "sorry"
    assert sent[0].outcome.error.info["k"] == "v"
    assert sent[1].outcome is None
    assert sent[2].outcome == ACCEPTED


def test_a_sender_s_credit_is_what_the_peer_gives(pair):
    link, far = pair.sender(credit=2)
    link.send(b"x")
    far.grant(5)  # said before it has seen the message
    pair.run()
    assert link.credit == far.credit == 6


def test_transfers_wait_for_the_peer_s_window(pair):
    link, _ = pair.sender()
    pair.client.receive(encode_frame(0x13, [UInt(0), UInt(1), UInt(0), UInt(100)]))
    pair.to_server = b""
    sent = link.send(bytes(200_000))
    pair.run()
    assert pair.arrived() == []
    first = len(pair.to_server)
    assert first < 100_000
    pair.client.receive(encode_frame(0x13, [UInt(1), UInt(2), UInt(0), UInt(100)]))
    pair.run()
    assert first < len(pair.to_server) < 200_000
    assert pair.arrived() == []
    pair.client.receive(encode_frame(0x13, [UInt(3), UInt(100), UInt(0), UInt(100)]))
    pair.run()
    [event] = pair.arrived()
    assert len(event.data) == 200_000
    event.delivery.accept()
    pair.run()
    assert sent.outcome == ACCEPTED


def test_a_question_for_the_state_of_a_session_is_answered(pair):
    pair.sender()
    pair.client.receive(
        encode_frame(0x13, [UInt(0), UInt(9), UInt(0), UInt(9), *[None] * 4, False, True])
    )
    assert pair.client.engine.has_output
    pair.run()
    assert not pair.client.is_over
