"""An end to what the SDK would wait for without one: opening a link."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from azure.servicebus.exceptions import OperationTimeoutError

# What the SDK's own time-out gets before it is cancelled.
GRACE_SECONDS = 1.0


@asynccontextmanager
async def bounded(seconds: float, what: str) -> AsyncIterator[None]:
    bound = asyncio.timeout(seconds + GRACE_SECONDS)
    try:
        async with bound:
            yield
    except TimeoutError:
        if not bound.expired():
            raise
        raise OperationTimeoutError(
            message=f"{what} took longer than {seconds:g} seconds"
        ) from None
