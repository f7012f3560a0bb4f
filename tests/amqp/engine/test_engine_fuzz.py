"""Whatever a peer sends, in whatever pieces: nothing is raised, nothing crashes, nothing grows.

Three kinds of peer, from stupid to cunning: random bytes, a real conversation with damage in it,
and well-formed frames in an order that no sane peer would choose. At the other end sits a server
that is busy with its own doings, so that handles are used at every awkward moment.
`HYPOTHESIS_PROFILE=night` runs more of all three, or as many as FUZZ_EXAMPLES says.
"""

import os
import random
import resource
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.amqp.codec.types import Described, Symbol, UInt, ULong, UShort
from pairbus.amqp.engine import (
    Attached,
    ConnectionClosed,
    Disposed,
    Engine,
    EngineLimits,
    LinkClosed,
    SessionBegun,
    Transferred,
)
from pairbus.amqp.frames import AMQP_HEADER, encode_frame
from pairbus.amqp.outcomes import ACCEPTED, AmqpError, modified
from pairbus.amqp.sasl import SaslClient, SaslServer
from tests.amqp.engine.enginepair import Pair, held
from tests.amqp.wire import values

NIGHT = os.environ.get("HYPOTHESIS_PROFILE") == "night"
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", 5000 if NIGHT else 60))
pytestmark = pytest.mark.timeout(0 if NIGHT else 120)
LIMITS = EngineLimits(
    links_max=8, channel_max=3, message_size_max=5000, incoming_window=20_000, unsettled_max=50
)
ERROR = AmqpError("amqp:internal-error", "no reason", {"k": UInt(1)})


class BusyServer:
    """An engine whose owner does something at random after each piece of input."""

    def __init__(self, seed, limits=LIMITS):
        self.engine = Engine(server=True, container_id="s", sasl=SaslServer(), limits=limits)
        self.random = random.Random(seed)
        self.links, self.deliveries, self.sessions = [], [], []
        self.now = 1.0

    def receive(self, data):
        events = self.engine.receive(data)
        assert [type(event) for event in events].count(ConnectionClosed) <= 1
        for event in events:
            kind = type(event)
            if kind is Attached:
                self.links.append(event.link)
                self.random.choice([self.accept, self.refuse, self.later])(event.link)
            elif kind is Transferred:
                assert len(event.data) <= 5000
                self.deliveries.append(event.delivery)
            elif kind is Disposed:
                self.deliveries += event.deliveries
            elif kind is SessionBegun:
                self.sessions.append(event.session)
        for _ in range(self.random.randrange(4)):
            self.act()
        count, part_bytes = held(self.engine)
        assert count <= 50
        assert part_bytes <= 20_000 + 65_536
        assert not (self.engine.closed and self.engine.data_to_send())

    def accept(self, link):
        link.accept(credit=self.random.choice([0, 10]), filter={"f": "granted"})

    def refuse(self, link):
        link.close(ERROR)

    def later(self, link):
        pass

    def act(self):
        r = self.random
        link = r.choice(self.links) if self.links else None
        delivery = r.choice(self.deliveries) if self.deliveries else None
        what = r.randrange(100)
        if what < 20:
            self.engine.data_to_send()
        elif what < 45 and delivery:
            r.choice(
                [
                    delivery.accept,
                    delivery.settle,
                    delivery.echo,
                    lambda: delivery.reject(ERROR),
                    lambda: delivery.settle(ACCEPTED),
                    lambda: delivery.tag,
                ]
            )()
        elif what < 70 and link:
            try:
                sent = link.send(b"t", b"m" * r.choice([0, 10, 3000]), settled=r.random() < 0.3)
            except LinkClosed:
                return
            self.deliveries.append(sent)
        elif what < 80 and link:
            r.choice(
                [
                    lambda: link.grant(r.choice([0, 1, 100])),
                    link.drained,
                    link.request_drain,
                    link.accept,
                    lambda: (link.credit, link.drain, link.is_arriving),
                ]
            )()
        elif what < 85 and link:
            r.choice(
                [
                    link.close,
                    lambda: link.close(closed=False),
                    lambda: link.close(ERROR),
                    lambda: self.refuse(link),
                ]
            )()
        elif what < 90:
            self.now += r.choice([0.1, 10, 100])
            self.engine.tick(now=self.now)
        elif what < 92 and self.sessions:
            r.choice(self.sessions).end(r.choice([None, ERROR]))
        elif what == 92:
            self.engine.close(r.choice([None, ERROR]))
        elif what == 93 and self.sessions:
            assert r.choice(self.sessions).outgoing_bytes >= 0

    def finish(self):
        self.engine.data_to_send()
        if self.random.random() < 0.5:
            self.engine.close(ERROR)
            self.engine.data_to_send()
        self.engine.free()
        for _ in range(20):
            self.act()


