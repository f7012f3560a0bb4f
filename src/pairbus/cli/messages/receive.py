"""`pairbus receive`: writes each message, and settles it only then.

If the process is killed between the two, the message is written and delivered again; nothing is
settled that was not written. However it ends, by a signal or a broken pipe, messages that are not
settled are released.
"""

from __future__ import annotations

import math
import os
import re
import stat
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import count as counting
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pairbus.cli.entity_path import EntityPath, SubQueue, parse_entity_path
from pairbus.cli.message_client import explain_errors
from pairbus.cli.messages.message_json import MessageJson
from pairbus.cli.messages.settlement import SettlementAction, SettlementOptions
from pairbus.cli.messages.table import print_message
from pairbus.cli.output import format_count, json_text, print_json, progress, was_or_were
from pairbus.cli.parse import parse_positive_duration
from pairbus.cli.shared_options import (
    AS_JSON,
    ENTITY,
    SUB_QUEUE,
    SUBSCRIPTION,
    ConnectionOptions,
    count_option,
    flag,
    flatten_options,
    option,
    option_group,
)
from pairbus.cli.signals import Stop, graceful_stop
from pairbus.cli.target import Target
from pairbus.cli.watch import Outages
from pairbus.errors import NamespaceError, OutputError, UsageError

if TYPE_CHECKING:
    from pairbus.cli.messages.sources import Locked, Source

_SLICE_SECONDS: Final = 0.5
"""A wait is split into slices of this length, so that a signal is noticed soon."""
_BATCH_MAX: Final = 100
_WAIT: Final = "5s"

Write = Callable[[list[MessageJson]], None]


@option_group
class SessionOptions:
    """Which session of an entity with sessions."""

    session_id: str | None = option("ID", "Receive from this session.")
    next_session: bool = flag("Receive from the next session that is not locked.", "--next-session")

    @property
    def is_given(self) -> bool:
        return self.session_id is not None or self.next_session

    def check(self, path: EntityPath) -> None:
        """Raises UsageError."""
        if self.session_id is not None and self.next_session:
            raise UsageError("--session-id and --next-session cannot be combined")
        if path.sub_queue is not None and self.is_given:
            raise UsageError(
                f"{path.description} has no sessions: omit --session-id and --next-session"
            )


@option_group
class AmountOptions:
    """How many messages, and how long to wait for them."""

    count: int | None = count_option(
        "Maximum number of messages (default: 1; with --watch, no limit)."
    )
    is_all: bool = flag("Receive until no message arrives within --wait.", "--all")
    watch: bool = flag("Keep receiving until Ctrl-C, or until --count messages.", "--watch")
    wait: str | None = option("DURATION", "How long to wait for the next message (default: 5s).")

    def parse(self) -> tuple[int | None, float]:
        """The maximum number of messages, and the time to wait in seconds. Raises UsageError."""
        if self.is_all and self.count is not None:
            raise UsageError("--all and --count cannot be combined")
        if self.watch and (self.is_all or self.wait is not None):
            raise UsageError("--watch waits until Ctrl-C: omit --all and --wait")
        wait = parse_positive_duration(self.wait or _WAIT, "--wait")
        if self.watch:
            return self.count, math.inf
        return None if self.is_all else self.count or 1, wait


@flatten_options
def receive(
    entity: str = ENTITY,
    subscription: str | None = SUBSCRIPTION,
    *,
    amount: AmountOptions,
    settling: SettlementOptions,
    session: SessionOptions,
    sub_queue: SubQueue | None = SUB_QUEUE,
    output_dir: Path | None = option(
        "DIR", "Write each message as a JSON file into this folder, instead of to stdout."
    ),
    connection: ConnectionOptions,
    as_json: bool = AS_JSON,
) -> None:
    """Receive messages from a queue or a subscription, print them, and complete them.

    Each message is written first and completed afterwards. If the command is killed in between, the
    message is delivered again. With --json, each line is a message; a body that is not UTF-8 is in
    base64. With --watch, it waits for new messages, also while the namespace does not answer.
    Ctrl-C releases the messages that are not settled. The policy needs the Listen right.

    Exit codes: 0 success (also if no message arrived), 1 the namespace or the output failed, 2
    usage error, 130 interrupted.

    \b
    Examples:
      pairbus receive orders
      pairbus receive events audit --all --json > events.jsonl
      pairbus receive orders --count 100 --output-dir ./orders
      pairbus receive orders --dead-letter --reason "bad data"
      pairbus receive sorted --next-session --all
      pairbus receive orders --watch
    """
    target = connection.target
    path = parse_entity_path(entity, subscription, sub_queue)
    settlement = settling.parse()
    session.check(path)
    limit, wait_seconds = amount.parse()
    if amount.watch and (session.is_given or settlement is SettlementAction.ABANDON):
        raise UsageError(
            "--watch cannot be combined with --session-id, --next-session or --abandon, which keep "
            "messages locked"
        )
    write = _writer(output_dir, as_json=as_json)
    # A progress bar between messages on the same screen would be unreadable.
    is_bar_shown = output_dir is not None or not sys.stdout.isatty()
    with explain_errors(target, path, right="Listen"):
        source = _open_source(target, path, session, limit, delete=settling.delete)
        outages = Outages(target) if amount.watch else None
        work = _Receive(source, write, settlement, settling, outages)
        try:
            with (
                graceful_stop(is_idle=lambda: source.is_idle) as stop,
                progress("Receiving", limit if is_bar_shown else 0) as advance,
            ):
                work.run(limit, wait_seconds, advance, stop)
        finally:
            source.close()
    _print_summary(work.done, path, output_dir, settlement, as_json=as_json)
    stop.exit()


