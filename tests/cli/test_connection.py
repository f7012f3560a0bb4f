"""Why a namespace cannot be reached, in one line."""

from __future__ import annotations

import socket
import ssl

import pytest

from pairbus.cli.target import why_unreachable


def layered(below: BaseException) -> BaseException:
    try:
        try:
            raise below
        except BaseException as error:
            raise RuntimeError("a library's own words") from error
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (layered(ConnectionRefusedError(111, "Connection refused")), "Connection refused"),
        (layered(ssl.SSLCertVerificationError(1, "unknown CA")), "its certificate is not trusted"),
        (layered(socket.gaierror(-2, "unknown")), "no host has that name"),
        (layered(TimeoutError("timed out")), "it does not answer"),
        (RuntimeError("two\nlines"), "two lines"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_the_reason_is_that_of_the_lowest_layer(error: BaseException, words: str) -> None:
    assert why_unreachable(error).startswith(words)
