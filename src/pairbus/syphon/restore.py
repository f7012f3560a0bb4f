"""A backlog message as a receiver gets it, made into the message that the application sent.

It undoes the envelope and what a broker adds on delivery, on the encoded bytes: session, time to
live and schedule go back to where the service looks for them, aliases and stamps are gone, and
everything else stays byte for byte. Bodies are not decoded. What is written anew is written as
Azure's SDK for Python does it. Knows no clock (`now_ms` is UTC) and nothing of destinations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from pairbus.amqp.codec.values import PAST_THE_END, encode
from pairbus.client.route.envelope import (
    PATH,
    SCHEDULED,
    SESSION_ID,
    TIME_TO_LIVE,
    EnvelopeError,
    can_be_entity,
    unwrap,
)
from pairbus.syphon import pairs, pieces

_EXPIRY_MS_MAX: Final = 253_402_243_199_000
"""As far into the year 9999 as the SDK goes."""
_TTL_MS_MAX: Final = 2**32 - 1
"""Of a header. A longer life is told by the absolute expiry time alone, as SDKs do."""
_SCHEDULED_MS_END: Final = 2**63
_KNOWN_HEADER_BYTES_MAX: Final = 32
_KNOWN_APPLICATION_BYTES_MAX: Final = 512


@dataclass(slots=True)  # not frozen: that would double the cost of making one
class Restored:
    """The original of a backlog message, and what is known of it. Not to be changed."""

    path: str
    """Where it belongs."""
    data: bytes
    """The message, encoded, ready to be sent."""
    size: int
    """Of `data`, in bytes."""
    message_id: str | None
    """As text, whatever type it has."""
    session_id: str | None
    scheduled_ms: int | None
    """When it is due, in milliseconds since 1970; perhaps in the past."""
    ttl_ms: int | None
    """The time to live with which it goes home: all of it, or what is left of it."""
    is_expired: bool
    """Nothing is left of its time to live. Only where that keeps running in the backlog."""
    enqueued_ms: int | None
    """When the backlog took it."""
    sequence: int | None
    """Its sequence number in the backlog queue."""


def restore(data: bytes, *, now_ms: int, ttl_keeps_running: bool = False) -> Restored:
    """Raises EnvelopeError, with the reason, for what no sender of ours has diverted.

    The time to live begins anew at `now_ms`, unless it keeps running: then what it has waited, or
    what it has waited since it was due if it was scheduled, is taken off.
    """
    try:
        return _restored(*pieces.opened(data), now_ms, ttl_keeps_running)
    except EnvelopeError:
        raise
    except (ValueError, *PAST_THE_END) as error:
        raise EnvelopeError(
            f"the message cannot be read: {error}. It should be an AMQP message as a queue "
            "delivers it"
        ) from error


def _restored(data: bytes, found: pieces.Cut, now_ms: int, ttl_keeps_running: bool) -> Restored:
    header, delivery, annotations, properties, application, body = found
    own, path, session_id, ttl_ms, scheduled_ms = _application(data, application)
    notes, note_count, enqueued_ms, sequence = pairs.stamps_taken(
        data, annotations, schedule_too=scheduled_ms is not None
    )
    is_expired = False
    if ttl_ms is not None and ttl_keeps_running:
        began_ms = max(now_ms if enqueued_ms is None else enqueued_ms, scheduled_ms or 0)
        ttl_ms -= max(now_ms - began_ms, 0)
        if ttl_ms <= 0:
            ttl_ms, is_expired = 0, True
    header_section, is_stamped = _header(data, header, ttl_ms)
    if ttl_ms or session_id is not None or (is_stamped and properties[3] > pieces.EXPIRY):
        properties_section = pieces.properties_with(
            data,
            properties,
            times=pieces.times(now_ms, min(now_ms + ttl_ms, _EXPIRY_MS_MAX)) if ttl_ms else None,
            session=None if session_id is None else encode(session_id),
            is_stamped=is_stamped,
        )
    else:
        properties_section = data[properties[0] : properties[2]]
    restored = b"".join(
        (
            header_section,
            pairs.annotations_with(scheduled_ms, notes, note_count),
            properties_section,
            own,
            data[body:],
            pairs.without_lock_token(data, delivery),  # last, where the SDK has them
        )
    )
    return Restored(
        path,
        restored,
        len(restored),
        pieces.message_id(data, properties),
        session_id,
        scheduled_ms,
        ttl_ms,
        is_expired,
        enqueued_ms,
        sequence,
    )


_Application = tuple[bytes, str, str | None, int | None, int | None]
"""The application's own properties as a section; path, session id, time to live and schedule."""


def _application(data: bytes, piece: pieces.Piece) -> _Application:
    _, first, after, count = piece
    if after - first > _KNOWN_APPLICATION_BYTES_MAX:
        return _read_application.__wrapped__(data[first:after], count)
    return _read_application(data[first:after], count)


@lru_cache(maxsize=1024)
def _read_application(raw: bytes, count: int) -> _Application:
    """Messages of one sender often have the same properties, but for their bodies and ids."""
    own, own_count, aliases = pairs.aliases_taken(raw, (0, 0, len(raw), count))
    return pairs.application_properties(own, own_count), *_meaning(aliases)


def _header(data: bytes, header: pieces.Piece, ttl_ms: int | None) -> tuple[bytes, bool]:
    _, first, after, count = header
    if ttl_ms is not None and ttl_ms > _TTL_MS_MAX:
        ttl_ms = _TTL_MS_MAX
    if after - first > _KNOWN_HEADER_BYTES_MAX:
        return pieces.header_for.__wrapped__(data[first:after], count, ttl_ms)
    return pieces.header_for(data[first:after], count, ttl_ms)


def _meaning(aliases: Mapping[str, Any]) -> tuple[str, str | None, int | None, int | None]:
    """Path, session id, time to live and schedule."""
    path, session_id = aliases.get(PATH), aliases.get(SESSION_ID)
    ttl_ms, scheduled_ms = aliases.get(TIME_TO_LIVE), aliases.get(SCHEDULED)
    if (
        not (type(path) is str and can_be_entity(path))
        or not (session_id is None or type(session_id) is str)
        or not (ttl_ms is None or (type(ttl_ms) is int and ttl_ms >= 0))
        or not (scheduled_ms is None or type(scheduled_ms) is int)
    ):
        # Refused, or of a type that is not ours and yet clear.
        meant = unwrap(aliases)
        path, session_id = str(meant.path), meant.session_id and str(meant.session_id)
        ttl_ms, scheduled_ms = meant.time_to_live_ms, meant.scheduled_ms
    if scheduled_ms is not None and scheduled_ms >= _SCHEDULED_MS_END:
        raise EnvelopeError(
            f"the property {SCHEDULED} is {scheduled_ms}: it should be a time in milliseconds "
            "since 1970, UTC (a timestamp)"
        )
    return path, session_id, ttl_ms, scheduled_ms
