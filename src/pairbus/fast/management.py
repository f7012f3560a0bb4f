"""Requests to `<entity>/$management`: peek, renew locks, settle by lock token."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

from azure.core.exceptions import AzureError
from azure.servicebus.exceptions import (
    MessageLockLostError,
    OperationTimeoutError,
    ServiceBusError,
)

from pairbus.amqp.client.blocking import Connection, LinkLost, PeerSilent
from pairbus.amqp.client.requests import PendingRequests, RequestLinks, Response
from pairbus.amqp.codec.types import Array, Int, UInt
from pairbus.amqp.outcomes import AmqpError
from pairbus.cost.meter import Tally, units_of
from pairbus.fast.connection import NamespaceConnection
from pairbus.fast.errors import from_response
from pairbus.fast.message import ReceivedMessage, moment

Disposition = Literal["completed", "abandoned", "defered", "suspended"]
"""As the service spells them; "suspended" moves a message to the dead-letter queue."""

_MARGIN_SECONDS: Final = 1.0  # the service must time out before the client does
_TOKENS_MAX: Final = 500  # in one request
_TOGETHER_SECONDS: Final = 10.0
"""How long several requests together may take. Then those that were not answered are sent again,
alone.
"""
_EMPTY: Final = (202, 204)  # the status of a peek that finds nothing


class Management:
    """The requests to one entity. Their links are attached when they are needed."""

    def __init__(self, namespace: NamespaceConnection, path: str, tally: Tally) -> None:
        self.path = path
        self._namespace = namespace
        self._tally = tally
        self._requests: RequestLinks | None = None

    def __repr__(self) -> str:
        return f"<Management {self.path!r} of {self._namespace.namespace}>"

    def peek(self, from_sequence: int, count: int) -> list[bytes]:
        """Returns up to `count` messages from this sequence number on, without locking them.

        The service may return fewer than there are; an empty list means that there are none.
        """
        return self.peek_all([(from_sequence, count)])[0]

    def peek_all(self, wanted: Sequence[tuple[int, int]]) -> list[list[bytes]]:
        """Like `peek`, for several sequence numbers, each with a count, at the same time."""
        bodies = [_range(int(number), count) for number, count in wanted]
        return [self._peeked(answer) for answer in self._ask_all("peek-message", bodies)]

    def _peeked(self, answer: Response) -> list[bytes]:
        messages: list[bytes] = []
        if answer.properties.get("statusCode") not in _EMPTY:
            found = _entry(_body(answer, f"peek-message of {self.path!r}"), "messages", list)
            messages = [_entry(one, "message", bytes) for one in found]
        self._tally.peek += units_of(sum(map(len, messages)))
        return messages

    def renew_locks(self, tokens: Sequence[UUID | bytes]) -> list[datetime]:
        """Returns when each lock expires now. All are renewed, or none."""
        answer = self._ask("renew-lock", {"lock-tokens": _tokens(tokens)})
        self._tally.renew += len(tokens)
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
        """Works from any connection while the locks are valid. All are settled, or none."""
        body: dict[str, Any] = {"disposition-status": disposition, "lock-tokens": _tokens(tokens)}
        if disposition == "suspended":
            body |= {"deadletter-reason": reason, "deadletter-description": description}
        self._ask("update-disposition", body)
        self._tally.settle += len(tokens)

    def settle_each(
        self,
        received: Sequence[ReceivedMessage],
        disposition: Disposition,
        reason: str = "",
        description: str = "",
    ) -> list[tuple[ReceivedMessage, ServiceBusError]]:
        """Settle all messages that can still be settled. Returns the others, with the reason."""
        lost: list[tuple[ReceivedMessage, ServiceBusError]] = []
        pending = [received[at : at + _TOKENS_MAX] for at in range(0, len(received), _TOKENS_MAX)]
        while pending:
            some = pending.pop()
            try:
                self.settle(
                    [one.lock_token_bytes for one in some],
                    disposition,
                    reason=reason,
                    description=description,
                )
            except MessageLockLostError as error:
                half = len(some) // 2
                if half:  # the service does not say which of the locks is lost
                    pending += [some[:half], some[half:]]
                else:
                    lost.append((some[0], error))
        return lost

    def detach(self) -> None:
        """Free the links. The next request attaches others."""
        if self._requests is not None:
            self._requests.detach()
            self._requests = None

    def _ask(self, operation: str, body: dict[str, Any]) -> Any:
        """The body of the answer."""
        return _body(self._ask_all(operation, [body])[0], f"{operation} of {self.path!r}")

    def _ask_all(self, operation: str, bodies: Sequence[dict[str, Any]]) -> list[Response]:
        namespace = self._namespace
        with namespace.translating_errors(f"{operation} of {self.path!r}"):
            requests = self._links(namespace.authorized(self.path))
            requests.wait_attached(namespace.deadline())
            asked = [(self._properties(operation), body) for body in bodies]
            answers: list[Response | None] = [None] * len(bodies)
            until = namespace.deadline()
            if len(asked) > 1:
                answers = requests.ask_all(asked, until=_early(until))
            # A request without an answer is sent again: that also finds the reason.
            return [
                answer or requests.ask(properties, body, until=until)
                for answer, (properties, body) in zip(answers, asked, strict=True)
            ]

    def _links(self, connection: Connection) -> RequestLinks:
        if self._requests is None or not self._requests.alive:
            self.detach()
            self._requests = RequestLinks(connection, f"{self.path}/$management")
        return self._requests

    def _properties(self, operation: str) -> dict[str, Any]:
        seconds = max(self._namespace.timeout_seconds - _MARGIN_SECONDS, 0)
        return {
            "operation": f"com.microsoft:{operation}",
            "type": "entity-mgmt",
            "com.microsoft:server-timeout": UInt(int(seconds * 1000)),
        }


def peek_each(wanted: Sequence[tuple[Management, int, int]]) -> list[list[bytes] | AzureError]:
    """`peek` for several entities of one client, each with a sequence number and a count, at the
    same time: the service may be far away.

    If an entity fails, its error is in place of its messages. Raises AzureError if the service does
    not answer.
    """
    namespace = wanted[0][0]._namespace
    pending: list[PendingRequests | None] = []
    with namespace.translating_errors(f"peek-message of {len(wanted)} entities"):
        connection, errors = namespace.authorize([management.path for management, _, _ in wanted])
        until = namespace.deadline()
        links = [
            management._links(connection) if error is None else None
            for (management, _, _), error in zip(wanted, errors, strict=True)
        ]
        for requests, (management, number, count) in zip(links, wanted, strict=True):
            asked = [(management._properties("peek-message"), _range(number, count))]
            pending.append(None)
            if requests is not None:
                with contextlib.suppress(LinkLost, PeerSilent):
                    requests.wait_attached(until)
                    pending[-1] = requests.start(asked)
        connection.wait_quietly(
            lambda: all([one is None or one.proceed() for one in pending]), _early(until)
        )
    found: list[list[bytes] | AzureError] = []
    for one, (management, number, count) in zip(pending, wanted, strict=True):
        answer = None if one is None else one.answers()[0]
        try:
            if answer is None:  # ask again, alone: that also finds the reason
                found.append(management.peek(number, count))
            else:
                found.append(management._peeked(answer))
        except AzureError as error:
            if isinstance(error, OperationTimeoutError) or not namespace.is_open:
                raise
            found.append(error)
    return found


def _range(number: int, count: int) -> dict[str, Any]:
    return {"from-sequence-number": number, "message-count": Int(count)}


def _early(until: float) -> float:
    return min(time.monotonic() + _TOGETHER_SECONDS, until)


def _body(answer: Response, what: str) -> Any:
    """Raises ServiceBusError for a response that is not a success."""
    status = answer.properties.get("statusCode")
    if status == 200:
        return answer.body
    condition = answer.properties.get("errorCondition")
    description = str(answer.properties.get("statusDescription", ""))
    error = None if condition is None else AmqpError(str(condition), description)
    raise from_response(status if isinstance(status, int) else None, error, description, what)


def _entry(body: object, key: str, kind: type) -> Any:
    value = body.get(key) if isinstance(body, dict) else None
    if not isinstance(value, kind):
        raise ServiceBusError(f"the answer of $management has {value!r:.80} for {key!r}")
    return value


def _tokens(tokens: Sequence[UUID | bytes]) -> Array:
    return Array([one if isinstance(one, UUID) else UUID(bytes_le=one) for one in tokens])
