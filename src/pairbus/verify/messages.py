"""The messages of a run: each carries its identity, and a checksum of its body and properties."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from azure.servicebus import ServiceBusMessage

SESSIONS: Final = 3
_SIZES: Final = ((0, 100), (100, 2_000), (2_000, 20_000))
_CHECKSUM: Final = "checksum"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    message: ServiceBusMessage
    message_id: str
    session_id: str
    """Empty for a message without a session."""
    order: int


class MessageMaker:
    """The messages of one sender. The same seed makes the same messages."""

    def __init__(self, run: str, sender: str, *, seed: int) -> None:
        self._prefix = f"{run}-{sender}"
        self._random = Random(f"{seed} {sender}")
        self._count = 0

    def group(self, *, has_session: bool) -> list[Made]:
        """The messages of one call: one, or a few of the same session."""
        count = self._random.choice((1, 1, 1, 3, 10))
        session = f"{self._prefix}-{self._random.randrange(SESSIONS)}" if has_session else ""
        return [self._make(session) for _ in range(count)]

    def _make(self, session_id: str) -> Made:
        self._count += 1
        message_id = f"{self._prefix}-{self._count:06d}"
        body = self._random.randbytes(self._random.randint(*self._random.choice(_SIZES)))
        properties: dict[str | bytes, Any] = {"number": self._count, "text": f"{message_id} ä 漢"}
        properties[_CHECKSUM] = _checksum(message_id, body, properties)
        message = ServiceBusMessage(
            body,
            message_id=message_id,
            application_properties=properties,
            session_id=session_id or None,
        )
        return Made(
            message=message, message_id=message_id, session_id=session_id, order=self._count
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    message_id: str
    session_id: str
    order: int
    is_damaged: bool


def read(message: Any) -> Found:
    """What a received message says of itself."""
    message_id, session_id = str(message.message_id), message.session_id or ""
    try:
        properties = {
            _text(name): _text(value)
            for name, value in (message.application_properties or {}).items()
        }
        expected = properties.pop(_CHECKSUM)
        body = b"".join(message.body)
        is_damaged = expected != _checksum(message_id, body, properties)
        order = int(properties["number"])
    except (KeyError, TypeError, ValueError):
        is_damaged, order = True, 0
    return Found(message_id=message_id, session_id=session_id, order=order, is_damaged=is_damaged)


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _checksum(message_id: str, body: bytes, properties: Any) -> str:
    digest = hashlib.sha256(message_id.encode())
    for name in sorted(properties):
        digest.update(f"\0{name}\0{properties[name]}".encode())
    digest.update(b"\0\0" + body)
    return digest.hexdigest()
