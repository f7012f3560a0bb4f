"""A sender of the SDK that tells a failure at once, and what the failure was.

The SDK's blocking one joins its keep-alive thread, which sleeps for up to a second, before it
raises. Here that is done when the sender is closed.
"""

from __future__ import annotations

import threading

from azure.servicebus import ServiceBusSender
from azure.servicebus.exceptions import ServiceBusError

from pairbus.client.sdk import private as internals


class QuickToFail(ServiceBusSender):
    _released: tuple[threading.Thread, ...] = ()

    def _handle_exception(self, exception: BaseException) -> ServiceBusError:
        return super()._handle_exception(internals.detach_error(self, exception))

    def _close_handler(self) -> None:
        thread, sock = internals.release_keep_alive(self), internals.socket_of(self)
        if thread is not None:
            self._released = (*(each for each in self._released if each.is_alive()), thread)
        try:
            super()._close_handler()  # type: ignore[no-untyped-call]
        finally:
            internals.close_socket(sock)

    def close(self) -> None:
        super().close()
        for thread in self._released:
            thread.join()
        self._released = ()
