"""Sending encoded messages to one entity, in as few batches as its limits allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from azure.core.exceptions import AzureError

from pairbus.amqp.client.connection import Connection, SenderLink
from pairbus.fast.attachment import Attachment
from pairbus.fast.errors import SendFailed
from pairbus.fast.flight import MIB, Flight, batch_limit, land

_WINDOW: Final = 4


class Sender(Attachment[SenderLink]):
    @property
    def max_message_bytes(self) -> int:
        """Of one encoded message, as the service says when the link is attached."""
        return self._told().size_max or MIB

    @property
    def max_batch_bytes(self) -> int:
        return batch_limit(self._told())

    def _told(self) -> SenderLink:
        with self._access.telling(f"opening a link to {self.path!r}"):
            return self._ready()[1]

    def _asked_for(self, connection: Connection) -> SenderLink:
        return connection.session().attach_sender(self._access.address(self.path))

    # -- sending ----------------------------------------------------------------------------

    def send_one(self, message: bytes) -> None:
        """One message, as itself and not in a batch. Raises what the SDK would."""
        try:
            self.send([message])
        except SendFailed as failed:
            raise failed.error from failed

    def send(self, messages: Sequence[bytes], *, window: int = _WINDOW) -> None:
        """All of them, in order; returns when all are accepted.

        `window`: how many batches may be without an answer. With more than one, a batch behind a
        refused one may still be taken. Raises SendFailed, which tells what became of which.
        """
        if not messages:
            return
        flight = self.begin(messages, window=window)
        land([flight])
        failed = flight.failure()
        if failed is not None:
            raise failed from failed.error

    def begin(self, messages: Sequence[bytes], *, window: int = 1) -> Flight:
        """The same without waiting for the answers: `land` does that, and for many at once.

        Attaching the link is waited for, if that is needed. Raises nothing: the flight tells.
        """
        if window < 1:
            raise ValueError(f"window is {window}, but must be at least 1")
        flight = Flight(self._access, self.path, messages, window, self._has_taken)
        try:
            with self._access.telling(flight.what):
                flight.board(*self._ready())
        except AzureError as error:
            flight.fail(error)
        return flight

    def _has_taken(self, messages: Sequence[bytes]) -> None:
        """The service has taken these: for who counts."""
