"""What links need of their connection.

A link asks its connection through `LinkHost` and never imports it, so that links and connection can
be read and changed independently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pairbus.amqp.engine import Link, Session
from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.links.paths import Path
from pairbus.broker.links.tokens import Credentials, Grant, TokenRefused
from pairbus.broker.namespace import Namespace


class LinkHost(Protocol):
    """A connection, as its links see it."""

    namespace: Namespace
    credentials: Credentials
    is_congested: bool
    """The client reads more slowly than it is sent to; it gets no more messages for now."""

    def has_output(self) -> None:
        """The link has written something: flush at the end of this turn."""

    def count_output(self, size_bytes: int, path: Path) -> None:
        """Messages of the entity were written."""

    def hold(self, size_bytes: int) -> None:
        """A received message waits for the disk, or a request for its turn."""

    def release(self, size_bytes: int) -> None:
        """It waits no longer."""

    def deliveries_max(self, path: Path) -> int:
        """How many messages may be delivered before `count_output`. 0 while a fault on demand holds
        the entity's messages back.
        """

    def add_grant(self, path: Path, grant: Grant) -> None:
        """The client has shown a valid token for the path."""

    def token_refused(self, refused: TokenRefused, path: Path) -> None:
        """Log it, and slow a client down whose address sends many bad tokens."""

    def log_refusal(
        self, reason: str, path: Path, policy: str | None = None, *, is_missing: bool = False
    ) -> None:
        """Log that the client was refused. By default, the policy is that of its token.
        `is_missing`: the path leads to no entity.
        """

    def queue_request(self, handle: Callable[[int], None]) -> None:
        """Call `handle(now_ms)` in a separate turn of the event loop."""

    def send_reply(self, data: bytes, path: Path, reply_to: str | None, session: Session) -> None:
        """On the link that the client attached for replies; without one, the reply is lost."""

    def end(self, link: Link, error: AmqpError) -> None:
        """Refuse or close the link with an error, and forget it: its owner's `closed` is called."""

    def cut(self) -> None:
        """Reset the connection. Nothing that is still unsent leaves."""
