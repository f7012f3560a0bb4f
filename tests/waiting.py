"""Waiting for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def wait_until(condition: Callable[[], Any], what: str = "it", *, seconds: float = 180.0) -> Any:
    """Returns the condition's first true result. Fails after `seconds`, which are many: on a busy
    machine, Java alone takes a minute to start.
    """
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"after {seconds} s still not: {what}"
        time.sleep(0.02)
    return answer
