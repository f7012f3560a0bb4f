"""A client and a server with the bytes between them, without a socket, a thread or a clock."""

from __future__ import annotations

from typing import Any, Self
from uuid import uuid4

from pairbus.amqp.client.links import ClientReceiverLink, ClientSenderLink
from pairbus.amqp.client.protocol import ClientProtocol
from pairbus.amqp.engine import Attached, Delivery, Engine, EngineLimits, Event, Link, Transferred
from pairbus.amqp.sasl import SaslClient, SaslServer

Message = tuple[int, bytes, bytes]


def as_tuple(link: ClientReceiverLink, number: int, tag: bytes, data: bytes) -> Message:
    return number, tag, data


class ClientPair:
    """A client and a server with the bytes between them, and all that the server reported."""

    def __init__(
        self, *, limits: EngineLimits | None = None, chunk: int = 1 << 30, **settings: Any
    ) -> None:
        self.client = ClientProtocol(
            container_id="client", hostname="ns.example", **{"sasl": SaslClient(), **settings}
        )
        self.server = Engine(
            server=True, container_id="server", sasl=SaslServer(), limits=limits or EngineLimits()
        )
        self.chunk = chunk
        self.events: list[Event] = []
        self.to_server = b""

    def __enter__(self) -> Self:
        return self.run()

    def __exit__(self, *exc: object) -> None:
        self.server.free()

    def run(self) -> Self:
        """Carry bytes to and fro until neither side has any left."""
        while (out := self.client.engine.data_to_send()) or self.server.has_output:
            self.to_server += out
            for start in range(0, len(out), self.chunk):
                self.events += self.server.receive(out[start : start + self.chunk])
            back = self.server.data_to_send()
            for start in range(0, len(back), self.chunk):
                self.hear(back[start : start + self.chunk])
        return self

    def hear(self, data: bytes) -> None:
        self.client.receive(data)

    def at_server(self, kind: type) -> list[Any]:
        return [event for event in self.events if type(event) is kind]

    def attached(self, **accept: Any) -> Link:
        """The server's end of the last link, accepted."""
        self.run()
        link: Link = self.at_server(Attached)[-1].link
        link.accept(**accept)
        self.run()
        return link

    def sender(self, *, credit: int = 100, **settings: Any) -> tuple[ClientSenderLink, Link]:
        link = self.client.start_sender("q", **settings)
        return link, self.attached(credit=credit)

    def receiver(self, *, credit: int = 100, **settings: Any) -> tuple[ClientReceiverLink, Link]:
        settings = {"rcv_settle_mode": 1, **settings}
        link = self.client.start_receiver("q", as_tuple, **settings)
        far = self.attached()
        link.grant(credit)
        self.run()
        return link, far

    def deliver(self, link: Link, *bodies: bytes) -> list[Delivery]:
        sent = [link.send(uuid4().bytes, body) for body in bodies]
        self.run()
        return sent

    def arrived(self) -> list[Transferred]:
        return self.at_server(Transferred)
