"""The client's core in conversation with the broker's engine: two implementations must agree."""

from __future__ import annotations

import pytest

from pairbus.amqp.client_frames import HEARTBEAT
from pairbus.amqp.engine import (
    ACCEPTED,
    BATCH_FORMAT,
    RELEASED,
    AmqpError,
    Attached,
    Closed,
    Detached,
    Disposed,
    EngineLimits,
    Flowed,
    Opened,
    OutcomeKind,
    SessionEnded,
    modified,
    rejected,
)
from pairbus.amqp.frames import DISPOSITION, FrameError, encode_frame
from pairbus.amqp.types import Described, UInt, ULong
from tests.amqp.clientpair import ClientPair

ERROR = AmqpError("amqp:internal-error", "sorry", {"k": "v"})


@pytest.fixture
def pair():
    with ClientPair() as pair:
        yield pair


def dispositions(data: bytes) -> int:
    return data.count(bytes((0x00, 0x53, DISPOSITION)))


# -- the connection ---------------------------------------------------------------------------


@pytest.mark.parametrize("sasl", [True, False])
def test_a_connection_is_opened(sasl):
    settings = {} if sasl else {"sasl": None}
    with ClientPair(properties={"product": "p"}, idle_timeout_ms=7000, **settings) as pair:
        [opened] = pair.at_server(Opened)
        assert (opened.container_id, opened.hostname) == ("client", "ns.example")
        assert opened.properties == {"product": "p"}
        assert pair.client.opened
        assert pair.client.remote_frame_size_max == 65536
        assert pair.client.remote_idle_ms == 120_000


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_bytes_may_come_in_any_pieces(chunk):
    with ClientPair(chunk=chunk) as pair:
        link, far = pair.receiver()
        pair.deliver(far, b"a" * 300, b"b" * 70_000, b"c")
        assert [data for _, _, data in link.inbox] == [b"a" * 300, b"b" * 70_000, b"c"]


def test_a_goodbye_is_answered(pair):
    pair.sender()
    pair.client.close()
    pair.run()
    assert pair.client.is_over
    assert pair.client.error is None
    [closed] = pair.at_server(Closed)
    assert closed.error is None


def test_the_peer_s_goodbye_ends_everything(pair):
    link, _ = pair.sender()
    pair.server.close(ERROR)
    pair.run()
    assert pair.client.is_over
    assert pair.client.error.condition == "amqp:internal-error"
    assert link.is_over
    assert link.error.description == "sorry"
    assert pair.server.closed


def test_a_goodbye_before_the_handshake_has_nothing_to_say():
    pair = ClientPair()
    pair.client.out.clear()
    pair.client.close()
    assert pair.client.is_over
    assert pair.client.out == []
    pair.server.free()


def test_heartbeats_are_understood(pair):
    pair.client.write(HEARTBEAT)
    pair.run()
    for pieces in ([HEARTBEAT * 3], [HEARTBEAT[:3], HEARTBEAT[3:] + HEARTBEAT]):
        for piece in pieces:
            pair.client.receive(piece)
    assert not pair.client.is_over
    assert pair.receiver()[0].alive


# -- links ------------------------------------------------------------------------------------


def test_what_the_peer_says_of_a_link_is_kept(pair):
    link = pair.client.begin().attach_sender("q", properties={"com.example:x": UInt(1)})
    pair.run()
    far = pair.attached(max_message_size=1000, properties={"limit": UInt(7)}, credit=3)
    assert far.remote.properties == {"com.example:x": 1}
    assert far.remote.target_address == "q"
    assert (link.size_max, link.properties, link.credit) == (1000, {"limit": 7}, 3)


def test_settle_modes_and_addresses_are_said(pair):
    _, far = pair.receiver(snd_settle_mode=1, rcv_settle_mode=0, target="here")
    remote = far.remote
    assert (remote.snd_settle_mode, remote.rcv_settle_mode) == (1, 0)
    assert (remote.source_address, remote.target_address) == ("q", "here")


def test_a_refused_link_has_its_error_and_ends_its_session(pair):
    for make in ("attach_sender", "attach_receiver"):
        session = pair.client.begin()
        more = (lambda *_: None,) if make == "attach_receiver" else ()
        link = getattr(session, make)("q", *more)
        pair.run()
        pair.at_server(Attached)[-1].link.refuse(ERROR)
        pair.run()
        assert link.is_over
        assert not link.attached
        assert link.error.description == "sorry"
        assert session.is_over
    assert pair.client.sessions == {}


def test_a_detached_link_takes_its_session_along_and_the_channel_is_free_again(pair):
    for _ in range(300):  # more than there are channels
        link, _ = pair.sender()
        link.detach()
        pair.run()
    assert pair.client.sessions == {}
    assert len(pair.at_server(SessionEnded)) == 300


