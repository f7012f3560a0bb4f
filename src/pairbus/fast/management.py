"""What is asked of `<entity>/$management`: peeking, locks, settling by token, scheduling."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError

from pairbus.amqp.client.requests import Answer, Requests
from pairbus.amqp.codec.types import Array, Int, UInt
from pairbus.amqp.outcomes import AmqpError
from pairbus.fast.connection import Access
from pairbus.fast.errors import of_answer
from pairbus.fast.message import Received, moment

Disposition = Literal["completed", "abandoned", "defered", "suspended"]
"""As the service spells them; suspended: into the dead-letter queue."""

_MARGIN_SECONDS: Final = 1.0  # for the service's answer to arrive before ours is overdue
_TOKENS_MAX: Final = 500  # in one request


class Management:
    """The requests of one entity. Links for them are attached when they are needed."""

    def __init__(self, access: Access, path: str) -> None:
        self.path = path
        self._access = access
        self._requests: Requests | None = None

    def __repr__(self) -> str:
        return f"<Management {self.path!r} of {self._access.namespace}>"

    def peek(self, from_sequence: int, count: int) -> list[bytes]:
        """Up to so many messages from that number on, as they are delivered but not locked.

        The service may give fewer than there are; nothing at all means that there are none.
        """
        body = {"from-sequence-number": int(from_sequence), "message-count": Int(count)}
        answer = self._ask("peek-message", body, is_nothing=(202, 204))
        if answer is None:
            return []
        return [_entry(one, "message", bytes) for one in _entry(answer, "messages", list)]

    def renew_locks(self, tokens: Sequence[UUID | bytes]) -> list[datetime]:
        """Until when each of them holds now. All or none of them."""
        answer = self._ask("renew-lock", {"lock-tokens": _tokens(tokens)})
        moments = [moment(one) for one in _entry(answer, "expirations", list)]
        return [one for one in moments if one is not None]

    def settle(
        self,
        tokens: Sequence[UUID | bytes],
        disposition: Disposition,
        *,
        reason: str = "",
        description: str = "",
    ) -> None:
        """From any connection, as long as the locks hold. All or none of them."""
        body: dict[str, Any] = {"disposition-status": disposition, "lock-tokens": _tokens(tokens)}
        if disposition == "suspended":
            body |= {"deadletter-reason": reason, "deadletter-description": description}
        self._ask("update-disposition", body)

    def settle_each(
        self,
        received: Sequence[Received],
        disposition: Disposition,
        reason: str = "",
        description: str = "",
    ) -> list[tuple[Received, ServiceBusError]]:
        """Whatever still can be settled, is. Answers what could not, and why."""
        lost: list[tuple[Received, ServiceBusError]] = []
        pending = [received[at : at + _TOKENS_MAX] for at in range(0, len(received), _TOKENS_MAX)]
        while pending:
            some = pending.pop()
            try:
                self.settle(
                    [one.tag for one in some], disposition, reason=reason, description=description
                )
            except MessageLockLostError as error:
                half = len(some) // 2
                if half:  # one of them is lost: which, the service does not say
                    pending += [some[:half], some[half:]]
                else:
                    lost.append((some[0], error))
        return lost

    def schedule(self, messages: Sequence[tuple[str, bytes]]) -> list[int]:
        """Message ids and encoded messages, whose x-opt-scheduled-enqueue-time says when.

        Answers their sequence numbers, by which they can be cancelled.
        """
        entries = [{"message-id": name, "message": data} for name, data in messages]
        answer = self._ask("schedule-message", {"messages": entries})
        return [int(number) for number in _entry(answer, "sequence-numbers", list)]

    def cancel_scheduled(self, sequence_numbers: Sequence[int]) -> None:
        numbers = Array([int(number) for number in sequence_numbers])
        self._ask("cancel-scheduled-message", {"sequence-numbers": numbers})

    def _ask(
        self, operation: str, body: dict[str, Any], *, is_nothing: tuple[int, ...] = ()
    ) -> Any:
        """The body of the answer; None for a status that says that there is nothing."""
        what = f"{operation} of {self.path!r}"
        access = self._access
        with access.telling(what):
            connection = access.authorized(self.path)
            if self._requests is None or not self._requests.alive:
                self._requests = Requests(
                    connection, f"{self.path}/$management", until=access.until()
                )
            seconds = max(access.timeout_seconds - _MARGIN_SECONDS, 0.0)
            answer = self._requests.ask(
                {
                    "operation": f"com.microsoft:{operation}",
                    "type": "entity-mgmt",
                    "com.microsoft:server-timeout": UInt(int(seconds * 1000)),
                },
                body,
                until=access.until(),
            )
        status = answer.properties.get("statusCode")
        if status in is_nothing:
            return None
        if status != 200:
            raise _refusal(answer, what)
        return answer.body


def _refusal(answer: Answer, what: str) -> ServiceBusError:
    status = answer.properties.get("statusCode")
    condition = answer.properties.get("errorCondition")
    description = str(answer.properties.get("statusDescription", ""))
    error = None if condition is None else AmqpError(str(condition), description)
    return of_answer(status if isinstance(status, int) else None, error, description, what)


def _entry(body: object, key: str, kind: type) -> Any:
    value = body.get(key) if isinstance(body, dict) else None
    if not isinstance(value, kind):
        raise ServiceBusError(f"an answer of $management has {value!r:.80} as {key!r}")
    return value


def _tokens(tokens: Sequence[UUID | bytes]) -> Array:
    return Array([one if isinstance(one, UUID) else UUID(bytes_le=one) for one in tokens])
