"""A sender of the SDK that tells a failure at once, and what it was: as `blocking/failing.py`.

The SDK waits for its keep-alive task, which sleeps for up to a second, before it raises.
"""

from __future__ import annotations

import asyncio
from typing import Any

from azure.servicebus.aio import ServiceBusSender

from pairbus.client.sdk import private as internals


class QuickToFail(ServiceBusSender):
    async def _handle_exception(self, exception: BaseException) -> Any:
        told = internals.detach_error(self, exception)
        return await super()._handle_exception(told)  # type: ignore[no-untyped-call]

    async def _close_handler(self) -> None:
        task, writer = internals.release_keep_alive(self), internals.writer_of(self)
        if task is not None:
            task.cancel()
        try:
            await super()._close_handler()  # type: ignore[no-untyped-call]
        finally:
            if task is not None:
                await asyncio.wait([task])
            await internals.close_writer(writer)
