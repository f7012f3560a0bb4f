"""Requests to `<entity>/$management`: peek, renew locks, settle by lock token."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError

from pairbus.amqp.client.blocking import Connection
from pairbus.amqp.client.requests import RequestLinks, Response
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
        answers = self._ask_all("peek-message", bodies, is_nothing=_EMPTY)
        return [self._messages(answer) for answer in answers]

    def _messages(self, answer: Any) -> list[bytes]:
        found = [] if answer is None else _entry(answer, "messages", list)
        messages: list[bytes] = [_entry(one, "message", bytes) for one in found]
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
        return self._ask_all(operation, [body])[0]

    def _ask_all(
        self,
        operation: str,
        bodies: Sequence[dict[str, Any]],
        *,
        is_nothing: tuple[int, ...] = (),
    ) -> list[Any]:
        """The bodies of the answers; None for a status that means "nothing found"."""
        what = f"{operation} of {self.path!r}"
        namespace = self._namespace
        with namespace.translating_errors(what):
            requests = self._links(namespace.authorized(self.path))
            requests.wait_attached(namespace.deadline())
            asked = [(self._properties(operation), body) for body in bodies]
            answers: list[Response | None] = [None] * len(bodies)
            until = namespace.deadline()
            if len(asked) > 1:
                answers = requests.ask_all(asked, until=_early(until))
            complete = _completed(requests, asked, answers, until)
        return [_body(answer, what, is_nothing) for answer in complete]

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


def first_messages(managements: Sequence[Management]) -> list[bytes | None]:
    """The first message of each entity, locked or not; None if it has none. All of one client, and
    asked at the same time: the service may be far away.
    """
    namespace, what = managements[0]._namespace, f"peek-message of {len(managements)} entities"
    asked = [(managements[0]._properties("peek-message"), _range(0, 1))]
    with namespace.translating_errors(what):
        connection, errors = namespace.authorize([one.path for one in managements])
        for error in errors:
            if error is not None:
                raise error
        links = [management._links(connection) for management in managements]
        for each in links:
            each.wait_attached(namespace.deadline())
        pending = [each.start(asked) for each in links]
        until = namespace.deadline()
        connection.wait_quietly(lambda: all([one.proceed() for one in pending]), _early(until))
        answers = [
            _completed(requests, asked, one.answers(), until)[0]
            for requests, one in zip(links, pending, strict=True)
        ]
    firsts: list[bytes | None] = []
    for management, answer in zip(managements, answers, strict=True):
        body = _body(answer, f"peek-message of {management.path!r}", _EMPTY)
        messages = management._messages(body)
        firsts.append(messages[0] if messages else None)
    return firsts


def _range(number: int, count: int) -> dict[str, Any]:
    return {"from-sequence-number": number, "message-count": Int(count)}


def _early(until: float) -> float:
    return min(time.monotonic() + _TOGETHER_SECONDS, until)


def _completed(
    requests: RequestLinks,
    asked: Sequence[tuple[dict[str, Any], Any]],
    answers: Sequence[Response | None],
    until: float,
) -> list[Response]:
    """A request without an answer is sent again: that also finds the reason."""
    return [
        answer or requests.ask(properties, body, until=until)
        for answer, (properties, body) in zip(answers, asked, strict=True)
    ]


def _body(answer: Response, what: str, is_nothing: tuple[int, ...]) -> Any:
    status = answer.properties.get("statusCode")
    if status in is_nothing:
        return None
    if status != 200:
        raise _refusal(answer, what)
    return answer.body


def _refusal(answer: Response, what: str) -> ServiceBusError:
    status = answer.properties.get("statusCode")
    condition = answer.properties.get("errorCondition")
    description = str(answer.properties.get("statusDescription", ""))
    error = None if condition is None else AmqpError(str(condition), description)
    return from_response(status if isinstance(status, int) else None, error, description, what)


def _entry(body: object, key: str, kind: type) -> Any:
    value = body.get(key) if isinstance(body, dict) else None
    if not isinstance(value, kind):
        raise ServiceBusError(f"the answer of $management has {value!r:.80} for {key!r}")
    return value


def _tokens(tokens: Sequence[UUID | bytes]) -> Array:
    return Array([one if isinstance(one, UUID) else UUID(bytes_le=one) for one in tokens])
