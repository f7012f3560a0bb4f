"""Looking through the messages of an entity, without locks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from pairbus.cli.messages.entity_path import Place
from pairbus.cli.target import Target
from pairbus.fast.client import FastClient
from pairbus.fast.peek import patiently
from pairbus.fast.rows import Read, read

_CHUNK: Final = 250


def looked(
    client: FastClient, target: Target, place: Place, *, start: int = 0, limit: int | None = None
) -> Iterator[Read]:
    """From a sequence number on, in order. Raises the SDK's errors, and UnreadableMessage."""
    management = client.management(place.path)
    at, left = start, limit
    while left is None or left > 0:
        count = _CHUNK if left is None else min(_CHUNK, left)
        # Who makes their own broker fail wants to see it, and not four attempts later.
        ask = partial(management.peek, at, count)
        found = ask() if target.is_local else patiently(ask)
        for data in found:
            message = read(data, entity=place.path)
            yield message
            number = message.note("x-opt-sequence-number")
            at = max(at, int(number) if isinstance(number, int) else at) + 1
        if not found:
            return
        left = None if left is None else left - len(found)
