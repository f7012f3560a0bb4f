"""A blocking AMQP 1.0 client: one connection with any number of links, for one thread.

Each call waits until the peer has answered, and no call waits forever. A lost connection raises,
and the caller makes a new one. This module knows AMQP but not Service Bus: the caller handles
entities and tokens.
"""

from __future__ import annotations

import contextlib
import math
import select
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from pairbus.amqp.client.links import (
    ClientError,
    ClientLink,
    ClientReceiverLink,
    ClientSenderLink,
    ConnectionLost,
    LinkLost,
    MessageFactory,
    PeerSilent,
)
from pairbus.amqp.client.protocol import ClientProtocol
from pairbus.amqp.client.transport import Transport
from pairbus.amqp.engine import Delivery, SettlementGroup
from pairbus.amqp.frames import FrameError
from pairbus.amqp.outcomes import AmqpError, Outcome
from pairbus.amqp.sasl import SaslClient

__all__ = [
    "ClientError",
    "Connection",
    "ConnectionLost",
    "Delivery",
    "LinkLost",
    "PeerSilent",
    "ClientReceiverLink",
    "ClientSenderLink",
    "SettlementGroup",
]

_CLOSE_SECONDS: Final = 2.0
_now = time.monotonic


class Connection:
    """Starts with `open` and ends with `is_over`. Other threads may call only `interrupt`."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        sasl: SaslClient | None = None,
        properties: Mapping[str, Any] | None = None,
        silence_seconds: float = 60.0,
    ) -> None:
        """`silence_seconds`: the peer is asked to send something twice in this time. If nothing
        comes, the connection is closed.
        """
        self.host = host
        self.port = port
        self.upkeep: Callable[[], float] | None = None
        """Called while waiting. Returns the time (monotonic) of its next call."""
        self.loss: ConnectionLost | None = None
        """Why the connection has ended, if it was not closed here."""
        self._tls = tls
        self._silence_seconds = silence_seconds
        self._checked_at = -math.inf
        self._is_closing = False
        self._protocol = ClientProtocol(
            container_id=f"pairbus-{uuid4()}",
            hostname=host,
            sasl=sasl or SaslClient(hostname=host),
            idle_timeout_ms=max(1, int(silence_seconds * 1000)),
            properties=properties,
        )
        self._transport: Transport | None = None

    @property
    def is_over(self) -> bool:
        return self._transport is None or self._protocol.is_over

    # -- opening and closing ----------------------------------------------------------------

    def open(self, seconds: float, *, early: Callable[[], object] | None = None) -> None:
        """`early` may start links. They are asked for together with the connection, which saves a
        round trip.
        """
        begun = _now()
        try:
            self._transport = Transport(
                self.host, self.port, tls=self._tls, server_name=self.host, seconds=seconds
            )
        except OSError as error:
            said = f"no connection to {self.host}:{self.port}: {error}"
            raise ConnectionLost(said) from error
        try:
            if early is not None:
                early()
            self.wait(lambda: self._protocol.opened, begun + seconds, "the connection to be opened")
        except BaseException:
            self.abort()
            raise

    def close(self, seconds: float = _CLOSE_SECONDS) -> None:
        """Close it, and wait a little for the peer's answer. Never raises."""
        if not self.is_over:
            self._is_closing = True
            self._protocol.close()
            with contextlib.suppress(ClientError):
                self.wait(lambda: self._protocol.is_over, _now() + seconds, "the peer's close")
        self.abort()

    def abort(self) -> None:
        """Drop the connection without notifying the peer."""
        self._protocol.abort()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def interrupt(self) -> None:
        """Make a waiting call on this connection raise ConnectionLost. Safe to call from any
        thread.
        """
        transport = self._transport
        if transport is not None:
            transport.interrupt()

    # -- waiting ----------------------------------------------------------------------------

    def wait(self, done: Callable[[], object], until: float, what: str) -> None:
        """Exchange bytes until `done()`. Raises PeerSilent at the time `until` (monotonic)."""
        begun = _now()
        if not self.wait_quietly(done, until):
            seconds = until - begun  # below 0 if earlier waits have used up the time
            when = f"within {seconds:.1f} s" if seconds > 0 else "in time"
            raise PeerSilent(f"{self.host}:{self.port} did not answer {when}: waited for {what}")

    def wait_quietly(self, done: Callable[[], object], until: float) -> bool:
        """Like `wait`, but returns False instead of raising PeerSilent."""
        while not done():
            now = _now()
            due = min(until, self._next_deadline(now))  # heartbeats: also for one that never waits
            if now >= until:
                self.exchange(0.0)  # count what arrived in the last moment
                return bool(done())
            self.exchange(max(due - _now(), 0.0))  # read the time again: upkeep may have taken long
        return True

    def exchange(self, seconds: float) -> bool:
        """Send all pending output, and wait up to `seconds` for bytes from the peer.

        Returns whether some came.
        """
        transport, protocol = self._transport, self._protocol
        if transport is None:
            said = f"the connection to {self.host}:{self.port} is over"
            raise ConnectionLost(said, protocol.error)
        if output := protocol.engine.data_to_send():
            transport.write(output)
        try:
            data = transport.exchange(seconds)
        except OSError as error:
            self.abort()
            said = f"the connection to {self.host}:{self.port} is lost: {error}"
            self.loss = ConnectionLost(said)
            raise self.loss from error
        if data:
            protocol.receive(data)
            if protocol.is_over and not self._is_closing:
                self._flush_close()
                said = f"the connection to {self.host}:{self.port} was ended"
                self.loss = ConnectionLost(said, protocol.error)
                raise self.loss
        return bool(data)

    def _flush_close(self) -> None:
        """The engine has ended the connection. Send the peer the reason, if it still reads."""
        transport, output = self._transport, self._protocol.engine.data_to_send()
        if transport is not None and output:
            transport.write(output)
            with contextlib.suppress(OSError):
                transport.exchange(0.0)
        self.abort()

    def flush(self, until: float) -> None:
        """Wait until the operating system has all output. Then it is sent even if this process
        dies.
        """
        self.exchange(0.0)
        transport = self._transport
        assert transport is not None
        while transport.has_output and transport is self._transport:
            if _now() >= until:
                raise PeerSilent(f"{self.host}:{self.port} reads nothing more")
            self.exchange(max(until - _now(), 0.0))

    def _next_deadline(self, now: float) -> float:
        """The time of the next heartbeat, of the idle time-out, or of upkeep."""
        protocol = self._protocol
        # If nobody has read for a while, read first: what has come in the meantime is no silence.
        # To restart the time-out instead would make it useless for a caller whose waits are short.
        was_away = now - self._checked_at > self._silence_seconds / 4
        self._checked_at = now
        if was_away:
            self.exchange(0.0)
        due = protocol.engine.tick(now=now)
        if protocol.is_over and not self._is_closing:
            said = f"{self.host}:{self.port} has been silent for {self._silence_seconds:g} s"
            self._flush_close()
            self.loss = ConnectionLost(said)
            raise self.loss
        if due is None:
            due = now + self._silence_seconds
        if self.upkeep is not None and protocol.opened and not self._is_closing:
            due = min(due, self.upkeep())
        return now if was_away else due  # what is awaited may have come

    # -- links ------------------------------------------------------------------------------

    def start_sender(self, target: str, **settings: Any) -> ClientSenderLink:
        """Ask for a link to send on; `attached` waits for it. Settings: see `ClientProtocol`."""
        self._check()
        try:
            return self._protocol.start_sender(target, **settings)
        except FrameError as error:
            raise LinkLost(str(error), error.error) from error

    def start_receiver(
        self, source: str, make: MessageFactory, **settings: Any
    ) -> ClientReceiverLink:
        """Ask for a link to receive on. What `make` returns for each message is in its `inbox`."""
        self._check()
        try:
            return self._protocol.start_receiver(source, make, **settings)
        except FrameError as error:
            raise LinkLost(str(error), error.error) from error

    def _check(self) -> None:
        if self.is_over:
            raise ConnectionLost(f"the connection to {self.host}:{self.port} is over")

    def attach_sender(self, target: str, *, until: float, **settings: Any) -> ClientSenderLink:
        link = self.start_sender(target, **settings)
        self.attached(link, until, f"a link to {target!r}")
        return link

    def attach_receiver(
        self, source: str, make: MessageFactory, *, until: float, **settings: Any
    ) -> ClientReceiverLink:
        link = self.start_receiver(source, make, **settings)
        self.attached(link, until, f"a link from {source!r}")
        return link

    def attached(self, link: ClientLink, until: float, what: str) -> None:
        """Wait until the peer has accepted a requested link."""
        try:
            self.wait(lambda: link.attached or link.is_over, until, what)
        except PeerSilent:
            link.detach()
            raise
        if not link.attached:
            raise LinkLost(f"{what} was refused", link.error)

    def detach(self, link: ClientLink, until: float) -> None:
        """Detach it for good, and wait for the peer's answer."""
        if self.is_over or link.is_detached:
            return
        link.detach()
        self.wait(lambda: link.is_detached, until, f"link {link.name!r} to be detached")

    # -- messages ---------------------------------------------------------------------------

    def begin_settling(
        self, link: ClientReceiverLink, ids: Sequence[int], outcome: Outcome
    ) -> SettlementGroup:
        """Settle deliveries, in ascending order. Call `flush` to be sure that it is sent, and
        `settled` to wait for the answers.
        """
        link.check()
        return link.settle(ids, outcome)

    def settled(
        self, link: ClientReceiverLink, settlement: SettlementGroup, *, until: float
    ) -> dict[int, AmqpError]:
        """Wait for the answers to a settlement. Returns those that the peer refused, with the
        reason. Raises if no answer came; then the result is unknown.
        """
        if settlement.left:
            self.wait(lambda: not settlement.left or link.is_over, until, "settlements")
            if settlement.left:
                link.check()
        return settlement.refusals


def wait_together(
    connections: Sequence[Connection], done: Callable[[], object], until: float
) -> bool:
    """Exchange bytes on several connections until `done()`. Returns False at the time `until`
    (monotonic), and when none of them is left.

    Never raises: a connection that is lost is over, and so are its links.
    """
    while True:
        has_news, due = False, until
        poll = select.poll()
        for one in connections:
            try:
                if not one.is_over:
                    due = min(due, one._next_deadline(_now()))
                    has_news |= one.exchange(0.0)
            except ClientError:
                has_news = True
            transport = one._transport
            if transport is not None:
                poll.register(transport.fileno(), transport.wanted)
        if done():
            return True
        now = _now()
        if now >= until or all(one.is_over for one in connections):
            return False
        if not has_news:
            poll.poll(max(due - now, 0.0) * 1000)
