"""What `pairbus send` does: makes messages of what it was given, and sends them in batches.

In order, and one batch at a time, so that a failure leaves no doubt about what was sent before it.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from typing import Final
from uuid import uuid4

from pairbus.cli.connection import connect, error_text, explain_errors
from pairbus.cli.messages.entity_path import EntityPath, parse_entity_path
from pairbus.cli.messages.message_json import Row, parse_form, parse_property, row_from
from pairbus.cli.output import print_json, progress
from pairbus.cli.parse import parse_duration, parse_time
from pairbus.cli.target import Target
from pairbus.errors import NamespaceError, UsageError
from pairbus.fast.compose import RowError, message_of
from pairbus.fast.errors import SendFailed
from pairbus.fast.sender import Sender

_CHUNK_COUNT_MAX: Final = 500
_CHUNK_BYTES_MAX: Final = 1024 * 1024
_READ_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    entity: str
    body: str | None
    files: tuple[Path, ...]
    lines: bool
    json_lines: bool
    count: int
    properties: tuple[str, ...]
    ttl: str | None
    scheduled: str | None
    said: Mapping[str, str | None]


def run(target: Target, wanted: Wanted, *, as_json: bool) -> None:
    place = parse_entity_path(wanted.entity)
    if not place.accepts_messages:
        raise UsageError(f"{wanted.entity!r} takes no messages: send to {place.entity!r}")
    _check(wanted)
    defaults = _defaults(wanted, now=datetime.now(UTC))
    stdin = _Stdin()
    messages = _encoded(_rows(wanted, stdin), defaults)
    total = None if wanted.lines or wanted.json_lines else len(wanted.files or "1") * wanted.count
    tally = _Tally()
    with (
        _stopped(tally),
        connect(target) as client,
        explain_errors(target, place, right="Send"),
        progress("Sending", total) as advance,
    ):
        sender = client.sender(place.entity)
        for chunk in _chunks(messages, stdin):
            _send(sender, chunk, tally, target, place)
            advance(len(chunk))
    if as_json:
        print_json({"entity": place.entity, "sent": tally.sent})
    else:
        print(f"{tally.sent} sent to {place.entity!r}")


class _Tally:
    sent = 0


@contextmanager
def _stopped(tally: _Tally) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print(f"pairbus: interrupted, {tally.sent} were sent", file=sys.stderr)
        raise
    except UsageError as error:  # of a later line or file
        if not tally.sent:
            raise
        raise UsageError(f"{error}; {tally.sent} were sent before it") from error


def _send(
    sender: Sender, chunk: list[bytes], tally: _Tally, target: Target, place: EntityPath
) -> None:
    try:
        sender.send(chunk, window=1)
    except SendFailed as failed:
        tally.sent += failed.accepted
        doubtful = sum(map(len, failed.doubtful_ranges))
        words = [error_text(failed, target, place, right="Send")]
        if tally.sent or doubtful:
            words = [f"{tally.sent} were sent, then:", *words]
        if doubtful:
            words.append(f"({doubtful} more may have arrived: no answer came)")
        raise NamespaceError(" ".join(words)) from failed
    tally.sent += len(chunk)


# -- what there is to send ----------------------------------------------------------------------


def _check(wanted: Wanted) -> None:
    by_line = wanted.lines or wanted.json_lines
    if wanted.lines and wanted.json_lines:
        raise UsageError("--lines and --json-lines exclude each other")
    if wanted.body not in (None, "-") and (wanted.files or by_line):
        other = "--file" if wanted.files else "--lines" if wanted.lines else "--json-lines"
        raise UsageError(f"BODY and {other} exclude each other")
    if by_line and wanted.count > 1:
        raise UsageError("--count is for one message, not for lines")
    if wanted.said["messageId"] is not None and (
        by_line or wanted.count > 1 or len(wanted.files) > 1
    ):
        raise UsageError("--message-id is for one message: here are several")
    if wanted.body is None and not wanted.files and sys.stdin.isatty() and not by_line:
        raise UsageError("what is to be sent? Give BODY, --file, or something on stdin")


def _defaults(wanted: Wanted, *, now: datetime) -> Row:
    """What the options say of every message."""
    said = {name: value for name, value in wanted.said.items() if value is not None}
    row = row_from(said, "the options")
    del row["body"]
    if wanted.properties:
        row["applicationProperties"] = dict(map(parse_property, wanted.properties))
    if wanted.ttl is not None:
        row["timeToLive"] = round(parse_duration(wanted.ttl, "--ttl").total_seconds() * 1000)
        if not row["timeToLive"]:
            raise UsageError(f"--ttl {wanted.ttl!r}: at least 1ms is expected")
    if wanted.scheduled is not None:
        row["scheduledEnqueueTime"] = parse_time(wanted.scheduled, "--scheduled", now=now)
    _message(row, "the options")  # what is wrong with them is said before anything is sent
    return row


def _rows(wanted: Wanted, stdin: _Stdin) -> Iterator[tuple[str, Row]]:
    """Each with where it is from."""
    if wanted.lines or wanted.json_lines:
        for name, number, line in _all_lines(wanted.files, stdin):
            where = f"{name}, line {number}"
            if wanted.lines:
                yield where, {"body": line}
            elif line.strip():
                yield where, parse_form(_text(line, where), where)
        return
    if wanted.files:
        bodies: Iterable[bytes] = map(_content, wanted.files)
    elif wanted.body in (None, "-"):
        bodies = [_from_stdin(is_meant=wanted.body == "-")]
    else:
        assert wanted.body is not None
        bodies = [wanted.body.encode("utf-8", "surrogateescape")]  # bytes that the shell gave
    for body in bodies:
        for row in repeat({"body": body}, wanted.count):
            yield "the message", row


def _encoded(rows: Iterable[tuple[str, Row]], defaults: Row) -> Iterator[bytes]:
    for where, row in rows:
        properties = {
            **defaults.get("applicationProperties", {}),
            **row.get("applicationProperties", {}),
        }
        whole = defaults | row | {"applicationProperties": properties}
        yield _message(whole, where)


def _message(row: Row, where: str) -> bytes:
    if row.get("messageId") is None:
        row = row | {"messageId": str(uuid4())}
    try:
        return message_of(row, now_ms=round(datetime.now(UTC).timestamp() * 1000))
    except RowError as error:
        raise UsageError(f"{where}: {error.column}: {error.fault}") from error


def _chunks(messages: Iterable[bytes], stdin: _Stdin) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    size = 0
    try:
        for message in messages:
            chunk.append(message)
            size += len(message)
            if len(chunk) >= _CHUNK_COUNT_MAX or size >= _CHUNK_BYTES_MAX or stdin.is_dry():
                yield chunk
                chunk, size = [], 0
    except UsageError:
        # A bad line stops it; the good ones before it are sent, so that its number tells all.
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


def _all_lines(files: tuple[Path, ...], stdin: _Stdin) -> Iterator[tuple[str, int, bytes]]:
    if not files:
        yield from _lines(stdin, "stdin")
    for file in files:
        try:
            with file.open("rb") as stream:
                yield from _lines(stream, str(file))
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}") from error


class _Stdin:
    """Lines, and whether the next is there yet: what has come is not to wait for what may come."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._has_more = False

    def __iter__(self) -> Iterator[bytes]:
        self._descriptor = sys.stdin.fileno()
        rest = b""
        while read := os.read(self._descriptor, _READ_BYTES):
            *lines, rest = (rest + read).split(b"\n")
            for number, line in enumerate(lines, 1):
                self._has_more = number < len(lines)
                yield line
        if rest:
            yield rest

    def is_dry(self) -> bool:
        if self._descriptor is None or self._has_more:
            return False
        return not select.select([self._descriptor], [], [], 0)[0]


def _lines(stream: Iterable[bytes], name: str) -> Iterator[tuple[str, int, bytes]]:
    for number, line in enumerate(stream, 1):
        yield name, number, line.removesuffix(b"\n").removesuffix(b"\r")


def _text(line: bytes, where: str) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{where}: not UTF-8") from None


def _from_stdin(*, is_meant: bool) -> bytes:
    body = sys.stdin.buffer.read()
    if not body and not is_meant:
        raise UsageError('what is to be sent? stdin is empty; for an empty body, give ""')
    return body


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
