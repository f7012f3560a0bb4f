"""A client's connection without any I/O: an engine in the client role, and the links on it.

The caller moves the bytes. `receive` never raises, whatever the peer sends. A peer that breaks a
rule gets a close with the reason, and `is_over` is true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import uuid4
from weakref import WeakSet

from pairbus.amqp.client.links import (
    ClientLink,
    ClientReceiverLink,
    ClientSenderLink,
    MessageFactory,
)
from pairbus.amqp.engine import (
    Attached,
    ConnectionClosed,
    Detached,
    Disposed,
    Engine,
    EngineLimits,
    Link,
    Opened,
    Session,
)
from pairbus.amqp.outcomes import AmqpError
from pairbus.amqp.sasl import SaslClient

FRAME_SIZE_MAX: Final = 1024 * 1024
_MESSAGE_SIZE_MAX: Final = 128 * 1024 * 1024


class ClientProtocol:
    def __init__(
        self,
        *,
        container_id: str,
        hostname: str,
        sasl: SaslClient | None = None,
        idle_timeout_ms: int | None = None,
        message_size_max: int = _MESSAGE_SIZE_MAX,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        self.engine = Engine(
            server=False,
            container_id=container_id,
            hostname=hostname,
            sasl=sasl,
            properties=properties,
            limits=EngineLimits(
                frame_size_max=FRAME_SIZE_MAX,
                channel_max=65535,
                message_size_max=message_size_max,
                incoming_window=2 * message_size_max,
                idle_timeout_ms=idle_timeout_ms,
                unsettled_max=1 << 31,
            ),
        )
        self.opened = False
        # Weak: the answer to a detach of ours is no event, so nothing would remove such a link.
        self._links: WeakSet[ClientLink] = WeakSet()
        self._shared: Session | None = None
        self.engine.open()

    @property
    def is_over(self) -> bool:
        return self.engine.is_over

    @property
    def error(self) -> AmqpError | None:
        """The reason for the end: the peer's error, or ours."""
        return self.engine.error

    # -- ours to say ------------------------------------------------------------------------

    def start_sender(self, target: str, **settings: Any) -> ClientSenderLink:
        """Ask for a link; it is there once `attached`. For the settings see `_start`."""
        link = ClientSenderLink(self._start(self.engine.attach_sender, target, **settings))
        self._links.add(link)
        return link

    def start_receiver(
        self, source: str, make: MessageFactory, **settings: Any
    ) -> ClientReceiverLink:
        link = ClientReceiverLink(
            self._start(self.engine.attach_receiver, source, **settings), make
        )
        self._links.add(link)
        return link

    def _start(
        self,
        attach: Callable[..., Link],
        address: str,
        *,
        name: str | None = None,
        is_shared: bool = False,
        snd_settle_mode: int = 0,
        **settings: Any,
    ) -> Link:
        """In a session of its own, or in the one that is shared (and does not end with its links).
        The other settings are those of `Engine.attach_sender`."""
        session = self._shared if is_shared else None
        if session is None or not session.alive:
            session = self.engine.session()
            session.ends_with_links = not is_shared
            if is_shared:
                self._shared = session
        name = name or str(uuid4())
        return attach(session, name, address, snd_settle_mode=snd_settle_mode, **settings)

    def close(self) -> None:
        """Close it. `is_over` is true when the peer has answered."""
        self.engine.close()
        self._end_links(None)

    def abort(self) -> None:
        """Drop the connection without notifying the peer."""
        self.engine.free()
        self._links.clear()

    def _end_links(self, error: AmqpError | None) -> None:
        for link in self._links:
            link.error = link.error or error
        self._links.clear()

    # -- bytes in ---------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        for event in self.engine.receive(data):
            if isinstance(event, Disposed):
                if not event.settled:
                    for delivery in event.deliveries:
                        delivery.settle()
            elif isinstance(event, Attached):
                link: ClientLink = event.link.context
                remote = event.link.remote
                # A refusal has no source or target. The detach that follows has the reason.
                has_far_end = remote.has_target if event.link.is_sender else remote.has_source
                link.attached = has_far_end
            elif isinstance(event, Detached):
                event.link.context.error = event.error
                self._links.discard(event.link.context)
            elif isinstance(event, Opened):
                self.opened = True
            elif isinstance(event, ConnectionClosed):
                self._end_links(event.error)
