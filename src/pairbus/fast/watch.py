"""Waiting for several entities at once, on one connection."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pairbus.amqp.client.connection import Connection, ReceiverLink
from pairbus.fast.receiver import Receiver


def wait_for_any(receivers: Sequence[Receiver], *, max_wait_seconds: float) -> list[Receiver]:
    """Those, all of one client, that have a message now or whose link was ended; nothing, if none
    came in time. Credit is granted where it is missing, and stays until `stop`."""
    until = time.monotonic() + max_wait_seconds
    connection: Connection | None = None
    links: list[ReceiverLink] = []
    for receiver in receivers:
        with receiver._access.telling(f"receiving from {receiver.path!r}"):
            connection, link = receiver._ready()
        receiver._top_up(link)
        links.append(link)
    pairs = list(zip(receivers, links, strict=True))

    def ready() -> list[Receiver]:
        return [one for one, link in pairs if link.inbox or link.is_over or one._left]

    if connection is not None:
        with receivers[0]._access.telling(f"receiving from {len(links)} entities"):
            connection.wait_quietly(ready, until)
    return ready()
