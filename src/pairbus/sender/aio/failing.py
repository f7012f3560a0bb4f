"""A sender of the SDK that tells a failure at once: as `blocking/failing.py`.

The SDK waits for its keep-alive task, which sleeps for up to a second, before it raises.
"""

from __future__ import annotations

from typing import Any

from azure.servicebus.aio import ServiceBusSender

from pairbus.servicebus import internals


class QuickToFail(ServiceBusSender):
    async def _handle_exception(self, exception: BaseException) -> Any:
        task = internals.release_keep_alive(self)
        if task is not None:
            task.cancel()
        return await super()._handle_exception(exception)  # type: ignore[no-untyped-call]
