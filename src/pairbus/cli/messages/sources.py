"""Where `receive` takes messages from. A message stays locked until it is settled or released.

Two sources: our own client, which keeps the AMQP types of properties; and the SDK, for sessions.
This module loads the SDK: import it only to receive.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final

from azure.core.exceptions import AzureError
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from pairbus.cli.entity_path import EntityPath
from pairbus.cli.message_client import connect, sdk_client
from pairbus.cli.messages.message_json import (
    MessageJson,
    row_of,
    to_json,
    unreadable,
)
from pairbus.cli.messages.settlement import SettlementAction
from pairbus.cli.target import Target
from pairbus.fast.connection import attach_each
from pairbus.fast.errors import SettleFailed
from pairbus.fast.message import ReceivedMessage
from pairbus.fast.rows import UnreadableMessage, read
from pairbus.fast.sdk_rows import row_of_sdk

CREDIT_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Locked:
    """A message that this process holds, with the object that settles it."""

    message: MessageJson
    handle: Any


class Source(ABC):
    """Raises the SDK's errors."""

    is_idle = True
    """No message was requested yet, so an interrupt may end the command at once."""
    waits_in_one_piece = False
    """The next `receive` also waits for a session, so its wait must not be cut into slices."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def open(self) -> None:  # noqa: B027  # the SDK opens a session when it receives
        """Connects, if that can be done before messages are requested."""

    @abstractmethod
    def receive(self, count: int, *, wait_seconds: float) -> list[Locked]: ...

    @abstractmethod
    def settle(
        self, locked: list[Locked], settlement: SettlementAction, *, reason: str, description: str
    ) -> None:
        """Raises SettleFailed."""

    @abstractmethod
    def release(self, locked: list[Locked]) -> None:
        """Releases messages without counting a delivery, if possible. Never raises."""

    def rest(self) -> list[Locked]:
        """Stops receiving, if the service deletes what it delivers. Returns what has come and was
        not returned yet: nobody else can get it.
        """
        return []

    def close(self) -> None:
        """Closes the source and releases all messages that were not settled."""
        self._stack.close()


class FastSource(Source):
    def __init__(
        self, target: Target, path: EntityPath, *, count: int | None, delete: bool
    ) -> None:
        super().__init__()
        self._path = path.path
        self._deletes = delete
        client = self._stack.enter_context(connect(target))
        self._receiver = client.receiver(
            path.path,
            credit=min(count or CREDIT_MAX, CREDIT_MAX),
            mode="receiveAndDelete" if delete else "peekLock",
        )

    def open(self) -> None:
        [error] = attach_each([self._receiver])
        if error is not None:
            raise error
        self.is_idle = False

    def receive(self, count: int, *, wait_seconds: float) -> list[Locked]:
        if self._deletes:
            # The service deletes every message that it sends, so request no more than `count`.
            self._receiver.limit_to(count)
        received = self._receiver.receive(count, max_wait_seconds=wait_seconds)
        try:
            return [self._locked(one) for one in received]
        except BaseException:  # one message cannot be read: release all, so that none stays locked
            self._release(received)
            raise

    def _locked(self, received: ReceivedMessage) -> Locked:
        try:
            row = row_of(read(received.data, entity=self._path))
        except UnreadableMessage as error:
            if not self._deletes:
                raise
            return Locked(unreadable(received.data, received.sequence_number, error), received)
        return Locked(to_json(row | {"lockedUntil": None}), received)

    def rest(self) -> list[Locked]:
        return [self._locked(one) for one in self._receiver.stop()] if self._deletes else []

    def settle(
        self, locked: list[Locked], settlement: SettlementAction, *, reason: str, description: str
    ) -> None:
        if self._deletes:
            return
        handles = [one.handle for one in locked]
        if settlement is SettlementAction.DEAD_LETTER:
            self._receiver.dead_letter(handles, reason=reason, description=description)
        elif settlement is SettlementAction.ABANDON:
            self._receiver.abandon(handles)
        else:
            self._receiver.complete(handles)

    def release(self, locked: list[Locked]) -> None:
        self._release([one.handle for one in locked])

    def _release(self, received: list[ReceivedMessage]) -> None:
        with suppress(AzureError):
            if received and not self._deletes:
                self._receiver.release(received)


class SessionSource(Source):
    waits_in_one_piece = True

    def __init__(
        self, target: Target, path: EntityPath, *, session_id: str | None, delete: bool
    ) -> None:
        """Without an id, the next session that is not locked."""
        super().__init__()
        self._path = path.path
        self._deletes = delete
        client = self._stack.enter_context(sdk_client(target))
        mode = ServiceBusReceiveMode
        settings: dict[str, Any] = {
            "receive_mode": mode.RECEIVE_AND_DELETE if delete else mode.PEEK_LOCK,
            "session_id": NEXT_AVAILABLE_SESSION if session_id is None else session_id,
        }
        if path.subscription is None:
            self._receiver = client.get_queue_receiver(path.entity, **settings)
        else:
            self._receiver = client.get_subscription_receiver(
                path.entity, path.subscription, **settings
            )
        # While the SDK opens a session, the service may send and delete messages of it.
        self.is_idle = not delete
        self._stack.callback(self._receiver.close)

    def receive(self, count: int, *, wait_seconds: float) -> list[Locked]:
        try:
            found = self._receiver.receive_messages(
                max_message_count=count, max_wait_time=max(wait_seconds, 0.01)
            )
        except OperationTimeoutError:
            if self.waits_in_one_piece:
                return []  # no session has a message
            raise
        self.is_idle = self.waits_in_one_piece = False
        return [Locked(to_json(row_of_sdk(message)), message) for message in found]

    def settle(
        self, locked: list[Locked], settlement: SettlementAction, *, reason: str, description: str
    ) -> None:
        if self._deletes:
            return
        for index, one in enumerate(locked):
            try:
                if settlement is SettlementAction.DEAD_LETTER:
                    self._receiver.dead_letter_message(
                        one.handle, reason=reason, error_description=description
                    )
                elif settlement is SettlementAction.ABANDON:
                    self._receiver.abandon_message(one.handle)
                else:
                    self._receiver.complete_message(one.handle)
            except ServiceBusError as error:
                left = [(each.handle, error) for each in locked[index:]]
                raise SettleFailed(self._path, left) from error

    def release(self, locked: list[Locked]) -> None:
        for one in [] if self._deletes else locked:
            with suppress(ServiceBusError, ValueError):  # settled already, or its lock is lost
                self._receiver.abandon_message(one.handle)
