"""A settlement that was said and perhaps not answered yet: the answers are collected later."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from azure.core.exceptions import AzureError
from azure.servicebus.exceptions import ServiceBusError

from pairbus.amqp.client.connection import Connection, PeerSilent, ReceiverLink, Settlement
from pairbus.amqp.outcomes import AmqpError, Outcome
from pairbus.fast.connection import Access
from pairbus.fast.errors import SettleFailed, of_message
from pairbus.fast.message import Received

Failed = list[tuple[Received, ServiceBusError]]


class Settling:
    """What a receiver has begun; `land` ends it, and is to be called once."""

    __slots__ = (
        "_access",
        "_by_token",
        "_connection",
        "_error",
        "_has_settled",
        "_here",
        "_link",
        "_path",
        "_said",
    )

    def __init__(
        self,
        access: Access,
        path: str,
        here: Sequence[Received],
        by_token: Callable[[], Failed] | None,
        has_settled: Callable[[int], None],
    ) -> None:
        """`here`: those that came by the receiver's link; `by_token` settles the others.

        `has_settled` is told how many the service has settled on the link.
        """
        self._access = access
        self._path = path
        self._here = here
        self._by_token = by_token
        self._has_settled = has_settled
        self._connection: Connection | None = None
        self._link: ReceiverLink | None = None
        self._said: Settlement | None = None
        self._error: AzureError | None = None

    @property
    def _what(self) -> str:
        return f"settling {len(self._here)} messages of {self._path!r}"

    @property
    def is_said(self) -> bool:
        """The service hears of it, whatever becomes of this process. Else it is for `land`."""
        return self._by_token is None and self._error is None

    def say(self, connection: Connection, link: ReceiverLink, outcome: Outcome) -> None:
        """Raises nothing: `land` does."""
        self._connection, self._link = connection, link
        ids = sorted([one.delivery_id for one in self._here])
        try:
            with self._access.telling(self._what):
                self._access.connection()  # which looks after its tokens
                self._said = connection.begin_settling(link, ids, outcome)
                connection.flush(self._access.until())
        except AzureError as error:
            self._error = error

    def land(self) -> None:
        """Returns when all are settled. Raises SettleFailed, or what keeps it from being known."""
        failed: Failed = []
        if self._here:
            for number, error in self._answered().items():
                failed += [
                    (one, of_message(error, f"settling of {self._path!r}"))
                    for one in self._here
                    if one.delivery_id == number
                ]
            self._has_settled(len(self._here) - len(failed))
            for one in self._here:
                one.link = None
        if self._by_token is not None:
            failed += self._by_token()
        if failed:
            raise SettleFailed(self._path, failed)

    def _answered(self) -> dict[int, AmqpError]:
        if self._error is not None:
            raise self._error
        connection, link, said = self._connection, self._link, self._said
        assert connection is not None
        assert link is not None
        assert said is not None
        with self._access.telling(self._what):
            try:
                return connection.settled(link, said, until=self._access.until())
            except PeerSilent:
                link.detach()  # what was not answered here is to be settled by token
                raise
