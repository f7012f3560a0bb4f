"""Writes received messages so that they can be settled: nothing is lost if the machine stops."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count as counting
from pathlib import Path

from pairbus.cli.messages.message_json import MessageJson
from pairbus.cli.messages.table import print_message
from pairbus.errors import OutputError, UsageError

Write = Callable[[list[MessageJson]], None]


def writer(folder: Path | None, *, as_json: bool) -> Write:
    """A function that writes messages to stdout, or into a folder. Raises UsageError."""
    if folder is None:
        return lambda messages: _print(messages, as_json=as_json)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot create --output-dir {folder}: {error.strerror}") from error
    return lambda messages: _write_files(folder, messages)


def _print(messages: list[MessageJson], *, as_json: bool) -> None:
    """When this returns, the reader has the messages; if stdout is a file, the disk has them."""
    try:
        for message in messages:
            print_message(message, as_json=as_json)
        sys.stdout.flush()
        with suppress(AttributeError, ValueError):  # not a real file, in a test or a notebook
            if stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode):
                os.fsync(sys.stdout.fileno())
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write to stdout: {error.strerror}") from error


def _write_files(folder: Path, messages: list[MessageJson]) -> None:
    """When this returns, the disk has the files and their names. Raises OutputError."""
    try:
        for message in messages:
            _write_file(folder, message)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise OutputError(f"cannot write to --output-dir {folder}: {error.strerror}") from error


def _write_file(folder: Path, message: MessageJson) -> None:
    """Named by the sequence number. Never overwrites a file."""
    number = re.sub(r"\W", "_", str(message.get("sequenceNumber")))
    for attempt in counting(1):
        name = f"{number}.json" if attempt == 1 else f"{number}.{attempt}.json"
        try:
            with (folder / name).open("x", encoding="utf-8") as file:
                json.dump(message, file, ensure_ascii=False, indent=2)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            return
        except FileExistsError:
            continue
