"""Requests and their responses over a pair of links, as `$cbs` and `$management` take them.

A response is found by its correlation-id. A response that comes after its request timed out is
dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID, uuid4

from pairbus.amqp.client.blocking import Connection, Delivery
from pairbus.amqp.client.links import ClientError, ClientReceiverLink, ClientSenderLink
from pairbus.amqp.codec.sections import APPLICATION_PROPERTIES, CORRELATION_ID, PROPERTIES, VALUE
from pairbus.amqp.codec.types import Described, ULong
from pairbus.amqp.codec.values import decode, encode
from pairbus.amqp.outcomes import AmqpError, OutcomeKind

_CREDIT: Final = 100


class RequestRefused(ClientError):
    """The peer rejected the request itself, so there is no response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    properties: Mapping[str, Any] = field(default_factory=dict)
    """The application properties: a status, and an error."""
    body: Any = None


def _as_it_came(link: ClientReceiverLink, number: int, tag: bytes, data: bytes) -> bytes:
    return data


class RequestLinks:
    """The pair of links to one address of one connection. `wait_attached` must come first."""

    def __init__(self, connection: Connection, address: str) -> None:
        self._connection = connection
        self._address = address
        # Both at once: the peer may be far away.
        self._answers = connection.start_receiver(
            address, _as_it_came, target=address, is_shared=True
        )
        self._requests = connection.start_sender(address, source=address, is_shared=True)
        self._is_attached = False

    def wait_attached(self, until: float) -> None:
        if self._is_attached:
            return
        try:
            self._connection.attached(self._answers, until, f"a link from {self._address!r}")
            self._answers.grant(_CREDIT)
            self._connection.attached(self._requests, until, f"a link to {self._address!r}")
        except ClientError:
            self.detach()
            raise
        self._is_attached = True

    def detach(self) -> None:
        """Detach what is left of the pair. Otherwise the peer may send the answers for the next
        pair to this one.
        """
        for link in (self._answers, self._requests):
            link.detach()

    @property
    def alive(self) -> bool:
        return self._answers.alive and self._requests.alive and not self._connection.is_over

    @property
    def is_over(self) -> bool:
        return self._answers.is_over or self._requests.is_over or self._connection.is_over

    def ask(
        self, properties: Mapping[str, Any], body: Any, *, until: float, reply_to: bool = True
    ) -> Response:
        what = f"an answer of {self._address!r} to {properties.get('operation')!r}"
        pending = self.start([(properties, body)], reply_to=reply_to)
        self._connection.wait(pending.proceed, until, what)
        (answer,) = pending.answers()
        if answer is None:
            self._check()
            (error,) = pending.refusals()
            raise RequestRefused(f"{self._address!r} refused the request", error)
        return answer

    def ask_all(
        self,
        asked: Sequence[tuple[Mapping[str, Any], Any]],
        *,
        until: float,
        reply_to: bool = True,
    ) -> list[Response | None]:
        """Send several requests, each with properties and body, without waiting for each answer.

        Returns None for a request that was not sent, refused, or not answered. Send it again with
        `ask`, which raises the reason if it fails.
        """
        pending = self.start(asked, reply_to=reply_to)
        self._connection.wait_quietly(pending.proceed, until)
        return pending.answers()

    def start(
        self, asked: Sequence[tuple[Mapping[str, Any], Any]], *, reply_to: bool = True
    ) -> PendingRequests:
        """Like `ask_all`, for a caller that waits for several pairs of links at the same time."""
        reply_address = self._address if reply_to else None
        return PendingRequests(self._requests, self._answers, asked, reply_address)

    def _check(self) -> None:
        for link in (self._requests, self._answers):
            link.check()


class PendingRequests:
    """Requests of one pair of links, which are sent as there is credit for them."""

    def __init__(
        self,
        requests: ClientSenderLink,
        answers: ClientReceiverLink,
        asked: Sequence[tuple[Mapping[str, Any], Any]],
        reply_to: str | None,
    ) -> None:
        self._requests = requests
        self._answers = answers
        self._reply_to = reply_to
        self._left = deque(asked)
        self._sent: dict[UUID, Delivery] = {}
        self._found: dict[UUID, Response] = {}

    def proceed(self) -> bool:
        """Take the answers that have come, and send what there is credit for. Returns whether all
        requests are answered or refused, or no more answers can come.
        """
        requests, answers, sent, found = self._requests, self._answers, self._sent, self._found
        if answers.inbox:
            taken, answers.inbox = answers.inbox, []
            found.update((one, answer) for one, answer in _responses(taken) if one in sent)
            if answers.credit < _CREDIT // 2:
                answers.grant(_CREDIT)
        if not (requests.alive and answers.alive):
            return True
        waiting = sum(
            number not in found and not _is_refused(delivery) for number, delivery in sent.items()
        )
        # Each answer needs credit, too: this may be more than a link has credit for.
        while self._left and requests.credit > 0 and waiting < answers.credit:
            properties, body = self._left.popleft()
            number = uuid4()
            fields = _fields(number, self._reply_to)
            sent[number] = requests.send(_request(fields, properties, body))
            waiting += 1
        return not self._left and not waiting

    def answers(self) -> list[Response | None]:
        """In the order of the requests; None for one that was not answered."""
        return [*map(self._found.get, self._sent), *[None] * len(self._left)]

    def refusals(self) -> list[AmqpError | None]:
        """Why requests were refused."""
        return [
            one.outcome.error for one in self._sent.values() if one.outcome and _is_refused(one)
        ]


def _fields(number: UUID, reply_to: str | None) -> list[Any]:
    return [number] if reply_to is None else [number, None, None, None, reply_to]


def _is_refused(delivery: Delivery) -> bool:
    outcome = delivery.outcome
    return outcome is not None and outcome.kind is not OutcomeKind.ACCEPTED


def _request(fields: list[Any], properties: Mapping[str, Any], body: Any) -> bytes:
    return b"".join(
        encode(Described(ULong(section), value))
        for section, value in (
            (PROPERTIES, fields),
            (APPLICATION_PROPERTIES, dict(properties)),
            (VALUE, body),
        )
    )


def _responses(messages: list[bytes]) -> Iterator[tuple[Any, Response]]:
    """Decodes answers. Yields each with the id of its request."""
    for data in messages:
        sections: dict[int, Any] = {}
        at = 0
        try:
            while at < len(data):
                section, at = decode(data, at)
                if isinstance(section, Described) and isinstance(section.descriptor, int):
                    sections[int(section.descriptor)] = section.value
        except ValueError:
            continue  # it cannot be matched to a request
        fields = sections.get(PROPERTIES)
        number = (
            fields[CORRELATION_ID]
            if isinstance(fields, list) and len(fields) > CORRELATION_ID
            else None
        )
        if isinstance(number, UUID):
            named = sections.get(APPLICATION_PROPERTIES)
            properties = named if isinstance(named, dict) else {}
            yield (
                number,
                Response(
                    properties={str(key): item for key, item in properties.items()},
                    body=sections.get(VALUE),
                ),
            )