def test_a_link_that_the_peer_detaches_is_over(pair):
    link, far = pair.receiver()
    far.close(ERROR)
    pair.run()
    assert link.is_over
    assert link.error.condition == "amqp:internal-error"
    assert pair.client.sessions == {}


def test_a_shared_session_outlives_its_links(pair):
    session = pair.client.begin(is_shared=True)
    link = session.attach_sender("q")
    pair.attached()
    link.detach()
    pair.run()
    assert not session.is_over
    assert session.links == {}
    session.attach_sender("q2")
    assert pair.attached().alive


def test_a_session_that_the_peer_ends_takes_its_links_along(pair):
    link, far = pair.sender()
    far.session.end(ERROR)
    pair.run()
    assert link.is_over
    assert link.error.description == "sorry"
    assert pair.sender()[0].alive


def test_no_more_sessions_are_begun_than_the_peer_allows():
    with ClientPair(limits=EngineLimits(channel_max=1)) as pair:
        pair.sender()
        pair.sender()
        with pytest.raises(FrameError, match="all 2 sessions"):
            pair.client.begin()


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
    with ClientPair(message_size_max=100_000) as pair:
        _, far = pair.receiver()
        pair.deliver(far, b"x" * 200_000)
        assert pair.client.is_over
        assert "more than 100000 bytes" in str(pair.client.error)
        [closed] = pair.at_server(Closed)
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


def test_without_credit_nothing_is_called_back(pair):
    link, _ = pair.receiver(credit=0)
    seen = len(pair.at_server(Flowed))
    link.drain()
    pair.run()
    assert len(pair.at_server(Flowed)) == seen


# -- settling ---------------------------------------------------------------------------------


def answer(pair, outcome=None):
    for event in pair.at_server(Disposed):
        if not event.delivery.settled:
            if outcome is None:
                event.delivery.echo()
            else:
                event.delivery.settle(outcome)
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
    link.settle(range(10), outcome, two_phase=True)
    pair.run()
    assert dispositions(pair.to_server) == 1
    assert len(link.session.settling) == 10
    told = pair.at_server(Disposed)
    assert {event.outcome.kind for event in told} == {kind}
    assert [event.outcome for event in told] == [outcome] * 10
    answer(pair)
    assert link.session.settling == {}
    assert link.session.refusals == {}


def test_one_frame_speaks_for_each_run_of_numbers(pair):
    link, far = pair.receiver()
    pair.deliver(far, *[b"x"] * 10)
    pair.to_server = b""
    link.settle([0, 1, 2, 5, 6, 9], ACCEPTED, two_phase=True)
    pair.run()
    assert dispositions(pair.to_server) == 3
    assert len(pair.at_server(Disposed)) == 6
    answer(pair)
    assert link.session.settling == {}


def test_what_is_settled_at_once_is_not_answered(pair):
    link, far = pair.receiver()
    pair.deliver(far, b"x", b"y")
    link.settle([0, 1], RELEASED, two_phase=False)
    pair.run()
    assert [event.settled for event in pair.at_server(Disposed)] == [True, True]
    assert link.session.settling == {}


def test_refusals_are_told_by_number(pair):
    link, far = pair.receiver()
    pair.deliver(far, *[b"x"] * 4)
    link.settle(range(4), ACCEPTED, two_phase=True)
    pair.run()
    first, *others = pair.at_server(Disposed)
    first.delivery.settle(rejected(ERROR))
    others[0].delivery.settle(RELEASED)
    others[1].delivery.settle()
    others[2].delivery.echo()
    pair.run()
    refusals = link.session.refusals
    assert set(refusals) == {0, 1, 2}
    assert refusals[0].description == "sorry"
    assert "accepted was answered with released" in str(refusals[1])
    assert "accepted was answered with none" in str(refusals[2])


# -- sending ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 255, 65_000, 65_499, 65_500, 65_501, 65_536, 200_000])
def test_messages_of_any_size_are_sent_whole(pair, size):
    link, _ = pair.sender()
    payload = bytes(index % 251 for index in range(size))
    ticket = link.send(payload)
    pair.run()
    [event] = pair.arrived()
    assert (event.data, event.message_format) == (payload, 0)
    assert ticket.outcome is None
    event.delivery.accept()
    pair.run()
    assert ticket.outcome == ACCEPTED


@pytest.mark.parametrize("size", [100, 200_000])
def test_a_batch_is_marked_as_one(pair, size):
    link, _ = pair.sender()
    link.send(bytes(size), message_format=BATCH_FORMAT)
    pair.run()
    [event] = pair.arrived()
    assert event.message_format == BATCH_FORMAT


def test_outcomes_come_in_any_order(pair):
    link, _ = pair.sender()
    tickets = [link.send(b"x") for _ in range(3)]
    pair.run()
    events = pair.arrived()
    assert link.credit == 97
    events[2].delivery.accept()
    events[0].delivery.reject(ERROR)
    pair.run()
    assert tickets[0].outcome.error.description == "sorry"
    assert tickets[0].outcome.error.info["k"] == "v"
    assert tickets[1].outcome is None
    assert tickets[2].outcome == ACCEPTED


