"""The input of `pairbus send`: a body, files, or lines of text or JSON."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Final

from pairbus.cli.messages.message_json import Row, parse_line
from pairbus.cli.shared_options import argument, count_option, flag, option, option_group
from pairbus.errors import UsageError

_READ_BYTES: Final = 64 * 1024
_END_SECONDS: Final = 0.5
"""How long to wait after Ctrl-C. The command that writes into the pipe gets it too, and ends."""


@option_group
class InputOptions:
    """Where the bodies come from."""

    body: str | None = argument(
        "BODY",
        "Body of the message (default: stdin, unless it is a terminal); -: stdin.",
        default=None,
    )
    file: list[Path] | None = option(
        "FILE", "File with the body, or with the lines; may be repeated."
    )
    lines: bool = flag("Send each line as a message.", "--lines")
    json_lines: bool = flag(
        "Send each line as a message in JSON, as `receive --json` and `peek --json` print it.",
        "--json-lines",
    )
    copies: int = count_option("Number of copies to send (default: 1).", default=1)

    @property
    def is_by_line(self) -> bool:
        return self.lines or self.json_lines

    @property
    def total(self) -> int | None:
        """The number of messages, if it is known before the input is read."""
        return None if self.is_by_line else len(self.file or "1") * self.copies

    def check(self) -> None:
        """Raises UsageError."""
        if self.lines and self.json_lines:
            raise UsageError("--lines and --json-lines cannot be combined")
        if self.body not in (None, "-") and (self.file or self.is_by_line):
            other = "--file" if self.file else "--lines" if self.lines else "--json-lines"
            raise UsageError(f"BODY and {other} cannot be combined")
        if self.is_by_line and self.copies > 1:
            raise UsageError("--copies is for a single message, not for lines")
        if self.body is None and not self.file and sys.stdin.isatty() and not self.is_by_line:
            raise UsageError("nothing to send: give BODY, --file, or a body on stdin")


def read_rows(source: InputOptions, stdin: Stdin) -> Iterator[tuple[str, Row]]:
    """Yields each row with its place in the input, for errors."""
    if source.is_by_line:
        for name, number, line in _all_lines(source.file or (), stdin):
            where = f"{name}, line {number}"
            if source.lines:
                yield where, {"body": line}
            elif line.strip():
                yield where, parse_line(_text(line, where), where)
        return
    if source.file:
        bodies: Iterable[bytes] = map(_content, source.file)
    elif source.body in (None, "-"):
        bodies = [_stdin_content(may_be_empty=source.body == "-")]
    else:
        assert source.body is not None
        bodies = [source.body.encode("utf-8", "surrogateescape")]  # the bytes that were typed
    for body in bodies:
        for row in repeat({"body": body}, source.copies):
            yield "the message", row


def _all_lines(files: Iterable[Path], stdin: Stdin) -> Iterator[tuple[str, int, bytes]]:
    if not files:
        yield from _numbered_lines(stdin, "stdin")
    for file in files:
        try:
            with file.open("rb") as stream:
                yield from _numbered_lines(stream, str(file))
        except OSError as error:
            raise UsageError(f"cannot read {file}: {error.strerror}") from error


class Stdin:
    """Yields lines, and whether another one has already arrived: `tail -f` must not wait for a full
    batch.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._has_more = False
        self._is_ending = False
        self.unfinished_bytes = 0
        """Of a last line that a signal has cut off, and that is not yielded."""

    @property
    def is_pipe_in_use(self) -> bool:
        """What came out of a pipe may be the only copy: `pairbus receive` has completed it."""
        return self._descriptor is not None and not stat.S_ISREG(os.fstat(self._descriptor).st_mode)

    def end(self) -> None:
        """Yield the complete lines that have arrived, and no more. Called in a signal handler."""
        self._is_ending = True

    def __iter__(self) -> Iterator[bytes]:
        self._descriptor = sys.stdin.fileno()
        parts: list[bytes] = []  # of a line, which may be long: joined once
        while self._has_come(self._descriptor) and (read := os.read(self._descriptor, _READ_BYTES)):
            *ends, rest = read.split(b"\n")
            for number, end in enumerate(ends, 1):
                self._has_more = number < len(ends)
                yield b"".join([*parts, end])
                parts = []
            parts.append(rest)
        last = b"".join(parts)
        if self._is_ending:  # the writer may have been ended in the middle of a line
            self.unfinished_bytes = len(last)
        elif last:
            yield last

    def _has_come(self, descriptor: int) -> bool:
        """Wait for input. False if `end` was called, and nothing has arrived for a moment."""
        while not select.select([descriptor], [], [], _END_SECONDS)[0]:
            if self._is_ending:
                # Close the pipe now, not at the exit: from here on, writing to it must fail.
                os.dup2(os.open(os.devnull, os.O_RDONLY), descriptor)
                return False
        return True

    def is_dry(self) -> bool:
        if self._descriptor is None or self._has_more:
            return False
        return not select.select([self._descriptor], [], [], 0)[0]


def _numbered_lines(stream: Iterable[bytes], name: str) -> Iterator[tuple[str, int, bytes]]:
    for number, line in enumerate(stream, 1):
        yield name, number, line.removesuffix(b"\n").removesuffix(b"\r")


def _text(line: bytes, where: str) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{where}: is not UTF-8") from None


def _stdin_content(*, may_be_empty: bool) -> bytes:
    body = sys.stdin.buffer.read()
    if not body and not may_be_empty:
        raise UsageError('nothing to send: stdin is empty; for an empty body, give ""')
    return body


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