def feed(seed, stream):
    """All of the stream, in pieces of random sizes; sometimes one at a time, sometimes at once."""
    server = BusyServer(seed)
    step = server.random.choice([1, 7, 100, 5000, len(stream) + 1])
    if len(stream) > 5000:
        step = max(step, 100)
    for start in range(0, len(stream), step):
        server.receive(stream[start : start + step])
    server.finish()


# -- stupid -----------------------------------------------------------------------------------

HANDSHAKE = (
    b"AMQP\x03\x01\x00\x00" + encode_frame(0x41, [Symbol("ANONYMOUS"), b""], kind=1) + AMQP_HEADER
)
OPEN = encode_frame(0x10, ["c", "h", UInt(70_000), UShort(3)])
PREFIXES = [b"", b"AMQP", b"AMQP\x03\x01\x00\x00", HANDSHAKE, HANDSHAKE + OPEN]


@settings(max_examples=EXAMPLES)
@given(prefix=st.sampled_from(PREFIXES), junk=st.binary(max_size=300), seed=st.integers(0, 999))
def test_random_bytes_are_survived(prefix, junk, seed):
    feed(seed, prefix + junk)


@settings(max_examples=EXAMPLES)
@given(
    size=st.integers(0, 2**32 - 1) | st.integers(0, 300),
    rest=st.binary(min_size=4, max_size=300),
    seed=st.integers(0, 999),
)
def test_frames_of_any_claimed_size_are_survived(size, rest, seed):
    feed(seed, HANDSHAKE + OPEN + size.to_bytes(4) + rest)


@settings(max_examples=EXAMPLES)
@given(
    code=st.sampled_from([0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x41]),
    wide=st.booleans(),
    rest=st.binary(max_size=200),
    seed=st.integers(0, 999),
)
def test_performatives_with_random_contents_are_survived(code, wide, rest, seed):
    shape = b"\xd0" + (len(rest)).to_bytes(4) if wide else b"\xc0" + bytes([len(rest)])
    body = b"\x00\x53" + bytes([code]) + shape + rest
    frame = (len(body) + 8).to_bytes(4) + b"\x02\x00\x00\x00" + body
    feed(seed, conversation()[: LENGTHS["attached"]] + frame)


# -- damaged ----------------------------------------------------------------------------------

LENGTHS = {}
_RECORDED = []


def conversation():
    """What a client sent in a long and varied talk with a well-behaved server."""
    if _RECORDED:
        return _RECORDED[0]
    with Pair(client_sasl=SaslClient()) as pair:
        pair.open()
        sender, _ = pair.sending_to_server(credit=50)
        _, theirs = pair.sending_to_client(credit=20, rcv_settle_mode=1, filter={"f": "x"})
        LENGTHS["attached"] = len(pair.to_server)
        for number in range(6):
            sender.send(b"%d" % number, b"x" * (number * 150), settled=number == 3)
            theirs.send(b"%d" % number, b"y" * (number * 150))
        sender.send(b"big", b"z" * 80_000)
        pair.run()
        outcomes = [ACCEPTED, modified(failed=True, annotations={"a": "b"}), None]
        for number, event in enumerate(pair.at_client(Transferred)):
            event.delivery.settle(outcomes[number % 3])
        pair.run()
        sender.close()
        second = pair.client.session()
        other = pair.client.attach_receiver(second, "other", "q", properties={"p": UInt(1)})
        pair.run()
        other.close(AmqpError("amqp:not-found", "x"), closed=False)
        second.end(AmqpError("amqp:internal-error", "x"))
        pair.run()
        pair.client.close(AmqpError("amqp:connection:forced", "x"))
        pair.run()
        # The 80 kB only slow the mutations down; where they are cut off, the message is partial.
        _RECORDED.append(bytes(pair.to_server))
    return _RECORDED[0]


