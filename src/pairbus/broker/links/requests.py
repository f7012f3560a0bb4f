"""Request links: `$cbs`, where tokens are shown, and `<entity>/$management`.

A request comes on one link and its answer leaves on another, which the client attached for it. SDKs
differ in how they name that link: by its target address, by its name, or by nothing but being the
only one of its kind on the connection.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pairbus.amqp.codec.values import MalformedMessage
from pairbus.amqp.engine.engine import AmqpError, Link, Transferred
from pairbus.broker.entities.policies import Right
from pairbus.broker.faults.kinds import OPERATION_OF_RIGHT, Operation
from pairbus.broker.links import management, paths, tokens
from pairbus.broker.links.management_body import Context
from pairbus.broker.links.paths import Path
from pairbus.broker.links.request_codec import (
    Answer,
    Request,
    cbs_answer,
    malformed,
    management_answer,
    no_entity,
    read_request,
    refusal,
)
from pairbus.broker.messages import lifecycle
from pairbus.broker.messages.mailbox import Mailbox
from pairbus.broker.messages.queue import Queue
from pairbus.broker.messages.sessions import Session

if TYPE_CHECKING:
    from pairbus.broker.links.connection import AmqpConnection

_CREDIT: Final = 100
_WAITING_MAX: Final = 1000


class ReplyLink:
    """Where answers leave. They wait here for credit, within bounds."""

    right: Right | None = None

    def __init__(self, connection: AmqpConnection, link: Link, path: Path) -> None:
        self.connection = connection
        self.link = link
        self.path = path
        self._waiting: deque[bytes] = deque()
        self._tag = 0
        link.context = self
        link.accept()

    def send(self, data: bytes) -> None:
        if len(self._waiting) >= _WAITING_MAX:
            self.link.close(
                AmqpError(
                    "amqp:resource-limit-exceeded",
                    f"{_WAITING_MAX} answers wait on {self.path} for credit that never comes",
                )
            )
            return
        self._waiting.append(data)
        self.flowed()

    def flowed(self, *, now_ms: int = 0) -> None:
        while self._waiting and self.link.credit_for_settled > 0:
            self._tag += 1
            self.link.send(self._tag.to_bytes(8, "big"), self._waiting.popleft(), settled=True)
        if self.link.drain:
            self.link.drained()
        self.connection.has_output()

    def closed(self) -> None:
        self._waiting.clear()


class RequestLink:
    """What `$cbs` and `$management` have in common."""

    right: Right | None = None

    def __init__(self, connection: AmqpConnection, link: Link, path: Path) -> None:
        self.connection = connection
        self.link = link
        self.path = path
        self._used = 0
        link.context = self
        link.accept(credit=_CREDIT)

    def transferred(self, event: Transferred, *, now_ms: int) -> None:
        self._used += 1
        if self._used >= _CREDIT // 2:
            self.link.grant(self._used)
            self._used = 0
        try:
            request = read_request(event.data)
        except MalformedMessage as error:
            event.delivery.reject(malformed(error))
            return
        event.delivery.accept()
        self.connection.queue_request(self, request)

    def handle(self, request: Request, *, now_ms: int) -> None:
        raise NotImplementedError

    def closed(self) -> None:
        """Answers that are still to come find their link, or nobody."""

    def answer_with(self, request: Request, data: bytes) -> None:
        link = self.connection.reply_link(self.path, request.reply_to, self.link.session)
        if link is not None:
            link.send(data)


class CbsLink(RequestLink):
    def handle(self, request: Request, *, now_ms: int) -> None:
        self.answer_with(request, cbs_answer(request, self._checked(request, now_ms)))

    def _checked(self, request: Request, now_ms: int) -> Answer:
        if request.operation != "put-token":
            return Answer(400, f"{request.operation!r} is not an operation of $cbs: use put-token")
        audience, token = request.properties.get("name"), request.body
        if not isinstance(audience, str) or not isinstance(token, str):
            return Answer(400, "put-token needs the property 'name' and a string as its body")
        namespace = self.connection.namespace
        path = paths.parse(audience)
        try:
            grant = self._grant(token, audience, path, now_ms)
        except tokens.TokenRefused as refused:
            return Answer(401, refused.reason)
        if path.entity and namespace.find(path.entity) is None:
            return refusal(no_entity(namespace.name, path.entity))
        self.connection.credentials.add(path, grant)
        return Answer(202, "Accepted")

    def _grant(self, token: str, audience: str, path: Path, now_ms: int) -> tokens.Grant:
        """By a key of the namespace, or by one of the entity, which then opens nothing else."""
        namespace = self.connection.namespace
        try:
            return tokens.verify(
                token,
                namespace.options.policies,
                audience=audience,
                now=now_ms / 1000,
                accepts_bearer=namespace.options.accepts_bearer,
            )
        except tokens.TokenRefused:
            own = namespace.policies_of(path.entity)
            if not own:
                raise
            grant = tokens.verify(token, own, audience=audience, now=now_ms / 1000)
            return replace(grant, scope=path.entity.lower())


class ManagementLink(RequestLink):
    def __init__(
        self,
        connection: AmqpConnection,
        link: Link,
        path: Path,
        queue: Queue,
        mailbox: Mailbox,
    ) -> None:
        self.queue = queue
        self.mailbox = mailbox
        super().__init__(connection, link, path)

    def handle(self, request: Request, *, now_ms: int) -> None:
        def reply(answer: Answer) -> None:
            self.answer_with(request, management_answer(request, answer))

        error = self._refusal(request.operation, now_ms)
        if error is not None:
            reply(refusal(error))
            return
        context = Context(self.queue, self.mailbox, holder_of=self._holds, now_ms=now_ms)
        management.handle(context, request, reply)

    def _refusal(self, operation: str, now_ms: int) -> AmqpError | None:
        if operation not in management.OPERATIONS:
            return AmqpError("amqp:not-implemented", f"{operation!r} is not known to this broker")
        _, right = management.OPERATIONS[operation]
        if not self.connection.credentials.allow(self.path, right, now_ms=now_ms):
            return AmqpError(
                "amqp:unauthorized-access",
                f"{operation!r} on {self.queue.name!r} needs the {right.value} claim",
            )
        if (faults := self.queue.namespace.active_faults) is not None:
            refused = faults.refusal(
                self.path.entity, Operation.MANAGEMENT, OPERATION_OF_RIGHT[right]
            )
            if refused is not None:
                return refused
        if operation in management.GIVES_OUT and (
            refused := lifecycle.refusal_to_receive(self.queue.description, self.mailbox.kind)
        ):
            return refused
        return management.refusal_of_kind(operation, self.mailbox.kind, self.queue.name)

    def _holds(self, session: Session) -> bool:
        holder = session.holder
        return getattr(holder, "connection", None) is self.connection
