"""The operations of `<entity>/$management`: peek, renew, settle by token, schedule, sessions.

One function per operation, listed in `OPERATIONS` with the right it needs. A function replies at
once, or keeps `reply` and calls it when the change is durable. It raises `Refused` for every error
that the client is sent; then nothing has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from pairbus.amqp.codec.sections import slice_message
from pairbus.amqp.codec.types import Array, Int, Long, Timestamp
from pairbus.amqp.codec.values import MalformedMessage
from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.entities.policies import Right
from pairbus.broker.links.operation import (
    Context,
    ManagementOperation,
    Refused,
    SendReply,
    integer,
    list_of,
    optional_text,
    reply_when_durable,
    text,
    wrong,
)
from pairbus.broker.links.request_codec import Reply, malformed, refusal
from pairbus.broker.message import (
    LARGE_FROM_BYTES,
    ROW_SEQUENCE_MASK,
    SEQUENCE_MASK,
    Message,
    MessageState,
    guid,
    stamped,
)
from pairbus.broker.messages.incoming import IncomingMessage
from pairbus.broker.messages.lifecycle import Settlement
from pairbus.broker.messages.mailbox import Lock
from pairbus.broker.messages.queue import Queue, lock_lost
from pairbus.broker.messages.sessions import MessageSession
from pairbus.cost.meter import units_of

_PEEK_COUNT_MAX: Final = 250
_PEEK_BYTES_MAX: Final = 1024 * 1024
_BY_NUMBER_BYTES_MAX: Final = 32 * 1024 * 1024
_BATCH_DELETE_MAX: Final = 4000
_ANY_SESSION_MS: Final = 253_402_300_800_000
"""The year 10000 stands for "with messages or state" in a listing of sessions."""
_SETTLEMENTS: Final = {
    "completed": Settlement.COMPLETE,
    "abandoned": Settlement.ABANDON,
    "defered": Settlement.DEFER,
    "suspended": Settlement.DEAD_LETTER,
}


class ReplyWhenAllDurable:
    """Replies once, when the last of several changes is durable; with an error if one failed."""

    def __init__(self, count: int, reply: SendReply, on_success: Reply) -> None:
        self._left = count
        self._reply = reply
        self._result = on_success

    def __call__(self, error: AmqpError | None) -> None:
        self._left -= 1
        if error is not None:
            self._result = refusal(error)
        if self._left == 0:
            self._reply(self._result)


# -- what the bodies of several requests name -----------------------------------------------------


def sequences(context: Context, body: dict[str, Any], what: str) -> list[int]:
    """Without the partition's bits. A number outside the valid range would select another row."""
    numbers = []
    for given in dict.fromkeys(list_of(body, "sequence-numbers", int)):
        number = int(given) & SEQUENCE_MASK
        if not 0 < number <= ROW_SEQUENCE_MASK:
            raise not_found(given, context.queue, what)
        numbers.append(number)
    return list(dict.fromkeys(numbers))


def not_found(number: int, queue: Queue, what: str) -> Refused:
    return Refused(
        AmqpError(
            "com.microsoft:message-not-found",
            f"{queue.description} has no {what} message with sequence number {number}",
        )
    )


def held_session(context: Context, body: dict[str, Any]) -> MessageSession:
    """The session that the body names, which the client must hold."""
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
    tokens = list_of(body, "lock-tokens", UUID)
    locks = []
    for token in dict.fromkeys(tokens):
        lock = context.mailbox.valid_lock(guid(token.bytes), now_ms=context.now_ms)
        if lock is None:
            raise Refused(lock_lost(f"{context.queue.name!r}, lock token {token}"))
        locks.append(lock)
    return locks


# -- operations -------------------------------------------------------------------------------


def renew_lock(context: Context, body: dict[str, Any], reply: SendReply) -> None:
    locks = locks_of(context, body)
    until_ms = context.now_ms + context.queue.lock_ms
    for lock in locks:
        context.mailbox.renew(lock, until_ms=until_ms)
    context.queue.runtime.expect(until_ms)
    context.queue.tally.renew += len(locks)
    expirations = Array([Timestamp(until_ms)] * len(body["lock-tokens"]))
    reply(Reply(200, body={"expirations": expirations}))


