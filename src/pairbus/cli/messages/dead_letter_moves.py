"""Resubmits or purges dead letters. Both must lock them first.

The service delivers them in its own order, so other messages are locked, too, and released at the
end. A copy is sent before its dead letter is completed. If the process dies in between, the message
is in both places, and nothing is lost.

This module loads the SDK: import it only to move messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

from azure.core.exceptions import AzureError

from pairbus.cli.administration import (
    AccessDenied,
    Administration,
    EntityKind,
    EntityNotFound,
    administration,
)
from pairbus.cli.entity_path import EntityPath
from pairbus.cli.message_client import BatchFailed, connect, explain_errors, send_batch
from pairbus.cli.messages.message_json import DEAD_LETTER_PROPERTIES, row_of, typed_properties
from pairbus.cli.output import format_count, format_duration, was_or_were
from pairbus.cli.signals import Stop, graceful_stop
from pairbus.cli.target import Target
from pairbus.errors import NamespaceError, UsageError
from pairbus.fast.client import FastClient
from pairbus.fast.compose import RowError, message_of
from pairbus.fast.connection import attach_each
from pairbus.fast.errors import SettleFailed
from pairbus.fast.message import ReceivedMessage
from pairbus.fast.receiver import Receiver
from pairbus.fast.rows import UnreadableMessage, read
from pairbus.fast.sender import Sender

_BATCH_COUNT: Final = 100
_SLICE_SECONDS: Final = 0.5
STALLED_SECONDS_MAX: Final = 5.0
"""If no new message arrives for this long, the others are locked by other receivers or gone."""
_CLOCK_SKEW_SECONDS: Final = 300.0
"""How far the clock of this machine may be ahead of the service's."""

Advance = Callable[[int], None]
Act = Callable[[list[ReceivedMessage]], None]


@dataclass(slots=True)
class Result:
    done: int = 0
    unreadable: int = 0
    held: int = 0
    """The number of other messages that had to be locked."""
    is_opening: bool = True
    """Nothing is locked yet, so the command may end at once."""
    stop: Stop = field(default_factory=Stop)


def check_destination(client: FastClient, target: Target, destination: EntityPath) -> None:
    """Raises NamespaceError if messages cannot be sent there, even if there are none to send."""
    with explain_errors(target, destination, right="Send"):
        [error] = attach_each([client.sender(destination.path)])
        if error is not None:
            raise error


def resubmit(
    client: FastClient,
    target: Target,
    path: EntityPath,
    destination: EntityPath,
    wanted: set[int],
    new_ids: bool,
    advance: Advance,
) -> Result:
    """Send copies of these dead letters, and complete each one whose copy is accepted."""
    result = Result()
    # Use a second connection: thousands of locked messages on the first one would count against its
    # limits.
    with connect(target) as home:

        def make_act(receiver: Receiver) -> Act:
            sender = home.sender(destination.path)
            return lambda received: _resubmit_batch(
                received, receiver, sender, target, destination, result, new_ids=new_ids
            )

        with _counted_in_errors("resubmitted", result):
            _for_each_locked(client, target, path, wanted, make_act, result, advance)
    return result


def purge(
    client: FastClient, target: Target, path: EntityPath, wanted: set[int], advance: Advance
) -> Result:
    """Delete these dead letters."""
    result = Result()

    def make_act(receiver: Receiver) -> Act:
        return lambda received: _complete(received, receiver, result)

    with _counted_in_errors("purged", result):
        _for_each_locked(client, target, path, wanted, make_act, result, advance)
    return result


@contextmanager
def _counted_in_errors(what: str, result: Result) -> Iterator[None]:
    """An error says how many messages were moved before it."""
    try:
        yield
    except NamespaceError as error:
        if not result.done:
            raise
        raise NamespaceError(f"{what} {format_count(result.done)}, then: {error}") from error


def _for_each_locked(
    client: FastClient,
    target: Target,
    path: EntityPath,
    wanted: set[int],
    make_act: Callable[[Receiver], Act],
    result: Result,
    advance: Advance,
) -> None:
    """Lock messages until all wanted ones have been acted on, and release the others."""
    if not wanted:
        return
    with (
        graceful_stop(is_idle=lambda: result.is_opening) as stop,
        explain_errors(target, path, right="Listen"),
    ):
        result.stop = stop
        receiver = client.receiver(path.path, credit=_BATCH_COUNT)
        act = make_act(receiver)
        others: list[ReceivedMessage] = []
        seen: set[int | None] = set()
        last_new = time.monotonic()
        try:
            while wanted and not stop.is_requested:
                received = receiver.receive(_BATCH_COUNT, max_wait_seconds=_SLICE_SECONDS)
                result.is_opening = False
                mine = [one for one in received if one.sequence_number in wanted]
                rest = [one for one in received if one.sequence_number not in wanted]
                for one in rest:
                    one.data = b""  # bounds the memory: only the lock matters
                others += rest
                new = {one.sequence_number for one in received} - seen
                seen |= new
                if new:
                    last_new = time.monotonic()
                elif time.monotonic() - last_new > STALLED_SECONDS_MAX:
                    return
                if mine:
                    act(mine)
                    wanted -= {one.sequence_number or -1 for one in mine}
                    advance(len(mine))
        finally:
            result.held = len(others)
            _release(receiver, others)


