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

from pairbus.cli.loading import INTERRUPTED

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class Stop:
    """Whether a signal has asked the command to stop."""

    is_requested: bool = False

    def exit(self) -> None:
        """End the command as interrupted, if a signal has come."""
        if self.is_requested:
            raise typer.Exit(INTERRUPTED)


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
            stop.is_requested = True
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(INTERRUPTED)
        stop.is_requested = True
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


def _heeded() -> list[signal.Signals]:
    """The signals to handle, with that of a closed terminal. Under nohup, or in the background of
    a shell, some signals are ignored: keep that.
    """
    return [
        each for each in (*_SIGNALS, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN
    ]


class Interrupted(Exception):
    """A signal asks the command to end."""


class SignalFlag:
    """Records signals. `check` raises if one has arrived.

    For commands that start processes: they check between two steps, so that no signal comes between
    the start of a process and its registration.
    """

    def __init__(self) -> None:
        self.has_arrived = False

    def __enter__(self) -> SignalFlag:
        self._before = {number: signal.signal(number, self._note) for number in _heeded()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.has_arrived = True

    def check(self) -> None:
        if self.has_arrived:
            raise Interrupted


def stop_on_signal(loop: AbstractEventLoop, stop: Callable[[signal.Signals], None]) -> None:
    """For a server. The second signal ends the process: what it acknowledged is on the disk."""
    is_stopping = False

    def handle(number: signal.Signals) -> None:
        nonlocal is_stopping
        if is_stopping:
            os._exit(INTERRUPTED)
        is_stopping = True
        stop(number)

    for number in _heeded():
        loop.add_signal_handler(number, handle, number)
