"""What is spoken before the first AMQP frame: protocol headers and SASL, in both roles.

Takes bytes until the AMQP stream begins, then hands back what follows the peer's AMQP header. A
peer that asks for a protocol we do not speak gets the header of the one we do, as part 2.2 of the
standard wants it, and nothing else.
"""

from __future__ import annotations

from typing import Final

from pairbus.amqp.frames import AMQP_HEADER, SASL_HEADER, FrameError
from pairbus.amqp.outcomes import AmqpError
from pairbus.amqp.sasl import ClientExchange, Identity, SaslClient, SaslServer, ServerExchange

_NAMES: Final = {0: "AMQP", 2: "AMQP over TLS", 3: "AMQP with SASL"}


class Handshake:
    """`done` when both may speak AMQP; `failure` when they never will."""

    __slots__ = ("_exchange", "_header", "_sasl", "done", "failure", "identity", "output")

    def __init__(self, sasl: SaslServer | SaslClient | None) -> None:
        self._sasl = sasl
        self._header = b""
        self._exchange: ServerExchange | ClientExchange | None = None
        self.output = b""
        self.done = False
        self.failure: AmqpError | None = None
        self.identity: Identity | None = None
        if isinstance(sasl, SaslClient):
            self._exchange = ClientExchange(sasl)
            self.output = self._exchange.output
            self._exchange.output = b""

    def take_output(self) -> bytes:
        output, self.output = self.output, b""
        return output

    @property
    def speaking_sasl(self) -> bool:
        """While SASL goes on, a client must not send AMQP."""
        return self._exchange is not None

    def receive(self, data: bytes) -> bytes:
        """The bytes that follow the AMQP header, once there are some. Never raises."""
        try:
            while data and not self.done and self.failure is None:
                data = self._negotiate(data) if self._exchange else self._read_header(data)
        except FrameError as error:
            self.failure = error.error
        return data if self.done else b""

    def _negotiate(self, data: bytes) -> bytes:
        exchange = self._exchange
        assert exchange is not None
        rest = exchange.receive(data)
        self.output += exchange.output
        exchange.output = b""
        if exchange.failure is not None:
            self.failure = AmqpError("amqp:unauthorized-access", exchange.failure)
        elif exchange.done:
            self.identity = exchange.identity
            self._exchange = None
        return rest

    def _read_header(self, data: bytes) -> bytes:
        self._header += data
        # Judged byte by byte, so that a peer of another protocol need not send eight to be told.
        known = self._header[:4] == b"AMQP"[: len(self._header)]
        if known and len(self._header) < 8:
            return b""
        header, rest = self._header[:8], self._header[8:]
        if header == AMQP_HEADER and not self._must_authenticate:
            self.done = True
            return rest
        if header == SASL_HEADER and isinstance(self._sasl, SaslServer) and not self.identity:
            self._exchange = ServerExchange(self._sasl)
            self._header = b""
            return header + rest
        wanted = SASL_HEADER if isinstance(self._sasl, SaslServer) else AMQP_HEADER
        self.output += wanted
        asked = _NAMES.get(header[4], header.hex(" ")) if known else repr(header)
        raise FrameError(
            "amqp:connection:framing-error",
            f"the peer asked for {asked}; this is {_NAMES[wanted[4]]}",
        )

    @property
    def _must_authenticate(self) -> bool:
        return isinstance(self._sasl, SaslServer) and self._sasl.required and not self.identity