def _release(receiver: Receiver, received: list[ReceivedMessage]) -> None:
    """Locks that were lost in the meantime need no release."""
    with suppress(AzureError):
        if received:
            receiver.release(received)


def _complete(received: list[ReceivedMessage], receiver: Receiver, result: Result) -> None:
    try:
        if received:
            receiver.complete(received)
    except SettleFailed as failed:
        result.done += len(received) - len(failed.failed)
        raise
    result.done += len(received)


# -- resubmit ------------------------------------------------------------------------------------


def _resubmit_batch(
    received: list[ReceivedMessage],
    receiver: Receiver,
    sender: Sender,
    target: Target,
    destination: EntityPath,
    result: Result,
    *,
    new_ids: bool,
) -> None:
    now_ms = round(datetime.now(UTC).timestamp() * 1000)
    ready: list[tuple[ReceivedMessage, bytes]] = []
    unreadable: list[ReceivedMessage] = []
    for one in received:
        new_id = str(uuid4()) if new_ids else None
        try:
            copy = original_message(one.data, destination.path, now_ms=now_ms, new_id=new_id)
            ready.append((one, copy))
        except (UnreadableMessage, RowError):
            unreadable.append(one)
    result.unreadable += len(unreadable)
    _release(receiver, unreadable)
    accepted, refusal = set(range(len(ready))), None
    try:
        send_batch(sender, [copy for _, copy in ready], target=target, entity=destination)
    except BatchFailed as failed:
        accepted, refusal = failed.accepted, failed
    # If the process dies here, the messages are in both places. A message without a copy stays.
    try:
        _complete([ready[index][0] for index in sorted(accepted)], receiver, result)
    except SettleFailed as failed:
        numbers = ", ".join(str(one.sequence_number) for one, _ in failed.failed[:10])
        raise NamespaceError(
            f"{format_count(len(failed.failed))} {was_or_were(len(failed.failed))} sent again but "
            f"not removed from the dead letters (sequence numbers {numbers}): {failed.error}"
        ) from failed
    if refusal is not None:
        _release(receiver, [one for index, (one, _) in enumerate(ready) if index not in accepted])
        raise NamespaceError(refusal.text("")) from refusal


def original_message(data: bytes, path: str, *, now_ms: int, new_id: str | None = None) -> bytes:
    """The message as it was sent. Its time to live starts again, and it is not scheduled.

    Raises UnreadableMessage or RowError.
    """
    row = row_of(read(data, entity=path))
    own = [pair for pair in row["applicationProperties"] if pair[0] not in DEAD_LETTER_PROPERTIES]
    row |= {
        "applicationProperties": typed_properties(own),
        "annotations": typed_properties(row["annotations"]),
        "scheduledEnqueueTime": None,
    }
    if new_id is not None:
        row["messageId"] = new_id
    return message_of(row, now_ms=now_ms)


# -- duplicate detection -------------------------------------------------------------------------


def check_duplicates(
    target: Target, destination: EntityPath, enqueued: Iterable[float | None], *, now: float
) -> None:
    """Raise UsageError if the destination may drop some messages because it has seen their ids.

    It acknowledges such a message and drops it; then the dead letter is removed, and the message is
    lost. The entity no longer remembers messages from before its history window. `enqueued` and
    `now` are in seconds since 1970.
    """
    window = _history_window(target, destination)
    if window is None:
        return
    seconds = window.total_seconds() + _CLOCK_SKEW_SECONDS
    young = sum(time is None or now - time <= seconds for time in enqueued)
    if young:
        raise UsageError(
            f"{format_count(young)} may be dropped as duplicates: {destination.description} "
            f"remembers message ids for {format_duration(window.total_seconds())}. Use --new-ids, "
            f"or select older messages with --older-than {round(seconds)}s"
        )


def _history_window(target: Target, destination: EntityPath) -> timedelta | None:
    """How long the entity remembers message ids; None: it has no duplicate detection."""
    with administration(target) as admin:
        try:
            found = _properties(admin, destination)
        except AccessDenied as error:
            raise UsageError(
                f"cannot check whether {destination.description} has duplicate detection, "
                f"because {error}. Use --new-ids, or --keep-ids if it has none"
            ) from error
    if not found.requires_duplicate_detection:
        return None
    window: timedelta = found.duplicate_detection_history_time_window
    return window


def _properties(admin: Administration, destination: EntityPath) -> Any:
    try:
        return admin.get(EntityKind.QUEUE, (destination.entity,))
    except EntityNotFound:
        pass
    try:
        return admin.get(EntityKind.TOPIC, (destination.entity,))
    except EntityNotFound as error:
        raise EntityNotFound(str(error).replace("topic ", "", 1)) from error
