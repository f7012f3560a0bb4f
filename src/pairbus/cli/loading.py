"""Ctrl-C while modules are loaded."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

INTERRUPTED: Final = 130


@contextmanager
def interrupt_ends_process() -> Iterator[None]:
    """For imports before a command has begun: there is nothing to clean up, so Ctrl-C ends it.

    A KeyboardInterrupt would come anywhere in the code of a module, where some libraries swallow
    it, and where Python turns it into another error, as in the middle of a class statement.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
