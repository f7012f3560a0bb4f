"""Request links: `$cbs`, where clients present tokens, and `<entity>/$management`.

A request comes on one link, and its reply leaves on another that the client attached for replies.
SDKs differ in how they name that link: by its target address, by its name, or not at all when it is
the only one of its kind on the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from pairbus.amqp.codec.values import MalformedMessage
from pairbus.amqp.engine import Delivery, Link, Session, Transferred
from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.entities.policies import Right
from pairbus.broker.faults.kinds import OPERATION_OF_RIGHT, Operation
from pairbus.broker.links import management, paths, rule_requests, tokens
from pairbus.broker.links.host import LinkHost
from pairbus.broker.links.operation import Context, ManagementOperation
from pairbus.broker.links.paths import Path
from pairbus.broker.links.reading import Pause, Reading
from pairbus.broker.links.request_codec import (
    Reply,
    Request,
    cbs_reply,
    malformed,
    management_reply,
    no_entity,
    read_request,
    refusal,
)
from pairbus.broker.messages import lifecycle
from pairbus.broker.messages.lifecycle import MailboxKind
from pairbus.broker.messages.mailbox import Mailbox
from pairbus.broker.messages.queue import Queue
from pairbus.broker.messages.sessions import MessageSession

OPERATIONS: Final = {**management.OPERATIONS, **rule_requests.OPERATIONS}
_CREDIT: Final = 100
_WAITING_MAX: Final = 1000
_WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Room for a reply with the most messages by their numbers, next to what a receiver in the same
session may have waiting.
"""
_UNAUTHENTICATED_WAITING_BYTES_MAX: Final = 64 * 1024
_REQUESTS_MAX: Final = 100
_TOKEN_SIZE_MAX: Final = 64 * 1024


class ReplyLink:
    """The link that sends replies. They wait for the client, up to a limit: here for credit, and in
    the link's session for its window.
    """

    right: Right | None = None

    def __init__(self, connection: LinkHost, link: Link, path: Path) -> None:
        self.connection = connection
        self.link = link
        self.path = path
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._tag = 0
        link.context = self
        link.accept()

    def send(self, data: bytes) -> None:
        count = len(self._waiting)
        unsent_bytes = self._waiting_bytes + self.link.session.outgoing_bytes
        has_token = self.connection.credentials.has_grants
        bytes_max = _WAITING_BYTES_MAX if has_token else _UNAUTHENTICATED_WAITING_BYTES_MAX
        if count >= _WAITING_MAX or unsent_bytes >= bytes_max:
            self.connection.end(
                self.link,
                AmqpError(
                    "amqp:resource-limit-exceeded",
                    f"{count} replies wait for credit on {self.path}, and its session has "
                    f"{unsent_bytes} unsent bytes: grant credit, and read the replies",
                ),
            )
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self.flowed()

    def flowed(self, *, now_ms: int = 0) -> None:
        while self._waiting and self.link.credit_for_settled > 0:
            data = self._waiting.popleft()
            self._waiting_bytes -= len(data)
            self._tag += 1
            self.link.send(self._tag.to_bytes(8, "big"), data, settled=True)
        if self.link.drain:
            self.link.drained()
        self.connection.has_output()

    def closed(self) -> None:
        self._waiting.clear()


def find_reply_link(
    links: Sequence[ReplyLink], path: Path, reply_to: str | None, session: Session
) -> ReplyLink | None:
    """Finds the link by the request's address, else by the same session, else the newest."""
    name = str(path).lower()
    candidates = [one for one in links if str(one.path).lower() == name]
    for one in candidates:
        if reply_to is not None and reply_to in (one.link.remote.target_address, one.link.name):
            return one
    for one in candidates:
        if one.link.session is session:
            return one
    return candidates[-1] if candidates else None


