"""Delivery-ids that repeat, skip or change, as the official Python SDK sends them.

Its tasks and threads read the next id of a session for each frame and raise it after the last, so
two of them may send 5, 5, 7. One answer counts for all deliveries of an id: nothing may be said
until each of them is durable or refused, and a refusal is said rather than an acceptance.
"""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.amqp.codec.types import Described, Symbol, UByte, UInt, ULong, UShort
from pairbus.amqp.engine import Attached, ConnectionClosed, Engine, EngineLimits, Transferred
from pairbus.amqp.frames import AMQP_HEADER, decode_performative, encode_frame
from pairbus.amqp.outcomes import AmqpError
from pairbus.amqp.sasl import SaslServer
from tests.amqp.engine.enginepair import held

ERROR = AmqpError("amqp:not-allowed", "no")
LAST = 2**32 - 1


class Peer:
    """A client that numbers its deliveries as it likes."""

    def __init__(self, links=2, limits=None):
        self.engine = Engine(
            server=True, container_id="s", sasl=SaslServer(), limits=limits or EngineLimits()
        )
        self.closed = False
        self.feed(AMQP_HEADER + encode_frame(0x10, ["c", "h", UInt(65536), UShort(9)]))
        self.begin(links)

    def begin(self, links=2):
        self.feed(encode_frame(0x11, [None, UInt(0), UInt(99), UInt(99)], channel=3))
        for handle in range(links):
            self.attach(handle)

    def attach(self, handle):
        source, target = Described(ULong(0x28), ["s"]), Described(ULong(0x29), ["q"])
        fields = [f"l{handle}", UInt(handle), False, UByte(0), UByte(0), source, target]
        (event,) = self.feed(encode_frame(0x12, [*fields, None, None, UInt(0)], channel=3))
        assert type(event) is Attached
        event.link.accept(credit=1000)
        self.said()

    def feed(self, data):
        events = self.engine.receive(data)
        self.closed = self.closed or any(type(event) is ConnectionClosed for event in events)
        return events

    def send(self, number, body=b"m", *, handle=0, tag=b"t", settled=False, more=False, **rest):
        """The delivery, if the frame completed one."""
        said = None if number is None else UInt(number)
        fields = [UInt(handle), said, tag, UInt(0), settled, more]
        if rest:
            fields += [None, None, None, rest["aborted"]]
        frame = encode_frame(0x14, fields, channel=3)
        events = self.feed((len(frame) + len(body)).to_bytes(4) + frame[4:] + body)
        arrived = [event for event in events if type(event) is Transferred]
        assert len(arrived) <= 1
        return arrived[0] if arrived else None

    def said(self):
        """Each id that was answered, with the code of its outcome."""
        data, answers = self.engine.data_to_send(), []
        at = 8 if data[:4] == b"AMQP" else 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4])
            code, fields = decode_performative(data[at + 8 : at + size])
            if code == 0x15:
                is_receiver, first, last, settled, state = fields
                assert is_receiver
                assert settled
                assert data[at + 6 : at + 8] == b"\0\3"
                span = (last - first) % 2**32 + 1
                answers += [((first + step) % 2**32, int(state.descriptor)) for step in range(span)]
            at += size
        return answers


@pytest.fixture
def peer():
    peer = Peer()
    yield peer
    assert not peer.closed


ACCEPTED, REJECTED = 0x24, 0x25


@pytest.mark.parametrize(
    "numbers", [[5, 5, 7], [5, 5, 6, 7], [7, 7, 12], [0, 3, 1], [LAST, LAST, 0], [9, 4, 9, 4]]
)
def test_each_id_is_answered_once_when_all_its_deliveries_are_durable(peer, numbers):
    arrived = [peer.send(number, tag=b"%d" % number) for number in numbers]
    assert None not in arrived
    left = list(numbers)
    for number, event in zip(numbers, arrived, strict=True):
        event.delivery.accept()
        left.remove(number)
        expected = [] if number in left else [(number, ACCEPTED)]
        assert peer.said() == expected


def test_a_peer_that_stays_one_off_for_ever_is_answered_at_once(peer):
    for number in [5, 5, *range(6, 200)]:
        peer.send(number).delivery.accept()
        assert peer.said() == [(number, ACCEPTED)]


@pytest.mark.parametrize("order", list(itertools.permutations([0, 1, 2])))
@pytest.mark.parametrize("refused", [{0}, {1}, {2}, {0, 1, 2}])
def test_a_refusal_is_what_is_said_in_whatever_order_they_are_decided(peer, order, refused):
    arrived = [peer.send(5, handle=handle) for handle in (0, 1, 0)]
    for index in order:
        assert peer.said() == []
        if index in refused:
            arrived[index].delivery.reject(ERROR)
        else:
            arrived[index].delivery.accept()
    assert peer.said() == [(5, REJECTED)]


def test_a_message_of_three_frames_may_bear_three_ids(peer):
    assert peer.send(5, b"a", more=True) is None
    other = peer.send(5, b"other", handle=1)
    assert peer.send(6, b"b", more=True) is None
    event = peer.send(7, b"c")
    assert event.data == b"abc"
    other.delivery.accept()
    assert peer.said() == [], "the first frame of another message had this id"
    event.delivery.accept()
    assert peer.said() == [(5, ACCEPTED)]


def test_further_frames_may_leave_id_and_tag_out(peer):
    peer.send(5, b"a", more=True)
    peer.send(None, b"b", tag=None, more=True)
    event = peer.send(None, b"c", tag=None)
    assert event.data == b"abc"
    event.delivery.accept()
    assert peer.said() == [(5, ACCEPTED)]


