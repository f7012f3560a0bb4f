"""Load in AMQP 1.0 for any broker, on `pairbus.amqp.engine` in the client role.

One process drives one sending and one receiving connection on a single loop. The SDK would be
slower than the broker; this costs a fraction of it. Each send waits for its `accepted`; a receiver
settles in two phases where the broker can (it answers when the settlement is durable, and until
then the message is not counted) and at once where it cannot.
"""

from __future__ import annotations

import argparse
import struct

import loop
from pairbus.amqp.codec.batches import BATCH_FORMAT
from pairbus.amqp.codec.types import Int
from pairbus.amqp.codec.values import encode
from pairbus.amqp.engine import (
    Attached,
    ConnectionClosed,
    Detached,
    Disposed,
    Engine,
    EngineLimits,
    Event,
    Link,
    SettlementGroup,
    Transferred,
)
from pairbus.amqp.outcomes import ACCEPTED, OutcomeKind
from pairbus.amqp.sasl import SaslClient

DURABLE = b"\x00\x53\x70\xc0\x02\x01\x41"  # a header section with nothing else in it
# What applications usually add, and what filters look at.
IDENTITY = {0: "order-17", 3: "order"}  # message-id, subject
PROPERTIES = {"amount": Int(150), "region": "us", "customer": "c-17"}
UNSETTLED = 0  # snd-settle-mode
FIRST, SECOND = 0, 1  # rcv-settle-mode


def data_section(content: bytes) -> bytes:
    return b"\x00\x53\x75\xb0" + struct.pack(">I", len(content)) + content


def described_message(size: int) -> bytes:
    """A durable message with an id, a subject and application properties."""
    fields = [IDENTITY.get(number) for number in range(max(IDENTITY) + 1)]
    properties = b"\x00\x53\x73" + encode(fields) + b"\x00\x53\x74" + encode(PROPERTIES)
    return DURABLE + properties + data_section(bytes(size))


class Client:
    """A connection with one link, set up before the clock starts."""

    def __init__(self, options: argparse.Namespace, name: str) -> None:
        self.sock = loop.connect("127.0.0.1", options.port)
        self.done = False
        sasl = SaslClient("PLAIN", options.user, options.password)
        self.engine = Engine(
            server=False,
            container_id=f"pairbus-bench-{name}",
            hostname="localhost",
            limits=EngineLimits(idle_timeout_ms=None),
            sasl=sasl,
        )
        self.engine.open()
        self.session = self.engine.session()

    def attach(self, link: Link) -> None:
        """Wait, blocking, until the broker has attached its end too."""
        attached = False
        while not attached or (link.is_sender and not link.credit):
            self.sock.sendall(self.engine.data_to_send())
            data = self.sock.recv(loop.READ_SIZE)
            if not data:
                raise loop.LoadError(
                    "the broker closed the connection before the link was attached"
                )
            for event in self.engine.receive(data):
                attached = attached or type(event) is Attached
                self.check(event)

    def check(self, event: Event) -> None:
        if type(event) is ConnectionClosed or type(event) is Detached:
            raise loop.LoadError(f"the broker ended the link or connection: {event.error}")