def _open_source(
    target: Target, path: EntityPath, session: SessionOptions, count: int | None, *, delete: bool
) -> Source:
    # Loads the SDK, which takes half a second.
    from pairbus.cli.messages.sources import FastSource, SessionSource

    if session.is_given:
        return SessionSource(target, path, session_id=session.session_id, delete=delete)
    return FastSource(target, path, count=count, delete=delete)


class _Receive:
    def __init__(
        self,
        source: Source,
        write: Write,
        settlement: SettlementAction,
        settling: SettlementOptions,
        outages: Outages | None,
    ) -> None:
        self._source = source
        self._write = write
        self._settlement = settlement
        self._reason = settling.reason or ""
        self._description = settling.description or ""
        self._outages = outages
        # Abandon at the end. If abandoned at once, they would be delivered again.
        self._to_abandon: list[Locked] = []
        self.done = 0

    def run(
        self,
        count: int | None,
        wait_seconds: float,
        advance: Callable[[int], None],
        stop: Stop,
    ) -> None:
        try:
            with self._outages_waited_out():
                self._source.open()
            self._receive_all(count, wait_seconds, advance, stop)
        finally:  # the service no longer has what it deleted, however this ends
            try:
                if rest := self._source.rest():
                    self._handle(rest)
            finally:
                if self._to_abandon:
                    self._settle(self._to_abandon)

    def _receive_all(
        self,
        count: int | None,
        wait_seconds: float,
        advance: Callable[[int], None],
        stop: Stop,
    ) -> None:
        seen: set[Any] = set()
        while (count is None or self.done < count) and not stop.is_requested:
            room = _BATCH_MAX if count is None else min(count - self.done, _BATCH_MAX)
            locked = self._next(room, wait_seconds, stop)
            if not locked:
                break
            if self._settlement is SettlementAction.ABANDON:
                numbers = {one.message.get("sequenceNumber") for one in locked}
                if seen & numbers:  # a lock has expired, and the message is delivered again
                    self._to_abandon += locked
                    break
                seen |= numbers
            self._handle(locked)
            advance(len(locked))

    def _next(self, room: int, wait_seconds: float, stop: Stop) -> list[Locked]:
        until = time.monotonic() + wait_seconds
        while not stop.is_requested:
            left = until - time.monotonic()
            wait = left if self._source.waits_in_one_piece else min(left, _SLICE_SECONDS)
            locked: list[Locked] = []
            with self._outages_waited_out():
                locked = self._source.receive(room, wait_seconds=max(wait, 0))
            if locked or left <= 0:
                return locked
        return []

    def _handle(self, locked: list[Locked]) -> None:
        from pairbus.fast.errors import SettleFailed

        messages = [one.message for one in locked]
        try:
            self._write(messages)
        except BaseException:
            if self._settlement is SettlementAction.DELETE:
                _print_on_stderr(messages)
            self._source.release(locked)
            raise
        if self._settlement is SettlementAction.ABANDON:
            self._to_abandon += locked
            self.done += len(locked)
            return
        # If the process dies here, the messages are written, and delivered again.
        try:
            with self._outages_waited_out():
                self._settle(locked)
                self.done += len(locked)
        except SettleFailed as failed:
            raise NamespaceError(
                f"{format_count(len(failed.failed))} {was_or_were(len(failed.failed))} written but "
                f"not {self._settlement}, and will be delivered again: {failed.error}"
            ) from failed

    def _outages_waited_out(self) -> AbstractContextManager[None]:
        """After an outage, what is not settled is delivered again."""
        return nullcontext() if self._outages is None else self._outages.waited_out()

    def _settle(self, locked: list[Locked]) -> None:
        self._source.settle(
            locked, self._settlement, reason=self._reason, description=self._description
        )


def _print_summary(
    done: int,
    path: EntityPath,
    folder: Path | None,
    settlement: SettlementAction,
    *,
    as_json: bool,
) -> None:
    if folder is not None and as_json:
        print_json({"entity": path.path, "received": done, "outputDir": str(folder)})
    elif folder is not None:
        print(f"wrote {format_count(done)} of {path.description} to {folder}")
    elif not as_json:
        verb = settlement if settlement is SettlementAction.DEAD_LETTER else "received"
        print(f"{verb} {format_count(done)} of {path.description}", file=sys.stderr)


# -- writing so that a message can be settled: nothing is lost if the machine stops --------------


def _writer(folder: Path | None, *, as_json: bool) -> Write:
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
        if stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode):
            os.fsync(sys.stdout.fileno())
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write to stdout: {error.strerror}") from error


def _print_on_stderr(messages: list[MessageJson]) -> None:
    """The service has deleted these messages, so this is the only copy."""
    print(
        f"pairbus: {format_count(len(messages))} {was_or_were(len(messages))} deleted but could "
        "not be written:",
        file=sys.stderr,
    )
    for message in messages:
        print(json_text(message), file=sys.stderr)


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
    """Named by the sequence number. Never overwrites a file, and leaves no partial one."""
    number = re.sub(r"\W", "_", str(message.get("sequenceNumber")))
    for attempt in counting(1):
        path = folder / (f"{number}.json" if attempt == 1 else f"{number}.{attempt}.json")
        with suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
            try:
                file.write(f"{json_text(message, indent=2)}\n")
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                path.unlink()
                raise
            return
