"""Interrupts a module before one of its lines, as a signal may."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any


def ctrl_c() -> None:
    raise KeyboardInterrupt


def run_and_interrupt(
    work: Callable[[], Any], module: ModuleType, interrupt: Callable[[], Any], *, before_line: int
) -> bool:
    """Lines of the module are counted as they run. False if there are fewer: then it ran as usual.
    Raises what `interrupt` raises.
    """
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != module.__file__:
            return None
        if event == "line":
            lines += 1
            if lines == before_line:
                interrupt()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines >= before_line
