"""Ctrl-C and SIGTERM: the first asks the work to stop.

A command calls `graceful_stop`, a command with processes of its own has a `SignalFlag`, and a
server calls `stop_on_signal`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

EXIT_CODE_OFFSET: Final = 128
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class Stop:
    """Whether a signal has asked the command to stop."""

    signal: int = 0
    """The number of that signal; 0: none."""

    @property
    def is_requested(self) -> bool:
        return bool(self.signal)

    def exit(self) -> None:
        """End the command with the signal's exit code, if there was one."""
        if self.signal:
            raise typer.Exit(EXIT_CODE_OFFSET + self.signal)


@contextmanager
def graceful_stop(
    *,
    is_idle: Callable[[], bool] = lambda: False,
    on_request: Callable[[], None] = lambda: None,
) -> Iterator[Stop]:
    """The first signal asks the work to stop; the work checks for that between two steps.

    `on_request` is called then, in the signal handler: it must not take a lock. A second signal
    ends the command at once. So does a first one while there is nothing to clean up.
    """
    stop = Stop()

    def handle(number: int, _: object) -> None:
        if stop.is_requested or is_idle():
            # Whoever swallows the exception, as a finalizer does, does not hide the signal.
            stop.signal = stop.signal or number
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(EXIT_CODE_OFFSET + number)
        stop.signal = number
        on_request()

    before: dict[signal.Signals, Any] = {}
    with suppress(ValueError):  # only the main thread may handle signals
        for number in _SIGNALS:
            before[number] = signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Interrupted(Exception):
    """A signal asks the command to end."""


class SignalFlag:
    """Records signals. `check` raises if one has arrived.

    For commands that start processes: they check between two steps, so that no signal comes between
    the start of a process and its registration.
    """

    def __init__(self) -> None:
        self.number = 0

    def __enter__(self) -> SignalFlag:
        # Under nohup, or in the background of a shell, some signals are ignored: keep that.
        heeded = [
            each
            for each in (*_SIGNALS, signal.SIGHUP)
            if signal.getsignal(each) is not signal.SIG_IGN
        ]
        self._before = {number: signal.signal(number, self._note) for number in heeded}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.number = number

    def check(self) -> None:
        if self.number:
            raise Interrupted


def stop_on_signal(loop: AbstractEventLoop, stop: Callable[[signal.Signals], None]) -> None:
    """For a server. The second signal ends the process: what it acknowledged is on the disk."""
    is_stopping = False

    def handle(number: signal.Signals) -> None:
        nonlocal is_stopping
        if is_stopping:
            os._exit(EXIT_CODE_OFFSET + number)
        is_stopping = True
        stop(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, handle, number)
