"""Which locks are renewed again after an error. `test_lock_stream.py` renews those of a broker."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any

from azure.servicebus.exceptions import MessageLockLostError, ServiceBusConnectionError

from pairbus.spark.renewal import LockRenewal
from tests.waiting import wait_until

LOST, KEPT = b"lost", b"kept"


def test_a_lost_lock_ends_no_others_even_if_the_connection_is_lost_meanwhile() -> None:
    asked: list[list[bytes]] = []

    def renew_locks(tokens: list[bytes]) -> list[datetime]:
        asked.append(tokens)
        if LOST in tokens:
            raise MessageLockLostError()
        if asked.count([KEPT]) == 1:
            raise ServiceBusConnectionError(message="the connection is lost")
        return [datetime.now(UTC) + timedelta(hours=1)]

    client = SimpleNamespace(
        management=lambda path: SimpleNamespace(renew_locks=renew_locks), close=lambda: None
    )
    options: Any = SimpleNamespace(
        address=SimpleNamespace(client=lambda **_: client),
        path="q",
        timeout_seconds=60.0,
        renewal_seconds=3600.0,
    )
    until = datetime.now(UTC) + timedelta(seconds=60)
    received: Any = [
        SimpleNamespace(lock_token_bytes=token, locked_until=until) for token in (LOST, KEPT)
    ]
    reads = count()
    # When the renewal looks at them, half of their time is over.
    renewal = LockRenewal(options, clock=lambda: time.time() + (40 if next(reads) else 0))
    renewal.watch(received)
    wait_until(lambda: len(asked) >= 4, "a second attempt")
    renewal.stop()
    assert asked == [[LOST, KEPT], [LOST], [KEPT], [KEPT]]
