"""One AMQP connection of a client, from its first byte to its last.

The shell around an `Engine`: reads from a transport, hands each event to the link it belongs to,
and writes what the engine has to send. It knows the client's identity and what its tokens allow. It
does not know sockets: the transport may be TCP, TLS or a WebSocket.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final
from uuid import uuid4

from pairbus.amqp.engine import Engine, Event, Link, Session, events
from pairbus.amqp.outcomes import AmqpError
from pairbus.amqp.sasl import SaslServer
from pairbus.broker.connection_limit import Slot
from pairbus.broker.entities.namespace_options import Limits
from pairbus.broker.entities.policies import Right
from pairbus.broker.faults.faulty_transport import FaultyTransport
from pairbus.broker.links import client_limits, paths, tokens
from pairbus.broker.links.attach import address_of, attach
from pairbus.broker.links.paths import Path
from pairbus.broker.links.reading import Pause, Reading
from pairbus.broker.links.receiver_link import ReceiverLink
from pairbus.broker.links.request_codec import no_entity
from pairbus.broker.links.requests import ReplyLink, RequestQueue, find_reply_link
from pairbus.broker.links.sender_link import SenderLink
from pairbus.broker.links.tokens import Credentials, Grant
from pairbus.broker.messages import lifecycle
from pairbus.broker.messages.queue import Queue
from pairbus.broker.namespace import Namespace
from pairbus.broker.refusals import network_of, peer_name

logger = logging.getLogger(__name__)

_DELIVERIES_AT_ONCE: Final = 100
"""The output is counted after so many, so that its limit is not exceeded by much."""


class AmqpConnection(asyncio.Protocol):
    def __init__(self, namespace: Namespace, slot: Slot, *, limits: Limits) -> None:
        self.namespace = namespace
        self._slot = slot
        self._limits = limits
        self._transport: Any = None
        self._reading: Reading
        self._links: dict[Link, None] = {}
        """Links that are accepted, or that wait for a session and are not answered yet. The newest
        is the last one.
        """
        self.credentials = Credentials()
        self._client_limits = client_limits.without_token(limits)
        self._held_bytes = 0
        self._unsent_bytes = 0
        self.is_congested = False
        self._requests = RequestQueue(namespace.loop, self._handle_request)
        self.faulty_transport: FaultyTransport | None = None
        """Only while faults on demand are active."""
        self._timer: asyncio.TimerHandle | None = None
        self._handshake: asyncio.TimerHandle | None = None
        self._token_deadline: asyncio.TimerHandle | None = None
        self._close_deadline: asyncio.TimerHandle | None = None
        self._engine = Engine(
            server=True,
            container_id=f"{namespace.name}-{uuid4().hex[:12]}",
            limits=self._client_limits.engine,
            sasl=SaslServer(self._authenticate),
        )
        self._handlers: dict[type, Callable[[Any, int], None]] = {
            events.Opened: self._opened,
            events.SessionBegun: self._ignored,
            events.SessionEnded: self._ignored,
            events.Attached: self._attached,
            events.Detached: self._detached,
            events.Flowed: self._flowed,
            events.Transferred: self._transferred,
            events.Oversized: self._oversized,
            events.Disposed: self._disposed,
            events.ConnectionClosed: self._closed,
        }

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._slot.occupy(self, transport)
        self._transport = transport
        self._transport.set_write_buffer_limits(high=self._client_limits.unread_bytes_max)
        self._reading = self._requests.reading = Reading(self._transport)
        self.namespace.connections.add(self)
        self.namespace.connections_opened += 1
        self._handshake = self.namespace.loop.call_later(
            self._limits.handshake_seconds, self._handshake_overdue
        )
        self._token_deadline = self.namespace.loop.call_later(
            self._limits.token_seconds, self._token_overdue
        )
        if self.namespace.active_faults is not None:
            self.faults_changed()
        self._keep_alive()

    def data_received(self, data: bytes) -> None:
        if self.faulty_transport is not None:
            self._engine.peer_is_active()  # the client is not idle, even if a fault holds this
            self.faulty_transport.received_bytes(data)
            return
        now_ms = self.namespace.now_ms()
        handlers = self._handlers
        try:
            for event in self._engine.receive(data):
                handlers[type(event)](event, now_ms)
        except Exception:
            self._failed()
        self.has_output()
        self.namespace.run()

    def _failed(self) -> None:
        """A bug in the broker: close this connection with an error. The others are not affected."""
        logger.exception("the connection of %s failed", self._peer)
        self._engine.close(AmqpError("amqp:internal-error", "the broker failed; its log says why"))
        self._abort_later()

    def _abort_later(self) -> None:
        """A closed engine has no idle timeout, and a closed transport waits until everything is
        sent: a client that does not answer the close, or does not read, would keep its slot.
        """
        if self._close_deadline is None and self._transport is not None:
            self._close_deadline = self.namespace.loop.call_later(
                self._limits.handshake_seconds, self._transport.abort
            )

    def connection_lost(self, exc: Exception | None) -> None:
        try:
            self._clean_up()
        finally:
            self._slot.free()

    def _clean_up(self) -> None:
        self.namespace.connections.discard(self)
        for timer in (self._timer, self._handshake, self._token_deadline, self._close_deadline):
            if timer is not None:
                timer.cancel()
        for link in self.links:
            self._forget(link)
        self._requests.clear()
        if self.faulty_transport is not None:
            self.faulty_transport.close()
        self._engine.free()
        self.namespace.run()

    def pause_writing(self) -> None:
        self.is_congested = True
        self._reading.pause(Pause.WRITES)

    def resume_writing(self) -> None:
        self.is_congested = False
        self._reading.resume(Pause.WRITES)
        self.offer_messages()
        self._requests.schedule()
        self.namespace.run()

    def shutdown(self) -> None:
        """Send the client a close with the reason, then close the transport."""
        self._engine.close(AmqpError("amqp:connection:forced", "the broker is shutting down"))
        self.flush()
        if self._transport is not None:
            self._transport.close()
            self._abort_later()

    # the engine's side

    def has_output(self) -> None:
        self.namespace.unsent(self)

    def flush(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self.faulty_transport is not None and self.faulty_transport.holds_output():
            return
        if data := self._engine.data_to_send():
            transport.write(data)
        if self._engine.closed:
            transport.close()
            self._abort_later()
            return
        self._unsent_bytes = 0
        if self.is_congested and not self._reading.is_paused_by(Pause.WRITES):
            # The transport has room; only this turn's output was too large. Continue in the next
            # turn.
            self.is_congested = False
            self.offer_messages()
            self.namespace.loop.call_soon(self.namespace.run)

    def count_output(self, size_bytes: int, path: Path) -> None:
        self._unsent_bytes += size_bytes
        if self._unsent_bytes > self._client_limits.unread_bytes_max:
            self.is_congested = True
        if self.faulty_transport is not None:
            self.faulty_transport.count_output(path.entity, size_bytes)
        self.namespace.unsent(self)

    def deliveries_max(self, path: Path) -> int:
        if self.faulty_transport is None:
            return _DELIVERIES_AT_ONCE
        return int(self.faulty_transport.may_deliver(path.entity))  # it counts single messages

    def hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        if self._held_bytes > self._client_limits.held_bytes_max:
            self._reading.pause(Pause.DISK)

    def release(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        self.namespace.unsent(self)
        if self._held_bytes < self._client_limits.held_bytes_max // 2:
            self._reading.resume(Pause.DISK)

    def offer_messages(self) -> None:
        """Look for messages again for every receiver with credit."""
        for link in self._links:
            if isinstance(link.context, ReceiverLink) and link.credit > 0:
                link.context.mailbox.has_credit(link.context)
                self.namespace.wake(link.context.queue, link.context.mailbox)

    def queue_request(self, handle: Callable[[int], None]) -> None:
        self._requests.add(handle)

    def _handle_request(self, handle: Callable[[int], None]) -> None:
        try:
            handle(self.namespace.now_ms())
        except Exception:
            self._failed()
        self.has_output()
        self.namespace.run()

    def _keep_alive(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        was_closed = self._engine.closed
        deadline = self._engine.tick(now=time.monotonic())
        if self._engine.closed and not was_closed and self._engine.error is not None:
            self.log_refusal(self._engine.error.description)
        self.flush()
        if deadline is not None and not self._transport.is_closing():
            delay = max(deadline - time.monotonic(), 0.1)
            self._timer = self.namespace.loop.call_later(delay, self._keep_alive)

    def _handshake_overdue(self) -> None:
        if self.faulty_transport is not None and self.faulty_transport.is_silent:
            return  # the fault keeps the client from it
        self.log_refusal(f"it sent no AMQP open in {self._limits.handshake_seconds:g} s")
        self._transport.abort()

    def _token_overdue(self) -> None:
        if self.faulty_transport is not None and self.faulty_transport.is_silent:
            return  # the fault keeps the client from it
        reason = f"it sent no valid token in {self._limits.token_seconds:g} s"
        self._close_with(AmqpError("amqp:connection:forced", reason))

    def _close_with(self, error: AmqpError) -> None:
        self.log_refusal(error.description)
        self._engine.close(error)
        self.flush()
        self._abort_later()

    @property
    def _peer(self) -> str:
        return peer_name(self._transport.get_extra_info("peername"))

    def log_refusal(
        self,
        reason: str,
        path: Path | None = None,
        policy: str | None = None,
        *,
        is_missing: bool = False,
    ) -> None:
        credentials = self.credentials
        if policy is None and path is not None:
            policy = credentials.policy_for(path, now_ms=self.namespace.now_ms())
        self.namespace.refusals.add(
            self._peer,
            reason,
            entity=None if path is None else str(path),
            policy=policy,
            is_known=credentials.has_grants,
            is_missing=is_missing,
        )

    # faults on demand; FaultyTransport decides

    def faults_changed(self) -> None:
        if self.faulty_transport is None:
            self.faulty_transport = FaultyTransport(self, self.namespace)
        self.faulty_transport.faults_changed()
        self.drop_faulty_transport()

    def drop_faulty_transport(self) -> None:
        if self.faulty_transport is not None and self.faulty_transport.is_over:
            self.faulty_transport.close()
            self.faulty_transport = None

    def take(self, data: bytes) -> None:
        """Bytes that the faulty transport lets through."""
        assert self.faulty_transport is not None
        try:
            for event in self._engine.receive(data):
                self.faulty_transport.received_event(event)
            for link in self.links:
                if link.is_arriving:
                    self.faulty_transport.received_part(link)
        except Exception:
            self._failed()
        self.has_output()
        self.namespace.run()

    def handle(self, event: Event) -> None:
        """An event that the faulty transport lets through, perhaps much later."""
        if isinstance(event, events.Attached) and not event.link.alive:
            return  # the link was closed meanwhile, and nothing would end it again
        try:
            self._handlers[type(event)](event, self.namespace.now_ms())
        except Exception:
            self._failed()
            self.has_output()

    def output(self) -> bytes:
        return self._engine.data_to_send()

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def entity_of(self, link: Link) -> str:
        return paths.parse(address_of(link)).entity

    def cut(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._slot.reset()

    def pause_reading(self) -> None:
        self._reading.pause(Pause.FAULT)

    def resume_reading(self) -> None:
        self._reading.resume(Pause.FAULT)

    @property
    def links(self) -> list[Link]:
        return list(self._links)

    @property
    def is_closing(self) -> bool:
        return bool(self._transport.is_closing())

    # who the client is

    def _authenticate(self, mechanism: str, user: str, password: str) -> bool:
        if mechanism != "PLAIN":
            return True  # the client presents its tokens over `$cbs`
        try:
            self.credentials.verify_plain(user, password, self.namespace.options.policies)
        except tokens.TokenRefused as refused:
            self.token_refused(refused)
            return False
        self._authenticated()
        return True

    def token_refused(self, refused: tokens.TokenRefused, path: Path | None = None) -> None:
        self.log_refusal(refused.reason, path, refused.policy_name)
        network = network_of(self._transport.get_extra_info("peername"))
        self.namespace.bad_tokens.add(network)
        self._requests.delay_seconds = self.namespace.bad_tokens.delay_seconds(network)

    def add_grant(self, path: Path, grant: Grant) -> None:
        self.credentials.add(path, grant)
        self._authenticated()

    def _authenticated(self) -> None:
        """The client has a valid token, so the full limits apply to it."""
        if self._token_deadline is None:
            return
        self._token_deadline.cancel()
        self._token_deadline = None
        if self._slot.authenticated():
            self._client_limits = client_limits.with_token(self._limits)
            self._engine.set_limits(self._client_limits.engine)
            self._transport.set_write_buffer_limits(high=self._client_limits.unread_bytes_max)
        else:
            reason = f"{self._limits.connections_max} connections are open, which is the limit"
            error = AmqpError("amqp:resource-limit-exceeded", reason)
            self.namespace.loop.call_soon(self._close_with, error)  # after the answer to the token

    def check_tokens(self, *, now_ms: int) -> None:
        """Close the links whose token has expired or was revoked, and was not renewed."""
        self.credentials.revoke(self.namespace.policies_of)
        for link in list(self._links):
            owner = link.context
            right: Right | None = getattr(owner, "right", None)
            if right is not None and not self.credentials.allow(owner.path, right, now_ms=now_ms):
                reason = f"the token for {owner.path} has expired or was revoked"
                self.log_refusal(reason, owner.path)
                self.end(link, AmqpError("amqp:unauthorized-access", reason))

    def entity_gone(self, queue: Queue) -> None:
        for link in list(self._links):
            if getattr(link.context, "queue", None) is queue:
                self.end(link, no_entity(self.namespace.name, queue.name))

    def entity_changed(self, queue: Queue) -> None:
        """Close the links that the new description does not allow, and those by removed keys."""
        self.check_tokens(now_ms=self.namespace.now_ms())
        for link in list(self._links):
            owner = link.context
            if getattr(owner, "queue", None) is not queue:
                continue
            error = None
            if isinstance(owner, SenderLink):
                error = lifecycle.refusal_to_send(queue.description)
            elif isinstance(owner, ReceiverLink):
                error = lifecycle.refusal_to_receive(queue.description, owner.mailbox.kind)
            if error is not None:
                self.end(link, error)

    def rules_compiled(self) -> None:
        for link in self._links:
            if isinstance(link.context, SenderLink):
                link.context.rules_compiled()

    def end(self, link: Link, error: AmqpError) -> None:
        # Forgotten here: the engine reports the end of a link only if the peer began it.
        self._forget(link)
        link.close(error)
        self.has_output()

    def _forget(self, link: Link) -> None:
        owner, link.context = link.context, None
        self._links.pop(link, None)
        if owner is not None:
            owner.closed()

    # events

    def _ignored(self, event: Any, now_ms: int) -> None:
        """The engine has answered it."""

    def _closed(self, event: events.ConnectionClosed, now_ms: int) -> None:
        # A wrong password has a line already, with its policy.
        if (
            event.error is not None
            and not event.by_peer
            and event.error.condition != "amqp:unauthorized-access"
        ):
            self.log_refusal(f"{event.error.condition}: {event.error.description}")

    def _oversized(self, event: events.Oversized, now_ms: int) -> None:
        self.log_refusal(event.error.description, paths.parse(address_of(event.link)))

    def _opened(self, event: events.Opened, now_ms: int) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None
        self._keep_alive()  # the open says how often the client wants a frame

    def _transferred(self, event: events.Transferred, now_ms: int) -> None:
        if event.link.context is not None:
            event.link.context.transferred(event, now_ms=now_ms)

    def _disposed(self, event: events.Disposed, now_ms: int) -> None:
        owner = event.link.context
        if isinstance(owner, ReceiverLink):
            owner.disposed(event, now_ms=now_ms)

    def _flowed(self, event: events.Flowed, now_ms: int) -> None:
        if event.link.context is not None and event.link.is_sender:
            event.link.context.flowed(now_ms=now_ms)

    def _detached(self, event: events.Detached, now_ms: int) -> None:
        self._forget(event.link)

    def _attached(self, event: events.Attached, now_ms: int) -> None:
        link = event.link
        self._links[link] = None
        error = attach(self, link, now_ms=now_ms)
        if error is not None:
            if self.namespace.active_faults is None:  # else it may be the fault, which is wanted
                is_missing = error.condition == "amqp:not-found"
                path = paths.parse(address_of(link))
                self.log_refusal(error.description, path, is_missing=is_missing)
            self.end(link, error)

    def send_reply(self, data: bytes, path: Path, reply_to: str | None, session: Session) -> None:
        replies = [link.context for link in self._links if isinstance(link.context, ReplyLink)]
        link = find_reply_link(replies, path, reply_to, session)
        if link is not None:
            link.send(data)
