import pytest

from pairbus.amqp.codec.types import Symbol
from pairbus.amqp.engine import ConnectionClosed, Engine, EngineLimits, Opened
from pairbus.amqp.frames import AMQP_HEADER, SASL_HEADER, decode_performative, encode_frame
from pairbus.amqp.outcomes import AmqpError
from pairbus.amqp.sasl import SaslClient, SaslServer
from tests.amqp.engine.enginepair import Pair

TLS_HEADER = b"AMQP\x02\x01\x00\x00"


def only(mechanism, user, password):
    return mechanism != "PLAIN" or (user, password) == ("RootManage", "key=")


@pytest.fixture
def asked():
    """Who wanted to be let in: mechanism, user and password."""
    return []


@pytest.fixture
def server(asked):
    def ask(*who):
        asked.append(who)
        return only(*who)

    engine = Engine(server=True, container_id="s", sasl=SaslServer(ask))
    yield engine
    engine.free()


def init(mechanism, response=None, hostname=None):
    return encode_frame(0x41, [Symbol(mechanism), response, hostname], kind=1)


def sasl_frames(data):
    """Code and fields of the SASL frames in a stream that begins with the SASL header."""
    assert data[:8] == SASL_HEADER
    pos, found = 8, []
    while pos < len(data) and data[pos + 5] == 1:
        size = int.from_bytes(data[pos : pos + 4])
        found.append(decode_performative(data[pos + 8 : pos + size]))
        pos += size
    return found


ADMITTED = {
    "anonymous, as the Python SDK does it": (
        init("ANONYMOUS", b"", "localhost"),
        ("ANONYMOUS", "", ""),
    ),
    "MSSBCBS, as .NET does it": (init("MSSBCBS"), ("MSSBCBS", "", "")),
    "EXTERNAL": (init("EXTERNAL", b"me"), ("EXTERNAL", "me", "")),
    "PLAIN with the right key": (
        init("PLAIN", b"\0RootManage\0key="),
        ("PLAIN", "RootManage", "key="),
    ),
}


@pytest.mark.parametrize(("frame", "who"), ADMITTED.values(), ids=ADMITTED)
def test_it_lets_in(server, asked, frame, who):
    assert server.receive(SASL_HEADER + frame) == []

    (mechanisms, outcome) = sasl_frames(server.data_to_send())
    assert mechanisms == (0x40, [["MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"]])
    assert outcome == (0x44, [0])
    assert asked == [who]
    assert not server.closed


TURNED_AWAY = {
    "a wrong key": init("PLAIN", b"\0RootManage\0wrong"),
    "PLAIN without a response": init("PLAIN"),
    "PLAIN with two parts": init("PLAIN", b"RootManage\0key="),
    "PLAIN that is not UTF-8": init("PLAIN", b"\0\xff\xfe\0key="),
    "a mechanism that is not offered": init("SCRAM-SHA-256", b"n,,n=x"),
}


@pytest.mark.parametrize("frame", TURNED_AWAY.values(), ids=TURNED_AWAY)
def test_it_turns_away(server, frame):
    (closed,) = server.receive(SASL_HEADER + frame)

    assert closed.error.condition == "amqp:unauthorized-access"
    assert sasl_frames(server.data_to_send())[-1] == (0x44, [1])
    assert server.closed


def test_plain_is_not_offered_when_nobody_checks_it():
    engine = Engine(server=True, container_id="s", sasl=SaslServer())
    engine.receive(SASL_HEADER)

    ((_, [offered]),) = sasl_frames(engine.data_to_send())

    assert "PLAIN" not in offered
    engine.free()


def test_both_roles_agree_byte_by_byte():
    plain = SaslClient("PLAIN", "RootManage", "key=")
    with Pair(sasl=SaslServer(only), client_sasl=plain, chunk=1) as pair:
        pair.open()

        assert pair.at_client(Opened)
        assert "key=" not in repr(plain)


