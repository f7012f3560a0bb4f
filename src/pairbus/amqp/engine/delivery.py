"""A handle for one message on its way, received or sent: what `link` says of handles holds here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pairbus.amqp.engine.pndata import write_outcome
from pairbus.amqp.engine.proton import ffi, lib
from pairbus.amqp.outcomes import AmqpError, Outcome, rejected

if TYPE_CHECKING:
    from pairbus.amqp.engine.link import Link

_delivery_update = lib.pn_delivery_update
_delivery_settle = lib.pn_delivery_settle


class Delivery:
    """One message on its way: received by us, or sent by us and not yet settled."""

    __slots__ = ("_answered", "_pn", "_tag", "_told", "context", "link", "settled", "size")

    def __init__(self, link: Link, pn: Any, tag: bytes | None, size: int) -> None:
        self.link = link
        self.size = size
        self.context: Any = None
        self.settled = False
        """By us, or by the end of its link."""

        self._pn = pn
        self._tag = tag
        self._answered = link.is_sender  # we have spoken, it is for the peer to answer
        self._told = False  # the peer's outcome was reported

    @property
    def tag(self) -> bytes:
        """Of a received delivery it can be asked until the delivery is settled, then it is b""."""
        if self._tag is None:
            if self._pn is None:
                return b""
            tag = lib.pn_delivery_tag(self._pn)
            self._tag = ffi.unpack(tag.start, tag.size) if tag.size else b""
        return self._tag

    def _take(self) -> Any:
        """The pointer, for the last time; None if it was taken before."""
        pn = self._pn
        if pn is not None:
            self._pn = None
            self.settled = True
            link = self.link
            if link.is_sender:
                del link.engine._sent[pn]
            else:
                del link.engine._received[pn]
                link.engine._held_bytes -= self.size
        return pn

    def accept(self) -> None:
        """Tell the peer that it is ours now, and forget the delivery."""
        pn = self._take()
        if pn is not None:
            _delivery_update(pn, 0x24)
            _delivery_settle(pn)

    def reject(self, error: AmqpError) -> None:
        self.settle(rejected(error))

    def settle(self, outcome: Outcome | None = None) -> None:
        """Forget the delivery, telling the peer this outcome if there is one."""
        pn = self._take()
        if pn is not None:
            if outcome is not None:
                write_outcome(pn, outcome)
            _delivery_settle(pn)

    def echo(self) -> None:
        """Sent by us: settle with the outcome type that the peer asked for, and no error."""
        pn = self._take()
        if pn is not None:
            state = lib.pn_delivery_remote_state(pn)
            if state:
                _delivery_update(pn, state)
            _delivery_settle(pn)

    def update(self, outcome: Outcome) -> None:
        """Received by us: tell an outcome without settling. `Disposed` brings the peer's answer."""
        if self._pn is not None:
            self._answered = True
            write_outcome(self._pn, outcome)
