import gc
import time
from uuid import UUID

import pytest

from pairbus.amqp.codec.batches import BATCH_FORMAT
from pairbus.amqp.codec.types import Array, Described, Int, Symbol, Timestamp, UInt, ULong, UShort
from pairbus.amqp.engine import (
    Attached,
    ConnectionClosed,
    Detached,
    Disposed,
    Engine,
    EngineLimits,
    Flowed,
    LinkClosed,
    Opened,
    Session,
    SessionBegun,
    SessionEnded,
    Transferred,
)
from pairbus.amqp.frames import decode_performative, encode_frame
from pairbus.amqp.outcomes import ACCEPTED, RELEASED, AmqpError, OutcomeKind, modified, rejected
from pairbus.amqp.sasl import SaslClient, SaslServer
from tests.amqp.engine.enginepair import Pair, held

TRACKING = "com.microsoft:tracking-id"


@pytest.fixture
def pair():
    with Pair() as pair:
        yield pair.open()


def frames(data):
    """(channel, code, fields, payload) of each frame in a stream."""
    data = bytes(data)
    pos = 0
    while pos < len(data):
        if data[pos : pos + 4] == b"AMQP":
            pos += 8
            continue
        size = int.from_bytes(data[pos : pos + 4])
        if size > 8 and data[pos + 5] == 0:
            code, fields = decode_performative(data[pos + 8 : pos + size])
            yield int.from_bytes(data[pos + 6 : pos + 8]), code, fields
        pos += size


def frames_of(data, code):
    return [fields for _, found, fields in frames(data) if found == code]


# -- opening and closing ----------------------------------------------------------------------


def test_each_side_learns_who_the_other_is():
    with Pair() as pair:
        pair.open()

        (at_server,) = pair.at_server(Opened)
        (at_client,) = pair.at_client(Opened)

        assert (at_server.container_id, at_server.hostname) == ("client", "ns.example")
        assert at_client.container_id == "server"
        assert len(pair.at_server(SessionBegun)) == len(pair.at_client(SessionBegun)) == 1


def test_connection_properties_arrive_with_their_types():
    with Pair() as pair:
        client = Engine(
            server=False,
            container_id="c",
            sasl=SaslClient(),
            properties={"product": "pairbus", "n": UInt(5), "when": Timestamp(12)},
        )
        pair.client.free()
        pair.client = client
        pair.client.open()
        pair.run()

        properties = pair.at_server(Opened)[0].properties

        assert properties == {"product": "pairbus", "n": 5, "when": 12}
        assert type(properties["n"]) is UInt


def test_close_with_an_error_reaches_the_peer_with_an_info_map(pair):
    pair.server.close(AmqpError("amqp:connection:forced", "going down"))
    pair.run()

    (closed,) = pair.at_client(ConnectionClosed)
    assert (closed.error.condition, closed.error.description) == (
        "amqp:connection:forced",
        "going down",
    )
    assert UUID(closed.error.info[TRACKING])
    assert pair.server.error.condition == "amqp:connection:forced"
    assert pair.client.closed
    assert pair.server.closed


def test_a_server_that_closes_before_the_peer_has_spoken_is_closed_at_once():
    engine = Engine(server=True, container_id="s", sasl=SaslServer())

    engine.close(AmqpError("amqp:connection:forced", "no"))

    assert engine.data_to_send() == b""
    assert engine.closed
    engine.free()


def test_messages_after_our_close_do_not_pile_up(pair):
    sender, _ = pair.sending_to_server(credit=1000)
    pair.server.close()
    for number in range(100):
        sender.send(b"%d" % number, b"x" * 1000)

    events = pair.server.receive(pair.client.data_to_send())

    assert events == []
    assert held(pair.server) == (0, 0)


# -- attaching --------------------------------------------------------------------------------

