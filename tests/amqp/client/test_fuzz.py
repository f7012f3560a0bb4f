"""Whatever a server sends, in whatever pieces: the client raises nothing and comes to an end.

Random bytes, a real conversation with damage in it, and well-formed frames with any fields in any
order. `HYPOTHESIS_PROFILE=night` tries more.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.client.protocol import ClientProtocol
from pairbus.amqp.codec.types import Described, Symbol, UInt, ULong, UShort
from pairbus.amqp.frames import AMQP_HEADER, encode_frame
from pairbus.amqp.outcomes import ACCEPTED
from pairbus.amqp.sasl import SaslClient
from tests.amqp.client.clientpair import ClientPair, as_tuple


def client_protocol(**settings) -> ClientProtocol:
    return ClientProtocol(container_id="c", hostname="h", **settings)


def fed(client: ClientProtocol, data: bytes, sizes: list[int]) -> None:
    at = 0
    for size in sizes:
        client.receive(data[at : at + size])
        at += size
    client.receive(data[at:])


PIECES = st.lists(st.integers(1, 60), max_size=20)


@given(data=st.binary(max_size=300), sizes=PIECES, sasl=st.booleans(), greeted=st.booleans())
def test_random_bytes(data, sizes, sasl, greeted):
    client = client_protocol(sasl=SaslClient() if sasl else None)
    fed(client, (AMQP_HEADER if greeted else b"") + data, sizes)


class Recorder(ClientPair):
    """Keeps what the server said, to say it again with damage."""

    def __init__(self) -> None:
        super().__init__()
        self.said = b""

    def hear(self, data: bytes) -> None:
        self.said += data
        super().hear(data)


def conversation() -> bytes:
    with Recorder() as pair:
        link, far = pair.receiver(name="in")
        pair.deliver(far, b"one", b"two" * 100, b"x" * 70_000)
        link.settle([0, 1, 2], ACCEPTED)
        pair.run()
        sender, _ = pair.sender(name="out")
        sender.send(b"mine")
        pair.run()
        pair.arrived()[0].delivery.accept()
        link.drain()
        pair.run()
        far.drained()
        pair.run()
        sender.detach()
        pair.run()
        pair.server.close()
        pair.run()
        return pair.said


SAID = conversation()


def prepared() -> ClientProtocol:
    """A client that has asked for all that is answered in the conversation."""
    client = client_protocol(sasl=SaslClient())
    client.link = client.start_receiver("q", as_tuple, name="in")
    sender = client.start_sender("q", name="out")
    client.link.grant(100)
    client.link.settle([0, 1, 2], ACCEPTED)
    sender.send(b"mine")
    return client


def test_the_conversation_is_understood():
    client = prepared()
    client.receive(SAID)
    assert client.is_over
    assert client.error is None
    assert [len(data) for _, _, data in client.link.inbox] == [3, 300, 70_000]


@given(
    damage=st.lists(st.tuples(st.integers(0, len(SAID) - 1), st.integers(0, 255)), max_size=5),
    sizes=PIECES,
    cut=st.integers(0, len(SAID)),
)
def test_a_damaged_conversation(damage, sizes, cut):
    said = bytearray(SAID)
    # The middle of the large message teaches nothing.
    for at, octet in damage:
        said[at if at < 1500 else len(said) - 1 - at % 600] = octet
    client = prepared()
    fed(client, bytes(said[:cut]), sizes)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(0, 3).map(UInt)
    | st.integers(0, 2**32 - 1).map(UInt)
    | st.integers(-5, 5)
    | st.text(max_size=4)
    | st.binary(max_size=20)
    | st.sampled_from([Symbol("amqp:x"), UShort(1), ULong(2**40)]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(st.sampled_from(range(0x1D, 0x2A)), st.lists(inner, max_size=4)).map(
            lambda pair: Described(ULong(pair[0]), pair[1])
        )
    ),
    max_leaves=6,
)
FRAMES = st.lists(
    st.tuples(
        st.integers(0x10, 0x19),
        st.lists(VALUES, max_size=11),
        st.integers(0, 2),
        st.binary(max_size=5),
    ),
    max_size=12,
)


@given(frames=FRAMES, opened=st.booleans(), begun=st.booleans(), sizes=PIECES)
def test_well_formed_frames_in_any_order(frames, opened, begun, sizes):
    client = client_protocol()
    client.receive(AMQP_HEADER)
    if opened:
        client.receive(encode_frame(0x10, ["server", None, UInt(65536), UShort(10)]))
        link = client.start_receiver("q", as_tuple, name="in", is_shared=True)
        sender = client.start_sender("q", name="out", is_shared=True)
        if begun:
            window = UInt(1000)
            client.receive(encode_frame(0x11, [UShort(0), UInt(0), window, window]))
            ends = [Described(ULong(0x28), ["q"]), Described(ULong(0x29), ["q"])]
            for name, handle, role in (("in", 0, False), ("out", 1, True)):
                fields = [name, UInt(handle), role, None, None, *ends, None, None, UInt(0)]
                client.receive(encode_frame(0x12, fields))
            assert link.alive
            assert sender.alive
            link.grant(5)
            sender.send(b"data")
    data = b""
    for code, fields, channel, payload in frames:
        frame = encode_frame(code, fields, channel=channel)
        if code == 0x14:
            frame = (len(frame) + len(payload)).to_bytes(4, "big") + frame[4:] + payload
        data += frame
    fed(client, data, sizes)
