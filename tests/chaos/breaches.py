"""The ways to break the rules, one by one: each says what to send once the peer is connected.

A breach is *spoken* when the AMQP headers were exchanged before it: then the broker can say in a
close frame what was wrong, and must. Before that it can only hang up.
"""

from __future__ import annotations

import base64
import os
import random
import struct
from collections.abc import Callable
from typing import Any, Final

from pairbus.amqp.codec.types import UByte, UInt
from pairbus.amqp.codec.values import encode
from tests.chaos import peers
from tests.chaos.peers import AMQP, DETACH, SASL, TRANSFER, Peer, frame, performative

Breach = Callable[[Peer], Any]
_random = random.Random(1912)


def _framing(size: int, *, offset: int = 2, kind: int = 0, channel: int = 0) -> bytes:
    return struct.pack(">IBBH", size, offset, kind, channel)


def _upgrade(peer: Peer, *, protocol: str = "AMQPWSB10") -> Peer:
    key = base64.b64encode(os.urandom(16)).decode()
    peer.send(
        "GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n".encode()
    )
    peer.wait_for(b"\r\n\r\n")  # RFC 6455, 4.1: nothing is sent before the answer
    return peer


def _web_frame(payload: bytes, *, opcode: int = 2, is_masked: bool = True) -> bytes:
    mask = os.urandom(4)
    size = len(payload)
    length = bytes([size | is_masked << 7]) if size < 126 else struct.pack(">BH", 0xFE, size)
    body = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
    return bytes([0x80 | opcode]) + length + (mask + body if is_masked else payload)


def _open_in_web(peer: Peer) -> Peer:
    """AMQP is open inside a WebSocket: the handshake deadline no longer protects the broker."""
    secret = f"\0{peer.address.policy}\0{peer.address.key}".encode()
    steps = (SASL, peers.sasl("PLAIN", secret), AMQP, peers.opening())
    _upgrade(peer).send(*map(_web_frame, steps))
    peer.wait_for(b"\0\x53\x10")
    return peer


def _garbage(size: int) -> Breach:
    data = _random.randbytes(size)
    return lambda peer: peer.send(data)


HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\n"

# Before AMQP is spoken: the broker hangs up.
MUTE: Final[dict[str, Breach]] = {
    "one byte of garbage and the end of patience": _garbage(1),
    "8 bytes of garbage": _garbage(8),
    "100 bytes of garbage": _garbage(100),
    "64 KiB of garbage": _garbage(65_536),
    "zeros": lambda peer: peer.send(bytes(1000)),
    "AMQP 0-9-1": lambda peer: peer.send(b"AMQP\x00\x00\x09\x01"),
    "AMQP 2.0": lambda peer: peer.send(b"AMQP\x00\x02\x00\x00"),
    "an unknown protocol id": lambda peer: peer.send(b"AMQP\x09\x01\x00\x00"),
    "the AMQP-TLS header": lambda peer: peer.send(b"AMQP\x02\x01\x00\x00"),
    "an HTTP request with NUL bytes": lambda peer: peer.send(HTTP, b"\0\0: \0\r\n\r\n"),
    "an HTTP header without an end": lambda peer: peer.send(HTTP, b"X: ", b"x" * 300_000),
    "an HTTP verb of 10 KB": lambda peer: peer.send(b"G" * 10_000, b" / HTTP/1.1\r\n\r\n"),
    "TLS with a garbage hello": lambda peer: peer.send(
        b"\x16\x03\x01\x02\x00", _random.randbytes(512)
    ),
    "a TLS alert": lambda peer: peer.send(b"\x15\x03\x01\x00\x02\x02\x28"),
    "TLS 1.0 hello cut short": lambda peer: peer.send(b"\x16\x03\x01\x00\xff\x01\x00"),
    "garbage inside TLS": lambda peer: peer.encrypt().send(_random.randbytes(500)),
    "an unmasked WebSocket frame": lambda peer: _upgrade(peer).send(
        _web_frame(SASL, is_masked=False)
    ),
    "a WebSocket text frame": lambda peer: _upgrade(peer).send(_web_frame(b"hello", opcode=1)),
    "a reserved WebSocket opcode": lambda peer: _upgrade(peer).send(_web_frame(b"", opcode=5)),
    "a WebSocket frame of 2^62 bytes": lambda peer: _upgrade(peer).send(
        b"\x82\xff", struct.pack(">Q", 2**62), bytes(1000)
    ),
    "garbage inside WebSocket": lambda peer: _upgrade(peer).send(_web_frame(b"\xf0" * 120)),
    "a WebSocket for another protocol": lambda peer: _upgrade(peer, protocol="mqtt").send(
        b"\0" * 9
    ),
    "an unmasked frame in an open WebSocket": lambda peer: _open_in_web(peer).send(
        _web_frame(b"x", is_masked=False)
    ),
    "a text frame in an open WebSocket": lambda peer: _open_in_web(peer).send(
        _web_frame(b"x", opcode=1)
    ),
    "garbage in an open WebSocket": lambda peer: _open_in_web(peer).send(_web_frame(b"\xf0" * 99)),
    "a WebSocket frame of 2^62 bytes, opened": lambda peer: _open_in_web(peer).send(
        b"\x82\xff", struct.pack(">Q", 2**62), bytes(1000)
    ),
    "an unknown SASL mechanism": lambda peer: peer.send(SASL, peers.sasl("TELEPATHY", b"")),
    "a wrong key": lambda peer: peer.send(
        SASL, peers.sasl("PLAIN", f"\0{peer.address.policy}\0wrong".encode())
    ),
    "an unknown policy": lambda peer: peer.send(SASL, peers.sasl("PLAIN", b"\0nobody\0key")),
    "a PLAIN response without NULs": lambda peer: peer.send(SASL, peers.sasl("PLAIN", b"nonsense")),
    "a SASL frame of 4 GiB": lambda peer: peer.send(SASL, _framing(2**32 - 1, kind=1), bytes(1000)),
    "a SASL frame of 3 bytes": lambda peer: peer.send(SASL, _framing(3, kind=1), bytes(100)),
    "garbage in a SASL frame": lambda peer: peer.send(SASL, frame(b"\xff" * 100, kind=1)),
    "an AMQP frame in place of SASL": lambda peer: peer.send(SASL, peers.opening()),
    "a SASL outcome from the client": lambda peer: peer.send(
        SASL, frame(encode(peers.described(peers.SASL_OUTCOME, UByte(0))), kind=1)
    ),
    "no AMQP header after SASL": lambda peer: peer.send(
        SASL, peers.sasl("ANONYMOUS", b""), peers.opening()
    ),
}

