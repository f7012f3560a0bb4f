"""The SASL exchange that opens an AMQP connection, in both roles.

Our own few lines and not Proton's, because Proton knows no MSSBCBS, the mechanism by which .NET
announces that its token will come over $cbs. Only mechanisms of one step are spoken: no challenges.
Who is let in, the caller decides. `SaslServer` and `SaslClient` are settings and may be shared by
many connections; what one connection has got to is in an exchange.
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

MECHANISMS, INIT, CHALLENGE, RESPONSE, OUTCOME = range(0x40, 0x45)
OK: Final = 0
BAD_CREDENTIALS: Final = 1
_FRAME_SIZE_MAX: Final = 4096
"""The standard says 512; tokens as passwords are longer."""

Authenticate = Callable[[str, str, str], bool]
"""Mechanism, user, password -> may it come in?"""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the peer said it was; the password was checked and is not kept."""

    mechanism: str
    user: str


@dataclass(frozen=True, slots=True)
class SaslServer:
    authenticate: Authenticate | None = None
    """Asked for every mechanism. None lets everybody in but offers no PLAIN: an unchecked password
    would be a lie to who sent it."""

    mechanisms: Sequence[str] = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
    required: bool = False
    """Whether a client that skips SASL is sent away."""

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
    """Header and frames in, frames out; `done` once the AMQP stream may begin."""

    __slots__ = ("_buffer", "_header_seen", "done", "failure", "identity", "output")

    def __init__(self) -> None:
        self._buffer = b""
        self._header_seen = False
        self.output = b""
        self.done = False
        self.failure: str | None = None
        self.identity: Identity | None = None

    def receive(self, data: bytes) -> bytes:
        """Consume what belongs to SASL, return the rest. Raises FrameError on garbage."""
        self._buffer += data
        if not self._header_seen:
            if len(self._buffer) < 8:
                return b""
            if self._buffer[:8] != SASL_HEADER:
                raise FrameError("amqp:connection:framing-error", "no SASL header")
            self._buffer = self._buffer[8:]
            self._header_seen = True
            self._greeted()
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

    def _greeted(self) -> None:
        raise NotImplementedError

    def _frame(self, code: int, fields: list[Any]) -> None:
        raise NotImplementedError


class ServerExchange(_Exchange):
    __slots__ = ("_settings",)

    def __init__(self, settings: SaslServer) -> None:
        super().__init__()
        self._settings = settings

    def _greeted(self) -> None:
        self.output += SASL_HEADER
        self._send(MECHANISMS, [Array([Symbol(name) for name in self._settings.offered])])

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
        super().__init__()
        self._settings = settings
        self.output = SASL_HEADER

    def _greeted(self) -> None:
        pass

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


__all__ = [
    "AMQP_HEADER",
    "ClientExchange",
    "Identity",
    "SaslClient",
    "SaslServer",
    "ServerExchange",
]