def test_frames_of_two_messages_on_one_link_cannot_be_told_apart():
    peer = Peer()
    peer.send(5, b"a", tag=b"one", more=True)
    peer.send(5, b"b", tag=b"two", more=True)
    assert peer.closed
    assert peer.engine.error.condition == "amqp:invalid-field"


def test_a_delivery_must_have_an_id():
    peer = Peer()
    peer.send(None)
    assert peer.closed


def test_a_settled_repeat_needs_no_answer_and_delays_none(peer):
    first = peer.send(5)
    settled = peer.send(5, settled=True)
    assert settled.settled
    first.delivery.accept()
    settled.delivery.accept()
    assert peer.said() == [(5, ACCEPTED)]


def test_an_aborted_repeat_delays_no_answer(peer):
    first = peer.send(5)
    peer.send(5, b"half", handle=1, more=True)
    first.delivery.accept()
    assert peer.said() == []
    peer.send(5, b"", handle=1, aborted=True)
    assert peer.said() == [(5, ACCEPTED)]
    assert held(peer.engine) == (0, 0)


def test_a_repeat_whose_link_is_gone_delays_no_answer(peer):
    first = peer.send(5, handle=0)
    gone = peer.send(5, handle=1)
    first.delivery.accept()
    peer.feed(encode_frame(0x16, [UInt(1), True], channel=3))
    gone.delivery.accept()
    assert peer.said() == [(5, ACCEPTED)]
    assert held(peer.engine) == (0, 0)


def test_a_repeat_that_is_too_large_is_what_is_said_of_its_id():
    peer = Peer(limits=EngineLimits(message_size_max=100))
    first = peer.send(5)
    peer.send(5, b"x" * 101, handle=1)
    assert peer.said() == []
    first.delivery.accept()
    assert peer.said() == [(5, REJECTED)]


def test_a_session_that_is_begun_again_on_the_same_channel_starts_afresh(peer):
    old = [peer.send(5), peer.send(5, handle=1)]
    peer.feed(encode_frame(0x17, [], channel=3))
    peer.begin()
    new = peer.send(5)
    for event in old:
        event.delivery.accept()
    peer.said()
    new.delivery.accept()
    assert peer.said() == [(5, ACCEPTED)]


def test_a_peer_that_settles_an_id_settles_all_its_deliveries(peer):
    arrived = [peer.send(5), peer.send(5, handle=1)]
    peer.feed(encode_frame(0x15, [False, UInt(5), None, True], channel=3))
    for event in arrived:
        event.delivery.accept()
    assert peer.said() == []
    assert held(peer.engine) == (0, 0)
    peer.send(5).delivery.accept()
    assert peer.said() == [(5, ACCEPTED)]


@pytest.mark.parametrize("repeats", [0, 1])
@pytest.mark.parametrize("size", [1, 200])
def test_a_message_that_is_settled_before_its_last_frame_is_not_held(repeats, size):
    peer = Peer(limits=EngineLimits(message_size_max=100))
    peer.send(5, b"a", more=True)
    for _ in range(repeats):
        peer.send(5, b"b", handle=1)
    peer.feed(encode_frame(0x15, [False, UInt(5), None, True], channel=3))
    event = peer.send(5, b"c" * size)
    assert (event is None) == (size > 100)
    if event is not None:
        assert event.settled
        event.delivery.accept()
    assert peer.said() == []
    assert held(peer.engine) == (0, 0)
    assert not peer.closed


def test_repeats_count_as_unsettled_deliveries():
    peer = Peer(limits=EngineLimits(unsettled_max=3))
    for _ in range(4):
        peer.send(5)
    assert peer.closed
    assert peer.engine.error.condition == "amqp:resource-limit-exceeded"


numbers = st.integers(0, 4) | st.sampled_from([LAST - 1, LAST])


@settings(max_examples=max(100, settings.default.max_examples))
@given(
    frames=st.lists(
        st.tuples(numbers, st.integers(0, 1), st.booleans(), st.booleans()), max_size=40
    ),
    seed=st.integers(0, 999),
)
def test_any_ids_are_borne_and_each_is_answered_exactly_when_its_group_is_decided(frames, seed):
    peer, chance = Peer(), random.Random(seed)
    waiting: dict[int, list] = {}  # by id: the links of its deliveries that are not decided
    refused: dict[int, bool] = {}
    undecided = []
    partial: dict[int, int] = {}  # by link: the id of its first frame
    for number, handle, more, decide in frames:
        number_counts = partial.setdefault(handle, number)
        if waiting.setdefault(number_counts, []).count((handle, "partial")) == 0:
            waiting[number_counts].append((handle, "partial"))
        event = peer.send(number, handle=handle, more=more)
        assert not peer.closed
        if not more:
            del partial[handle]
            waiting[number_counts].remove((handle, "partial"))
            waiting[number_counts].append(event)
            undecided.append((number_counts, event))
        while decide and undecided:
            decided, event = undecided.pop(chance.randrange(len(undecided)))
            if chance.random() < 0.3:
                event.delivery.reject(ERROR)
                refused[decided] = True
            else:
                event.delivery.accept()
            waiting[decided].remove(event)
            if waiting[decided]:
                assert peer.said() == []
            else:
                outcome = REJECTED if refused.pop(decided, False) else ACCEPTED
                assert peer.said() == [(decided, outcome)]
            decide = chance.random() < 0.5


def test_symbols_are_no_ids():
    peer = Peer()
    peer.feed(encode_frame(0x14, [UInt(0), Symbol("x"), b"t"], channel=3))
    assert peer.closed