def test_the_undamaged_conversation_is_understood_to_its_end():
    engine = Engine(server=True, container_id="s", sasl=SaslServer())
    events = engine.receive(conversation()[: LENGTHS["attached"]])
    for event in events:
        if type(event) is Attached:
            event.link.accept(credit=50)
    engine.data_to_send()
    for event in events:
        if type(event) is Attached and event.link.is_sender:
            for number in range(6):
                event.link.send(b"%d" % number, b"m")
    engine.data_to_send()
    events = engine.receive(conversation()[LENGTHS["attached"] :])

    assert type(events[-1]) is ConnectionClosed
    assert events[-1].error.condition == "amqp:connection:forced"
    assert len([event for event in events if type(event) is Transferred]) == 7
    assert sum(len(event.deliveries) for event in events if type(event) is Disposed) == 6
    engine.free()


DAMAGE = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "repeat", "zero", "max"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=6,
)


def damaged(stream, damage):
    data = bytearray(stream)
    for kind, where, value in damage:
        # Most of the talk is at the beginning and the end; the middle is one long body.
        place = int(where * 4000)
        at = place if place < 2000 else len(data) - (4000 - place)
        at = max(0, min(at, len(data) - 1))
        if kind == "flip":
            data[at] ^= value or 1
        elif kind == "cut":
            del data[at : at + value]
        elif kind == "insert":
            data[at:at] = bytes([value]) * (value % 7 + 1)
        elif kind == "repeat":
            data[at:at] = data[at : at + value]
        else:
            data[at] = 0 if kind == "zero" else 0xFF
    return bytes(data)


@settings(max_examples=EXAMPLES)
@given(damage=DAMAGE, seed=st.integers(0, 999))
def test_a_damaged_conversation_is_survived(damage, seed):
    feed(seed, damaged(conversation(), damage))


@settings(max_examples=EXAMPLES)
@given(end=st.integers(0, 1 << 20), seed=st.integers(0, 999))
def test_a_conversation_that_breaks_off_anywhere_is_survived(end, seed):
    stream = conversation()
    feed(seed, stream[: end % (len(stream) + 1)])


# -- cunning ----------------------------------------------------------------------------------

small = st.integers(0, 3)
uint = st.builds(UInt, small | st.sampled_from([100, 2**31 - 1, 2**31, 2**32 - 1]))
handle = st.builds(UInt, small)
flag = st.sampled_from([True, False, None])
name = st.sampled_from(["a", "b", "c"])
terminus = st.sampled_from([None, Described(ULong(0x28), ["q"]), Described(ULong(0x28), [])])
target = st.sampled_from(
    [None, Described(ULong(0x29), ["q"]), Described(ULong(0x30), []), Described(ULong(0x29), [])]
)
state = st.sampled_from(
    [
        None,
        Described(ULong(0x23), [UInt(1), ULong(2)]),
        Described(ULong(0x24), []),
        Described(ULong(0x25), [Described(ULong(0x1D), [Symbol("c"), "d", {Symbol("k"): None}])]),
        Described(ULong(0x26), []),
        Described(ULong(0x27), [True, True, {Symbol("k"): "v"}]),
        Described(ULong(0x34), [b"txn"]),
    ]
)
odd = st.sampled_from([None, "text", True, b"", [], {}, ULong(1), UShort(1)])


no_payload = st.just(b"")


def frame(code, *fields, payload=no_payload):
    def build(channel, values, body, spoil, value):
        values = list(values)
        if 0 <= spoil < len(values):
            values[spoil] = value
        data = encode_frame(code, values, channel=channel)
        return (len(data) + len(body)).to_bytes(4) + data[4:] + body

    spoil = st.integers(-60, 10)  # one in six has a field of the wrong type
    return st.builds(build, st.integers(0, 2), st.tuples(*fields), payload, spoil, odd)


FRAMES = st.one_of(
    frame(0x11, st.none() | st.builds(UShort, small), uint, uint, uint),
    frame(0x11, st.none(), uint, uint, uint),
    frame(0x12, name, handle, flag, st.none(), st.none(), terminus, target, st.none(), flag, uint),
    frame(
        0x12, name, handle, st.booleans(), st.none(), st.none(), terminus, target, flag, flag, uint
    ),
    frame(0x13, uint, uint, uint, uint, handle | st.none(), uint, uint, uint, flag),
    frame(
        0x14,
        handle,
        handle | st.none(),
        st.binary(max_size=40),
        st.sampled_from([None, UInt(0), UInt(0x80013700)]),
        flag,
        flag,
        st.none(),
        state,
        flag,
        flag,
        payload=st.sampled_from([b"", b"x", b"y" * 300, b"\x70\x80\x01\x37\x00", b"z" * 6000]),
    ),
    frame(0x15, st.booleans(), uint, uint | st.none(), flag, state),
    frame(0x16, handle, flag),
    frame(0x17),
    st.just(b"\x00\x00\x00\x08\x02\x00\x00\x00"),
    frame(0x18),
)