def peek_message(context: Context, body: dict[str, Any], reply: SendReply) -> None:
    first = min(integer(body, "from-sequence-number") & SEQUENCE_MASK, ROW_SEQUENCE_MASK)
    count = min(integer(body, "message-count", least=1), _PEEK_COUNT_MAX)
    session_id = optional_text(body, "session-id")
    found: list[dict[str, Any]] = []
    size = given = 0
    store, mailbox = context.queue.runtime.store, context.mailbox
    for message in store.read_from(
        mailbox.counters.mailbox_id,
        first=first,
        count=count,
        session_id=session_id,
        alive_ms=context.now_ms,
    ):
        data = stamped(message)
        size += len(data)
        if found and size > _PEEK_BYTES_MAX:
            break
        found.append({"message": data})
        given = size
    context.queue.tally.peek += units_of(given)
    reply(Reply(200, body={"messages": found}) if found else Reply(204, "No Content"))


def receive_by_sequence_number(context: Context, body: dict[str, Any], reply: SendReply) -> None:
    queue, mailbox = context.queue, context.mailbox
    numbers = sequences(context, body, "deferred")
    session = None
    if body.get("session-id") is not None or mailbox.sessions is not None:
        session = held_session(context, body)
    messages: list[Message] = []
    size = 0
    for number in numbers:
        message = mailbox.find(number)
        if (
            message is None
            or message.state != MessageState.DEFERRED
            or message.busy
            or message.lock is not None
            or (session is not None and message.session_id != session.session_id)
        ):
            raise not_found(number, queue, "deferred")
        size += message.size
        if messages and size > _BY_NUMBER_BYTES_MAX:  # one alone may have any size
            raise wrong(
                "sequence-numbers", f"{len(numbers)} numbers", "fewer: their messages are too large"
            )
        messages.append(message)
    if integer(body, "receiver-settle-mode") == 0:
        found: list[dict[str, Any]] = [{"message": stamped(one)} for one in messages]
        queue.tally.receive += sum(units_of(len(one["message"])) for one in found)
        _remove(context, messages, reply, Reply(200, body={"messages": found}))
        return
    found = []
    for message in messages:
        [lock] = queue.lock(mailbox, [message], session, now_ms=context.now_ms)
        found.append(
            {
                "message": stamped(message, locked_until_ms=lock.until_ms),
                "lock-token": UUID(bytes=guid(lock.token)),
            }
        )
        if message.size > LARGE_FROM_BYTES:
            message.bare = b""
    queue.tally.receive += sum(units_of(len(one["message"])) for one in found)
    reply(Reply(200, body={"messages": found}))


def update_disposition(context: Context, body: dict[str, Any], reply: SendReply) -> None:
    status = text(body, "disposition-status")
    settlement = _SETTLEMENTS.get(status)
    if settlement is None:
        raise wrong("disposition-status", status, f"one of {', '.join(_SETTLEMENTS)}")
    if body.get("session-id") is not None:
        held_session(context, body)
    reason = optional_text(body, "deadletter-reason")
    description = optional_text(body, "deadletter-description")
    locks = locks_of(context, body)
    properties = body.get("properties-to-modify")
    done = ReplyWhenAllDurable(len(locks), reply, Reply(200))
    for lock in locks:
        context.queue.settle(
            context.mailbox,
            lock,
            settlement,
            done,
            now_ms=context.now_ms,
            reason=reason or None,
            description=description or None,
            properties=properties if isinstance(properties, dict) else None,
        )


def schedule_message(context: Context, body: dict[str, Any], reply: SendReply) -> None:
    entries = list_of(body, "messages", dict)
    batch = []
    try:
        for entry in entries:
            data = entry.get("message")
            if not isinstance(data, bytes):
                raise wrong("message", data, "binary")
            batch.append(IncomingMessage(slice_message(data), len(data)))
    except MalformedMessage as error:
        raise Refused(malformed(error)) from error
    numbers: list[int] = []

    def done(error: AmqpError | None) -> None:
        given = Array([Long(number) for number in numbers])
        reply(refusal(error) if error else Reply(200, body={"sequence-numbers": given}))

    result = context.queue.enqueue(batch, done, now_ms=context.now_ms)
    if isinstance(result, AmqpError):
        raise Refused(result)
    numbers += result


def cancel_scheduled_message(context: Context, body: dict[str, Any], reply: SendReply) -> None:
    queue, mailbox = context.queue, context.mailbox
    messages: list[Message] = []
    for number in sequences(context, body, "scheduled"):
        message = mailbox.find(number)
        if message is None or message.state != MessageState.SCHEDULED or message.busy:
            raise not_found(number, queue, "scheduled")
        messages.append(message)
    _remove(context, messages, reply, Reply(200))