# After the headers: the broker closes with an error and hangs up.
SPOKEN: Final[dict[str, Breach]] = {
    "begin before open": lambda peer: peer.authenticate().send(peers.begin()),
    "attach before open": lambda peer: peer.authenticate().send(peers.attach("target")),
    "transfer before open": lambda peer: peer.authenticate().send(peers.transfer(0, b"x")),
    "garbage after the header": lambda peer: peer.authenticate().send(b"\xf0" * 200),
    "a frame of 4 GiB": lambda peer: peer.open().send(_framing(2**32 - 1), bytes(1000)),
    "a frame of 7 bytes": lambda peer: peer.open().send(_framing(7), bytes(100)),
    "a data offset inside the header": lambda peer: peer.open().send(
        _framing(16, offset=1), bytes(8)
    ),
    "a data offset past the end": lambda peer: peer.open().send(_framing(16, offset=200), bytes(8)),
    "a frame above max-frame-size": lambda peer: peer.open().send(
        performative(peers.BEGIN, None, UInt(0), UInt(9), UInt(9), payload=bytes(100_000))
    ),
    "a frame of unknown type": lambda peer: peer.open().send(frame(b"\x40", kind=7)),
    "a second open": lambda peer: peer.open().send(peers.opening()),
    "an unknown performative": lambda peer: peer.open().send(performative(0x99, 1)),
    "a performative without descriptor": lambda peer: peer.open().send(frame(b"\x71\0\0\0\1")),
    "a performative cut short": lambda peer: peer.open().send(
        frame(b"\0\x53\x11\xd0\0\0\0\xff\0\0\0\4")
    ),
    "a list of 4 billion fields": lambda peer: peer.open().send(
        frame(b"\0\x53\x11\xd0\0\0\0\x08\xff\xff\xff\xff\x40\x40\x40\x40")
    ),
    "fields of the wrong type": lambda peer: peer.open().send(
        performative(peers.BEGIN, "a", "b", "c")
    ),
    "a channel above channel-max": lambda peer: peer.open().send(peers.begin(channel=60_000)),
    "a transfer without a session": lambda peer: peer.open().send(peers.transfer(0, b"x")),
    "an attach without a session": lambda peer: peer.open().send(peers.attach("target")),
    "the end of no session": lambda peer: peer.open().send(performative(peers.END)),
    "a transfer without a link": lambda peer: peer.begin().send(peers.transfer(0, b"x", handle=5)),
    "the detach of no link": lambda peer: peer.begin().send(performative(peers.DETACH, UInt(5))),
    "a second begin on a channel": lambda peer: peer.begin().send(peers.begin()),
    "a handle used twice": lambda peer: peer.attach("target").send(
        peers.attach("target", name="2")
    ),
    "a transfer on a link the wrong way": lambda peer: peer.attach("target", receiver=True).send(
        peers.transfer(0, peers.message(b"x"))
    ),
}


