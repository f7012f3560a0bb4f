"""Two engines back to back: a whole AMQP connection without a socket, a thread or a clock."""

from collections.abc import Callable
from typing import Any, Self

from pairbus.amqp.engine import Attached, Delivery, Engine, EngineLimits, Event, Link, Transferred
from pairbus.amqp.sasl import SaslClient, SaslServer


def held(engine: Engine) -> tuple[int, int]:
    """What an engine counts of the peer's messages: those that are not settled, and the bytes of
    those that have come only in part.
    """
    return engine._wire.received_count, engine._wire.part_bytes


class Pair:
    """A client and a server with the bytes between them, and all that each of them reported."""

    def __init__(
        self,
        *,
        limits: EngineLimits | None = None,
        client_limits: EngineLimits | None = None,
        sasl: SaslServer | None = None,
        client_sasl: SaslClient | None = None,
        chunk: int = 1 << 30,
    ) -> None:
        self.client = Engine(
            server=False,
            container_id="client",
            hostname="ns.example",
            sasl=client_sasl or SaslClient(),
            limits=client_limits or EngineLimits(),
        )
        self.server = Engine(
            server=True,
            container_id="server",
            sasl=sasl or SaslServer(),
            limits=limits or EngineLimits(),
        )
        self.chunk = chunk
        self.client_events: list[Event] = []
        self.server_events: list[Event] = []
        self.to_server = bytearray()
        self.to_client = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.client.free()
        self.server.free()

    def run(self) -> Self:
        """Carry bytes to and fro until neither side has any left."""
        while (out := self.client.data_to_send()) or self.server.has_output:
            self.to_server += out
            self.server_events += self._carry(self.server, out)
            back = self.server.data_to_send()
            self.to_client += back
            self.client_events += self._carry(self.client, back)
        return self

    def _carry(self, engine: Engine, data: bytes) -> list[Event]:
        events = []
        for start in range(0, len(data), self.chunk):
            events += engine.receive(data[start : start + self.chunk])
        return events

    def at_server(self, kind: type) -> list[Any]:
        return [event for event in self.server_events if type(event) is kind]

    def at_client(self, kind: type) -> list[Any]:
        return [event for event in self.client_events if type(event) is kind]

    def forget(self) -> None:
        self.client_events.clear()
        self.server_events.clear()
        self.to_server.clear()
        self.to_client.clear()

    def open(self) -> Self:
        self.client.open()
        self.session = self.client.session()
        return self.run()

    def attach(self, make: Callable[[], Link], **accept: Any) -> tuple[Link, Link]:
        """Attach a link from the client and accept it: its two ends, ours first."""
        ours = make()
        self.run()
        theirs: Link = self.at_server(Attached)[-1].link
        theirs.accept(**accept)
        self.run()
        return ours, theirs

    def sending_to_server(self, credit: int = 100, **settings: Any) -> tuple[Link, Link]:
        """The client's sender and the server's receiver."""
        make = lambda: self.client.attach_sender(self.session, "to", "q", **settings)  # noqa: E731
        return self.attach(make, credit=credit)

    def sending_to_client(self, credit: int = 100, **settings: Any) -> tuple[Link, Link]:
        """The client's receiver and the server's sender."""
        make = lambda: self.client.attach_receiver(  # noqa: E731
            self.session, "from", "q", credit=credit, **settings
        )
        return self.attach(make)

    def arrived(self) -> Delivery:
        """The last message that came in on either side."""
        delivery: Delivery = (self.at_server(Transferred) or self.at_client(Transferred))[
            -1
        ].delivery
        return delivery