@settings(max_examples=EXAMPLES * 2)
@given(
    talk=st.lists(FRAMES, max_size=40),
    begun=st.integers(0, 3),
    seed=st.integers(0, 9999),
    together=st.booleans(),
)
def test_well_formed_frames_in_any_order_are_survived(talk, begun, seed, together):
    server = BusyServer(seed)
    server.receive(HANDSHAKE + OPEN)
    for channel in range(begun):
        begin = encode_frame(0x11, [None, UInt(0), UInt(100), UInt(100)], channel=channel)
        server.receive(begin)
    if together:
        server.receive(b"".join(talk))
    else:
        for piece in talk:
            server.receive(piece)
    server.finish()


@settings(max_examples=EXAMPLES)
@given(
    modes=st.tuples(values, values),
    source=st.lists(values, max_size=11),
    target=st.lists(values, max_size=7),
    properties=values,
    opening=st.lists(values, max_size=9),
)
def test_any_attach_is_refused_or_can_be_echoed(modes, source, target, properties, opening):
    engine = Engine(server=True, container_id="s", sasl=SaslServer())
    engine.receive(HANDSHAKE + encode_frame(0x10, ["c", *opening]))
    engine.receive(encode_frame(0x11, [None, UInt(0), UInt(100), UInt(100)]))
    ends = [Described(ULong(0x28), source), Described(ULong(0x29), target)]
    fields = ["n", UInt(0), True, *modes, *ends, None, None, None, None, None, None, properties]
    for event in engine.receive(encode_frame(0x12, fields)):
        if type(event) is Attached:
            event.link.accept(filter={"f": "x"}, properties={"p": 1})
    engine.tick(now=1.0)
    engine.data_to_send()


def test_a_flood_of_connections_does_not_grow_the_process():
    """Damaged conversations again and again; what each of them allocated must come back."""

    def flood(rounds):
        for seed in range(rounds):
            source = random.Random(seed)
            damage = [("flip", source.random(), source.randrange(256)) for _ in range(3)]
            feed(seed, damaged(conversation(), damage))

    flood(50)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    flood(500 if NIGHT else 150)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    assert grown < 8 * 1024, f"{grown} KiB more at the peak"


@pytest.mark.parametrize("size", [10, 100_000])
def test_messages_without_end_do_not_grow_the_process(size):
    """One connection, many messages each way: nothing of them stays behind."""
    with Pair() as pair:
        pair.open()
        sender, _ = pair.sending_to_server(credit=10_000)
        _, theirs = pair.sending_to_client(credit=10_000)

        def talk(rounds):
            for number in range(rounds):
                sender.send(b"%d" % number, b"x" * size)
                theirs.send(b"%d" % number, b"x" * size)
                pair.run()
                for event in pair.server_events + pair.client_events:
                    if type(event) is Transferred:
                        event.delivery.accept()
                pair.run()
                pair.forget()

        talk(50)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        talk(500)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

        assert grown < 4 * 1024, f"{grown} KiB more at the peak"
        assert theirs.session.outgoing_bytes == 0
        assert held(pair.server) == (0, 0)


def test_a_message_of_tiny_frames_costs_no_more_than_its_bytes():
    """A frame of one byte each must not become an object each."""
    with Pair(limits=EngineLimits(message_size_max=1 << 20)) as pair:
        pair.open()
        pair.sending_to_server()
        head = encode_frame(0x14, [UInt(0), UInt(0), b"t", UInt(0), False, True])
        frame = (len(head) + 2).to_bytes(4) + head[4:] + b"xy"
        tracemalloc.start()
        for _ in range(5):
            pair.server.receive(frame * 2000)
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert held(pair.server) == (1, 20_000)
        assert used < 50_000