def _nested(depth: int) -> bytes:
    value = b"\x45"
    for _ in range(depth):
        value = b"\xd0" + struct.pack(">II", len(value) + 4, 1) + value
    return value


def _raw_begin(properties: bytes) -> bytes:
    fields = encode(None) + encode(UInt(0)) + encode(UInt(9)) * 2 + encode(None) * 3 + properties
    return frame(b"\0\x53\x11\xd0" + struct.pack(">II", len(fields) + 4, 8) + fields)


# Neither quite wrong nor sane: refused or borne, but it never holds the broker up.
ODDITIES: Final[dict[str, Breach]] = {
    "lists nested 5,000 deep": lambda peer: peer.open().send(_raw_begin(_nested(5_000))),
    "a link name of 60 KB": lambda peer: peer.begin().send(
        peers.attach("target", name="n" * 60_000)
    ),
    "an entity name of 60 KB": lambda peer: peer.begin().send(peers.attach("q" * 60_000)),
    "a message that is garbage": lambda peer: peer.attach("target").send(
        peers.transfer(0, b"\xff" * 1_000)
    ),
    "a message of nothing": lambda peer: peer.attach("target").send(peers.transfer(0, b"")),
    "a message nested 5,000 deep": lambda peer: peer.attach("target").send(
        peers.transfer(0, b"\0\x53\x77" + _nested(5_000))
    ),
    "a delivery tag of 10 KB": lambda peer: peer.attach("target").send(
        performative(TRANSFER, UInt(0), UInt(0), b"t" * 10_000, UInt(0), payload=b"x")
    ),
    "deliveries numbered at random": lambda peer: peer.attach("target").send(
        *(peers.transfer(n, peers.message(b"x")) for n in (0, 9, 3, 2**32 - 1, 1))
    ),
    "a settlement of four billion deliveries": lambda peer: peer.attach(
        "target", receiver=True
    ).send(performative(peers.DISPOSITION, True, UInt(0), UInt(2**32 - 1), True)),
    "a settlement from the last to the first": lambda peer: peer.attach(
        "target", receiver=True
    ).send(performative(peers.DISPOSITION, True, UInt(2**31), UInt(0), True)),
    "all the credit there is, and none": lambda peer: peer.attach("target", receiver=True).send(
        *(peers.credit(amount) for amount in (2**32 - 1, 0, 2**31, 1))
    ),
    "a cancelled half of a message": lambda peer: peer.attach("target").send(
        peers.transfer(0, b"\0" * 1_000, more=True),
        performative(TRANSFER, UInt(0), *[None] * 4, False, None, None, None, True),
    ),
    "garbage as a token": lambda peer: peer.attach("$cbs").send(
        peers.transfer(0, b"\0\x53\x77\xa1\x01x")
    ),
    "a request that is garbage": lambda peer: peer.attach("target/$management").send(
        peers.transfer(0, b"\xff" * 100)
    ),
    "a frame smaller than the least allowed": lambda peer: peer.authenticate().send(
        peers.opening(frame_size=1)
    ),
    "an idle time-out of one millisecond": lambda peer: peer.open(idle_ms=1),
}


# What fills a wire with little: the n-th bit of each flood.
FLOODS: Final[dict[str, Callable[[int], bytes]]] = {
    "empty frames": lambda n: frame(b""),
    "sessions begun and ended": lambda n: (
        peers.begin(channel=1) + performative(peers.END, channel=1)
    ),
    "links attached and detached": lambda n: (
        peers.attach("target", name=f"f{n}", handle=1) + performative(DETACH, UInt(1), True)
    ),
    "links to queues that do not exist": lambda n: (
        peers.attach(f"none-{n}", name=f"f{n}", handle=1) + performative(DETACH, UInt(1), True)
    ),
    "credit given and taken": lambda n: peers.credit(n % 2),
}
