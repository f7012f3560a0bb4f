"""What `pairbus receive` does: takes messages, writes them, and only then settles them.

Who dies between writing and settling has written what comes again; nothing is settled that was not
written. Whatever ends it, an interrupt or a broken pipe, what is not settled is given back.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count as counting
from pathlib import Path
from typing import Any, Final

from pairbus.cli.connection import explain_errors
from pairbus.cli.messages.entity_path import EntityPath, SubQueue, parse_entity_path
from pairbus.cli.messages.message_json import Form
from pairbus.cli.messages.sources import (
    CREDIT_MAX,
    QuickSource,
    SdkSource,
    Source,
    Taken,
    Verdict,
)
from pairbus.cli.messages.table import line_of, page_of
from pairbus.cli.output import print_json, progress
from pairbus.cli.parse import parse_duration
from pairbus.cli.signals import Stop, graceful_stop
from pairbus.cli.target import Target
from pairbus.errors import NamespaceError, UsageError
from pairbus.fast.errors import SettleFailed

_SLICE_SECONDS: Final = 0.5
"""Of a wait: so soon an interrupt is heard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    entity: str
    subscription: str | None
    count: int | None
    wait: str
    abandon: bool
    dead_letter: bool
    delete: bool
    reason: str | None
    description: str | None
    session: str | None
    next_session: bool
    sub_queue: SubQueue | None
    to: Path | None


def run(target: Target, wanted: Wanted, *, as_json: bool) -> None:
    place = parse_entity_path(wanted.entity, wanted.subscription, wanted.sub_queue)
    verdict = _verdict(wanted)
    if place.sub_queue is not None and (wanted.session is not None or wanted.next_session):
        raise UsageError(
            f"{place.description} has no sessions: leave --session and --next-session out"
        )
    wait_seconds = parse_duration(wanted.wait, "--wait").total_seconds()
    write = _writer(wanted.to, as_json=as_json)
    # A bar between messages on the same screen would be a mess.
    is_bar_seen = wanted.to is not None or not sys.stdout.isatty()
    with explain_errors(target, place, right="Listen"):
        source = _source(target, place, wanted)
        work = _Work(source, write, verdict, (wanted.reason or "", wanted.description or ""))
        try:
            with (
                graceful_stop(is_idle=lambda: work.is_opening) as stop,
                progress("Receiving", wanted.count if is_bar_seen else 0) as advance,
            ):
                work.run(wanted.count, wait_seconds, advance, stop)
        finally:
            source.close()
    _tell(work, place, wanted, as_json=as_json)
    stop.exit()


def _verdict(wanted: Wanted) -> Verdict:
    chosen = {
        Verdict.ABANDON: wanted.abandon,
        Verdict.DEAD_LETTER: wanted.dead_letter,
        Verdict.DELETE: wanted.delete,
    }
    found = [verdict for verdict, is_chosen in chosen.items() if is_chosen]
    if len(found) > 1:
        raise UsageError("--abandon, --dead-letter and --delete exclude each other")
    if (wanted.reason or wanted.description) and not wanted.dead_letter:
        raise UsageError("--reason and --description go with --dead-letter")
    if wanted.session is not None and wanted.next_session:
        raise UsageError("--session and --next-session exclude each other")
    return found[0] if found else Verdict.COMPLETE


def _source(target: Target, place: EntityPath, wanted: Wanted) -> Source:
    if wanted.session is None and not wanted.next_session and not wanted.delete:
        return QuickSource(target, place, count=wanted.count)
    return SdkSource(
        target,
        place,
        session=wanted.session,
        is_next=wanted.next_session,
        deletes=wanted.delete,
    )