def test_a_sender_s_credit_is_what_the_peer_gives(pair):
    link, far = pair.sender(credit=2)
    link.send(b"x")
    far.grant(5)  # said before it has seen the message
    pair.run()
    assert link.credit == far.credit == 6


def test_transfers_wait_for_the_peer_s_window(pair):
    link, _ = pair.sender()
    session = link.session
    session._remote_window = 1
    ticket = link.send(bytes(200_000))
    assert len(session._blocked) == 3
    pair.run()
    assert pair.arrived() == []
    window = encode_frame(0x13, [UInt(1), UInt(2), UInt(0), UInt(100)])
    pair.client.receive(window)
    pair.run()
    assert len(session._blocked) == 1
    pair.client.receive(encode_frame(0x13, [UInt(3), UInt(100), UInt(0), UInt(100)]))
    pair.run()
    [event] = pair.arrived()
    assert len(event.data) == 200_000
    event.delivery.accept()
    pair.run()
    assert ticket.outcome == ACCEPTED


def test_a_question_for_the_state_of_a_session_is_answered(pair):
    pair.sender()
    pair.client.receive(
        encode_frame(0x13, [UInt(0), UInt(9), UInt(0), UInt(9), *[None] * 4, False, True])
    )
    assert len(pair.client.out) == 1
    pair.run()
    assert not pair.client.is_over


# -- a peer that breaks a rule ----------------------------------------------------------------

SOURCE = Described(ULong(0x28), ["q"])


@pytest.mark.parametrize(
    ("code", "fields", "said"),
    [
        (0x10, ["again"], "wrong time"),
        (0x11, [UInt(7), UInt(0), UInt(1), UInt(1)], "answers channel 7"),
        (0x11, [None, UInt(0), UInt(1), UInt(1)], "answers channel None"),
        (0x12, ["unknown", UInt(9), True], "not asked for"),
        (0x12, [], "field 1 of attach"),
        (0x13, [], "field 1 of flow"),
        (0x13, [UInt(0), "much"], "field 1 of flow"),
        (0x15, [False, None], "field 1 of disposition"),
        (0x16, [UInt(9)], "handle 9"),
        (0x16, [], "field 0 of detach"),
        (0x1F, [], "unknown performative"),
        (0x14, [], "no list, or an empty one"),
        (0x14, [None], "without a handle"),
        (0x14, [UInt(9), UInt(0), b"t"], "handle 9"),
        (0x14, [UInt(0)], "without an id"),
        (0x14, [UInt(0), UInt(0), "text"], "delivery-tag is expected"),
    ],
)
def test_it_is_told_and_the_connection_is_over(pair, code, fields, said):
    link, _ = pair.receiver()
    pair.client.receive(encode_frame(code, fields))
    assert pair.client.is_over
    assert said in str(pair.client.error)
    assert pair.client.error.condition == "amqp:connection:framing-error"
    assert link.is_over
    pair.run()
    assert pair.at_server(Closed)


def test_frames_on_a_channel_without_a_session_are_refused(pair):
    for code in (0x13, 0x14):
        pair.client.receive(encode_frame(code, [UInt(0), UInt(1)], channel=5))
        assert "channel 5" in str(pair.client.error)


def test_more_messages_than_credit_are_refused(pair):
    _, far = pair.receiver(credit=1)
    tag, window = b"0123456789abcdef", 0
    for _ in range(2):
        transfer = encode_frame(0x14, [UInt(0), UInt(window + 300), tag, UInt(0)])
        pair.client.receive(transfer)
    assert "without credit" in str(pair.client.error)
    assert far.alive  # for all it knows


@pytest.mark.parametrize("head", ["00000007", "00100001", "ffffffff", "00000000"])
def test_frames_of_impossible_sizes_are_refused(pair, head):
    pair.client.receive(bytes.fromhex(head) + bytes(40))
    assert pair.client.is_over


def test_a_range_of_four_thousand_million_deliveries_is_read_at_once(pair):
    link, far = pair.receiver()
    pair.deliver(far, b"x", b"y")
    link.settle([0, 1], ACCEPTED, two_phase=True)
    accepted = Described(ULong(0x24), [])
    everything = [False, UInt(0), UInt(0xFFFFFFFE), True, accepted]
    pair.client.receive(encode_frame(0x15, everything))
    assert link.session.settling == {}
    pair.client.receive(encode_frame(0x15, [True, *everything[1:]]))
    assert not pair.client.is_over


def test_messages_for_a_link_that_we_left_are_dropped(pair):
    link, far = pair.receiver()
    link.detach()
    far.send(b"t", b"late")
    pair.run()
    assert link.inbox == []
    assert not pair.client.is_over
    assert pair.at_server(Detached)