class RequestQueue:
    """The requests of a connection. Each turn of the event loop handles one of them, so that a
    client with many requests does not delay the others.
    """

    reading: Reading
    """The connection's reading, which pauses while too many requests wait."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        run: Callable[[Callable[[int], None]], None],
    ) -> None:
        self._loop = loop
        self._run = run
        self._waiting: deque[Callable[[int], None]] = deque()
        self._is_scheduled = False
        self.delay_seconds = 0.0
        """How long the next request waits, because the last one brought a bad token."""

    def add(self, handle: Callable[[int], None]) -> None:
        self._waiting.append(handle)
        if len(self._waiting) > _REQUESTS_MAX:
            self.reading.pause(Pause.REQUESTS)
        self.schedule()

    def schedule(self) -> None:
        """Handle the next request soon, unless the client does not read the replies."""
        is_ready = self._waiting and not self._is_scheduled
        if is_ready and not self.reading.is_paused_by(Pause.WRITES):
            self._is_scheduled = True
            self._loop.call_later(self.delay_seconds, self._next)
            self.delay_seconds = 0.0

    def _next(self) -> None:
        self._is_scheduled = False
        if not self._waiting:
            return
        handle = self._waiting.popleft()
        if len(self._waiting) < _REQUESTS_MAX // 2:
            self.reading.resume(Pause.REQUESTS)
        self._run(handle)
        self.schedule()

    def clear(self) -> None:
        self._waiting.clear()


class RequestLink:
    """What `$cbs` and `$management` have in common."""

    right: Right | None = None
    size_max: int | None = None

    def __init__(self, connection: LinkHost, link: Link, path: Path) -> None:
        self.connection = connection
        self.link = link
        self.path = path
        self._used_credit = 0
        link.context = self
        link.accept(credit=_CREDIT, max_message_size=self.size_max)

    def transferred(self, event: Transferred, *, now_ms: int) -> None:
        self._used_credit += 1
        if self._used_credit >= _CREDIT // 2:
            self.link.grant(self._used_credit)
            self._used_credit = 0
        if self.size_max is not None and len(event.data) > self.size_max:
            said = f"a request to {self.path} may have {self.size_max} bytes"
            event.delivery.reject(AmqpError("amqp:link:message-size-exceeded", said))
            return
        # Decoded in its turn: that is most of the work, and it takes a multiple of the memory.
        self.connection.hold(len(event.data))
        self.connection.queue_request(partial(self._read, event.delivery, event.data))

    def _read(self, delivery: Delivery, data: bytes, now_ms: int) -> None:
        self.connection.release(len(data))
        try:
            request = read_request(data)
        except MalformedMessage as error:
            delivery.reject(malformed(error))
            return
        delivery.accept()
        self.handle(request, now_ms)

    def handle(self, request: Request, now_ms: int) -> None:
        raise NotImplementedError

    def closed(self) -> None:
        """Pending replies find another link, or are dropped."""

    def send_reply(self, request: Request, data: bytes) -> None:
        self.connection.send_reply(data, self.path, request.reply_to, self.link.session)


class CbsLink(RequestLink):
    size_max = _TOKEN_SIZE_MAX  # any client that connects can make us decode this much

    def handle(self, request: Request, now_ms: int) -> None:
        self.send_reply(request, cbs_reply(request, self._put_token(request, now_ms)))

    def _put_token(self, request: Request, now_ms: int) -> Reply:
        if request.operation != "put-token":
            return Reply(
                400, f"{request.operation!r:.100} is not an operation of $cbs: use put-token"
            )
        audience, token = request.properties.get("name"), request.body
        if not isinstance(audience, str) or not isinstance(token, str):
            return Reply(400, "put-token needs the property 'name' and a string as its body")
        namespace = self.connection.namespace
        path = paths.parse(audience)
        try:
            grant = tokens.grant(
                token,
                shared=namespace.options.policies,
                own=namespace.policies_of(path.entity),
                entity=path.entity,
                audience=audience,
                hosts=namespace.hosts,
                now=now_ms / 1000,
                accepts_bearer=namespace.options.accepts_bearer,
            )
        except tokens.TokenRefused as refused:
            self.connection.token_refused(refused, path)
            return Reply(401, refused.reason)
        if path.entity and namespace.find(path.entity) is None:
            error = no_entity(namespace.name, path.entity)
            self.connection.log_refusal(error.description, path, grant.policy_name, is_missing=True)
            return refusal(error)
        self.connection.add_grant(path, grant)
        return Reply(202, "Accepted")


class ManagementLink(RequestLink):
    def __init__(
        self,
        connection: LinkHost,
        link: Link,
        path: Path,
        queue: Queue,
        mailbox: Mailbox,
    ) -> None:
        self.queue = queue
        self.mailbox = mailbox
        super().__init__(connection, link, path)

    def handle(self, request: Request, now_ms: int) -> None:
        def reply(reply: Reply) -> None:
            self.send_reply(request, management_reply(request, reply))

        operation = OPERATIONS.get(request.operation)
        if operation is None:
            text = f"{request.operation!r:.100} is not known to this broker"
            reply(refusal(AmqpError("amqp:not-implemented", text)))
        elif self.connection.namespace.find(self.queue.name) is not self.queue:
            # The queue was deleted while the request waited. What is stored in it would be lost.
            reply(refusal(no_entity(self.connection.namespace.name, self.queue.name)))
        elif (error := self._refusal(request.operation, operation, now_ms)) is not None:
            reply(refusal(error))
        else:
            context = Context(
                self.connection.namespace,
                self.queue,
                self.mailbox,
                holder_of=self._holds,
                now_ms=now_ms,
            )
            operation.handle(context, request, reply)

    def _refusal(self, name: str, operation: ManagementOperation, now_ms: int) -> AmqpError | None:
        right = operation.right
        if not self.connection.credentials.allow(self.path, right, now_ms=now_ms):
            error = AmqpError(
                "amqp:unauthorized-access",
                f"{name!r} on {self.queue.name!r} needs the {right.value} claim",
            )
            self.connection.log_refusal(error.description, self.path)
            return error
        refused = self.connection.namespace.fault_refusal(
            self.path.entity, Operation.MANAGEMENT, OPERATION_OF_RIGHT[right]
        )
        if refused is None and operation.receives:
            refused = lifecycle.refusal_to_receive(self.queue.description, self.mailbox.kind)
        if refused is None and operation.main_only and self.mailbox.kind is not MailboxKind.MAIN:
            refused = AmqpError(
                "amqp:not-allowed",
                f"nothing can be sent to a dead-letter queue of {self.queue.name!r}",
            )
        return refused

    def _holds(self, session: MessageSession) -> bool:
        holder = session.holder
        return getattr(holder, "connection", None) is self.connection