def test_a_client_learns_that_it_was_turned_away():
    plain = SaslClient("PLAIN", "RootManage", "wrong")
    with Pair(sasl=SaslServer(only), client_sasl=plain) as pair:
        pair.client.open()
        pair.run()

        assert pair.at_client(ConnectionClosed)[0].error.condition == "amqp:unauthorized-access"
        assert pair.client.closed
        assert pair.client.error is not None


def test_a_client_gives_up_when_its_mechanism_is_not_offered():
    sasl = SaslServer(only, mechanisms=("EXTERNAL",))
    with Pair(sasl=sasl, client_sasl=SaslClient("ANONYMOUS")) as pair:
        pair.run()

        assert "EXTERNAL" in pair.at_client(ConnectionClosed)[0].error.description


def test_a_client_may_skip_sasl(server, asked):
    client = Engine(server=False, container_id="c")
    client.open()

    events = server.receive(client.data_to_send())

    assert [type(event) for event in events] == [Opened]
    assert asked == []
    client.free()


FOREIGN = {
    "AMQP's own TLS": (TLS_HEADER, "AMQP over TLS"),
    "another version": (b"AMQP\x00\x00\x09\x01", "AMQP"),
    "HTTP": (b"GET / HTTP/1.1\r\n", "GET"),
    "a single odd byte": (b"\x16", "x16"),
}


@pytest.mark.parametrize(("data", "named"), FOREIGN.values(), ids=FOREIGN)
def test_another_protocol_is_answered_with_the_header_of_ours(server, data, named):
    (closed,) = server.receive(data)

    assert named in closed.error.description
    assert server.data_to_send() == SASL_HEADER
    assert server.closed


def test_without_sasl_the_answer_is_the_plain_header():
    engine = Engine(server=True, container_id="s", sasl=None)

    engine.receive(SASL_HEADER)

    assert engine.data_to_send() == AMQP_HEADER
    assert engine.closed
    engine.free()


def test_a_server_that_skips_sasl_is_not_spoken_to():
    client = Engine(server=False, container_id="c", sasl=SaslClient())
    client.open()
    client.data_to_send()

    (closed,) = client.receive(AMQP_HEADER)

    assert "this is AMQP with SASL" in closed.error.description
    assert client.closed


GARBAGE = {
    "no SASL frame": b"\x00\x00\x00\x08\x02\x00\x00\x00",
    "a huge frame": b"\x7f\xff\xff\xff\x02\x01\x00\x00",
    "an unreadable frame": b"\x00\x00\x00\x0c\x02\x01\x00\x00\xff\xff\xff\xff",
    "an outcome from the client": encode_frame(0x44, [0], kind=1),
    "an init without a mechanism": encode_frame(0x41, [], kind=1),
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_garbage_ends_it(server, data):
    (closed,) = server.receive(SASL_HEADER + data)

    assert closed.error.condition.startswith("amqp:")
    server.data_to_send()
    assert server.closed
    assert server.receive(data) == []


def test_sasl_comes_only_once(server):
    server.receive(SASL_HEADER + init("ANONYMOUS"))
    server.data_to_send()

    (closed,) = server.receive(SASL_HEADER)

    assert "AMQP with SASL" in closed.error.description
    assert server.data_to_send() == SASL_HEADER
    assert server.closed


def test_an_endless_handshake_does_not_grow(server):
    server.receive(SASL_HEADER + b"\x00\x00\x10\x00\x02\x01\x00\x00")
    for _ in range(100):
        server.receive(b"x" * 1000)

    server.data_to_send()
    assert server.closed


def test_nothing_of_amqp_is_said_while_sasl_goes_on():
    engine = Engine(server=False, container_id="c", sasl=SaslClient(), limits=EngineLimits())
    engine.open()
    engine.session()

    assert engine.data_to_send() == SASL_HEADER
    assert engine.tick(now=1.0) is None
    engine.close(AmqpError("amqp:connection:forced", "changed my mind"))
    assert engine.data_to_send() == b""
    assert engine.closed
    engine.free()
