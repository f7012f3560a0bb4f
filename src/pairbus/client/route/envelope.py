"""What a message carries in its application properties while it waits in a backlog queue.

A backlog queue has no sessions, must not let messages expire early or hold them back, and is not
their destination: so session, time to live, schedule and destination travel as properties. This
module takes and returns plain values; the caller encodes the numbers as AMQP's long and timestamp,
and clears the originals.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from pairbus.errors import PairbusError

PATH: Final = "x-ms-path"
SESSION_ID: Final = "x-ms-sessionid"
TIME_TO_LIVE: Final = "x-ms-timetolive"
SCHEDULED: Final = "x-ms-scheduledenqueuetimeutc"
DIVERTED_BY: Final = "x-pairbus-diverted-by"
"""With ordered failback: which client diverted the message, and when on that client's clock."""
ALIASES: Final = (PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED, DIVERTED_BY)
KEPT_PREFIX: Final = "x-pairbus-kept:"
"""The prefix for an application's own properties whose names are the same as ours."""

_KEPT_PREFIX_BYTES: Final = KEPT_PREFIX.encode()
_RESERVED: Final = frozenset([*ALIASES, *(alias.encode() for alias in ALIASES)])

Name = str | bytes
"""The SDK also accepts and returns names as bytes; on the wire both are strings and may collide."""


class EnvelopeError(PairbusError, ValueError):
    """A message in a backlog queue lacks a property that it needs to be brought home."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwrapped:
    path: str
    session_id: str | None
    time_to_live_ms: int | None
    scheduled_ms: int | None
    """Milliseconds since 1970, UTC."""
    diverted_by: str | None = None
    """A mark of the client, if it wants to know when the message is home."""
    properties: dict[Name, Any]
    """The application's own; empty if it had none."""


def wrap(
    properties: Mapping[Name, Any] | Mapping[str, Any] | None,
    *,
    path: str,
    session_id: str | None,
    time_to_live_ms: int | None,
    scheduled_ms: int | None,
    diverted_by: str | None = None,
) -> dict[Name, Any]:
    """The application's own properties, in their order and unchanged, and then the aliases.

    A property of the application that has the name of an alias is kept under another name, so that
    a message from another pair's backlog leaves ours unchanged.
    """
    assert path, "a message without a destination path cannot be brought home"
    wrapped: dict[Name, Any] = (
        {_kept(name): value for name, value in properties.items()} if properties else {}
    )
    wrapped[PATH] = path
    if session_id is not None:
        wrapped[SESSION_ID] = session_id
    if time_to_live_ms is not None:
        wrapped[TIME_TO_LIVE] = time_to_live_ms
    if scheduled_ms is not None:
        wrapped[SCHEDULED] = scheduled_ms
    if diverted_by is not None:
        wrapped[DIVERTED_BY] = diverted_by
    return wrapped


# A path segment that begins with a dollar is a part of an entity. Some of these accept messages and
# do not keep them: one sent to $management would be acknowledged and lost. A subscription accepts
# none.
_NO_ENTITY = re.compile(
    r"[\s\x00-\x1f\x7f?#]|(?:^|/)(?:\$|/|$)|/subscriptions(?:/|$)", re.IGNORECASE
)
_PATH_LENGTH_MAX = 260


@lru_cache(maxsize=1024)
def can_be_entity(path: str) -> bool:
    """Whether a queue or topic may have this path, judged by its characters alone."""
    # Service Bus ignores a slash at either end.
    name = path.strip("/")
    return 0 < len(name) <= _PATH_LENGTH_MAX and not _NO_ENTITY.search(name)


def unwrap(properties: Mapping[Name, Any] | Mapping[str, Any] | None) -> Unwrapped:
    """The reverse of `wrap`. Raises EnvelopeError for properties that `wrap` could not have
    written.
    """
    aliases: dict[Name, Any] = {}
    own: dict[Name, Any] = {}
    for name, value in (properties or {}).items():
        if name in _RESERVED:
            aliases[name if isinstance(name, str) else name.decode()] = value
        else:
            own[_original(name)] = value
    path = _text(aliases, PATH)
    if not path:
        fault = "is missing" if path is None else "is empty"
        raise EnvelopeError(
            f"the property {PATH} {fault}: it should be the path of the queue or topic that the "
            "message was sent to"
        )
    if not can_be_entity(path):
        raise EnvelopeError(
            f"the property {PATH} is {path[:_PATH_LENGTH_MAX]!r}: no queue or topic has such a path"
        )
    time_to_live_ms = _number(aliases, TIME_TO_LIVE, "the time to live in milliseconds (a long)")
    if time_to_live_ms is not None and time_to_live_ms < 0:
        raise EnvelopeError(
            f"the property {TIME_TO_LIVE} is {time_to_live_ms}: it should be the time to live in "
            "milliseconds, 0 or more"
        )
    return Unwrapped(
        path=path,
        session_id=_text(aliases, SESSION_ID),
        time_to_live_ms=time_to_live_ms,
        scheduled_ms=_number(
            aliases, SCHEDULED, "a time in milliseconds since 1970, UTC (a timestamp)"
        ),
        diverted_by=_text(aliases, DIVERTED_BY),
        properties=own,
    )


# A name that begins with the prefix gets a second one, so that removing one restores the name. A
# name that is neither str nor bytes passes; the SDK raises its own error for it.


def _kept(name: Any) -> Any:
    if isinstance(name, str) and (name in _RESERVED or name.startswith(KEPT_PREFIX)):
        return KEPT_PREFIX + name
    if isinstance(name, bytes) and (name in _RESERVED or name.startswith(_KEPT_PREFIX_BYTES)):
        return _KEPT_PREFIX_BYTES + name
    return name


def _original(name: Any) -> Any:
    if isinstance(name, str):
        return name.removeprefix(KEPT_PREFIX)
    if isinstance(name, bytes):
        return name.removeprefix(_KEPT_PREFIX_BYTES)
    return name


def _text(aliases: Mapping[Name, Any], alias: str) -> str | None:
    value = aliases.get(alias)
    if isinstance(value, bytes):  # the SDK returns strings as bytes
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    elif value is None or isinstance(value, str):
        return value
    raise EnvelopeError(
        f"the property {alias} is {value!r}, of type {type(value).__name__}: it should be a string"
    )


def _number(aliases: Mapping[Name, Any], alias: str, meaning: str) -> int | None:
    value = aliases.get(alias)
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise EnvelopeError(
        f"the property {alias} is {value!r}, of type {type(value).__name__}: it should be {meaning}"
    )
