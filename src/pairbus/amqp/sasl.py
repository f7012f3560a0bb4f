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


class Handshake:
    """`done` when both sides may send AMQP; `failure` if the handshake failed."""

    def __init__(self, sasl: SaslServer | SaslClient | None) -> None:
        self._sasl = sasl
        self._buffer = b""
        self._awaits_header = True
        self.speaking_sasl = isinstance(sasl, SaslClient)
        """During SASL, a client must not send AMQP."""
        self.output = SASL_HEADER if self.speaking_sasl else b""
        self.done = False
        self.failure: AmqpError | None = None
        self._is_accepted = False

    def take_output(self) -> bytes:
        output, self.output = self.output, b""
        return output

    def receive(self, data: bytes) -> bytes:
        """The bytes that follow the AMQP header, once there are some. Never raises."""
        self._buffer += data
        try:
            while self.failure is None and not self.done:
                if not (self._read_header() if self._awaits_header else self._read_frame()):
                    return b""
        except FrameError as error:
            self.failure = error.error
        if not self.done:
            return b""
        rest, self._buffer = self._buffer, b""
        return rest

    # -- protocol headers -----------------------------------------------------------------------

    def _read_header(self) -> bool:
        """Returns False if not all of it has arrived."""
        header = self._buffer[:8]
        # Checked byte by byte, so that a peer with another protocol gets an answer before it has
        # sent eight bytes.
        is_amqp = header[:4] == b"AMQP"[: len(header)]
        if is_amqp and len(header) < 8:
            return False
        self._buffer = self._buffer[8:]
        if header == AMQP_HEADER and not self.speaking_sasl:
            self.done = True
        elif header == SASL_HEADER and self._may_speak_sasl():
            self._awaits_header = False
        else:
            raise self._wrong_header(header, is_amqp=is_amqp)
        return True

    def _may_speak_sasl(self) -> bool:
        if isinstance(self._sasl, SaslServer) and not self._is_accepted:
            self.speaking_sasl = True
            self.output += SASL_HEADER
            self._send(MECHANISMS, [Array([Symbol(name) for name in self._sasl.offered])])
        return self.speaking_sasl

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

    # -- SASL frames ----------------------------------------------------------------------------

    def _read_frame(self) -> bool:
        """Returns False if not all of it has arrived."""
        if len(self._buffer) < 8:
            return False
        size, offset, kind = struct.unpack_from(">IBB", self._buffer)
        if not 8 <= offset * 4 <= size <= _FRAME_SIZE_MAX or kind != 1:
            raise FrameError(
                "amqp:connection:framing-error",
                f"a SASL frame of type {kind} and {size} bytes; "
                f"type 1 and up to {_FRAME_SIZE_MAX} bytes are expected",
            )
        if len(self._buffer) < size:
            return False
        body, self._buffer = self._buffer[offset * 4 : size], self._buffer[size:]
        try:
            code, fields = decode_performative(body)
        except ValueError as error:
            raise FrameError("amqp:decode-error", f"an unreadable SASL frame: {error}") from error
        if isinstance(self._sasl, SaslServer):
            self._answer_client(self._sasl, code, fields)
        elif isinstance(self._sasl, SaslClient):
            self._answer_server(self._sasl, code, fields)
        return True

    def _send(self, code: int, fields: list[Any]) -> None:
        self.output += encode_frame(code, fields, kind=1)

    def _answer_client(self, settings: SaslServer, code: int, fields: list[Any]) -> None:
        if code != INIT or not fields or not isinstance(fields[0], str):
            raise FrameError("amqp:not-allowed", "sasl-init with a mechanism was expected")
        mechanism = str(fields[0])
        response = fields[1] if len(fields) > 1 and isinstance(fields[1], bytes) else b""
        user, password = _credentials(mechanism, response)
        ask = settings.authenticate
        if mechanism not in settings.offered or user is None:
            self._refuse(f"the mechanism {mechanism} is not offered, or its response is malformed")
        elif ask is None or ask(mechanism, user, password):
            self._succeed()
        else:
            self._refuse(f"{mechanism} credentials of {user!r} were refused")
        self._send(OUTCOME, [UByte(OK if self.failure is None else BAD_CREDENTIALS)])

    def _answer_server(self, settings: SaslClient, code: int, fields: list[Any]) -> None:
        if code == MECHANISMS:
            offered = fields[0] if fields else None
            names = [str(name) for name in (offered if isinstance(offered, list) else [offered])]
            if settings.mechanism not in names:
                self._refuse(f"the server offers {', '.join(names)}, not {settings.mechanism}")
                return
            init = [Symbol(settings.mechanism), settings.initial_response, settings.hostname]
            self._send(INIT, init)
        elif code != OUTCOME:
            self._refuse(f"the server sent SASL frame 0x{code:x}, which needs more than one step")
        elif fields and fields[0] == OK:
            self._succeed()
        else:
            self._refuse(f"the server refused {settings.mechanism} of {settings.user!r}")

    def _succeed(self) -> None:
        """The AMQP header comes next."""
        self._is_accepted = True
        self.speaking_sasl = False
        self._awaits_header = True

    def _refuse(self, reason: str) -> None:
        self.failure = AmqpError("amqp:unauthorized-access", reason)


def _credentials(mechanism: str, response: bytes) -> tuple[str | None, str]:
    """User and password; no user at all when the response is malformed."""
    try:
        if mechanism != "PLAIN":
            return response.decode(), ""
        _, user, password = response.decode().split("\0")  # RFC 4616
    except ValueError:  # not UTF-8, or not three parts
        return None, ""
    return user, password
