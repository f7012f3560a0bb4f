"""Receiving from one entity: messages as bytes, taken in bulk and settled in ranges."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Self
from uuid import uuid4

from azure.servicebus.exceptions import ServiceBusError

from pairbus.amqp.client import ClientError, Connection, ReceiverLink
from pairbus.amqp.outcomes import ACCEPTED, RELEASED, AmqpError, Outcome, modified, rejected
from pairbus.servicebus.fast.errors import SettleFailed, of_message
from pairbus.servicebus.fast.management import Disposition
from pairbus.servicebus.fast.received import Received

if TYPE_CHECKING:
    from pairbus.servicebus.fast.client import FastClient

_ABANDONED: Final = modified(failed=True)
_DRAIN_SECONDS: Final = 5.0


class Receiver:
    def __init__(self, client: FastClient, path: str, *, credit: int, mode: str) -> None:
        if credit < 1:
            raise ValueError(f"a credit of {credit} for {path!r}: at least 1 is needed")
        if mode not in ("peekLock", "receiveAndDelete"):
            raise ValueError(f"mode {mode!r}: peekLock or receiveAndDelete is expected")
        self.path = path
        self._client = client
        self._credit = credit
        self._deletes = mode == "receiveAndDelete"
        self._connection: Connection | None = None
        self._link: ReceiverLink | None = None
        self._left: list[Received] = []  # of a link that was lost: locked, and still ours
        self._closed = False

    def __repr__(self) -> str:
        return f"<Receiver {self.path!r} of {self._client.namespace}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- receiving --------------------------------------------------------------------------

    def receive(self, max_count: int, *, max_wait_seconds: float) -> list[Received]:
        """Wait for the first, then take what is there; nothing, if none came in time."""
        if self._left:
            taken, self._left = self._left[:max_count], self._left[max_count:]
            return taken
        until = time.monotonic() + max_wait_seconds
        with self._client.telling(f"receiving from {self.path!r}"):
            link = self._attached()
            connection = self._connection
            assert connection is not None
            self._top_up(link)
            if len(link.inbox) < max_count:
                connection.turn(0.0)
            if not link.inbox:
                connection.wait_quietly(lambda: link.inbox or link.is_over, until)
                if not link.inbox:
                    connection.check(link)
                    return []
            inbox = link.inbox
            if len(inbox) <= max_count:
                link.inbox = []
                taken = inbox
            else:
                taken = inbox[:max_count]
                del inbox[:max_count]
            self._top_up(link)
            return taken

    def _top_up(self, link: ReceiverLink) -> None:
        """In bulk: a flow for each message would be a cost of its own."""
        if not link.is_over:
            room = self._credit - len(link.inbox)
            if room - link.credit >= max(1, self._credit // 4):
                link.grant(room)

    def _attached(self) -> ReceiverLink:
        if self._closed:
            raise ValueError(f"the receiver of {self.path!r} is closed")
        link = self._link
        if link is not None and link.alive and not (self._connection and self._connection.is_over):
            return link
        if link is not None and link.inbox:
            self._left, link.inbox = link.inbox, []
        self._link = None
        client = self._client
        self._connection = connection = client.authorized(self.path)
        self._link = link = connection.attach_receiver(
            client.address(self.path),
            Received,
            until=client.until(),
            snd_settle_mode=1 if self._deletes else 0,
            rcv_settle_mode=0 if self._deletes else 1,
            properties={"com.microsoft:receiver-name": f"pairbus-{uuid4()}"},
        )
        return link

    # -- settling ---------------------------------------------------------------------------

    def complete(self, received: Sequence[Received]) -> None:
        self._settle(received, ACCEPTED, "completed")

    def abandon(self, received: Sequence[Received]) -> None:
        self._settle(received, _ABANDONED, "abandoned")

    def dead_letter(
        self, received: Sequence[Received], *, reason: str, description: str = ""
    ) -> None:
        info = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        outcome = rejected(AmqpError("com.microsoft:dead-letter", description, info))
        self._settle(received, outcome, "suspended", reason=reason, description=description)

    def _settle(
        self,
        received: Sequence[Received],
        outcome: Outcome,
        status: Disposition,
        *,
        reason: str = "",
        description: str = "",
    ) -> None:
        """On the link that they came by, in one go; by their tokens, if that is gone."""
        if self._deletes:
            raise ValueError(f"{self.path!r} is received with receiveAndDelete: nothing to settle")
        link, failed = self._link, []
        if link is not None and not link.alive:
            link = None
        here = [one.delivery_id for one in received if one.link is link] if link else []
        if here and link is not None:
            here.sort()
            connection = self._connection
            assert connection is not None
            with self._client.telling(f"settling messages of {self.path!r}"):
                refused = connection.settle(link, here, outcome, until=self._client.until())
            if refused:
                failed = [
                    (one, of_message(refused[one.delivery_id], f"settling of {self.path!r}"))
                    for one in received
                    if one.link is link and one.delivery_id in refused
                ]
        if len(here) < len(received):
            elsewhere = [one for one in received if link is None or one.link is not link]
            failed += self._client.management(self.path).settle_each(
                elsewhere, status, reason=reason, description=description
            )
        if failed:
            raise SettleFailed(self.path, failed)

    # -- its end ----------------------------------------------------------------------------

    def stop(self) -> list[Received]:
        """Take nothing more: credit is called back, and what waits here is released at once.

        With receiveAndDelete it cannot be given back: it is what this returns. The receiver can be
        used again; its next `receive` grants credit again.
        """
        left, self._left = self._left, []
        link, connection = self._link, self._connection
        if link is None or connection is None or not link.alive or connection.is_over:
            if link is not None:
                left += link.inbox
                link.inbox = []
            return self._gone(left)
        with self._client.telling(f"stopping to receive from {self.path!r}"):
            if link.credit:
                link.drain()
                until = time.monotonic() + min(_DRAIN_SECONDS, self._client.timeout_seconds)
                connection.wait_quietly(lambda: not link.credit or link.is_over, until)
            inbox, link.inbox = link.inbox, []
            if self._deletes:
                return left + inbox
            if inbox and not link.is_over:
                ids = sorted(one.delivery_id for one in inbox)
                link.settle(ids, RELEASED, two_phase=False)
                connection.turn(0.0)
        return self._gone(left)

    def _gone(self, left: list[Received]) -> list[Received]:
        """Of links that are lost: no word can be said there any more, so by token."""
        if self._deletes or not left:
            return left
        self._client.management(self.path).settle_each(left, "abandoned")
        return []

    def close(self) -> list[Received]:
        """`stop`, and detach. Never raises: whatever is lost then, its locks will run out."""
        if self._closed:
            return []
        left: list[Received] = []
        try:
            left = self.stop()
            if self._link is not None and self._connection is not None:
                self._connection.detach(self._link, self._client.until())
        except (ClientError, ServiceBusError):
            pass
        self._closed = True
        self._link = None
        return left
