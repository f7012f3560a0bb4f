"""What receivers and senders have in common: a link to one entity, attached when it is needed."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Generic, Self, TypeVar

from azure.core.exceptions import AzureError

from pairbus.amqp.client.connection import ClientError, Connection, ReceiverLink, SenderLink
from pairbus.fast.connection import FAREWELL_SECONDS, Access

L = TypeVar("L", ReceiverLink, SenderLink)


class Attachment(Generic[L]):
    def __init__(self, access: Access, path: str) -> None:
        self.path = path
        self._access = access
        self._connection: Connection | None = None
        self._link: L | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r} of {self._access.namespace}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ready(self) -> tuple[Connection, L]:
        """The link, attached anew if it was lost. Raises ClientError."""
        if self._is_closed:
            raise ValueError(f"{self!r} is closed")
        self._look_after()
        alive = self._alive()
        if alive is not None:
            return alive
        self._link = None
        self._connection = connection = self._access.authorized(self.path)
        self._link = link = self._attach(connection)
        return connection, link

    def _attach(self, connection: Connection) -> L:
        link = self._asked_for(connection)
        connection.attached(link, self._access.until(), f"a link of {self.path!r}")
        return link

    def _asked_for(self, connection: Connection) -> L:
        """The link, to which the service has not agreed yet."""
        raise NotImplementedError

    def _look_after(self) -> None:
        """Renew tokens if it is time. That takes an answer, and may bring the link's end along."""
        if self._alive() is not None:
            self._access.connection()
        if self._alive() is None:
            self._salvage()

    def _salvage(self) -> None:
        """The link is lost: keep what came by it."""

    def _alive(self) -> tuple[Connection, L] | None:
        """The link as it is; nothing is attached for this."""
        link, connection = self._link, self._connection
        if link is None or connection is None or connection.is_over or not link.alive:
            return None
        return connection, link

    def close(self) -> object:
        """Detach. Never raises."""
        alive = self._alive()
        if alive is not None and not self._is_closed:
            connection, link = alive
            until = self._access.until(FAREWELL_SECONDS)
            with contextlib.suppress(ClientError):
                connection.detach(link, until)
        self._is_closed = True
        self._link = None
        return None


def attach_all(attachments: Sequence[Attachment[ReceiverLink] | Attachment[SenderLink]]) -> None:
    """Attach several of one client, none of which ever was, in the time that one of them takes.

    Never raises: what has failed is tried again by the one that needs it, and told there.
    """
    new = [one for one in attachments if one._link is None and not one._is_closed]
    if len(new) < 2:
        return
    access = new[0]._access
    with contextlib.suppress(ClientError, AzureError):
        connection, are_authorized = access.authorized_all([one.path for one in new])
        asked = [
            (one, one._asked_for(connection))
            for one, is_authorized in zip(new, are_authorized, strict=True)
            if is_authorized
        ]
        connection.wait_quietly(
            lambda: all(link.attached or link.is_over for _, link in asked), access.until()
        )
        for one, link in asked:
            if link.alive:
                one._connection, one._link = connection, link
            else:
                link.detach()
