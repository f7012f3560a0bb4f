"""For tests with sockets: an event loop as the broker has it, and what is open."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import wraps
from typing import Any

import uvloop

from tests.waiting import wait_until


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def socket_count() -> int:
    """The number of open sockets of this process."""
    targets = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            targets.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum(target.startswith("socket:") for target in targets)


def in_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs a test as the broker does, on uvloop, and checks that nothing is left open."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        before = socket_count()

        async def bounded() -> None:
            async with asyncio.timeout(120):
                await test(**fixtures)
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            assert not rest

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(bounded())
        # A socket of an earlier test may close meanwhile, and one of this test a moment later.
        wait_until(lambda: socket_count() <= before, "no socket is left open")

    return run
