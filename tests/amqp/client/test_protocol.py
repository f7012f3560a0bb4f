"""The client in conversation with a server: connections, links, broken rules."""

from __future__ import annotations

import gc
import weakref

import pytest

from pairbus.amqp.codec.types import Described, UInt, ULong, UShort
from pairbus.amqp.engine import (
    Attached,
    ConnectionClosed,
    Detached,
    EngineLimits,
    Opened,
    SessionEnded,
)
from pairbus.amqp.frames import HEARTBEAT, FrameError, encode_frame
from pairbus.amqp.outcomes import ACCEPTED, AmqpError
from tests.amqp.client.clientpair import ClientPair
from tests.amqp.engine.test_engine import frames_of

ERROR = AmqpError("amqp:internal-error", "sorry", {"k": "v"})


@pytest.fixture
def pair():
    with ClientPair() as pair:
        yield pair


# -- the connection ---------------------------------------------------------------------------


@pytest.mark.parametrize("sasl", [True, False])
def test_a_connection_is_opened(sasl):
    settings = {} if sasl else {"sasl": None}
    with ClientPair(properties={"product": "p"}, idle_timeout_ms=14_000, **settings) as pair:
        [opened] = pair.at_server(Opened)
        assert (opened.container_id, opened.hostname) == ("client", "ns.example")
        assert opened.properties == {"product": "p"}
        assert pair.client.opened
        assert frames_of(pair.to_server, 0x10)[0][4] == 7000


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
    [closed] = pair.at_server(ConnectionClosed)
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
    pair.client.engine.data_to_send()
    pair.client.close()
    assert pair.client.is_over
    assert not pair.client.engine.has_output
    pair.server.free()


def test_heartbeats_are_understood(pair):
    for pieces in ([HEARTBEAT * 3], [HEARTBEAT[:3], HEARTBEAT[3:] + HEARTBEAT]):
        for piece in pieces:
            pair.client.receive(piece)
    assert not pair.client.is_over
    assert pair.receiver()[0].alive


# -- links ------------------------------------------------------------------------------------


def test_what_the_peer_says_of_a_link_is_kept(pair):
    link = pair.client.start_sender("q", properties={"com.example:x": UInt(1)})
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
    for make in ("start_sender", "start_receiver"):
        more = (lambda *_: None,) if make == "start_receiver" else ()
        link = getattr(pair.client, make)("q", *more)
        pair.run()
        pair.at_server(Attached)[-1].link.close(ERROR)
        pair.run()
        assert link.is_over
        assert not link.attached
        assert link.error.description == "sorry"
    assert len(pair.at_server(SessionEnded)) == 2


def test_a_detached_link_takes_its_session_along_and_the_channel_is_free_again(pair):
    for _ in range(300):  # more than there are channels
        link, _ = pair.sender()
        link.detach()
        pair.run()
    assert len(pair.at_server(SessionEnded)) == 300


@pytest.mark.parametrize("is_shared", [False, True])
def test_nothing_is_kept_of_a_link_that_was_detached(pair, is_shared):
    link, _ = pair.sender(is_shared=is_shared)
    link.detach()
    pair.run()
    known = weakref.ref(link)
    del link
    gc.collect()
    assert known() is None


def test_a_link_that_the_peer_detaches_is_over(pair):
    link, far = pair.receiver()
    far.close(ERROR)
    pair.run()
    assert link.is_over
    assert link.error.condition == "amqp:internal-error"
    assert len(pair.at_server(SessionEnded)) == 1


def test_a_shared_session_outlives_its_links(pair):
    link = pair.client.start_sender("q", is_shared=True)
    first = pair.attached()
    link.detach()
    pair.run()
    assert link.is_detached
    assert not pair.at_server(SessionEnded)
    pair.client.start_sender("q2", is_shared=True)
    assert pair.attached().session is first.session


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
            pair.client.start_sender("q")


# -- a peer that breaks a rule ----------------------------------------------------------------

SOURCE = Described(ULong(0x28), ["q"])


@pytest.mark.parametrize(
    ("code", "fields", "said"),
    [
        (0x10, ["again"], "second open"),
        (0x11, [UShort(7), UInt(0), UInt(1), UInt(1)], "channel 0, which is in use"),
        (0x11, [UInt(7), UInt(0), UInt(1), UInt(1)], "remote-channel of begin"),
        (0x12, ["unknown", UInt(9), True], "not asked for"),
        (0x12, [], "name of attach"),
        (0x13, [], "incoming-window of flow"),
        (0x13, [UInt(0), "much"], "incoming-window of flow"),
        (0x15, [False, None], "without a first delivery-id"),
        (0x16, [UInt(9)], "handle 9"),
        (0x16, [], "handle of detach"),
        (0x1F, [], "unknown performative"),
        (0x14, [], "not a list, or is empty"),
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
    assert pair.at_server(ConnectionClosed)


@pytest.mark.parametrize("code", [0x13, 0x14])
def test_frames_on_a_channel_without_a_session_are_refused(pair, code):
    pair.client.receive(encode_frame(code, [UInt(0), UInt(1)], channel=5))
    assert "channel 5" in str(pair.client.error)


@pytest.mark.parametrize("answered", [None, UShort(7)])
def test_a_begin_that_was_not_asked_for_is_refused(pair, answered):
    pair.client.receive(encode_frame(0x11, [answered, UInt(0), UInt(1), UInt(1)], channel=3))
    assert "was not asked for" in str(pair.client.error)


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
    settlement = link.settle([0, 1], ACCEPTED)
    accepted = Described(ULong(0x24), [])
    everything = [False, UInt(0), UInt(0xFFFFFFFE), True, accepted]
    pair.client.receive(encode_frame(0x15, everything))
    assert settlement.left == 0
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
