"""AMQP by hand: a peer that can send anything at any time, valid or not.

Frames are put together byte by byte and read back one by one: no engine stands in between that
would refuse to misbehave. The right way through the handshake is here as well, so that a test can
start where it breaks a rule.
"""

from __future__ import annotations

import re
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pairbus.amqp.codec.types import Described, Symbol, UByte, UInt, ULong, UShort
from pairbus.amqp.codec.values import decode, encode

AMQP: Final = b"AMQP\x00\x01\x00\x00"
SASL: Final = b"AMQP\x03\x01\x00\x00"
OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
SASL_INIT, SASL_OUTCOME = 0x41, 0x44
SOURCE, TARGET, DATA = 0x28, 0x29, 0x75
ACCEPTED, REJECTED = 0x24, 0x25
ANSWER_SECONDS_MAX: Final = 20.0  # only so that a test cannot hang
# Where the error stands among the fields of those that may carry one.
_ERROR_FIELD: Final = {DETACH: 2, END: 0, CLOSE: 0}


def described(code: int, *fields: Any) -> Described:
    return Described(ULong(code), list(fields))


def frame(body: bytes, *, channel: int = 0, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", len(body) + 8, 2, kind, channel) + body


def performative(code: int, *fields: Any, payload: bytes = b"", channel: int = 0) -> bytes:
    return frame(encode(described(code, *fields)) + payload, channel=channel)


def sasl(mechanism: str, response: bytes) -> bytes:
    return frame(encode(described(SASL_INIT, Symbol(mechanism), response)), kind=1)


def opening(
    *, container: str = "peer", frame_size: int = 65_536, idle_ms: int | None = None
) -> bytes:
    idle = None if idle_ms is None else UInt(idle_ms)
    return performative(OPEN, container, "localhost", UInt(frame_size), UShort(255), idle)


def begin(*, channel: int = 0) -> bytes:
    window = UInt(2**31 - 1)
    return performative(BEGIN, None, UInt(0), window, window, channel=channel)


def attach(
    queue: str, *, name: str = "link", handle: int = 0, receiver: bool = False, channel: int = 0
) -> bytes:
    source, target = described(SOURCE, "here"), described(TARGET, "here")
    if receiver:
        source = described(SOURCE, queue)
    else:
        target = described(TARGET, queue)
    fields: list[Any] = [name, UInt(handle), receiver, UByte(0), UByte(int(receiver))]
    fields += [source, target, None, None, None if receiver else UInt(0)]
    return performative(ATTACH, *fields, channel=channel)


def credit(amount: int, *, handle: int = 0, channel: int = 0) -> bytes:
    window = UInt(2**31 - 1)
    fields = [UInt(0), window, UInt(0), window, UInt(handle), UInt(0), UInt(amount)]
    return performative(FLOW, *fields, channel=channel)


def transfer(
    number: int, payload: bytes, *, handle: int = 0, more: bool = False, first: bool = True
) -> bytes:
    start = [UInt(number), struct.pack(">I", number), UInt(0)] if first else [None, None, None]
    return performative(TRANSFER, UInt(handle), *start, False, more, payload=payload)


def message(body: bytes) -> bytes:
    return encode(Described(ULong(DATA), body))


@dataclass(frozen=True, slots=True)
class Frame:
    code: int
    fields: list[Any]
    channel: int

    @property
    def error(self) -> tuple[str, str] | None:
        """Condition and description, if it carries an error."""
        index = _ERROR_FIELD.get(self.code)
        if index is None or index >= len(self.fields) or self.fields[index] is None:
            return None
        parts = list(self.fields[index].value)
        return str(parts[0]), str(parts[1]) if len(parts) > 1 else ""


@dataclass(frozen=True, slots=True)
class Farewell:
    """How the broker closed a peer's connection."""

    is_closed: bool
    frames: list[Frame]
    data: bytes
    seconds: float

    @property
    def errors(self) -> list[tuple[int, str, str]]:
        return [(frame.code, *frame.error) for frame in self.frames if frame.error]

    @property
    def condition(self) -> str | None:
        """Of the close frame."""
        return next((condition for code, condition, _ in self.errors if code == CLOSE), None)


class Address:
    """Where a broker listens, and the key to connect with."""

    def __init__(self, connection_string: str, ca_file: Path | str) -> None:
        parts = dict(part.split("=", 1) for part in connection_string.split(";") if part)
        host = re.fullmatch(r"sb://([^:/]+):(\d+)/?", parts["Endpoint"])
        assert host is not None, connection_string
        self.connection_string = connection_string
        self.host = host[1]
        self.port = int(host[2])
        self.policy = parts["SharedAccessKeyName"]
        self.key = parts["SharedAccessKey"]
        self.ca_file = str(ca_file)


class Peer:
    """One connection. Sending to a broker that hung up is not an error: the farewell shows it."""

    def __init__(self, address: Address, *, receive_buffer: int | None = None) -> None:
        self.address = address
        self._socket: socket.socket = socket.socket()
        if receive_buffer is not None:  # before connect: the window is agreed on there
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(ANSWER_SECONDS_MAX)
        self._socket.connect((address.host, address.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def reset(self) -> None:
        """Vanish without a close: the kernel answers with a reset."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def encrypt(self) -> Self:
        context = ssl.create_default_context(cafile=self.address.ca_file)
        self._socket = context.wrap_socket(self._socket, server_hostname=self.address.host)
        return self

    def send(self, *chunks: bytes) -> bool:
        try:
            self._socket.sendall(b"".join(chunks))
        except OSError:
            return False
        return True

    def send_what_fits(self, data: bytes, *, seconds: float) -> int:
        """The number of bytes that the broker read in that time; it may stop reading."""
        self._socket.settimeout(0.05)
        sent, deadline = 0, time.monotonic() + seconds
        while sent < len(data) and time.monotonic() < deadline:
            try:
                sent += self._socket.send(data[sent : sent + 65_536])
            except TimeoutError:
                continue
            except OSError:
                break
        self._socket.settimeout(ANSWER_SECONDS_MAX)
        return sent

    def send_and_read(self, data: bytes, *, seconds: float) -> None:
        """As above, but reads what the broker sends meanwhile, and keeps it for the farewell."""
        deadline = time.monotonic() + seconds
        for start in range(0, len(data), 8192):
            self.send_what_fits(data[start : start + 8192], seconds=deadline - time.monotonic())
            self._socket.settimeout(0.001)
            with suppress(OSError):
                while chunk := self._socket.recv(65_536):
                    self._buffer += chunk
        self._socket.settimeout(ANSWER_SECONDS_MAX)

    # --- the right way --------------------------------------------------------------------------

    def authenticate(self) -> Self:
        """Up to the AMQP header, by the policy's name and key."""
        secret = f"\0{self.address.policy}\0{self.address.key}".encode()
        self.send(SASL, sasl("PLAIN", secret))
        self._take(8)
        outcome = self.until(SASL_OUTCOME)
        assert outcome.fields[0] == 0, outcome
        self.send(AMQP)
        self._take(8)
        return self

    def open(self, **options: Any) -> Self:
        self.authenticate().send(opening(**options))
        self.until(OPEN)
        return self

    def begin(self, **options: Any) -> Self:
        self.open(**options).send(begin())
        self.until(BEGIN)
        return self

    def attach(self, queue: str, **options: Any) -> Self:
        self.begin().send(attach(queue, **options))
        answer = self.until(ATTACH)
        assert answer.fields[6 if not options.get("receiver") else 5] is not None, "refused"
        return self

    # --- what the broker says -------------------------------------------------------------------

    def until(self, code: int) -> Frame:
        for frame_ in self.frames():
            if frame_.code == code:
                return frame_
            assert frame_.error is None, frame_
        raise AssertionError(f"the broker hung up before it sent {code:#x}")

    def wait_for(self, piece: bytes) -> None:
        """Through TLS or a WebSocket, too."""
        while piece not in self._buffer:
            chunk = self._socket.recv(65_536)
            assert chunk, f"the broker hung up after {self._buffer!r}"
            self._buffer += chunk

    def frames(self) -> Iterator[Frame]:
        """Frame by frame until the broker hangs up; raises TimeoutError when it goes silent."""
        while header := self._take(8):
            size, offset, _, channel = struct.unpack(">IBBH", header)
            if header[:4] == b"AMQP":
                continue
            body = self._take(size - 8)[offset * 4 - 8 :]
            if body:  # an empty frame only says that it is alive
                value, _ = decode(body)
                yield Frame(int(value.descriptor), list(value.value), channel)

    def frames_until(self, is_last: Callable[[Frame], object]) -> list[Frame]:
        """Up to and with that frame, or all if the broker hangs up before."""
        found: list[Frame] = []
        for frame_ in self.frames():
            found.append(frame_)
            if is_last(frame_):
                break
        return found

    def farewell(self, *, within: float = ANSWER_SECONDS_MAX) -> Farewell:
        """Reads until the broker hangs up, for at most that long."""
        started = time.monotonic()
        data, self._buffer, is_closed = self._buffer, b"", False
        while (left := started + within - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                chunk = self._socket.recv(65_536)
            except TimeoutError:
                break
            except OSError:  # a reset is a farewell, too
                chunk = b""
            if not chunk:
                is_closed = True
                break
            data += chunk
        seconds = time.monotonic() - started
        return Farewell(is_closed, list(_whole_frames(data)), data, seconds)

    def _take(self, count: int) -> bytes:
        """Exactly `count` bytes, or none at the end."""
        while len(self._buffer) < count:
            try:
                chunk = self._socket.recv(65_536)
            except ConnectionError:
                chunk = b""
            if not chunk:
                return b""
            self._buffer += chunk
        data, self._buffer = self._buffer[:count], self._buffer[count:]
        return data


def _whole_frames(data: bytes) -> Iterator[Frame]:
    position = 0
    while position + 8 <= len(data):
        if data[position : position + 4] == b"AMQP":
            position += 8
            continue
        size, offset, kind, channel = struct.unpack_from(">IBBH", data, position)
        if size < 8 or offset < 2 or kind > 1 or position + size > len(data):
            return  # not AMQP: HTTP, TLS, or a torn end
        body = data[position + offset * 4 : position + size]
        position += size
        if body:
            value, _ = decode(body)
            yield Frame(int(value.descriptor), list(value.value), channel)
