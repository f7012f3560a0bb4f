"""The operations of `<entity>/$management`: peek, renew, settle by token, schedule, sessions.

One function an operation, listed in `OPERATIONS` with the right it needs. A function answers at
once, or keeps `reply` and answers when the change is durable. It raises `Refused` for everything
that the client is told as an error; then nothing has changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from pairbus.amqp.codec.sections import slice_message
from pairbus.amqp.codec.types import Array, Int, Long, Timestamp
from pairbus.amqp.codec.values import MalformedMessage
from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.entities.policies import Right
from pairbus.broker.links.management_body import (
    Context,
    Refused,
    Reply,
    held_session,
    integer,
    locks_of,
    many,
    not_found,
    sequences,
    text,
    wrong,
)
from pairbus.broker.links.request_codec import Answer, Request, malformed, refusal
from pairbus.broker.links.rule_requests import add_rule, enumerate_rules, remove_rule
from pairbus.broker.message import ROW_SEQUENCE_MASK, SEQUENCE_MASK, Message, State, guid, stamped
from pairbus.broker.messages.incoming import IncomingMessage
from pairbus.broker.messages.lifecycle import MailboxKind, Settlement
from pairbus.cost.meter import units_of

logger = logging.getLogger(__name__)

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


def handle(context: Context, request: Request, reply: Reply) -> None:
    function, _ = OPERATIONS[request.operation]
    body = request.body if isinstance(request.body, dict) else {}
    try:
        context.queue.accessed_ms = context.now_ms
        function(context, body, reply)
        if (kind := BILLED_AS.get(request.operation)) is not None:
            tally = context.queue.tally
            setattr(tally, kind, getattr(tally, kind) + 1)
    except Refused as refused:
        reply(refusal(refused.error))
    except Exception:
        # Without an answer the client would wait for its time-out.
        logger.exception("%s of %s", request.operation, context.queue.description)
        reply(refusal(AmqpError("amqp:internal-error", "the broker failed; its log says why")))


class _Countdown:
    """Answers once, when the last of several changes is durable; with the first error, if any."""

    def __init__(self, count: int, reply: Reply, answer: Answer) -> None:
        self._left = count
        self._reply = reply
        self._answer = answer

    def __call__(self, error: AmqpError | None) -> None:
        self._left -= 1
        if error is not None:
            self._answer = refusal(error)
        if self._left == 0:
            self._reply(self._answer)


# operations


def renew_lock(context: Context, body: dict[str, Any], reply: Reply) -> None:
    locks = locks_of(context, body)
    until_ms = context.now_ms + context.queue.lock_ms
    for lock in locks:
        context.mailbox.renew(lock, until_ms=until_ms)
    context.queue.namespace.expect(until_ms)
    context.queue.tally.renew += len(locks)
    expirations = Array([Timestamp(until_ms)] * len(body["lock-tokens"]))
    reply(Answer(200, body={"expirations": expirations}))


def peek_message(context: Context, body: dict[str, Any], reply: Reply) -> None:
    first = min(integer(body, "from-sequence-number") & SEQUENCE_MASK, ROW_SEQUENCE_MASK)
    count = min(integer(body, "message-count", least=1), _PEEK_COUNT_MAX)
    session_id = text(body, "session-id") if body.get("session-id") is not None else None
    found: list[dict[str, Any]] = []
    size = given = 0
    store, mailbox = context.queue.namespace.store, context.mailbox
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
    reply(Answer(200, body={"messages": found}) if found else Answer(204, "No Content"))


def receive_by_sequence_number(context: Context, body: dict[str, Any], reply: Reply) -> None:
    queue, mailbox = context.queue, context.mailbox
    numbers = sequences(context, body, "deferred")
    session = None
    if body.get("session-id") is not None or mailbox.sessions is not None:
        session = held_session(context, body)
    messages = []
    size = 0
    for number in numbers:
        message = mailbox.find(number)
        if (
            message is None
            or message.state != State.DEFERRED
            or message.busy
            or message.lock is not None
            or (session is not None and message.session_id != session.session_id)
        ):
            raise not_found([number], queue, "deferred")
        messages.append(message)
        size += message.size
        if size > _BY_NUMBER_BYTES_MAX:
            raise wrong(
                "sequence-numbers", f"{len(numbers)} numbers", "fewer: their messages are too large"
            )
    if integer(body, "receiver-settle-mode") == 0:
        found: list[dict[str, Any]] = [{"message": stamped(one)} for one in messages]
        queue.tally.receive += sum(units_of(len(one["message"])) for one in found)
        done = _Countdown(len(messages), reply, Answer(200, body={"messages": found}))
        for message in messages:
            mailbox.held[message.sequence] = message
            queue.remove(mailbox, message, done)
        return
    found = []
    for message in messages:
        lock = queue.lock(mailbox, message, session, now_ms=context.now_ms)
        data = stamped(message, locked_until_ms=lock.until_ms)
        found.append({"message": data, "lock-token": UUID(bytes=guid(lock.token))})
    queue.tally.receive += sum(units_of(len(one["message"])) for one in found)
    reply(Answer(200, body={"messages": found}))


def update_disposition(context: Context, body: dict[str, Any], reply: Reply) -> None:
    status = text(body, "disposition-status")
    settlement = _SETTLEMENTS.get(status)
    if settlement is None:
        raise wrong("disposition-status", status, f"one of {', '.join(_SETTLEMENTS)}")
    if body.get("session-id") is not None:
        held_session(context, body)
    locks = locks_of(context, body)
    properties = body.get("properties-to-modify")
    done = _Countdown(len(locks), reply, Answer(200))
    for lock in locks:
        context.queue.settle(
            context.mailbox,
            lock,
            settlement,
            done,
            now_ms=context.now_ms,
            reason=body.get("deadletter-reason") or None,
            description=body.get("deadletter-description") or None,
            properties=properties if isinstance(properties, dict) else None,
        )


def schedule_message(context: Context, body: dict[str, Any], reply: Reply) -> None:
    entries = many(body, "messages", dict)
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
        reply(refusal(error) if error else Answer(200, body={"sequence-numbers": given}))

    result = context.queue.enqueue(batch, done, now_ms=context.now_ms)
    if isinstance(result, AmqpError):
        raise Refused(result)
    numbers += result


def cancel_scheduled_message(context: Context, body: dict[str, Any], reply: Reply) -> None:
    queue, mailbox = context.queue, context.mailbox
    messages: list[Message] = []
    for number in sequences(context, body, "scheduled"):
        message = mailbox.find(number)
        if message is None or message.state != State.SCHEDULED or message.busy:
            raise not_found([number], queue, "scheduled")
        messages.append(message)
    done = _Countdown(len(messages), reply, Answer(200))
    for message in messages:
        mailbox.held[message.sequence] = message
        queue.remove(mailbox, message, done)


def batch_delete_messages(context: Context, body: dict[str, Any], reply: Reply) -> None:
    count = min(integer(body, "message-count", least=1), _BATCH_DELETE_MAX)
    before_ms = integer(body, "enqueued-time-utc")
    session_id = text(body, "session-id") if body.get("session-id") is not None else None
    queue, mailbox = context.queue, context.mailbox
    numbers = queue.namespace.store.read_enqueued_before(
        mailbox.counters.mailbox_id, before_ms=before_ms, count=count, session_id=session_id
    )
    messages = []
    for number in numbers:
        message = mailbox.find(number)
        if message is not None and message.lock is None and not message.busy:
            messages.append(message)
    if not messages:
        # Node's SDK takes 204 for "none" only together with this condition.
        nothing = AmqpError("com.microsoft:message-not-found", "there is nothing to delete")
        reply(Answer(204, "No Content", {"message-count": Int(0)}, error=nothing))
        return
    answer = Answer(200, body={"message-count": Int(len(messages))})
    done = _Countdown(len(messages), reply, answer)
    for message in messages:
        mailbox.held[message.sequence] = message
        queue.remove(mailbox, message, done)


def renew_session_lock(context: Context, body: dict[str, Any], reply: Reply) -> None:
    session = held_session(context, body)
    until_ms = context.now_ms + context.queue.lock_ms
    session.until_ms = until_ms
    context.queue.namespace.expect(until_ms)
    reply(Answer(200, body={"expiration": Timestamp(until_ms)}))


def get_session_state(context: Context, body: dict[str, Any], reply: Reply) -> None:
    session = held_session(context, body)
    state = context.queue.namespace.store.session_state(
        context.queue.main.counters.mailbox_id, session.session_id
    )
    reply(Answer(200, body={"session-state": state}))


def set_session_state(context: Context, body: dict[str, Any], reply: Reply) -> None:
    session = held_session(context, body)
    state = body.get("session-state")
    limit = context.queue.description.max_message_size_in_kilobytes * 1024
    if state is not None and (not isinstance(state, bytes) or len(state) > limit):
        raise wrong("session-state", type(state).__name__, f"binary of at most {limit} bytes")
    namespace = context.queue.namespace
    namespace.store.set_session_state(
        context.queue.main.counters.mailbox_id, session.session_id, state, context.now_ms
    )

    def done(error: Exception | None) -> None:
        failed = AmqpError("amqp:internal-error", f"the state cannot be stored: {error}")
        reply(refusal(failed) if error else Answer(200))

    namespace.committer.when_durable(done)


def get_message_sessions(context: Context, body: dict[str, Any], reply: Reply) -> None:
    after_ms = integer(body, "last-updated-time")
    skip, top = integer(body, "skip"), integer(body, "top", least=1)
    queue = context.queue
    if queue.main.sessions is None:
        raise Refused(AmqpError("amqp:not-allowed", f"{queue.description} has no sessions"))
    any_session = after_ms >= _ANY_SESSION_MS
    names = queue.namespace.store.sessions_with_state(
        queue.main.counters.mailbox_id, after_ms=None if any_session else after_ms
    )
    if any_session:
        names = sorted({*names, *queue.main.sessions.with_messages()})
    page = names[skip : skip + top]
    if page:
        reply(Answer(200, body={"skip": Int(skip + len(page)), "sessions-ids": Array(page)}))
    else:
        reply(Answer(204, "No Content"))


OPERATIONS: Final[dict[str, tuple[Callable[[Context, dict[str, Any], Reply], None], Right]]] = {
    "com.microsoft:renew-lock": (renew_lock, Right.LISTEN),
    "com.microsoft:peek-message": (peek_message, Right.LISTEN),
    "com.microsoft:receive-by-sequence-number": (receive_by_sequence_number, Right.LISTEN),
    "com.microsoft:update-disposition": (update_disposition, Right.LISTEN),
    "com.microsoft:schedule-message": (schedule_message, Right.SEND),
    "com.microsoft:cancel-scheduled-message": (cancel_scheduled_message, Right.SEND),
    "com.microsoft:batch-delete-messages": (batch_delete_messages, Right.LISTEN),
    "com.microsoft:renew-session-lock": (renew_session_lock, Right.LISTEN),
    "com.microsoft:get-session-state": (get_session_state, Right.LISTEN),
    "com.microsoft:set-session-state": (set_session_state, Right.LISTEN),
    "com.microsoft:get-message-sessions": (get_message_sessions, Right.LISTEN),
    "com.microsoft:add-rule": (add_rule, Right.MANAGE),
    "com.microsoft:remove-rule": (remove_rule, Right.MANAGE),
    "com.microsoft:enumerate-rules": (enumerate_rules, Right.MANAGE),
}

BILLED_AS: Final = {
    "com.microsoft:cancel-scheduled-message": "manage",
    "com.microsoft:batch-delete-messages": "manage",
    "com.microsoft:renew-session-lock": "renew",
    "com.microsoft:get-session-state": "session",
    "com.microsoft:set-session-state": "session",
    "com.microsoft:get-message-sessions": "session",
    "com.microsoft:add-rule": "manage",
    "com.microsoft:remove-rule": "manage",
    "com.microsoft:enumerate-rules": "manage",
}
"""Each request is one operation; the others count by their messages."""

GIVES_OUT: Final = frozenset({"com.microsoft:receive-by-sequence-number"})
"""What is receiving under another name, and refused where receiving is."""

SEND_ONLY_TO_MAIN: Final = frozenset(
    {"com.microsoft:schedule-message", "com.microsoft:cancel-scheduled-message"}
)


def refusal_of_kind(operation: str, kind: MailboxKind, name: str) -> AmqpError | None:
    if operation in SEND_ONLY_TO_MAIN and kind is not MailboxKind.MAIN:
        return AmqpError(
            "amqp:not-allowed", f"nothing can be sent to a dead-letter queue of {name!r}"
        )
    return None