def attach_frame(handle, *, filter=None, properties=None):
    source = Described(ULong(0x28), ["q", *[None] * 6, filter])
    fields = [f"l{handle}", UInt(handle), True, None, None, source, Described(ULong(0x29), ["t"])]
    return encode_frame(0x12, [*fields, *[None] * 6, properties])


def attached_server():
    engine = Engine(server=True, container_id="s", sasl=SaslServer())
    engine.receive(HANDSHAKE + OPEN + encode_frame(0x11, [None, UInt(0), UInt(9), UInt(9)]))
    return engine


@pytest.mark.parametrize("place", ["filter", "properties"])
def test_little_is_kept_of_an_attach(place):
    engine = attached_server()
    large = {Symbol("k"): [UInt(0)] * 15_000}
    tracemalloc.start()
    for handle in range(5):
        (event,) = engine.receive(attach_frame(handle, **{place: large}))
        event.link.accept()
        engine.data_to_send()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert held < 50_000
    assert (event.link.remote.source_filter or event.link.remote.properties) == {"k": ()}


@pytest.mark.parametrize("place", ["filter", "properties"])
@pytest.mark.parametrize(
    "large",
    [
        {Symbol("k"): [UInt(0)] * 17_000},
        {Symbol("k"): "x" * 17_000},
        {Symbol(f"k{number}"): UInt(0) for number in range(33)},
    ],
)
def test_an_attach_that_is_too_large_ends_the_connection(place, large):
    engine = attached_server()
    (event,) = engine.receive(attach_frame(0, **{place: large}))

    assert type(event) is ConnectionClosed
    assert event.error.condition == "amqp:resource-limit-exceeded"


def test_what_an_attach_said_is_dropped_when_its_link_is_over():
    engine = attached_server()
    (event,) = engine.receive(attach_frame(0, filter={"f": "x"}, properties={"p": UInt(1)}))
    remote = event.link.remote
    assert (remote.source_filter, remote.properties) == ({"f": "x"}, {"p": 1})
    event.link.accept()
    event.link.close()

    remote = event.link.remote
    assert (remote.source_filter, remote.properties) == ({}, {})
    assert remote.source_address == "q"


def seconds_of(engine, data):
    best = 9.0
    for _ in range(3):
        began = time.process_time()
        engine.receive(data)
        best = min(best, time.process_time() - began)
        engine.data_to_send()
    return best


def transfers(first, count, handle):
    for number in range(first, first + count):
        frame = encode_frame(0x14, [UInt(handle), UInt(number), b"t", UInt(0), False])
        yield (len(frame) + 1).to_bytes(4) + frame[4:] + b"m"


def test_links_that_come_and_go_cost_no_more_beside_many_unsettled_deliveries():
    ends = Described(ULong(0x28), ["s"]), Described(ULong(0x29), ["q"])
    steady, passing = (
        encode_frame(0x12, [f"l{n}", UInt(n), False, None, None, *ends, None, None, UInt(0)])
        for n in range(2)
    )
    one = b"".join(transfers(19_000, 1, handle=1))
    comings = (passing + one + encode_frame(0x16, [UInt(1), True])) * 300
    engine = attached_server()
    engine.receive(steady)
    few = seconds_of(engine, comings)
    engine.receive(b"".join(transfers(0, 19_000, handle=0)))
    assert seconds_of(engine, comings) < 3 * few + 0.15
    assert held(engine) == (19_000, 0)


def test_repeated_ids_are_settled_in_linear_time():
    engine = attached_server()
    ends = Described(ULong(0x28), ["s"]), Described(ULong(0x29), ["q"])
    fields = ["l", UInt(0), False, None, None, *ends, None, None, UInt(0)]
    engine.receive(encode_frame(0x12, fields))
    events = engine.receive(next(transfers(5, 1, handle=0)) * 15_000)
    began = time.process_time()
    for event in reversed(events):
        event.delivery.accept()
    assert time.process_time() - began < 0.5
    assert held(engine) == (0, 0)


def test_a_frame_that_comes_byte_by_byte_costs_no_more_than_its_bytes():
    engine = Engine(server=True, container_id="s", sasl=SaslServer())
    engine.receive(HANDSHAKE + OPEN)
    engine.receive(b"\x00\x00\xff\xff\x02\x00\x00\x00")
    tracemalloc.start()
    for _ in range(30_000):
        engine.receive(b"ab")
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    engine.free()

    assert held < 200_000