VALUES = {
    "symbol": Symbol("s"),
    "string": "s",
    "uint": UInt(7),
    "int": Int(-7),
    "long": -7_000_000_000,
    "ulong": ULong(7),
    "bool": True,
    "timestamp": Timestamp(1_700_000_000_000),
    "uuid": UUID(int=5),
    "map": {"a": UInt(1)},
    "list": ["a", None],
    "array": Array([Symbol("a"), Symbol("b")]),
    "null": None,
    "binary": b"\x00\xff",
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_link_property_goes_both_ways_with_its_type(pair, value):
    ours, theirs = pair.attach(
        lambda: pair.client.attach_sender(pair.session, "l", "q", properties={"key": value}),
        properties={"key": value},
    )

    kept = () if isinstance(value, list | dict) else value
    for link in (ours, theirs):
        assert link.remote.properties == {"key": kept}
        assert type(link.remote.properties["key"]) is type(kept)


def test_a_filter_goes_both_ways_without_its_descriptor(pair):
    asked = {"plain": None, "wrapped": Described(Symbol("apache.org:selector"), "a = 1")}
    make = lambda: pair.client.attach_receiver(pair.session, "l", "q", filter=asked)  # noqa: E731
    ours, theirs = pair.attach(make, filter={"plain": "session-1"})

    assert theirs.remote.source_filter == {"plain": None, "wrapped": "a = 1"}
    assert ours.remote.source_filter == {"plain": "session-1"}


def test_accept_echoes_termini_and_settle_modes(pair):
    make = lambda: pair.client.attach_receiver(  # noqa: E731
        pair.session,
        "l",
        "amqps://localhost:5673/q",
        target="receiver-link-l",
        snd_settle_mode=0,
        rcv_settle_mode=1,
        max_message_size=1048576,
    )
    ours, theirs = pair.attach(make, max_message_size=262144)

    for link in (ours, theirs):
        assert link.remote.source_address == "amqps://localhost:5673/q"
        assert link.remote.target_address == "receiver-link-l"
        assert (link.remote.snd_settle_mode, link.remote.rcv_settle_mode) == (0, 1)
    assert theirs.remote.max_message_size == 1048576
    assert ours.remote.max_message_size == 262144
    assert theirs.is_sender
    assert not ours.is_sender


def test_a_refused_link_has_null_termini_then_a_closed_detach_with_the_error(pair):
    link = pair.client.attach_sender(pair.session, "l", "nowhere")
    pair.run()
    theirs = pair.at_server(Attached)[0].link
    pair.forget()
    theirs.close(AmqpError("amqp:not-found", "no entity 'nowhere'"))
    pair.run()

    (attach,) = frames_of(pair.to_client, 0x12)
    assert attach[5:7] == [None, None]
    (detached,) = pair.at_client(Detached)
    assert detached.link is link
    assert detached.closed
    assert detached.error.condition == "amqp:not-found"
    assert TRACKING in detached.error.info
    answer = pair.at_client(Attached)[0].link.remote
    assert not answer.has_source
    assert not answer.has_target
    assert not pair.at_server(Detached), "who ended a link gets no event for it"


def test_an_attach_may_be_answered_later_and_others_go_on_meanwhile(pair):
    waiting = pair.client.attach_receiver(pair.session, "waiting", "q", credit=1)
    pair.run()
    theirs = pair.at_server(Attached)[0].link
    sender, _ = pair.sending_to_server()
    sender.send(b"t", b"x")
    pair.run()

    theirs.accept()
    theirs.send(b"tag", b"late")
    pair.run()

    assert [event.link for event in pair.at_client(Transferred)] == [waiting]


def test_a_link_that_the_peer_gives_up_before_the_answer_is_gone(pair):
    link = pair.client.attach_receiver(pair.session, "impatient", "q")
    link.close()
    pair.run()

    theirs = pair.at_server(Attached)[0].link
    assert pair.at_server(Detached)[0].link is theirs
    theirs.accept()
    theirs.close(AmqpError("amqp:not-found", "too late"))
    pair.run()
    assert not pair.client.closed


def test_a_detach_that_does_not_close_is_told_apart(pair):
    sender, theirs = pair.sending_to_server()
    sender.close(closed=False)
    pair.run()

    (detached,) = pair.at_server(Detached)
    assert (detached.link, detached.closed, detached.error) == (theirs, False, None)


def test_a_name_can_be_used_again_after_its_detach(pair):
    sender, _ = pair.sending_to_server()
    sender.close()
    pair.run()

    again, _ = pair.sending_to_server()

    assert again.alive
    assert again.credit == 100


def test_a_coordinator_target_is_recognised():
    with Pair() as pair:
        pair.open()
        target = Described(ULong(0x30), [])
        source = Described(ULong(0x28), ["s"])
        attach = ["txn", UInt(0), False, None, None, source, target, None, None, UInt(0)]

        events = pair.server.receive(encode_frame(0x12, attach))

        assert events[0].link.remote.target_is_coordinator


# -- messages in ------------------------------------------------------------------------------


def test_a_message_arrives_and_is_accepted(pair):
    sender, theirs = pair.sending_to_server(credit=10)
    sent = sender.send(b"tag", b"hello", context="mine")
    pair.run()

    (event,) = pair.at_server(Transferred)
    assert (event.link, event.data, event.message_format, event.settled) == (
        theirs,
        b"hello",
        0,
        False,
    )
    assert event.delivery.tag == b"tag"
    event.delivery.accept()
    pair.run()

    (disposed,) = pair.at_client(Disposed)
    assert (disposed.deliveries, disposed.outcome, disposed.settled) == ([sent], ACCEPTED, True)
    assert disposed.deliveries[0].context == "mine"
    assert sent.settled
    assert theirs.credit == 9


def test_a_rejected_message_tells_condition_description_and_info(pair):
    sender, _ = pair.sending_to_server()
    sender.send(b"tag", b"hello")
    pair.run()
    pair.arrived().reject(AmqpError("amqp:not-allowed", "no", {"why": "because"}))
    pair.run()

    error = pair.at_client(Disposed)[0].outcome.error
    assert (error.condition, error.description, error.info["why"]) == (
        "amqp:not-allowed",
        "no",
        "because",
    )
    ((state,),) = [fields[4].value for fields in frames_of(pair.to_client, 0x15)]
    assert len(state.value) == 3, "the SDK reads the three by position"


def test_acceptances_in_a_row_become_one_disposition(pair):
    sender, _ = pair.sending_to_server()
    sent = [sender.send(b"%d" % number, b"x") for number in range(50)]
    pair.run()
    pair.to_client.clear()
    for event in pair.at_server(Transferred):
        event.delivery.accept()
    pair.run()

    (disposition,) = frames_of(pair.to_client, 0x15)
    assert disposition[1:3] == [0, 49]
    (disposed,) = pair.at_client(Disposed)
    assert disposed.deliveries == sent


def test_a_disposition_of_two_links_makes_an_event_for_each_run_of_one_link(pair):
    one, _ = pair.sending_to_server()
    make = lambda: pair.client.attach_sender(pair.session, "other", "q")  # noqa: E731
    other, _ = pair.attach(make, credit=10)
    sent = [link.send(b"%d" % n, b"x") for n, link in enumerate((one, one, other, one))]
    pair.run()
    pair.to_client.clear()
    for event in pair.at_server(Transferred):
        event.delivery.accept()
    pair.run()

    assert len(frames_of(pair.to_client, 0x15)) == 1
    groups = [event.deliveries for event in pair.at_client(Disposed)]
    assert groups == [sent[:2], sent[2:3], sent[3:]]


def test_a_message_settled_by_its_sender_needs_no_answer(pair):
    sender, _ = pair.sending_to_server()
    sent = sender.send(b"tag", b"x", settled=True)
    pair.run()

    (event,) = pair.at_server(Transferred)
    assert event.settled
    assert sent.settled
    event.delivery.accept()
    pair.run()
    assert not pair.at_client(Disposed)


def test_a_reply_does_not_overtake_the_answer_to_its_request(pair):
    requests, _ = pair.sending_to_server()
    _, replies = pair.sending_to_client()
    requests.send(b"tag", b"request")
    pair.run()
    pair.to_client.clear()

    pair.arrived().accept()
    replies.send(b"tag", b"reply", settled=True)
    pair.run()

    assert [code for _, code, _ in frames(pair.to_client)] == [0x15, 0x14]


def test_the_python_sdk_may_send_without_credit(pair):
    """It assumes 10 000 credits after the attach, so what comes without any must be taken."""
    pair.sending_to_server(credit=0)
    transfer = encode_frame(0x14, [UInt(0), UInt(0), b"t", UInt(0)])
    transfer = (len(transfer) + 3).to_bytes(4) + transfer[4:] + b"abc"

    events = pair.server.receive(transfer)

    assert [event.data for event in events] == [b"abc"]


# -- the message-format -----------------------------------------------------------------------

HEAD = b"\x02\x00\x00\x00"
MARK = b"\x70\x80\x01\x37\x00"


def transfer(number, body, *, message_format=0, more=False, **flags):
    """A transfer frame as bytes."""
    fields = [UInt(0), UInt(number), b"%d" % number, UInt(message_format), False, more]
    if flags:
        fields += [None, None, False, flags["aborted"]]
    frame = encode_frame(0x14, fields)
    return (len(frame) + len(body)).to_bytes(4) + frame[4:] + body


@pytest.mark.parametrize("chunk", [1, 3, 64, 1 << 30])
def test_the_format_of_every_transfer_is_exact(pair, chunk):
    pair.sending_to_server()
    stream = b"".join(
        [
            transfer(0, b"plain"),
            transfer(1, b"batch", message_format=BATCH_FORMAT),
            transfer(2, b"a body with the mark" + MARK),
            transfer(3, MARK + b"batch" + MARK, message_format=BATCH_FORMAT),
            transfer(4, b"plain"),
            transfer(5, b"other", message_format=7),
        ]
    )
    events = [
        event
        for start in range(0, len(stream), chunk)
        for event in pair.server.receive(stream[start : start + chunk])
    ]

    assert [event.message_format == BATCH_FORMAT for event in events] == [
        False,
        True,
        False,
        True,
        False,
        False,
    ]


def test_a_batch_of_several_frames_keeps_the_format_of_its_first(pair):
    pair.sending_to_server()
    stream = b"".join(
        [
            transfer(0, b"a", message_format=BATCH_FORMAT, more=True),
            transfer(0, b"b", more=True),
            transfer(0, b"c"),
            transfer(1, b"plain"),
        ]
    )

    events = pair.server.receive(stream)

    assert [(event.data, event.message_format) for event in events] == [
        (b"abc", BATCH_FORMAT),
        (b"plain", 0),
    ]


WIDE = b"\x00\x80\0\0\0\0\0\0\0\x14"
FIELDS = b"\x43\x43\xa0\x01t"
ENCODINGS = {
    "a list of one byte sizes": b"\x00\x53\x14\xc0\x0b\x04" + FIELDS + MARK,
    "a list of four byte sizes": b"\x00\x53\x14\xd0\0\0\0\x0e\0\0\0\4" + FIELDS + MARK,
    "a descriptor of eight bytes": WIDE + b"\xc0\x0b\x04" + FIELDS + MARK,
    "both wide": WIDE + b"\xd0\0\0\0\x0e\0\0\0\4" + FIELDS + MARK,
}


@pytest.mark.parametrize("performative", ENCODINGS.values(), ids=ENCODINGS)
def test_the_format_is_found_however_it_is_encoded(pair, performative):
    pair.sending_to_server()
    body = performative + b"batch"

    events = pair.server.receive((len(body) + 8).to_bytes(4) + HEAD + body)

    assert [(event.data, event.message_format) for event in events] == [(b"batch", BATCH_FORMAT)]


HEARTBEAT = b"\0\0\0\x08" + HEAD


@pytest.mark.parametrize("chunk", [1, 5, 8, 9, 1000])
def test_heartbeats_between_frames_are_no_news(pair, chunk):
    pair.sending_to_server()
    stream = HEARTBEAT + transfer(0, b"a") + HEARTBEAT * 3 + transfer(1, b"b") + HEARTBEAT
    events = []
    for start in range(0, len(stream), chunk):
        events += pair.server.receive(stream[start : start + chunk])

    assert [event.data for event in events] == [b"a", b"b"]


def test_an_aborted_message_never_surfaces(pair):
    pair.sending_to_server()
    stream = b"".join(
        [
            transfer(0, b"a" * 100, more=True),
            transfer(0, b"", aborted=True),
            transfer(1, b"b", aborted=True),
            transfer(2, b"whole"),
        ]
    )

    events = pair.server.receive(stream[:120]) + pair.server.receive(stream[120:])

    assert [event.data for event in events] == [b"whole"]
    assert held(pair.server) == (1, 0)


# -- messages out -----------------------------------------------------------------------------


def taken_from(link):
    """What will arrive on the link: delivery-ids, tags and bytes."""
    received = []
    link.receive_into(lambda *message: received.append(message))
    return received


def test_a_message_is_sent_and_its_settlement_awaits_our_answer(pair):
    ours, theirs = pair.sending_to_client(rcv_settle_mode=1)
    received = taken_from(ours)
    sent = theirs.send(b"0123456789abcdef", b"m", context=7)
    pair.run()
    [(number, tag, data)] = received
    assert (tag, data) == (b"0123456789abcdef", b"m")

    group = pair.session.settle([number], ACCEPTED)
    pair.run()
    assert group.left == 1
    (disposed,) = pair.at_server(Disposed)
    assert (disposed.deliveries, disposed.outcome, disposed.settled) == ([sent], ACCEPTED, False)
    assert (sent.settled, disposed.deliveries[0].context) == (False, 7)

    sent.settle(ACCEPTED)
    pair.run()
    assert (group.left, group.refusals) == (0, {})
    assert sent.settled


LONG = AmqpError("c:x", "d" * 3000, {"DeadLetterReason": "r", "nothing": None, "x": "y" * 3000})
OUTCOMES = {
    "dead-lettered at length": rejected(LONG),
    "accepted": ACCEPTED,
    "released": RELEASED,
    "abandoned": modified(failed=True),
    "deferred": modified(failed=True, undeliverable=True),
    "with annotations": modified(failed=True, annotations={"a": "b", "n": UInt(1)}),
    "dead-lettered": rejected(
        AmqpError("com.microsoft:dead-letter", "d", {"DeadLetterReason": "r", "nothing": None})
    ),
}


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
def test_the_peers_outcome_is_read_and_echoed_without_an_error(pair, outcome):
    ours, theirs = pair.sending_to_client(rcv_settle_mode=1)
    received = taken_from(ours)
    sent = theirs.send(b"tag", b"m")
    pair.run()
    group = pair.session.settle([received[0][0]], outcome)
    pair.run()

    read = pair.at_server(Disposed)[0].outcome
    assert read.kind is outcome.kind
    assert (read.failed, read.undeliverable) == (outcome.failed, outcome.undeliverable)
    assert read.annotations == outcome.annotations
    if outcome.error:
        assert read.error.condition == outcome.error.condition
        assert read.error.description == outcome.error.description
        assert read.error.info["DeadLetterReason"] == "r"
        assert read.error.info["nothing"] is None

    sent.echo()
    pair.run()
    assert (group.left, group.refusals) == (0, {})  # the same kind, and no error


def test_a_delivery_that_the_peer_settles_is_forgotten_at_once(pair):
    _, theirs = pair.sending_to_client()
    sent = theirs.send(b"tag", b"m")
    pair.run()
    pair.at_client(Transferred)[0].delivery.settle(RELEASED)
    pair.run()

    (disposed,) = pair.at_server(Disposed)
    assert disposed.settled
    assert disposed.outcome is RELEASED
    assert sent.settled
    sent.accept()
    assert not pair.server.has_output


def test_a_settlement_without_an_outcome_is_reported_as_none(pair):
    _, theirs = pair.sending_to_client()
    theirs.send(b"tag", b"m")
    pair.run()
    pair.at_client(Transferred)[0].delivery.settle()
    pair.run()

    assert pair.at_server(Disposed)[0].outcome.kind is OutcomeKind.NONE


def test_credit_counts_down_and_flows_are_reported(pair):
    receiver, theirs = pair.sending_to_client(credit=3)
    assert theirs.credit == 3
    theirs.send(b"1", b"m")
    theirs.send(b"2", b"m")
    assert theirs.credit == 1
    pair.run()
    pair.forget()
    receiver.grant(5)
    pair.run()

    assert [event.link for event in pair.at_server(Flowed)] == [theirs]
    assert theirs.credit == 6


def test_flows_that_come_together_are_reported_once(pair):
    """The event has no figures of its own: the second one would tell the same again."""
    receiver, theirs = pair.sending_to_client(credit=1)
    pair.forget()
    receiver.grant(1)
    receiver.grant(1)
    pair.run()

    assert [event.link for event in pair.at_server(Flowed)] == [theirs]
    assert theirs.credit == 3


def test_our_own_sending_is_not_reported_as_a_flow(pair):
    _, theirs = pair.sending_to_client()
    pair.forget()
    theirs.send(b"1", b"m")
    pair.run()
    pair.at_client(Transferred)[0].delivery.accept()
    pair.run()

    assert not pair.at_server(Flowed)


def test_what_waits_for_the_session_window_is_counted(pair):
    """A peer that gives credit but no session window must not make us hold messages unseen."""
    _, theirs = pair.sending_to_client(credit=100)
    flow = [UInt(0), UInt(0), UInt(0), UInt(100), UInt(0), UInt(0), UInt(50)]
    pair.server.receive(encode_frame(0x13, flow))
    for number in range(10):
        theirs.send(b"%d" % number, b"x" * 10_000)

    assert theirs.session.outgoing_bytes >= 100_000


def test_credit_is_held_to_the_limit_of_unsettled_deliveries():
    with Pair(limits=EngineLimits(unsettled_max=5)) as pair:
        pair.open()
        _, theirs = pair.sending_to_client(credit=100)
        sent = [theirs.send(b"%d" % number, b"m") for number in range(5)]
        assert theirs.credit == 0
        assert theirs.credit_for_settled == 95

        sent[0].settle(ACCEPTED)

        assert theirs.credit == 1


def test_a_tag_must_fit():
    with Pair() as pair:
        pair.open()
        sender, _ = pair.sending_to_server()
        for tag in (b"", b"x" * 33):
            with pytest.raises(ValueError, match="1 to 32 bytes"):
                sender.send(tag, b"m")


# -- limits -----------------------------------------------------------------------------------


def test_a_message_that_grows_too_large_is_rejected_and_its_bytes_are_dropped():
    with Pair(limits=EngineLimits(message_size_max=100_000)) as pair:
        pair.open()
        sender, _ = pair.sending_to_server()
        sender.send(b"1", b"x" * 5_000_000)
        sender.send(b"2", b"small")
        most = 0
        while out := pair.client.data_to_send():
            for start in range(0, len(out), 10_000):
                pair.server_events += pair.server.receive(out[start : start + 10_000])
                most = max(most, held(pair.server)[1])
        pair.run()

        assert [event.data for event in pair.at_server(Transferred)] == [b"small"]
        error = pair.at_client(Disposed)[0].outcome.error
        assert error.condition == "amqp:link:message-size-exceeded"
        assert "100000" in error.description
        assert most <= 100_000
        assert not pair.client.closed


def test_a_message_of_one_frame_can_be_too_large_as_well():
    with Pair(limits=EngineLimits(message_size_max=100)) as pair:
        pair.open()
        sender, _ = pair.sending_to_server()
        sender.send(b"1", b"x" * 101)
        sender.send(b"2", b"x" * 100)
        pair.run()

        assert [len(event.data) for event in pair.at_server(Transferred)] == [100]
        assert len(pair.at_client(Disposed)) == 1


def expect_end(pair, data, condition):
    events = pair.server.receive(data)
    closed = events[-1]
    assert type(closed) is ConnectionClosed
    assert closed.error.condition == condition
    out = pair.server.data_to_send()
    (close,) = frames_of(out, 0x18)
    reported, description, info = close[0].value
    assert reported == condition
    assert description
    assert info
    assert pair.server.closed
    assert pair.server.receive(data) == []
    return closed.error


def test_incomplete_messages_are_bounded_over_all_links():
    with Pair(limits=EngineLimits(incoming_window=100_000)) as pair:
        pair.open()
        pair.sending_to_server()
        body = transfer(0, b"x" * 60_000, more=True)
        assert pair.server.receive(body) == []

        expect_end(pair, body, "amqp:resource-limit-exceeded")


def test_too_many_links_end_the_connection():
    with Pair(limits=EngineLimits(links_max=3)) as pair:
        pair.open()
        for number in range(4):
            pair.client.attach_sender(pair.session, f"l{number}", "q")
        pair.run()

        assert pair.at_client(ConnectionClosed)[0].error.condition == "amqp:resource-limit-exceeded"
        assert "may have 3" in pair.at_client(ConnectionClosed)[0].error.description


def test_links_that_ended_do_not_count():
    with Pair(limits=EngineLimits(links_max=3)) as pair:
        pair.open()
        for _ in range(10):
            sender, _ = pair.sending_to_server()
            sender.close()
            pair.run()

        assert not pair.client.closed


def test_too_many_sessions_end_the_connection():
    with Pair(limits=EngineLimits(channel_max=2)) as pair:
        pair.open()

        error = expect_end(
            pair,
            encode_frame(0x11, [None, UInt(0), UInt(10), UInt(10)], channel=3),
            "amqp:connection:framing-error",
        )

        assert "channel_max" in error.description


def test_too_many_unsettled_messages_end_the_connection():
    with Pair(limits=EngineLimits(unsettled_max=10)) as pair:
        pair.open()
        sender, _ = pair.sending_to_server()
        for number in range(11):
            sender.send(b"%d" % number, b"m")
        pair.run()

        assert pair.at_client(ConnectionClosed)[0].error.condition == "amqp:resource-limit-exceeded"


def nested_disposition():
    fields = b"\0\0\0\5\x41\x43\x40\x42" + b"\x00\x53\x24" * 500 + b"\x45"
    body = b"\x00\x53\x15\xd0" + len(fields).to_bytes(4) + fields
    return (len(body) + 8).to_bytes(4) + b"\x02\x00\x00\x00" + body


BEGIN = encode_frame(0x11, [None, UInt(0), UInt(10), UInt(10)])
ATTACH = [
    "x",
    UInt(0),
    False,
    None,
    None,
    Described(ULong(0x28), ["s"]),
    Described(ULong(0x29), ["t"]),
    None,
    None,
    UInt(0),
]
FRAMING = "amqp:connection:framing-error"
BROKEN_RULES = {
    "a frame above the limit": (b"\x00\x10\x00\x01" + HEAD, FRAMING),
    "a huge frame": (b"\xff\xff\xff\xff" + HEAD + b"x" * 8, FRAMING),
    "a frame smaller than its head": (b"\x00\x00\x00\x04" + b"x" * 8, FRAMING),
    "a SASL frame in the AMQP stream": (encode_frame(0x41, [], kind=1), FRAMING),
    "a body outside of the frame": (b"\0\0\0\x0c\x09\0\0\0" + b"x" * 8, FRAMING),
    "a body that is no performative": (
        b"\0\0\0\x0d" + HEAD + b"\0\x53\x12\x40\x40",
        "amqp:decode-error",
    ),
    "an unknown performative": (encode_frame(0x99, []), "amqp:not-implemented"),
    "a second open": (encode_frame(0x10, ["again"]), "amqp:illegal-state"),
    "a second begin on a channel": (BEGIN, "amqp:not-allowed"),
    "an answer to a begin that we never sent": (
        encode_frame(0x11, [UShort(0), UInt(0), UInt(10), UInt(10)], channel=1),
        "amqp:not-allowed",
    ),
    "an attach on no session": (encode_frame(0x12, ATTACH, channel=7), "amqp:not-allowed"),
    "an attach on a handle in use": (
        encode_frame(0x12, ATTACH) + encode_frame(0x12, ["y", *ATTACH[1:]]),
        "amqp:session:handle-in-use",
    ),
    "an attach of a name in use": (
        encode_frame(0x12, ATTACH) + encode_frame(0x12, ["x", UInt(1), *ATTACH[2:]]),
        "amqp:invalid-field",
    ),
    "a handle of the wrong type": (encode_frame(0x12, ["x", "0", False]), "amqp:invalid-field"),
    "a detach of nothing": (encode_frame(0x16, [UInt(3)]), "amqp:session:unattached-handle"),
    "an end of nothing": (encode_frame(0x17, [], channel=3), "amqp:not-allowed"),
    "a transfer on no link": (encode_frame(0x14, [UInt(3), UInt(0), b"t"]), "amqp:invalid-field"),
    "a transfer on no session": (encode_frame(0x14, [UInt(3)], channel=9), "amqp:not-allowed"),
    "a flow on no link": (
        encode_frame(0x13, [UInt(0), UInt(1), UInt(0), UInt(1), UInt(9), UInt(0), UInt(1)]),
        "amqp:invalid-field",
    ),
    "a disposition whose state is nested deeply": (nested_disposition(), "amqp:decode-error"),
}


@pytest.mark.parametrize(("data", "condition"), BROKEN_RULES.values(), ids=BROKEN_RULES)
def test_who_breaks_a_rule_is_told_and_loses_the_connection(pair, data, condition):
    expect_end(pair, data, condition)


def test_a_transfer_on_a_link_of_ours_ends_the_connection(pair):
    _, theirs = pair.sending_to_client()

    error = expect_end(pair, transfer(0, b"what?"), "amqp:not-allowed")

    assert "on which the peer receives" in error.description
    with pytest.raises(LinkClosed):
        theirs.send(b"t", b"m")


def test_a_frame_before_open_ends_the_connection():
    with Pair() as pair:
        pair.run()

        expect_end(pair, BEGIN, "amqp:illegal-state")


def test_bytes_after_close_are_ignored(pair):
    events = pair.server.receive(encode_frame(0x18, []) + b"garbage" * 100)

    assert [type(event) for event in events] == [ConnectionClosed]
    assert events[0].error is None


def all_of(state, *, settled=False):
    return encode_frame(0x15, [True, UInt(0), UInt(2000), settled, Described(ULong(state), [])])


def test_an_outcome_is_reported_once_and_then_the_settlement(pair):
    _, theirs = pair.sending_to_client()
    theirs.send(b"1", b"m")
    pair.run()
    received, accepted, released = all_of(0x23), all_of(0x24), all_of(0x26)

    events = pair.server.receive(received + b"") + pair.server.receive(accepted * 3)
    events += pair.server.receive(released) + pair.server.receive(all_of(0x24, settled=True))

    assert [(event.outcome, event.settled) for event in events] == [
        (ACCEPTED, False),
        (ACCEPTED, True),
    ]


def test_dispositions_without_end_end_the_connection(pair):
    """Thirty bytes name two thousand deliveries: that must not cost the others anything."""
    _, theirs = pair.sending_to_client(credit=2000)
    for number in range(2000):
        theirs.send(b"%d" % number, b"m")
    pair.run()

    events = pair.server.receive((all_of(0x24) + all_of(0x26)) * 1000)

    assert [len(each.deliveries) for each in events[:-1]] == [2000]
    assert type(events[-1]) is ConnectionClosed
    assert "nothing new" in events[-1].error.description


# -- time -------------------------------------------------------------------------------------


def test_a_silent_peer_is_given_up():
    with Pair(limits=EngineLimits(idle_timeout_ms=60_000)) as pair:
        pair.open()
        assert pair.server.tick(now=1000.0) == pytest.approx(1060.0)
        assert pair.server.tick(now=1059.0) == pytest.approx(1060.0)
        assert not pair.server.closed

        pair.server.tick(now=1060.1)

        assert pair.server.error.condition == "amqp:resource-limit-exceeded"
        ((error,),) = frames_of(pair.server.data_to_send(), 0x18)
        assert len(error.value) == 3
        assert pair.server.closed
        assert pair.server.tick(now=2000.0) is None


def test_heartbeats_keep_a_quiet_connection_alive():
    with Pair(limits=EngineLimits(idle_timeout_ms=60_000)) as pair:
        pair.open()
        now = 0.0
        while now < 600:
            pair.client.tick(now=now)
            pair.server.tick(now=now)
            pair.run()
            now += 5

        assert not pair.server.closed
        assert pair.at_server(ConnectionClosed) == []


def test_without_a_limit_time_has_no_deadline():
    none = EngineLimits(idle_timeout_ms=None)
    with Pair(limits=none, client_limits=none) as pair:
        pair.open()

        assert pair.server.tick(now=5.0) is None


def test_a_peer_cannot_keep_us_awake_with_a_tiny_idle_time_out():
    tiny = EngineLimits(idle_timeout_ms=2)
    with Pair(client_limits=tiny) as pair:
        pair.open()

        assert pair.server.tick(now=50.0) == pytest.approx(50.1)


# -- sessions ---------------------------------------------------------------------------------


def test_the_end_of_a_session_ends_its_links_and_no_others(pair):
    _, theirs = pair.sending_to_server()
    other = pair.client.session()
    pair.run()
    survivor = pair.client.attach_sender(other, "other", "q")
    pair.run()
    pair.forget()

    pair.session.end(AmqpError("amqp:internal-error", "why"))
    pair.run()

    assert [type(event) for event in pair.server_events] == [Detached, SessionEnded]
    assert pair.at_server(Detached)[0].link is theirs
    assert pair.at_server(SessionEnded)[0].error.condition == "amqp:internal-error"
    assert survivor.alive
    assert not theirs.alive


def test_the_end_of_a_session_with_many_links_and_deliveries_takes_no_time():
    limits = EngineLimits(links_max=300)
    with Pair(limits=limits) as pair:
        pair.open()
        _, theirs = pair.sending_to_client(credit=10_000)
        sent = [theirs.send(b"t", b"m") for _ in range(10_000)]
        for number in range(250):
            pair.client.attach_receiver(pair.session, f"l{number}", "q")
        pair.run()
        begun = time.process_time()
        pair.server.close()

        assert time.process_time() - begun < 0.2
        assert all(delivery.settled for delivery in sent)


# -- handles that outlived their objects ------------------------------------------------------


def use_everything(*handles):
    """Every public call on every handle; the point is that the process survives."""
    for handle in handles:
        for name in dir(type(handle)):
            if name.startswith("_") or name in ("send", "receive_into"):
                continue
            member = getattr(handle, name)
            if not callable(member):
                continue
            if name == "reject":
                member(AmqpError("amqp:not-found", "x"))
            elif name in ("grant", "set_credit"):
                member(5)
            elif name == "settle" and isinstance(handle, Session):
                member([1, 2], ACCEPTED)
            else:
                member()
        if hasattr(handle, "send"):
            with pytest.raises(LinkClosed):
                handle.send(b"t", b"m")


ENDINGS = {
    "the peer closes the link": lambda pair, links: [link.close() for link in links],
    "the peer detaches the link": lambda pair, links: [link.close(closed=False) for link in links],
    "the peer ends the session": lambda pair, links: pair.session.end(),
    "the peer closes the connection": lambda pair, links: pair.client.close(),
    "the peer breaks a rule": lambda pair, links: pair.server.receive(b"\xff" * 20),
    "we close the connection": lambda pair, links: pair.server.close(),
    "we free the engine": lambda pair, links: pair.server.free(),
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_a_stale_handle_is_harmless_after(pair, ending):
    sender, theirs = pair.sending_to_server()
    receiver, ours = pair.sending_to_client()
    sent = [ours.send(b"%d" % number, b"m" * 100) for number in range(5)]
    for number in range(5):
        sender.send(b"%d" % number, b"m" * 100)
    pair.run()
    received = [event.delivery for event in pair.at_server(Transferred)]
    received[0].accept()

    ending(pair, (sender, receiver))
    pair.run()

    use_everything(theirs, ours, theirs.session, *sent, *received)
    assert all(delivery.settled for delivery in sent + received)
    assert (ours.credit, ours.drain, ours.session.outgoing_bytes) == (0, False, 0)
    gc.collect()
    use_everything(theirs, ours, *sent, *received)


def test_closing_a_link_ourselves_kills_its_deliveries_at_once(pair):
    _, theirs = pair.sending_to_server()
    _, ours = pair.sending_to_client()
    sent = ours.send(b"t", b"m")
    theirs.close()
    ours.close(AmqpError("amqp:link:detach-forced", "x"))

    use_everything(theirs, ours, sent)
    pair.run()
    use_everything(theirs, ours, sent)

    assert len(pair.at_client(Detached)) == 2
    assert not pair.at_server(Detached)


def test_messages_on_a_link_that_we_closed_are_dropped(pair):
    sender, theirs = pair.sending_to_server()
    sender.send(b"1", b"x" * 200_000)
    half = pair.client.data_to_send()
    pair.server.receive(half[:100_000])
    theirs.close(AmqpError("amqp:not-found", "deleted"))
    pair.server.receive(half[100_000:])
    sender.send(b"2", b"y")
    pair.server.receive(pair.client.data_to_send())

    assert held(pair.server) == (0, 0)
    assert pair.at_server(Transferred) == []


def test_free_may_be_called_in_any_state_and_twice():
    for prepare in (
        lambda pair: None,
        lambda pair: pair.run(),
        lambda pair: pair.open(),
        lambda pair: pair.open().sending_to_server(),
        lambda pair: pair.open().client.close(),
    ):
        pair = Pair()
        prepare(pair)
        for engine in (pair.client, pair.server):
            engine.free()
            engine.free()
            assert engine.closed
            assert engine.receive(b"AMQP") == []
            assert engine.data_to_send() == b""
            assert engine.tick(now=1.0) is None
            engine.close()


def test_a_client_cannot_use_a_connection_that_is_over(pair):
    pair.client.close()

    with pytest.raises(LinkClosed):
        pair.client.session()
    with pytest.raises(LinkClosed):
        pair.client.attach_sender(pair.session, "l", "q")


def test_links_are_the_clients_to_begin(pair):
    with pytest.raises(ValueError, match="client's to begin"):
        pair.server.session()


def test_sasl_of_the_wrong_role_is_a_mistake_of_the_caller():
    with pytest.raises(TypeError, match="SaslClient"):
        Engine(server=True, container_id="s", sasl=SaslClient())
