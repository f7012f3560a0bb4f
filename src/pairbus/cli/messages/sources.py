"""Where messages are received from: what is taken is locked until it is settled or given back.

Two ways to the same: bytes by our own client, which keeps the types of properties; and the official
SDK, which has sessions, and the mode without locks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from azure.core.exceptions import AzureError
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from pairbus.cli.connection import connect, sdk_settings
from pairbus.cli.messages.entity_path import EntityPath, SubQueue
from pairbus.cli.messages.message_json import Form, Row, form_of, row_of, typed_of
from pairbus.cli.target import Target
from pairbus.fast.message import ReceivedMessage
from pairbus.fast.rows import DATA_BODY, STATES, read

CREDIT_MAX: Final = 100
_MICROSECOND: Final = 1_000_000


class Verdict(StrEnum):
    COMPLETE = "completed"
    ABANDON = "abandoned"
    DEAD_LETTER = "dead-lettered"
    DELETE = "deleted"


@dataclass(frozen=True, slots=True)
class Taken:
    form: Form
    handle: Any


class Source(ABC):
    """Raises the SDK's errors."""

    @abstractmethod
    def take(self, count: int, *, wait_seconds: float) -> list[Taken]: ...

    @abstractmethod
    def settle(self, taken: list[Taken], verdict: Verdict, why: tuple[str, str]) -> None: ...

    @abstractmethod
    def give_back(self, taken: list[Taken]) -> None:
        """As if they had not been taken, as far as that can be had. Never raises."""

    @abstractmethod
    def close(self) -> None:
        """With nothing left locked that was not settled."""


class QuickSource(Source):
    def __init__(self, target: Target, place: EntityPath, *, count: int | None) -> None:
        self._path = place.path
        self._stack = ExitStack()
        client = self._stack.enter_context(connect(target))
        credit = min(count or CREDIT_MAX, CREDIT_MAX)
        self._receiver = client.receiver(place.path, credit=credit)

    def take(self, count: int, *, wait_seconds: float) -> list[Taken]:
        received = self._receiver.receive(count, max_wait_seconds=wait_seconds)
        try:
            return [self._taken(one) for one in received]
        except BaseException:  # of one that cannot be read: none of them is to stay locked
            self._release(received)
            raise

    def _taken(self, received: ReceivedMessage) -> Taken:
        row = row_of(read(received.data, entity=self._path))
        return Taken(form_of(row | {"lockedUntil": None}), received)

    def settle(self, taken: list[Taken], verdict: Verdict, why: tuple[str, str]) -> None:
        handles = [one.handle for one in taken]
        if verdict is Verdict.DEAD_LETTER:
            self._receiver.dead_letter(handles, reason=why[0], description=why[1])
        elif verdict is Verdict.ABANDON:
            self._receiver.abandon(handles)
        else:
            self._receiver.complete(handles)

    def give_back(self, taken: list[Taken]) -> None:
        self._release([one.handle for one in taken])

    def _release(self, received: list[ReceivedMessage]) -> None:
        with suppress(AzureError):
            if received:
                self._receiver.release(received)

    def close(self) -> None:
        self._stack.close()


class SdkSource(Source):
    """For sessions, and for receive-and-delete."""

    def __init__(
        self,
        target: Target,
        place: EntityPath,
        *,
        session: str | None,
        is_next: bool,
        deletes: bool,
    ) -> None:
        self._deletes = deletes
        self._stack = ExitStack()
        client = self._stack.enter_context(
            ServiceBusClient.from_connection_string(target.text.reveal(), **sdk_settings(target))
        )
        settings: dict[str, Any] = {
            "receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE
            if deletes
            else ServiceBusReceiveMode.PEEK_LOCK
        }
        if session is not None or is_next:
            settings["session_id"] = session if session is not None else NEXT_AVAILABLE_SESSION
        if place.sub_queue is not None:
            is_dead = place.sub_queue is SubQueue.DEAD_LETTER
            settings["sub_queue"] = (
                ServiceBusSubQueue.DEAD_LETTER
                if is_dead
                else ServiceBusSubQueue.TRANSFER_DEAD_LETTER
            )
        if place.subscription is None:
            made = client.get_queue_receiver(place.entity, **settings)
        else:
            made = client.get_subscription_receiver(place.entity, place.subscription, **settings)
        self._receiver = made
        self._has_session = "session_id" in settings
        self._is_open = False
        self._stack.callback(made.close)

    def take(self, count: int, *, wait_seconds: float) -> list[Taken]:
        try:
            found = self._receiver.receive_messages(
                max_message_count=count, max_wait_time=max(wait_seconds, 0.01)
            )
        except OperationTimeoutError:
            if self._has_session and not self._is_open:
                return []  # no session has anything
            raise
        self._is_open = True
        return [Taken(form_of(_row(message)), message) for message in found]

    @property
    def is_open(self) -> bool:
        return self._is_open

    def settle(self, taken: list[Taken], verdict: Verdict, why: tuple[str, str]) -> None:
        if self._deletes:
            return
        for one in taken:
            if verdict is Verdict.DEAD_LETTER:
                self._receiver.dead_letter_message(
                    one.handle, reason=why[0], error_description=why[1]
                )
            elif verdict is Verdict.ABANDON:
                self._receiver.abandon_message(one.handle)
            else:
                self._receiver.complete_message(one.handle)

    def give_back(self, taken: list[Taken]) -> None:
        for one in [] if self._deletes else taken:
            with suppress(ServiceBusError, ValueError):  # it has been settled, or is lost
                self._receiver.abandon_message(one.handle)

    def close(self) -> None:
        self._stack.close()


def _row(message: Any) -> Row:
    """What the SDK tells of a message, as a row: it knows no types that Python lacks."""
    body_type = str(getattr(message.body_type, "value", message.body_type))
    raw = message.raw_amqp_message
    moments = {
        "scheduledEnqueueTime": message.scheduled_enqueue_time_utc,
        "enqueuedTime": message.enqueued_time_utc,
    }
    life = message.time_to_live
    return {
        "messageId": _text(message.message_id),
        "correlationId": _text(message.correlation_id),
        "subject": message.subject,
        "contentType": message.content_type,
        "to": message.to,
        "replyTo": message.reply_to,
        "replyToSessionId": message.reply_to_session_id,
        "sessionId": message.session_id,
        "partitionKey": message.partition_key,
        "timeToLive": None if life is None else round(life.total_seconds() * 1000),
        "applicationProperties": [
            (str(_text(name)), typed_of(value))
            for name, value in (message.application_properties or {}).items()
        ],
        "sequenceNumber": message.sequence_number,
        "enqueuedSequenceNumber": message.enqueued_sequence_number,
        "state": STATES[int(message.state)],
        "deliveryCount": message.delivery_count,
        "deadLetterReason": message.dead_letter_reason,
        "deadLetterErrorDescription": message.dead_letter_error_description,
        "deadLetterSource": message.dead_letter_source,
        "body": b"".join(raw.body) if body_type == "data" else str(message).encode(),
        "bodyType": DATA_BODY,
        **{
            name: None if moment is None else round(moment.timestamp() * _MICROSECOND)
            for name, moment in moments.items()
        },
    }


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return None if value is None else str(value)
