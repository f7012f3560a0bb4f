"""What requests to `$management` share: who asks, what a body may hold, how a refusal is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.links.request_codec import Answer
from pairbus.broker.message import ROW_SEQUENCE_MASK, SEQUENCE_MASK, guid
from pairbus.broker.messages.mailbox import Lock, Mailbox
from pairbus.broker.messages.queue import Queue, lock_lost
from pairbus.broker.messages.sessions import Session

Reply = Callable[[Answer], None]

_NUMBERS_MAX: Final = 4000
_LONG_MAX: Final = 2**63 - 1


class Refused(Exception):
    def __init__(self, error: AmqpError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class Context:
    """Who asks, and about what."""

    queue: Queue
    mailbox: Mailbox
    holder_of: Callable[[Session], bool]
    """Does the asking connection hold that session?"""
    now_ms: int


def wrong(name: str, value: Any, right: str) -> Refused:
    return Refused(
        AmqpError("com.microsoft:argument-error", f"{name!r} is {value!r}, but must be {right}")
    )


def integer(body: dict[str, Any], name: str, *, least: int = 0) -> int:
    value = body.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _LONG_MAX:
        raise wrong(name, value, f"a whole number from {least} to {_LONG_MAX}")
    return int(value)


def text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise wrong(name, value, "a string")
    return str(value)


def many(body: dict[str, Any], name: str, kind: type) -> list[Any]:
    values = body.get(name)
    if (
        not isinstance(values, list)
        or not 0 < len(values) <= _NUMBERS_MAX
        or not all(isinstance(value, kind) for value in values)
    ):
        raise wrong(name, values, f"1 to {_NUMBERS_MAX} values of type {kind.__name__}")
    return values


def sequences(context: Context, body: dict[str, Any], what: str) -> list[int]:
    """Without the partition's bits. A number that no message can have would name another row."""
    numbers = []
    for given in dict.fromkeys(many(body, "sequence-numbers", int)):
        number = int(given) & SEQUENCE_MASK
        if not 0 < number <= ROW_SEQUENCE_MASK:
            raise not_found([int(given)], context.queue, what)
        numbers.append(number)
    return list(dict.fromkeys(numbers))


def not_found(numbers: Sequence[int], queue: Queue, what: str) -> Refused:
    return Refused(
        AmqpError(
            "com.microsoft:message-not-found",
            f"{queue.description} has no {what} message with sequence number "
            f"{', '.join(map(str, numbers[:5]))}",
        )
    )


def held_session(context: Context, body: dict[str, Any]) -> Session:
    """The session that the body names, held by the one who asks."""
    session_id = text(body, "session-id")
    sessions = context.queue.main.sessions
    if sessions is None:
        raise Refused(AmqpError("amqp:not-allowed", f"{context.queue.description} has no sessions"))
    session = sessions.find(session_id)
    if session is None or not context.holder_of(session) or session.until_ms <= context.now_ms:
        raise Refused(
            AmqpError(
                "com.microsoft:session-lock-lost",
                f"the lock of session {session_id!r} of {context.queue.name!r} is not held here",
            )
        )
    return session


def locks_of(context: Context, body: dict[str, Any]) -> list[Lock]:
    tokens = many(body, "lock-tokens", UUID)
    locks = []
    for token in dict.fromkeys(tokens):
        lock = context.mailbox.valid_lock(guid(token.bytes), now_ms=context.now_ms)
        if lock is None:
            raise Refused(lock_lost(f"{context.queue.name!r}, lock token {token}"))
        locks.append(lock)
    return locks
