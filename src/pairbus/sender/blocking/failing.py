"""A sender of the SDK that tells a failure at once.

The SDK's blocking one joins its keep-alive thread, which sleeps for up to a second, before it
raises. Here that is done when the sender is closed.
"""

from __future__ import annotations

import threading

from azure.servicebus import ServiceBusSender
from azure.servicebus.exceptions import ServiceBusError

from pairbus.servicebus import internals


class QuickToFail(ServiceBusSender):
    _released: list[threading.Thread] | None = None

    def _handle_exception(self, exception: BaseException) -> ServiceBusError:
        thread = internals.release_keep_alive(self)
        if thread is not None:
            alive = [each for each in self._released or () if each.is_alive()]
            self._released = [*alive, thread]
        return super()._handle_exception(exception)

    def close(self) -> None:
        super().close()
        for thread in self._released or ():
            thread.join()
        self._released = None