class Sender(Client):
    """Keeps `flight` messages unacknowledged until `count` are accepted."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options, "sender")
        if options.described:
            message = described_message(options.size)
        else:
            message = DURABLE + data_section(bytes(options.size))
        self._format = BATCH_FORMAT if options.batch > 1 else 0
        if options.batch > 1:
            message = data_section(message) * options.batch
        self._message = message
        self._transfers, extra = divmod(options.count, options.batch)
        if extra or options.send % options.batch:
            raise loop.LoadError(f"count and flight must be multiples of {options.batch}")
        self._flight = options.send // options.batch
        self._sent = self._accepted = 0
        self.link = self.engine.attach_sender(
            self.session, "bench-out", options.address, snd_settle_mode=UNSETTLED
        )
        self.attach(self.link)

    def received(self, data: bytes) -> None:
        accepted = 0
        for event in self.engine.receive(data):
            if type(event) is Disposed:
                if event.outcome.kind is not OutcomeKind.ACCEPTED:
                    raise loop.LoadError(f"a message was not accepted: {event.outcome}")
                if not event.settled:
                    for delivery in event.deliveries:
                        delivery.settle()
                accepted += len(event.deliveries)
            else:
                self.check(event)
        self._accepted += accepted
        self.done = self._accepted >= self._transfers

    def output(self) -> bytes:
        room = self._flight - (self._sent - self._accepted)
        more = min(room, self._transfers - self._sent, self.link.credit)
        send, message, first = self.link.send, self._message, self._sent
        for number in range(first, first + more):
            send(number.to_bytes(4, "big"), message, message_format=self._format)
        self._sent += max(more, 0)
        return self.engine.data_to_send()


class Receiver(Client):
    """Receives and settles `count` messages, never with more than `credit` outstanding."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options, "receiver")
        self._two_phase = options.two_phase
        self._count = options.count
        self._credit = options.receive
        self._received = self._settled = self._granted = 0
        self._arrived: list[int] = []
        self._settling: list[SettlementGroup] = []
        self._barrier: Link | None = None
        self._address = options.receive_from or options.address
        self.link = self._attach("bench-in")
        self.attach(self.link)
        if self._two_phase:
            self.link.receive_into(lambda number, tag, data: self._arrived.append(number))

    def _attach(self, name: str) -> Link:
        return self.engine.attach_receiver(
            self.session,
            name,
            self._address,
            snd_settle_mode=UNSETTLED,
            rcv_settle_mode=SECOND if self._two_phase else FIRST,
        )

    def received(self, data: bytes) -> None:
        for event in self.engine.receive(data):
            if type(event) is Transferred:
                self._received += 1
                event.delivery.accept()
                self._settled += 1
            elif type(event) is Attached:
                self.done = event.link is self._barrier
            else:
                self.check(event)
        if self._two_phase:
            self._settle_in_two_phases()

    def _settle_in_two_phases(self) -> None:
        arrived, self._arrived = self._arrived, []
        if arrived:
            self._received += len(arrived)
            self._settling.append(self.session.settle(arrived, ACCEPTED))
        for group in self._settling:
            if group.refusals:
                raise loop.LoadError(f"settlements were not confirmed: {group.refusals}")
        self._settling = [group for group in self._settling if group.left]
        self._settled = self._received - sum(group.left for group in self._settling)
        self.done = self._settled >= self._count

    def output(self) -> bytes:
        # Credit comes back with the settlement, so that it also bounds what is unsettled.
        more = min(self._credit - (self._granted - self._settled), self._count - self._granted)
        # Some at a time: a flow frame per message would be a cost of its own.
        if more >= min(self._credit // 10, self._count - self._granted) and more > 0:
            self._granted += more
            self.link.grant(more)
        if not self._two_phase and self._settled >= self._count and self._barrier is None:
            # Nothing answers a settlement here. A link that is attached afterwards to the same
            # queue is answered when the broker has dealt with them, or nearly: see native.py.
            self._barrier = self._attach("barrier")
        return self.engine.data_to_send()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--user", required=True)
    parser.add_argument("--password", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--size", type=int, default=500)
    parser.add_argument("--count", type=int, required=True, help="messages")
    parser.add_argument("--send", type=int, metavar="FLIGHT", default=0)
    parser.add_argument("--batch", type=int, default=1, help="messages in a transfer")
    parser.add_argument("--receive", type=int, metavar="CREDIT", default=0)
    parser.add_argument("--described", action="store_true", help="with properties to filter by")
    parser.add_argument("--receive-from", metavar="ADDRESS", help="if not where it is sent to")
    parser.add_argument("--two-phase", action="store_true")
    options = parser.parse_args()
    peers: list[loop.Peer] = []
    if options.send:
        peers.append(Sender(options))
    if options.receive:
        peers.append(Receiver(options))
    loop.measure(lambda: loop.run(peers), options.count)


if __name__ == "__main__":
    main()
