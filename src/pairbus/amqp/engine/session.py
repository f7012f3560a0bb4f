"""A session: its links and deliveries by their numbers, and the windows of its transfers.

This is what we do. What the peer does is in `peer`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from pairbus.amqp.codec.types import UInt, UShort
from pairbus.amqp.engine.wire import Wire
from pairbus.amqp.frames import BEGIN, END, SERIAL, encode_error, encode_frame
from pairbus.amqp.outcomes import AmqpError, Outcome, OutcomeKind
from pairbus.amqp.performatives import WINDOW, flow, statement


class SettlementGroup:
    """Deliveries that were settled together (`Session.settle`), and the peer's answers."""

    __slots__ = ("kind", "left", "refusals")

    def __init__(self, kind: OutcomeKind) -> None:
        self.kind = kind
        self.left = 0
        """How many of them the peer has not answered yet."""
        self.refusals: dict[int, AmqpError] = {}
        """By delivery-id: those that the peer refused, and why."""

    def _drop(self) -> None:
        """The session has ended: the answers will not come."""

    def answered(self, number: int, outcome: Outcome) -> None:
        """Records the peer's answer: the same outcome, or the reason for another one."""
        self.left -= 1
        if outcome.kind is self.kind and outcome.error is None:
            return
        if outcome.error is not None:
            self.refusals[number] = outcome.error
        else:
            said = f"{self.kind.name.lower()} was answered with {outcome.kind.name.lower()}"
            self.refusals[number] = AmqpError("amqp:internal-error", said)


class Session:
    def __init__(self, wire: Wire, channel: int, remote_channel: int | None) -> None:
        """`remote_channel`: what it answers, if the peer began it."""
        self.ends_with_links = False
        """End it when its last link is detached."""
        self._wire = wire
        self.channel = channel
        """Ours."""
        self.alive = True
        # Any: the modules of `Link` and `Delivery` import this one.
        self._links: dict[int, Any] = {}  # by our handle, until the peer has detached its end
        self._by_remote_handle: dict[int, Any] = {}
        self._names: dict[tuple[str, bool], Any] = {}
        self._next_incoming_id = 0  # of the peer's transfers; then of ours
        self._next_outgoing_id = 0
        self._remote_window = 0
        self._blocked: deque[tuple[Any, bytes]] = deque()  # transfers without a window
        self._blocked_bytes = 0
        self._waiting_bytes = 0  # of messages that wait for credit
        self._next_delivery_id = 0
        self._sent: dict[int, Any] = {}
        self._received: dict[int, Any] = {}
        ours = None if remote_channel is None else UShort(remote_channel)
        self._write(BEGIN, [ours, UInt(0), UInt(WINDOW), UInt(WINDOW), UInt(WINDOW)])

    @property
    def outgoing_bytes(self) -> int:
        """Bytes of messages that wait for the peer's session window or credit."""
        return self._blocked_bytes + self._waiting_bytes

    def end(self, error: AmqpError | None = None) -> None:
        """End it and its links. The peer's answer makes no event."""
        if self.alive:
            self._wire.end_run()
            self._forget_all()
            self._write(END, [encode_error(error)] if error else [])

    def settle(self, ids: Iterable[int], outcome: Outcome) -> SettlementGroup:
        """Settle messages that were received into a sink, by their ids in ascending order.

        The peer answers. If the session is over, nothing is sent and nothing is left.
        """
        settlement = SettlementGroup(outcome.kind)
        if self.alive:
            wire, channel = self._wire, self.channel
            said = statement(outcome, is_receiver=True, settled=False, tracked=wire.is_server)
            ids = list(ids)
            self._received.update(dict.fromkeys(ids, settlement))
            settlement.left = len(ids)
            for number in ids:
                wire.dispose(channel, said, number)
        return settlement

    def _write(self, code: int, fields: list[Any]) -> None:
        self._wire.out.append(encode_frame(code, fields, channel=self.channel))

    def _flow(self, **of_link: Any) -> None:
        self._wire.out.append(
            flow(
                self.channel,
                next_incoming_id=self._next_incoming_id,
                next_outgoing_id=self._next_outgoing_id,
                **of_link,
            )
        )

    def _unblock(self) -> None:
        """Send waiting transfers, as many as the peer's window allows."""
        blocked, out = self._blocked, self._wire.out
        while blocked and self._remote_window > 0:
            _, frame = blocked.popleft()
            out.append(frame)
            self._blocked_bytes -= len(frame)
            self._remote_window -= 1
            self._next_outgoing_id = self._next_outgoing_id + 1 & SERIAL

    def _drop_link(self, link: Any) -> None:
        """The peer has detached its end, or will never do so."""
        if self._links.pop(link.handle, None) is not None:
            del self._names[link.name, link.is_sender]
            self._wire.link_count -= 1

    def _forget_all(self) -> None:
        """Ends the session: nothing more happens here."""
        self.alive = False
        for table in (self._sent, self._received):
            for known in table.values():
                known._drop()
            table.clear()
        for link in list(self._links.values()):
            link._forget()
            self._drop_link(link)
        self._by_remote_handle.clear()
        self._blocked.clear()
        self._blocked_bytes = 0