class _Work:
    def __init__(
        self,
        source: Source,
        write: Callable[[list[Form]], None],
        verdict: Verdict,
        why: tuple[str, str],
    ) -> None:
        self._source = source
        self._write = write
        self._verdict = verdict
        self._why = why
        self._kept: list[Taken] = []  # to be abandoned at the end: at once, they would come again
        self.done = 0
        self.is_opening = True
        """Nothing is held yet: whoever does not answer may be left at once."""

    def run(
        self,
        count: int | None,
        wait_seconds: float,
        advance: Callable[[int], None],
        stop: Stop,
    ) -> None:
        seen: set[Any] = set()
        try:
            while (count is None or self.done < count) and not stop.is_requested:
                room = CREDIT_MAX if count is None else min(count - self.done, CREDIT_MAX)
                taken = self._next(room, wait_seconds, stop)
                if not taken:
                    break
                if self._verdict is Verdict.ABANDON:
                    numbers = {one.form.get("sequenceNumber") for one in taken}
                    if seen & numbers:  # a lock ran out, and it comes again
                        self._kept += taken
                        break
                    seen |= numbers
                self._handle(taken)
                advance(len(taken))
        finally:
            if self._kept:
                self._abandon()

    def _next(self, room: int, wait_seconds: float, stop: Stop) -> list[Taken]:
        until = time.monotonic() + wait_seconds
        while not stop.is_requested:
            left = until - time.monotonic()
            # A session is waited for while it is being opened, so that is not done in slices.
            whole = self.is_opening and isinstance(self._source, SdkSource)
            taken = self._source.take(
                room, wait_seconds=max(left if whole else min(left, _SLICE_SECONDS), 0)
            )
            self.is_opening = False
            if taken or left <= 0:
                return taken
        return []

    def _handle(self, taken: list[Taken]) -> None:
        try:
            self._write([one.form for one in taken])
        except BaseException:
            self._source.give_back(taken)
            raise
        if self._verdict is Verdict.ABANDON:
            self._kept += taken
            self.done += len(taken)
            return
        try:
            self._source.settle(taken, self._verdict, self._why)
        except SettleFailed as failed:
            raise NamespaceError(
                f"{len(failed.failed)} of {self.done + len(taken)} messages were written, but not "
                f"{self._verdict}, and will come again: {failed.error}"
            ) from failed
        self.done += len(taken)

    def _abandon(self) -> None:
        self._source.settle(self._kept, Verdict.ABANDON, self._why)


# -- writing ------------------------------------------------------------------------------------


def _writer(folder: Path | None, *, as_json: bool) -> Callable[[list[Form]], None]:
    if folder is None:
        return lambda forms: _print(forms, as_json=as_json)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--to {folder} cannot be made: {error.strerror}") from error
    return lambda forms: _write_files(folder, forms)


def _print(forms: list[Form], *, as_json: bool) -> None:
    """On its way to whoever reads it when this returns; on the disk, if it is a file."""
    try:
        for form in forms:
            print(line_of(form) if as_json else page_of(form, on_terminal=sys.stdout.isatty()))
        sys.stdout.flush()
        with suppress(AttributeError, ValueError):  # not a real file, in a test or a notebook
            if stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode):
                os.fsync(sys.stdout.fileno())
    except BrokenPipeError:
        raise
    except OSError as error:
        raise NamespaceError(f"stdout cannot be written: {error.strerror}") from error


def _write_files(folder: Path, forms: list[Form]) -> None:
    try:
        for form in forms:
            _write_file(folder, form)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise NamespaceError(f"--to {folder} cannot be written: {error.strerror}") from error


def _write_file(folder: Path, form: Form) -> None:
    """Under the sequence number; over no file that is there."""
    number = re.sub(r"\W", "_", str(form.get("sequenceNumber")))
    for attempt in counting(1):
        name = f"{number}.json" if attempt == 1 else f"{number}.{attempt}.json"
        try:
            with (folder / name).open("x", encoding="utf-8") as file:
                json.dump(form, file, ensure_ascii=False, indent=2)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            return
        except FileExistsError:
            continue


def _tell(work: _Work, place: EntityPath, wanted: Wanted, *, as_json: bool) -> None:
    if wanted.to is not None and as_json:
        print_json({"entity": place.path, "received": work.done, "folder": str(wanted.to)})
    elif wanted.to is not None:
        print(f"{work.done} of {place.description} written to {wanted.to}")
    elif not as_json:
        print(f"{work.done} received of {place.description}", file=sys.stderr)
