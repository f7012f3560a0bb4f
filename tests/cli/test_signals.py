"""The first signal asks a command to stop, the second ends it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest
import typer

from pairbus.cli.signals import Stop, graceful_stop

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@BOTH
def test_the_first_signal_asks_and_the_command_ends_as_interrupted(number: signal.Signals) -> None:
    requests = []
    with graceful_stop(on_request=lambda: requests.append("stop")) as stop:
        os.kill(os.getpid(), number)
        assert stop.is_requested

    assert requests == ["stop"]
    with pytest.raises(typer.Exit) as exit_:
        stop.exit()
    assert exit_.value.exit_code == 130


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
@pytest.mark.parametrize("is_idle", [True, False])
def test_a_second_signal_or_one_while_idle_ends_at_once(
    number: signal.Signals, error: type[BaseException], is_idle: bool
) -> None:
    with graceful_stop(is_idle=lambda: is_idle):
        if not is_idle:
            os.kill(os.getpid(), number)
        with pytest.raises(error) as caught:
            os.kill(os.getpid(), number)

    if isinstance(caught.value, SystemExit):
        assert caught.value.code == 130


def test_without_a_signal_nothing_happens_and_the_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGINT)
    with graceful_stop() as stop:
        pass

    assert stop == Stop()
    stop.exit()
    assert signal.getsignal(signal.SIGINT) is before


@BOTH
def test_a_signal_whose_exception_is_swallowed_is_not_lost(number: signal.Signals) -> None:
    with graceful_stop(is_idle=lambda: True) as stop:
        with suppress(KeyboardInterrupt, SystemExit):
            signal.raise_signal(number)
        with pytest.raises(typer.Exit) as ended:
            stop.exit()
    assert ended.value.exit_code == 130
