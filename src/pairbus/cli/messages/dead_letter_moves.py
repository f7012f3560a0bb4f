"""Through the dead letters with locks: each that is meant is dealt with, all others given back.

For each line ask what happens if the process dies there. A copy is sent before its dead letter is
completed, so the worst is that it is in both places.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

from azure.core.exceptions import AzureError

from pairbus.cli.connection import error_text
from pairbus.cli.messages.entity_path import EntityPath
from pairbus.cli.messages.message_json import ADDED, pairs_of, row_of
from pairbus.cli.signals import Stop
from pairbus.cli.target import Target
from pairbus.errors import NamespaceError
from pairbus.fast.client import FastClient
from pairbus.fast.compose import RowError, message_of
from pairbus.fast.errors import SendFailed, SettleFailed
from pairbus.fast.message import ReceivedMessage
from pairbus.fast.receiver import Receiver
from pairbus.fast.rows import UnreadableMessage, read
from pairbus.fast.sender import Sender

_CHUNK: Final = 100
_SLICE_SECONDS: Final = 0.5
_STALLED_SECONDS_MAX: Final = 5.0
"""Without anything new: what is left is locked by others, or gone."""


@dataclass(slots=True)
class Fate:
    done: int = 0
    unreadable: int = 0
    held: int = 0
    """Others that had to be locked meanwhile."""
    is_stopped: bool = False
    is_opening: bool = True
    """Nothing is held yet."""


Act = Callable[[list[ReceivedMessage]], None]


def walk(
    client: FastClient,
    place: EntityPath,
    wanted: set[int],
    act: Callable[[Receiver], Act],
    fate: Fate,
    advance: Callable[[int], None],
    stop: Stop,
) -> None:
    receiver = client.receiver(place.path, credit=_CHUNK)
    deal_with = act(receiver)
    others: list[ReceivedMessage] = []
    seen: set[int | None] = set()
    last = time.monotonic()
    try:
        while wanted and not stop.is_requested:
            received = receiver.receive(_CHUNK, max_wait_seconds=_SLICE_SECONDS)
            fate.is_opening = False
            mine = [one for one in received if one.sequence_number in wanted]
            rest = [one for one in received if one.sequence_number not in wanted]
            for one in rest:
                one.data = b""  # only its lock matters
            others += rest
            new = {one.sequence_number for one in received} - seen
            seen |= new
            if new:
                last = time.monotonic()
            elif time.monotonic() - last > _STALLED_SECONDS_MAX:
                return
            if mine:
                deal_with(mine)
                wanted -= {one.sequence_number or -1 for one in mine}
                advance(len(mine))
    finally:
        fate.is_stopped, fate.held = bool(stop.is_requested), len(others)
        release(receiver, others)


def release(receiver: Receiver, received: list[ReceivedMessage]) -> None:
    """As far as they are still ours; else their locks have run out already."""
    with suppress(AzureError):
        if received:
            receiver.release(received)


def purged(receiver: Receiver, fate: Fate) -> Act:
    def act(received: list[ReceivedMessage]) -> None:
        try:
            receiver.complete(received)
        except SettleFailed as failed:
            fate.done += len(received) - len(failed.failed)
            raise NamespaceError(f"{fate.done} were purged, then: {failed.error}") from failed
        fate.done += len(received)

    return act


class Resubmitting:
    def __init__(
        self,
        receiver: Receiver,
        sender: Sender,
        target: Target,
        goal: EntityPath,
        fate: Fate,
        *,
        gives_new_ids: bool = False,
    ) -> None:
        self._receiver = receiver
        self._sender = sender
        self._target = target
        self._goal = goal
        self._fate = fate
        self._gives_new_ids = gives_new_ids

    def __call__(self, received: list[ReceivedMessage]) -> None:
        now_ms = round(datetime.now(UTC).timestamp() * 1000)
        ready: list[tuple[ReceivedMessage, bytes]] = []
        bad: list[ReceivedMessage] = []
        for one in received:
            try:
                new_id = str(uuid4()) if self._gives_new_ids else None
                copy = clean_copy(one.data, self._goal.path, now_ms=now_ms, new_id=new_id)
                ready.append((one, copy))
            except (UnreadableMessage, RowError):
                bad.append(one)
        self._fate.unreadable += len(bad)
        release(self._receiver, bad)
        try:
            self._sender.send([copy for _, copy in ready], window=1)
        except SendFailed as failed:
            taken = {index for some in failed.accepted_ranges for index in some}
            self._complete([one for index, (one, _) in enumerate(ready) if index in taken])
            release(
                self._receiver,
                [one for index, (one, _) in enumerate(ready) if index not in taken],
            )
            doubtful = sum(map(len, failed.doubtful_ranges))
            doubt = f" ({doubtful} more may have arrived: no answer came)" if doubtful else ""
            why = error_text(failed, self._target, self._goal, right="Send")
            raise NamespaceError(
                f"{self._fate.done} were resubmitted, then: {why}{doubt}"
            ) from failed
        self._complete([one for one, _ in ready])

    def _complete(self, received: list[ReceivedMessage]) -> None:
        """They have been acknowledged elsewhere."""
        if not received:
            return
        try:
            self._receiver.complete(received)
        except SettleFailed as failed:
            self._fate.done += len(received) - len(failed.failed)
            numbers = ", ".join(str(one.sequence_number) for one, _ in failed.failed[:10])
            raise NamespaceError(
                f"{len(failed.failed)} were sent again, and are dead letters still (sequence "
                f"numbers {numbers}): {failed.error}"
            ) from failed
        self._fate.done += len(received)


def clean_copy(data: bytes, path: str, *, now_ms: int, new_id: str | None = None) -> bytes:
    """The message as it was sent: its life begins anew, and what is past is not scheduled again.

    Raises UnreadableMessage or RowError.
    """
    row = row_of(read(data, entity=path))
    own = [pair for pair in row["applicationProperties"] if pair[0] not in ADDED]
    row |= {
        "applicationProperties": pairs_of(own),
        "annotations": pairs_of(row["annotations"]),
        "scheduledEnqueueTime": None,
    }
    if new_id is not None:
        row["messageId"] = new_id
    return message_of(row, now_ms=now_ms)