def batch_delete_messages(context: Context, body: dict[str, Any], reply: SendReply) -> None:
    count = min(integer(body, "message-count", least=1), _BATCH_DELETE_MAX)
    before_ms = integer(body, "enqueued-time-utc")
    session_id = optional_text(body, "session-id")
    queue, mailbox = context.queue, context.mailbox
    numbers = queue.runtime.store.read_enqueued_before(
        mailbox.counters.mailbox_id, before_ms=before_ms, count=count, session_id=session_id
    )
    messages = []
    for number in numbers:
        message = mailbox.find(number)
        if message is not None and message.lock is None and not message.busy:
            if message.size > LARGE_FROM_BYTES:
                message.bare = b""  # read again if the disk refuses the change
            messages.append(message)
    if not messages:
        # Node's SDK takes 204 for "none" only with this condition.
        nothing = AmqpError("com.microsoft:message-not-found", "there is nothing to delete")
        reply(Reply(204, "No Content", {"message-count": Int(0)}, error=nothing))
        return
    _remove(context, messages, reply, Reply(200, body={"message-count": Int(len(messages))}))


def _remove(
    context: Context, messages: Sequence[Message], reply: SendReply, on_success: Reply
) -> None:
    """Delete the messages together. Reply when that is durable."""
    for message in messages:
        context.mailbox.held[message.sequence] = message
    context.queue.remove(context.mailbox, messages, ReplyWhenAllDurable(1, reply, on_success))


def renew_session_lock(context: Context, body: dict[str, Any], reply: SendReply) -> None:
    session = held_session(context, body)
    until_ms = context.now_ms + context.queue.lock_ms
    session.until_ms = until_ms
    context.queue.runtime.expect(until_ms)
    reply(Reply(200, body={"expiration": Timestamp(until_ms)}))


def get_session_state(context: Context, body: dict[str, Any], reply: SendReply) -> None:
    session = held_session(context, body)
    state = context.queue.runtime.store.session_state(
        context.queue.main.counters.mailbox_id, session.session_id
    )
    reply(Reply(200, body={"session-state": state}))


def set_session_state(context: Context, body: dict[str, Any], reply: SendReply) -> None:
    session = held_session(context, body)
    state = body.get("session-state")
    limit = context.queue.description.max_message_size_in_kilobytes * 1024
    if state is not None and (not isinstance(state, bytes) or len(state) > limit):
        raise wrong("session-state", type(state).__name__, f"binary of at most {limit} bytes")
    context.queue.runtime.store.set_session_state(
        context.queue.main.counters.mailbox_id, session.session_id, state, context.now_ms
    )
    reply_when_durable(context, reply, f"the state of session {session.session_id!r}")


def get_message_sessions(context: Context, body: dict[str, Any], reply: SendReply) -> None:
    after_ms = integer(body, "last-updated-time")
    skip, top = integer(body, "skip"), integer(body, "top", least=1)
    queue = context.queue
    if queue.main.sessions is None:
        raise Refused(AmqpError("amqp:not-allowed", f"{queue.description} has no sessions"))
    any_session = after_ms >= _ANY_SESSION_MS
    names = queue.runtime.store.sessions_with_state(
        queue.main.counters.mailbox_id, after_ms=None if any_session else after_ms
    )
    if any_session:
        names = sorted({*names, *queue.main.sessions.with_messages()})
    page = names[skip : skip + top]
    if page:
        reply(Reply(200, body={"skip": Int(skip + len(page)), "sessions-ids": Array(page)}))
    else:
        reply(Reply(204, "No Content"))


OPERATIONS: Final[dict[str, ManagementOperation]] = {
    "com.microsoft:renew-lock": ManagementOperation(renew_lock),
    "com.microsoft:peek-message": ManagementOperation(peek_message),
    "com.microsoft:receive-by-sequence-number": ManagementOperation(
        receive_by_sequence_number, receives=True
    ),
    "com.microsoft:update-disposition": ManagementOperation(update_disposition),
    "com.microsoft:schedule-message": ManagementOperation(
        schedule_message, right=Right.SEND, main_only=True
    ),
    "com.microsoft:cancel-scheduled-message": ManagementOperation(
        cancel_scheduled_message, right=Right.SEND, billed_as="manage", main_only=True
    ),
    "com.microsoft:batch-delete-messages": ManagementOperation(
        batch_delete_messages, billed_as="manage"
    ),
    "com.microsoft:renew-session-lock": ManagementOperation(renew_session_lock, billed_as="renew"),
    "com.microsoft:get-session-state": ManagementOperation(get_session_state, billed_as="session"),
    "com.microsoft:set-session-state": ManagementOperation(set_session_state, billed_as="session"),
    "com.microsoft:get-message-sessions": ManagementOperation(
        get_message_sessions, billed_as="session"
    ),
}
