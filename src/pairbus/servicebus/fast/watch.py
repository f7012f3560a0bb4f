"""Waiting for several entities at once, on one connection."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pairbus.servicebus.fast.receiver import Receiver


def wait_for_any(receivers: Sequence[Receiver], *, max_wait_seconds: float) -> list[Receiver]:
    """Those, all of one client, that have a message now or whose link was ended; nothing, if none
    came in time. Credit is granted where it is missing, and stays until `stop`."""
    until = time.monotonic() + max_wait_seconds
    links = []
    connection = None
    for receiver in receivers:
        with receiver._access.telling(f"receiving from {receiver.path!r}"):
            connection, link = receiver._ready()
            receiver._top_up(link)
            links.append(link)
    if connection is None:
        return []
    with receivers[0]._access.telling(f"receiving from {len(links)} queues"):
        connection.wait_quietly(lambda: any(one.inbox or one.is_over for one in links), until)
    return [
        receiver
        for receiver, link in zip(receivers, links, strict=True)
        if link.inbox or link.is_over
    ]
