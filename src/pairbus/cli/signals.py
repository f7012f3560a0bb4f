"""Ctrl-C and SIGTERM for work that must not be left half done."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import typer

_OFFSET: Final = 128


@dataclass(slots=True)
class Stop:
    by: int = 0
    """The signal that asked for it; 0: none has."""

    def exit(self) -> None:
        """With the code that says so, if there was one."""
        if self.by:
            raise typer.Exit(_OFFSET + self.by)


@contextmanager
def stoppable(is_idle: Callable[[], bool] = lambda: False) -> Iterator[Stop]:
    """The first signal asks for an end, which the work looks for between two steps. A second one,
    or one that comes while there is nothing to leave in order, ends it at once."""
    stop = Stop()

    def handle(number: int, _: object) -> None:
        if stop.by or is_idle():
            raise KeyboardInterrupt
        stop.by = number

    before: dict[signal.Signals, Any] = {}
    with suppress(ValueError):  # not in the main thread, where there are no signals
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
