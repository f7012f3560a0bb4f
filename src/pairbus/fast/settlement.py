"""A settlement that a receiver has started: it is sent at once, and answered later."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from azure.core.exceptions import AzureError
from azure.servicebus.exceptions import ServiceBusError

from pairbus.amqp.client.blocking import (
    ClientReceiverLink,
    Connection,
    PeerSilent,
    SettlementGroup,
)
from pairbus.amqp.outcomes import AmqpError, Outcome
from pairbus.cost.meter import Tally
from pairbus.fast.connection import NamespaceConnection
from pairbus.fast.errors import SettleFailed, from_refusal
from pairbus.fast.message import ReceivedMessage

_Failed = list[tuple[ReceivedMessage, ServiceBusError]]


class PendingSettlement:
    """Call `wait` once."""

    def __init__(
        self,
        namespace: NamespaceConnection,
        path: str,
        link: ClientReceiverLink | None,
        here: Sequence[ReceivedMessage],
        outcome: Outcome,
        tally: Tally,
        *,
        by_token: Callable[[], _Failed] | None,
    ) -> None:
        """`here`: the messages that `link` delivered. `by_token` settles the others. Never raises:
        `wait` does.
        """
        self._namespace = namespace
        self._path = path
        self._here = here
        self._by_token = by_token
        self._tally = tally
        self._sent: tuple[Connection, ClientReceiverLink, SettlementGroup] | None = None
        self._due = 0.0
        self._error: AzureError | None = None
        if here and link is not None:
            try:
                with namespace.translating_errors(self._what):
                    self._send(link, outcome)
            except AzureError as error:
                self._error = error

    @property
    def _what(self) -> str:
        return f"settling {len(self._here)} messages of {self._path!r}"

    def _send(self, link: ClientReceiverLink, outcome: Outcome) -> None:
        connection = self._namespace.connection()  # renews tokens if they are due
        ids = sorted([one.delivery_id for one in self._here])
        self._sent = connection, link, connection.begin_settling(link, ids, outcome)
        self._due = self._namespace.deadline()
        # Once the operating system has the bytes, the settlement is sent even if this process dies.
        connection.flush(self._due)

    @property
    def is_sent(self) -> bool:
        """Whether the service gets the settlement even if this process dies. If not, `wait` must
        send it.
        """
        return self._by_token is None and self._error is None

    @property
    def is_answered(self) -> bool:
        """Whether `wait` returns at once: the answers have come, are overdue, or will not come."""
        if not self.is_sent or self._sent is None:
            return True
        _, link, group = self._sent
        due = min(self._due, self._namespace.latest_deadline)
        return not group.left or link.is_over or time.monotonic() >= due

    def wait(self) -> None:
        """Returns when all are settled. Raises SettleFailed, or an error that leaves it unknown."""
        failed: _Failed = []
        if self._here:
            refusals = self._answer()
            if refusals:
                what = f"settling of {self._path!r}"
                failed = [
                    (one, from_refusal(refusals[one.delivery_id], what))
                    for one in self._here
                    if one.delivery_id in refusals
                ]
            self._tally.settle += len(self._here) - len(failed)
            for one in self._here:
                one.link = None  # so that nobody settles it again
        if self._by_token is not None:
            failed += self._by_token()
        if failed:
            raise SettleFailed(self._path, failed)

    def _answer(self) -> dict[int, AmqpError]:
        """The errors of the messages that the service refused, by delivery id."""
        if self._error is not None:
            raise self._error
        assert self._sent is not None
        connection, link, group = self._sent
        with self._namespace.translating_errors(self._what):
            try:
                due = min(self._due, self._namespace.latest_deadline)
                return connection.settled(link, group, until=due)
            except PeerSilent:
                link.detach()  # a late answer could be mistaken for another: use the lock token
                raise
