"""A blocking AMQP 1.0 client: one connection with as many links as wanted, for one thread.

Every call waits until the peer has answered, and no call waits for ever. Losing the connection
raises; a new one is for the caller to make. Knows AMQP, not Service Bus: what is sent to whom, and
which token opens it, is `servicebus.fast`'s to know.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from pairbus.amqp.client.errors import ClientError, ConnectionLost, LinkLost, PeerSilent
from pairbus.amqp.client.frames import HEARTBEAT
from pairbus.amqp.client.links import Link, Make, ReceiverLink, SenderLink, Settlement, Ticket
from pairbus.amqp.client.protocol import Core
from pairbus.amqp.client.session import Session
from pairbus.amqp.client.transport import Line
from pairbus.amqp.frames import FrameError
from pairbus.amqp.outcomes import AmqpError, Outcome
from pairbus.amqp.sasl import SaslClient

__all__ = [
    "ClientError",
    "Connection",
    "ConnectionLost",
    "LinkLost",
    "PeerSilent",
    "ReceiverLink",
    "SenderLink",
    "Settlement",
    "Ticket",
]

_FAREWELL_SECONDS: Final = 2.0
_BEAT_SECONDS_MIN: Final = 0.1
_now = time.monotonic


class Connection:
    """Made by `open`; until `is_over`. Only `cut` may be called from another thread."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        hostname: str | None = None,
        tls: ssl.SSLContext | None = None,
        sasl: SaslClient | None = None,
        container_id: str | None = None,
        properties: Mapping[str, Any] | None = None,
        silence_seconds: float = 60.0,
    ) -> None:
        """`silence_seconds`: the peer is asked to say something twice in that time, and is given up
        if it does not."""
        self.host = host
        self.port = port
        self.upkeep: Callable[[], float] | None = None
        """Called while waiting, answers when (monotonic) it wants to be called again."""
        self._tls = tls
        self._silence_seconds = silence_seconds
        self._core = Core(
            container_id=container_id or f"pairbus-{uuid4()}",
            hostname=hostname or host,
            sasl=sasl or SaslClient(hostname=hostname or host),
            idle_timeout_ms=max(1000, int(silence_seconds * 500)),
            properties=properties,
        )
        self._line: Line | None = None
        self._heard = self._spoke = 0.0
        self._common: Session | None = None

    @property
    def is_over(self) -> bool:
        return self._line is None or self._core.is_over

    # -- its life ---------------------------------------------------------------------------

    def open(self, seconds: float) -> None:
        begun = _now()
        try:
            line = Line(self.host, self.port, tls=self._tls, server_name=self.host, seconds=seconds)
        except OSError as error:
            said = f"no connection to {self.host}:{self.port}: {error}"
            raise ConnectionLost(said) from error
        self._line = line
        self._heard = self._spoke = _now()
        try:
            self.wait(lambda: self._core.opened, begun + seconds, "the connection to be opened")
        except BaseException:
            self.drop()
            raise

    def close(self, seconds: float = _FAREWELL_SECONDS) -> None:
        """Say goodbye and wait a little for the answer. Never raises."""
        if not self.is_over:
            self._core.close()
            with contextlib.suppress(ClientError):
                self.wait(lambda: self._core.is_over, _now() + seconds, "the goodbye")
        self.drop()

    def drop(self, error: AmqpError | None = None) -> None:
        """Without a word."""
        self._core.end(error)
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def cut(self) -> None:
        """From any thread: whoever waits on this connection is told that it is lost."""
        line = self._line
        if line is not None:
            line.cut()

    # -- waiting ----------------------------------------------------------------------------

    def wait(self, done: Callable[[], object], until: float, what: str) -> None:
        """Exchange bytes until `done()`; raises PeerSilent when `until` (monotonic) has come."""
        begun = _now()
        if not self.wait_quietly(done, until):
            raise PeerSilent(
                f"{self.host}:{self.port} did not answer within {until - begun:.1f} s: "
                f"waited for {what}"
            )

    def wait_quietly(self, done: Callable[[], object], until: float) -> bool:
        """The same, and False in place of PeerSilent."""
        since = _now()
        while not done():
            now = _now()
            if now >= until:
                self.turn(0.0)  # what has come in the last moment counts
                return bool(done())
            due = min(until, self._next_duty(now, since))
            self.turn(max(due - _now(), 0.0))  # by now: upkeep may have taken its time
        return True

    def turn(self, seconds: float) -> None:
        """Exchange bytes once, waiting up to so long for some."""
        line, core = self._line, self._core
        if line is None:
            raise ConnectionLost(f"the connection to {self.host}:{self.port} is over", core.error)
        if core.out:
            line.put(core.out[0] if len(core.out) == 1 else b"".join(core.out))
            core.out.clear()
            self._spoke = _now()
        try:
            data = line.exchange(seconds)
        except OSError as error:
            self.drop()
            said = f"the connection to {self.host}:{self.port} is lost: {error}"
            raise ConnectionLost(said) from error
        if data:
            self._heard = _now()
            core.receive(data)
            if core.is_over and not core.closing:
                self._last_words(line)
                self.drop()
                said = f"the connection to {self.host}:{self.port} was ended"
                raise ConnectionLost(said, core.error)

    def flush(self, until: float) -> None:
        """Until all that was said is the system's to deliver, whatever becomes of us."""
        self.turn(0.0)
        line = self._line
        assert line is not None
        while line.has_output and line is self._line:
            if _now() >= until:
                raise PeerSilent(f"{self.host}:{self.port} takes nothing more")
            self.turn(max(until - _now(), 0.0))

    def _last_words(self, line: Line) -> None:
        if self._core.out:
            line.put(b"".join(self._core.out))
            with contextlib.suppress(OSError):
                line.exchange(0.0)

    def _next_duty(self, now: float, since: float) -> float:
        """When something must be done although nothing came: a heartbeat, giving up, upkeep."""
        core = self._core
        silent_until = max(self._heard, since) + self._silence_seconds
        if now >= silent_until:
            said = f"{self.host}:{self.port} has been silent for {self._silence_seconds:.0f} s"
            self.drop(AmqpError("amqp:resource-limit-exceeded", said))
            raise ConnectionLost(said)
        due = silent_until
        if core.remote_idle_ms > 0:
            # A peer may ask for a heartbeat every millisecond; it will not get that.
            beat = self._spoke + max(core.remote_idle_ms / 2000, _BEAT_SECONDS_MIN)
            if now >= beat:
                core.write(HEARTBEAT)
                return now
            due = min(due, beat)
        if self.upkeep is not None and core.opened and not core.closing:
            due = min(due, self.upkeep())
        return due

    # -- links ------------------------------------------------------------------------------

    def session(self, *, common: bool = False) -> Session:
        """A new one, or the one that requests share."""
        if self.is_over:
            raise ConnectionLost(f"the connection to {self.host}:{self.port} is over")
        if common and self._common is not None and not self._common.is_over:
            return self._common
        try:
            session = self._core.begin(is_shared=common)
        except FrameError as error:
            raise LinkLost(str(error), error.error) from error
        if common:
            self._common = session
        return session

    def attach_sender(
        self, target: str, *, until: float, session: Session | None = None, **settings: Any
    ) -> SenderLink:
        link = (session or self.session()).attach_sender(target, **settings)
        self.attached(link, until, f"a link to {target!r}")
        return link

    def attach_receiver(
        self,
        source: str,
        make: Make,
        *,
        until: float,
        session: Session | None = None,
        **settings: Any,
    ) -> ReceiverLink:
        link = (session or self.session()).attach_receiver(source, make, **settings)
        self.attached(link, until, f"a link from {source!r}")
        return link

    def attached(self, link: Link, until: float, what: str) -> None:
        """Wait until the peer has agreed to a link that a session was asked for."""
        try:
            self.wait(lambda: link.attached or link.is_over, until, what)
        except PeerSilent:
            link.detach()
            raise
        if not link.attached:
            raise LinkLost(f"{what} was refused", link.error)

    def detach(self, link: Link, until: float) -> None:
        """For good, with the session if nothing else is on it; the peer has answered then."""
        session = link.session
        if self.is_over or session.is_over:
            return
        link.detach()
        self.wait(
            lambda: link.handle not in session.links or session.is_over,
            until,
            f"link {link.name!r} to be detached",
        )

    # -- messages ---------------------------------------------------------------------------

    def settle(
        self, link: ReceiverLink, ids: Sequence[int], outcome: Outcome, *, until: float
    ) -> dict[int, AmqpError]:
        """Say what became of deliveries, in ascending order, and wait for the answers.

        Answers which of them were refused, with the reason. Raises if the answer did not come: then
        nobody knows.
        """
        return self.settled(link, self.begin_settling(link, ids, outcome), until=until)

    def begin_settling(
        self, link: ReceiverLink, ids: Sequence[int], outcome: Outcome
    ) -> Settlement:
        """The same without waiting: `settled` does that. It may not have left yet: see `flush`."""
        link.check()
        return link.settle(ids, outcome, two_phase=True)

    def settled(
        self, link: ReceiverLink, settlement: Settlement, *, until: float
    ) -> dict[int, AmqpError]:
        """Wait for the answers to what was begun."""
        if settlement.left:
            self.wait(lambda: not settlement.left or link.is_over, until, "settlements")
            if settlement.left:
                link.check()
        return settlement.refusals
