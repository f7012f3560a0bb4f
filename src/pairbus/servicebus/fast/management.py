"""What is asked of `<entity>/$management`: peeking, locks, settling by token, scheduling."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import UUID

from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError

from pairbus.amqp.client import Connection
from pairbus.amqp.client_requests import Requests
from pairbus.amqp.outcomes import AmqpError
from pairbus.amqp.types import Array, Int, UInt
from pairbus.servicebus.fast.errors import of_answer
from pairbus.servicebus.fast.received import Received

if TYPE_CHECKING:
    from pairbus.servicebus.fast.client import FastClient

Disposition = Literal["completed", "abandoned", "defered", "suspended"]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SERVER_MARGIN_SECONDS: Final = 1.0


class Management:
    def __init__(self, client: FastClient, path: str) -> None:
        self.path = path
        self._client = client
        self._connection: Connection | None = None
        self._requests: Requests | None = None

    def peek(self, from_sequence: int, count: int) -> list[bytes]:
        """Up to so many messages from that number on, without locking them."""
        body = {"from-sequence-number": int(from_sequence), "message-count": Int(count)}
        answer = self._ask("peek-message", body, nothing=(202, 204))
        found = answer.get("messages") if answer else None
        return [entry["message"] for entry in found or ()]

    def renew_locks(self, tokens: Sequence[UUID | bytes]) -> list[datetime]:
        """Until when each of them holds now."""
        answer = self._ask("renew-lock", {"lock-tokens": _tokens(tokens)})
        return [_EPOCH + timedelta(milliseconds=one) for one in answer["expirations"]]

    def settle(
        self,
        tokens: Sequence[UUID | bytes],
        disposition: Disposition,
        *,
        reason: str = "",
        description: str = "",
    ) -> None:
        """By token, from any connection, as long as the locks hold. All or none of them."""
        body: dict[str, Any] = {"disposition-status": disposition, "lock-tokens": _tokens(tokens)}
        if disposition == "suspended":
            body |= {"deadletter-reason": reason, "deadletter-description": description}
        self._ask("update-disposition", body)

    def settle_each(
        self,
        received: Sequence[Received],
        disposition: Disposition,
        *,
        reason: str = "",
        description: str = "",
    ) -> list[tuple[Received, ServiceBusError]]:
        """Whatever can be settled, is. Answers what could not, and why."""
        if not received:
            return []
        try:
            self.settle(
                [one.tag for one in received], disposition, reason=reason, description=description
            )
        except MessageLockLostError as error:
            if len(received) == 1:
                return [(received[0], error)]
        else:
            return []
        # One of them is lost: which, the service does not say.
        half = len(received) // 2
        return [
            lost
            for part in (received[:half], received[half:])
            for lost in self.settle_each(part, disposition, reason=reason, description=description)
        ]

    def schedule(self, messages: Sequence[tuple[str, bytes]]) -> list[int]:
        """Encoded messages with their ids, whose x-opt-scheduled-enqueue-time says when. Answers
        their sequence numbers, by which they can be cancelled."""
        entries = [{"message-id": name, "message": data} for name, data in messages]
        answer = self._ask("schedule-message", {"messages": entries})
        return [int(number) for number in answer["sequence-numbers"]]

    def cancel_scheduled(self, sequence_numbers: Sequence[int]) -> None:
        numbers = Array([int(number) for number in sequence_numbers])
        self._ask("cancel-scheduled-message", {"sequence-numbers": numbers})

    def _ask(self, operation: str, body: dict[str, Any], *, nothing: tuple[int, ...] = ()) -> Any:
        what = f"{operation} on {self.path!r}"
        client = self._client
        with client.telling(what):
            connection = client.authorized(self.path)
            if self._requests is None or not self._requests.alive:
                self._requests = Requests(
                    connection, f"{self.path}/$management", until=client.until()
                )
            server_seconds = max(client.timeout_seconds - _SERVER_MARGIN_SECONDS, 0.0)
            answer = self._requests.ask(
                {
                    "operation": f"com.microsoft:{operation}",
                    "type": "entity-mgmt",
                    "com.microsoft:server-timeout": UInt(int(server_seconds * 1000)),
                },
                body,
                until=client.until(),
            )
        status = answer.properties.get("statusCode")
        if status in nothing:
            return None
        if status == 200:
            return answer.body
        condition = answer.properties.get("errorCondition")
        description = str(answer.properties.get("statusDescription", ""))
        error = None if condition is None else AmqpError(str(condition), description)
        raise of_answer(status, error, description, what)


def _tokens(tokens: Sequence[UUID | bytes]) -> Array:
    return Array([one if isinstance(one, UUID) else UUID(bytes_le=one) for one in tokens])
