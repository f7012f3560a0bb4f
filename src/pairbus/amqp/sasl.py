"""What comes before the first AMQP frame: protocol headers and SASL, in both roles.

`SaslServer` and `SaslClient` are settings, and many connections may share them. `Handshake` is the
state of one connection: it takes bytes until the AMQP stream begins, then returns what follows the
peer's AMQP header. Only mechanisms of one step, without challenges, are supported. MSSBCBS is one
of them: with it, .NET announces that its token comes over $cbs. The caller decides which clients
are accepted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pairbus.amqp.codec.types import Array, Symbol, UByte
from pairbus.amqp.frames import (
    AMQP_HEADER,
    SASL_HEADER,
    FrameError,
    decode_performative,
    encode_frame,
)
from pairbus.amqp.outcomes import AmqpError

MECHANISMS, INIT, CHALLENGE, RESPONSE, OUTCOME = range(0x40, 0x45)
_NAMES: Final = {0: "AMQP", 2: "AMQP over TLS", 3: "AMQP with SASL"}
OK: Final = 0
BAD_CREDENTIALS: Final = 1
_FRAME_SIZE_MAX: Final = 4096
"""The standard says 512; tokens as passwords are longer."""

Authenticate = Callable[[str, str, str], bool]
"""Mechanism, user, password -> whether the client is accepted."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity that the peer claimed. The password was checked and is not kept."""

    mechanism: str
    user: str


@dataclass(frozen=True, slots=True)
class SaslServer:
    authenticate: Authenticate | None = None
    """Called for every mechanism. None accepts every client and does not offer PLAIN, because a
    client that sends a password expects a check.
    """

    mechanisms: Sequence[str] = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")

    @property
    def offered(self) -> list[str]:
        return [name for name in self.mechanisms if self.authenticate or name != "PLAIN"]


@dataclass(frozen=True, slots=True)
class SaslClient:
    mechanism: str = "ANONYMOUS"
    user: str = ""
    password: str = field(default="", repr=False)
    hostname: str | None = None

    @property
    def initial_response(self) -> bytes:
        if self.mechanism == "PLAIN":
            return b"\0" + self.user.encode() + b"\0" + self.password.encode()
        return self.user.encode()


class _Exchange:
    """SASL frames in, SASL frames out; `done` when the AMQP stream may begin."""

    __slots__ = ("_buffer", "done", "failure", "identity", "output")

    def __init__(self, greeting: bytes) -> None:
        self._buffer = b""
        self.output = greeting
        self.done = False
        self.failure: str | None = None
        self.identity: Identity | None = None

    def receive(self, data: bytes) -> bytes:
        """Consume what belongs to SASL, return the rest. Raises FrameError on garbage."""
        self._buffer += data
        while not self.done and self.failure is None and (body := self._next_frame()) is not None:
            try:
                code, fields = decode_performative(body)
            except ValueError as error:
                raise FrameError(
                    "amqp:decode-error", f"an unreadable SASL frame: {error}"
                ) from error
            self._frame(code, fields)
        if not self.done:
            return b""
        rest, self._buffer = self._buffer, b""
        return rest

    def _next_frame(self) -> bytes | None:
        if len(self._buffer) < 8:
            return None
        size, offset, kind = struct.unpack_from(">IBB", self._buffer)
        if not 8 <= offset * 4 <= size <= _FRAME_SIZE_MAX or kind != 1:
            raise FrameError(
                "amqp:connection:framing-error",
                f"a SASL frame of type {kind} and {size} bytes; "
                f"type 1 and up to {_FRAME_SIZE_MAX} bytes are expected",
            )
        if len(self._buffer) < size:
            return None
        body, self._buffer = self._buffer[offset * 4 : size], self._buffer[size:]
        return body

    def _send(self, code: int, fields: list[Any]) -> None:
        self.output += encode_frame(code, fields, kind=1)

    def _frame(self, code: int, fields: list[Any]) -> None:
        raise NotImplementedError


class ServerExchange(_Exchange):
    __slots__ = ("_settings",)

    def __init__(self, settings: SaslServer) -> None:
        super().__init__(SASL_HEADER)
        self._settings = settings
        self._send(MECHANISMS, [Array([Symbol(name) for name in settings.offered])])

    def _frame(self, code: int, fields: list[Any]) -> None:
        if code != INIT or not fields or not isinstance(fields[0], str):
            raise FrameError("amqp:not-allowed", "sasl-init with a mechanism was expected")
        mechanism = str(fields[0])
        response = fields[1] if len(fields) > 1 and isinstance(fields[1], bytes) else b""
        user, password = _credentials(mechanism, response)
        if mechanism not in self._settings.offered or user is None:
            self.failure = f"the mechanism {mechanism} is not offered, or its response is malformed"
        else:
            ask = self._settings.authenticate
            if ask is None or ask(mechanism, user, password):
                self.identity = Identity(mechanism, user)
                self.done = True
            else:
                self.failure = f"{mechanism} credentials of {user!r} were refused"
        self._send(OUTCOME, [UByte(OK if self.done else BAD_CREDENTIALS)])


