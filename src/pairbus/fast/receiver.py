"""Receiving from one entity: messages as bytes, taken in bulk and settled in ranges."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Final
from uuid import uuid4

from azure.core.exceptions import AzureError
from azure.servicebus.exceptions import ServiceBusError

from pairbus.amqp.client.connection import ClientError, Connection, ConnectionLost, ReceiverLink
from pairbus.amqp.outcomes import ACCEPTED, RELEASED, AmqpError, Outcome, modified, rejected
from pairbus.fast.attachment import Attachment
from pairbus.fast.connection import FAREWELL_SECONDS, Access
from pairbus.fast.management import Disposition, Management
from pairbus.fast.message import Received
from pairbus.fast.settling import Settling

_ABANDONED: Final = modified(failed=True)
_MODES: Final = ("peekLock", "receiveAndDelete")


class Receiver(Attachment[ReceiverLink]):
    def __init__(
        self,
        access: Access,
        path: str,
        management: Management,
        *,
        credit: int,
        mode: str,
        at_most: int | None = None,
    ) -> None:
        super().__init__(access, path)
        if credit < 1:
            raise ValueError(f"a credit of {credit} for {path!r}: at least 1 is needed")
        if mode not in _MODES:
            raise ValueError(f"mode {mode!r} for {path!r}: {' or '.join(_MODES)} is expected")
        self._management = management
        self._credit = credit
        self._deletes = mode == "receiveAndDelete"
        self._at_most = at_most
        self._taken = 0
        self._asks_no_more = False
        self._left: list[Received] = []  # of a link that was lost: locked, and still ours

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def open(self) -> None:
        """Not needed: the first `receive` does that. Attaches, and asks for messages."""
        with self._access.telling(f"receiving from {self.path!r}"):
            connection, link = self._ready()
            self._top_up(link)
            connection.turn(0.0)

    # -- receiving --------------------------------------------------------------------------

    def receive(self, max_count: int, *, max_wait_seconds: float) -> list[Received]:
        """Wait for the first, then take what is there; nothing, if none came in time.

        What waited here when a link was lost comes first: its locks outlive the link.
        """
        if max_count < 1:
            raise ValueError(f"max_count is {max_count}, but must be at least 1")
        until = time.monotonic() + max_wait_seconds
        with self._access.telling(f"receiving from {self.path!r}"):
            self._look_after()
            if self._left:
                taken, self._left = self._left[:max_count], self._left[max_count:]
                self._taken += len(taken)
                return taken
            connection, link = self._ready()
            self._top_up(link)
            if len(link.inbox) < max_count:
                try:
                    connection.turn(0.0)
                except ConnectionLost:
                    if not link.inbox:  # else the next call will be told
                        raise
            if not link.inbox:
                connection.wait_quietly(lambda: link.inbox or link.is_over, until)
                if not link.inbox:
                    link.check()
                    return []
            taken = link.inbox
            if len(taken) <= max_count:
                link.inbox = []
            else:
                taken, link.inbox = taken[:max_count], taken[max_count:]
            self._taken += len(taken)
            self._top_up(link)
            return taken

    def ask_no_more(self) -> None:
        """Grant no more credit until `stop`: what was asked for comes, and nothing beyond it."""
        self._asks_no_more = True

    @property
    def has_asked(self) -> bool:
        """There is credit that the service has not used yet."""
        return self._link is not None and self._link.credit > 0

    def _top_up(self, link: ReceiverLink) -> None:
        """In bulk: a flow for each message would be a cost of its own."""
        if self._asks_no_more:
            return
        room, least = self._credit - len(link.inbox), max(1, self._credit // 4)
        if self._at_most is not None:
            left = self._at_most - self._taken - len(self._left) - len(link.inbox)
            room, least = min(room, left), least if link.credit else 1
        if room - link.credit >= least:
            link.grant(room)

    def _asked_for(self, connection: Connection) -> ReceiverLink:
        return connection.session().attach_receiver(
            self._access.address(self.path),
            _deleted if self._deletes else Received,
            snd_settle_mode=1 if self._deletes else 0,
            rcv_settle_mode=0 if self._deletes else 1,
            properties={"com.microsoft:receiver-name": f"pairbus-{uuid4()}"},
        )

    def _salvage(self) -> None:
        """Its locks outlive it."""
        link = self._link
        if link is not None and link.inbox:
            self._left, link.inbox = self._left + link.inbox, []

    # -- settling ---------------------------------------------------------------------------

    def complete(self, received: Sequence[Received]) -> None:
        """Returns when all are; SettleFailed tells which could not be.

        Of a call that raised anything else nobody knows: call it again, and it goes by lock token.
        The more consecutive the messages, the cheaper.
        """
        self.begin_completing(received).land()

    def begin_completing(self, received: Sequence[Received]) -> Settling:
        """The same without waiting: the answers are for `land`, which raises what `complete` does.

        When this returns, nothing that happens to this process keeps the service from hearing of
        it; except where their link is lost: then it is for `land` to say it.
        """
        return self._begin(received, ACCEPTED, "completed")

    def abandon(self, received: Sequence[Received]) -> None:
        """They can be had again at once, with one delivery more on their count. See `complete`."""
        self._begin(received, _ABANDONED, "abandoned").land()

    def release(self, received: Sequence[Received]) -> None:
        """They can be had again at once, as if they had not been lent. See `complete`."""
        self._begin(received, RELEASED, "abandoned").land()

    def dead_letter(
        self, received: Sequence[Received], *, reason: str, description: str = ""
    ) -> None:
        """All with the same reason. See `complete`."""
        info = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        outcome = rejected(AmqpError("com.microsoft:dead-letter", description, info))
        self._begin(received, outcome, "suspended", reason, description).land()

    def _begin(
        self,
        received: Sequence[Received],
        outcome: Outcome,
        status: Disposition,
        reason: str = "",
        description: str = "",
    ) -> Settling:
        """On the link that they came by; by their tokens, if that is gone."""
        if self._deletes:
            raise ValueError(f"{self!r} has nothing to settle: its mode is receiveAndDelete")
        here, elsewhere = received, list[Received]()
        alive = self._alive()
        if alive is None:
            here, elsewhere = [], list(received)
        elif any(one.link is not alive[1] for one in received):
            elsewhere = [one for one in received if one.link is not alive[1]]
            here = [one for one in received if one.link is alive[1]]

        def by_token() -> list[tuple[Received, ServiceBusError]]:
            return self._management.settle_each(elsewhere, status, reason, description)

        begun = Settling(
            self._access, self.path, here, by_token if elsewhere else None, self._has_settled
        )
        if here and alive is not None:
            begun.say(*alive, outcome)
        return begun

    def _has_settled(self, count: int) -> None:
        """The service has settled so many on the link: for who counts."""

    # -- its end ----------------------------------------------------------------------------

    def stop(self) -> list[Received]:
        """Take nothing more: credit is called back, and what waits here is released at once.

        Its delivery count stays as it is. With receiveAndDelete it cannot be given back: it is what
        this returns. The next `receive` begins again. Never raises for the service's troubles: if
        it cannot be told, the locks run out by themselves.
        """
        return stop_all([self])

    def _stopped(self) -> list[Received]:
        """Credit was called back: give back what waits here."""
        self._asks_no_more = False
        waiting, self._left = self._left, []
        if self._link is not None:
            waiting, self._link.inbox = waiting + self._link.inbox, []
        if self._deletes:
            return waiting
        if waiting:
            with contextlib.suppress(ClientError, AzureError):
                self._give_back(waiting)
        return []

    def _give_back(self, received: list[Received]) -> None:
        alive = self._alive()
        here = []
        if alive is not None:
            connection, link = alive
            here = sorted([one.delivery_id for one in received if one.link is link])
            link.settle(here, RELEASED, two_phase=False)
            connection.turn(0.0)
        if len(here) < len(received) and self._access.is_open:
            # By links that are lost: nothing can be said there any more, so by token.
            elsewhere = [one for one in received if alive is None or one.link is not alive[1]]
            self._management.settle_each(elsewhere, "abandoned")

    def close(self) -> list[Received]:
        """`stop`, and detach."""
        left = [] if self._is_closed else self.stop()
        super().close()
        return left


def stop_all(receivers: Sequence[Receiver]) -> list[Received]:
    """`stop` of several receivers of one client, in the time that one of them takes."""
    links: list[ReceiverLink] = []
    connection: Connection | None = None
    for receiver in receivers:
        alive = receiver._alive()
        if alive is not None:
            connection, link = alive
            link.drain()
            links.append(link)
    if connection is not None:
        with contextlib.suppress(ClientError):
            connection.wait_quietly(
                lambda: all(not link.credit or link.is_over for link in links),
                receivers[0]._access.until(FAREWELL_SECONDS),
            )
    return [one for receiver in receivers for one in receiver._stopped()]


def _deleted(link: ReceiverLink, number: int, tag: bytes, data: bytes) -> Received:
    """Not locked, so without a token; whatever the service has for a tag then."""
    return Received(link, number, b"", data)
