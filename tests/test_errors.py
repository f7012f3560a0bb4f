"""What an error keeps in memory."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError

from pairbus.errors import without_frames


class Connection:
    def fail(self) -> None:
        try:
            raise ConnectionResetError(104, "gone")
        except ConnectionResetError as error:
            raise ServiceBusConnectionError(message="cannot send", error=error) from error


def failure() -> tuple[Any, weakref.ref[Connection]]:
    connection = Connection()
    try:
        connection.fail()
    except ServiceBusConnectionError as error:
        return error, weakref.ref(connection)
    raise AssertionError


def test_an_error_without_frames_says_the_same_and_keeps_no_connection_alive() -> None:
    error, connection = failure()

    kept: Any = without_frames(error)

    assert (type(kept), str(kept), vars(kept).keys()) == (
        type(error),
        str(error),
        vars(error).keys() - {"exc_traceback"},
    )
    assert repr(kept.__cause__) == repr(error.__cause__)
    assert kept.inner_exception is kept.__cause__
    del error
    gc.collect()
    assert connection() is None


def test_the_error_that_the_caller_gets_is_left_as_it_is() -> None:
    error, _ = failure()
    frames = error.__traceback__

    without_frames(error)

    assert error.__traceback__ is frames
    assert error.__cause__.__traceback__ is not None


class Picky(Exception):
    def __new__(cls, *, reason: str) -> Picky:
        return super().__new__(cls, reason)

    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)


def test_an_error_that_cannot_be_copied_is_kept_as_it_is() -> None:
    for error in (Picky(reason="no"), UnicodeDecodeError("utf-8", b"x", 0, 1, "wrong")):
        with pytest.raises(type(error)) as caught:
            raise error

        assert without_frames(caught.value) is error