class ClientExchange(_Exchange):
    __slots__ = ("_settings",)

    def __init__(self, settings: SaslClient) -> None:
        super().__init__(SASL_HEADER)
        self._settings = settings

    def _frame(self, code: int, fields: list[Any]) -> None:
        settings = self._settings
        if code == MECHANISMS:
            offered = fields[0] if fields else None
            names = [str(name) for name in (offered if isinstance(offered, list) else [offered])]
            if settings.mechanism not in names:
                self.failure = f"the server offers {', '.join(names)}, not {settings.mechanism}"
                return
            init = [Symbol(settings.mechanism), settings.initial_response, settings.hostname]
            self._send(INIT, init)
        elif code == OUTCOME:
            if fields and fields[0] == OK:
                self.identity = Identity(settings.mechanism, settings.user)
                self.done = True
            else:
                self.failure = f"the server refused {settings.mechanism} of {settings.user!r}"
        else:
            self.failure = f"the server sent SASL frame 0x{code:x}, which needs more than one step"


def _credentials(mechanism: str, response: bytes) -> tuple[str | None, str]:
    """User and password; no user at all when the response is malformed."""
    try:
        if mechanism != "PLAIN":
            return response.decode(), ""
        _, user, password = response.decode().split("\0")  # RFC 4616
    except ValueError:  # not UTF-8, or not three parts
        return None, ""
    return user, password


class Handshake:
    """`done` when both sides may send AMQP; `failure` if the handshake failed."""

    __slots__ = (
        "_awaits_header",
        "_exchange",
        "_header",
        "_sasl",
        "done",
        "failure",
        "identity",
        "output",
    )

    def __init__(self, sasl: SaslServer | SaslClient | None) -> None:
        self._sasl = sasl
        self._awaits_header = True
        self._header = b""
        self._exchange: ServerExchange | ClientExchange | None = None
        self.output = b""
        self.done = False
        self.failure: AmqpError | None = None
        self.identity: Identity | None = None
        if isinstance(sasl, SaslClient):
            self._exchange = ClientExchange(sasl)
            self._take_output()

    def take_output(self) -> bytes:
        output, self.output = self.output, b""
        return output

    @property
    def speaking_sasl(self) -> bool:
        """During SASL, a client must not send AMQP."""
        return self._exchange is not None

    def receive(self, data: bytes) -> bytes:
        """The bytes that follow the AMQP header, once there are some. Never raises."""
        try:
            while data and not self.done and self.failure is None:
                data = self._read_header(data) if self._awaits_header else self._negotiate(data)
        except FrameError as error:
            self.failure = error.error
        return data if self.done else b""

    def _read_header(self, data: bytes) -> bytes:
        self._header += data
        # Checked byte by byte, so that a peer with another protocol gets an answer before it has
        # sent eight bytes.
        is_amqp = self._header[:4] == b"AMQP"[: len(self._header)]
        if is_amqp and len(self._header) < 8:
            return b""
        header, rest = self._header[:8], self._header[8:]
        self._header = b""
        if header == AMQP_HEADER and self._exchange is None:
            self.done = True
        elif header == SASL_HEADER and self._may_speak_sasl():
            self._awaits_header = False
            self._take_output()
        else:
            raise self._wrong_header(header, is_amqp=is_amqp)
        return rest

    def _may_speak_sasl(self) -> bool:
        if isinstance(self._sasl, SaslServer) and self.identity is None:
            self._exchange = ServerExchange(self._sasl)
        return self._exchange is not None

    def _wrong_header(self, header: bytes, *, is_amqp: bool) -> FrameError:
        """A server answers with the header that it speaks, as part 2.2 of the standard says."""
        wanted = AMQP_HEADER if self._sasl is None else SASL_HEADER
        if not isinstance(self._sasl, SaslClient):
            self.output += wanted
        asked = _NAMES.get(header[4], header.hex(" ")) if is_amqp else repr(header)
        return FrameError(
            "amqp:connection:framing-error",
            f"the peer asked for {asked}; this is {_NAMES[wanted[4]]}",
        )

    def _negotiate(self, data: bytes) -> bytes:
        exchange = self._exchange
        assert exchange is not None
        rest = exchange.receive(data)
        self._take_output()
        if exchange.failure is not None:
            self.failure = AmqpError("amqp:unauthorized-access", exchange.failure)
        elif exchange.done:
            self.identity = exchange.identity
            self._exchange = None
            self._awaits_header = True
        return rest

    def _take_output(self) -> None:
        assert self._exchange is not None
        self.output += self._exchange.output
        self._exchange.output = b""
