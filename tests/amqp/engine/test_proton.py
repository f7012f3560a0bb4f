"""Our engine against Proton, in both roles, so that it does not merely agree with itself.

Proton is another implementation of AMQP 1.0, in C. It is built from source, so these tests are
skipped where there was no compiler.
"""

import pytest

proton = pytest.importorskip("proton")

from pairbus.amqp.engine import (  # noqa: E402
    Attached,
    ConnectionClosed,
    Detached,
    Disposed,
    Engine,
    Flowed,
    Opened,
    SessionBegun,
    SessionEnded,
    Transferred,
)
from pairbus.amqp.outcomes import ACCEPTED, AmqpError, OutcomeKind  # noqa: E402
from pairbus.amqp.sasl import SaslClient, SaslServer  # noqa: E402


class Pair:
    """An engine of ours and one of Proton's, with the bytes between them."""

    def __init__(self, *, proton_is_client, sasl=True):
        self.connection = proton.Connection()
        self.collector = proton.Collector()
        self.connection.collect(self.collector)
        if proton_is_client:
            self.transport = proton.Transport(proton.Transport.CLIENT)
            settings = SaslServer() if sasl else None
            self.engine = Engine(server=True, container_id="ours", sasl=settings)
            if sasl:
                self.transport.sasl().allowed_mechs("ANONYMOUS")
        else:
            self.transport = proton.Transport(proton.Transport.SERVER)
            settings = SaslClient() if sasl else None
            self.engine = Engine(
                server=False, container_id="ours", hostname="h", sasl=settings, properties={"p": 1}
            )
            if sasl:
                self.transport.sasl().allowed_mechs("ANONYMOUS")
        self.connection.container = "theirs"
        self.transport.bind(self.connection)
        self.events = []

    def run(self):
        """Carry bytes to and fro until neither side has any left."""
        is_quiet = False
        while not is_quiet:
            is_quiet = True
            while (size := self.transport.pending()) > 0:
                data = self.transport.peek(size)
                self.transport.pop(len(data))
                self.events += self.engine.receive(bytes(data))
                is_quiet = False
            data = self.engine.data_to_send()
            while data:
                room = min(self.transport.capacity(), len(data))
                self.transport.push(data[:room])
                data = data[room:]
                is_quiet = False
        return self

    def seen(self, kind):
        return [event for event in self.events if type(event) is kind]

    def theirs(self, *kinds):
        """Proton's events of these kinds, with what each is about."""
        found = []
        while event := self.collector.peek():
            if event.type in kinds:
                found.append(event.context)
            self.collector.pop()
        return found


@pytest.fixture(params=[True, False], ids=["sasl", "plain"])
def client(request):
    """Proton is the client, and has begun a session."""
    pair = Pair(proton_is_client=True, sasl=request.param)
    pair.connection.hostname = "ns.example"
    pair.connection.open()
    pair.session = pair.connection.session()
    pair.session.open()
    pair.run()
    assert [type(event) for event in pair.events] == [Opened, SessionBegun]
    return pair


def sender(pair, name="to", credit=100, **accept):
    link = pair.session.sender(name)
    link.target.address = "q"
    link.source.address = "s"
    link.open()
    pair.run()
    ours = pair.seen(Attached)[-1].link
    ours.accept(credit=credit, **accept)
    pair.run()
    return link, ours


def receiver(pair, credit=100):
    link = pair.session.receiver("from")
    link.source.address = "q"
    link.open()
    link.flow(credit)
    pair.run()
    ours = pair.seen(Attached)[-1].link
    ours.accept()
    pair.run()
    return link, ours


def give(link, tag, data, settled=False):
    delivery = link.delivery(tag)
    link.stream(data)
    link.advance()
    if settled:
        delivery.settle()
    return delivery


def take(link):
    """The next message of Proton's receiver."""
    delivery = link.current
    data = bytes(link.recv(delivery.pending) or b"")
    link.advance()
    return delivery, data


def test_the_two_introduce_each_other(client):
    assert client.seen(Opened)[0].container_id == "theirs"
    assert client.seen(Opened)[0].hostname == "ns.example"
    assert client.connection.remote_container == "ours"
    assert client.transport.remote_max_frame_size == 65536


@pytest.mark.parametrize("size", [0, 1, 300, 65_000, 70_000, 900_000])
def test_messages_of_any_size_go_both_ways(client, size):
    body = bytes(index % 251 for index in range(size))
    out, _ = sender(client)
    into, ours = receiver(client)
    sent = give(out, "1", body)
    ours.send(b"1", body)
    client.run()
    (event,) = client.seen(Transferred)
    assert event.data == body
    _, data = take(into)
    assert data == body
    event.delivery.accept()
    client.run()
    assert sent.remote_state == proton.Delivery.ACCEPTED
    assert sent.settled


def test_a_refusal_arrives_with_its_reason(client):
    out, _ = sender(client)
    sent = give(out, "1", b"m")
    client.run()
    client.seen(Transferred)[0].delivery.reject(AmqpError("amqp:not-allowed", "no", {"k": "v"}))
    client.run()
    assert sent.remote_state == proton.Delivery.REJECTED
    assert sent.remote.condition.name == "amqp:not-allowed"
    assert sent.remote.condition.info["k"] == "v"


def test_a_thousand_messages_are_answered_in_ranges(client):
    out, _ = sender(client, credit=1000)
    sent = [give(out, str(number), b"m") for number in range(1000)]
    client.run()
    for event in client.seen(Transferred):
        event.delivery.accept()
    client.run()
    assert all(delivery.settled for delivery in sent)


def test_settled_messages_are_not_answered(client):
    out, _ = sender(client)
    give(out, "1", b"m", settled=True)
    client.run()
    assert client.seen(Transferred)[0].settled


def test_credit_and_drain_are_understood(client):
    into, ours = receiver(client, credit=3)
    assert ours.credit == 3
    ours.send(b"1", b"m")
    client.run()
    into.drain(0)
    client.run()
    assert ours.drain
    ours.drained()
    client.run()
    assert into.credit == 0 or not into.draining()
    assert ours.credit == 0
    assert client.seen(Flowed)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (proton.Delivery.ACCEPTED, OutcomeKind.ACCEPTED),
        (proton.Delivery.REJECTED, OutcomeKind.REJECTED),
        (proton.Delivery.RELEASED, OutcomeKind.RELEASED),
        (proton.Delivery.MODIFIED, OutcomeKind.MODIFIED),
    ],
)
def test_a_settlement_in_two_phases(client, state, kind):
    into, ours = receiver(client)
    sent = [ours.send(b"%d" % number, b"m") for number in range(3)]
    client.run()
    taken = [take(into)[0] for _ in sent]
    for delivery in taken:
        delivery.update(state)
    client.run()
    disposed = client.seen(Disposed)
    assert {event.outcome.kind for event in disposed} == {kind}
    assert not any(event.settled for event in disposed)
    answered = [delivery for event in disposed for delivery in event.deliveries]
    assert answered == sent
    for delivery in answered:
        delivery.echo()
    client.run()
    assert all(delivery.settled for delivery in taken)
    assert {delivery.remote_state for delivery in taken} == {state}


def test_a_refused_link(client):
    link = client.session.sender("to")
    link.target.address = "nowhere"
    link.open()
    client.run()
    client.seen(Attached)[-1].link.close(AmqpError("amqp:not-found", "no entity"))
    client.run()
    assert link.remote_condition.name == "amqp:not-found"
    assert link.state & proton.Endpoint.REMOTE_CLOSED
    assert link.remote_target.address is None
    link.close()
    client.run()
    assert not client.seen(Detached)


def test_endings_are_answered(client):
    out, _ = sender(client)
    out.close()
    client.run()
    assert out.state & proton.Endpoint.REMOTE_CLOSED
    assert client.seen(Detached)[0].closed
    client.session.close()
    client.run()
    assert client.session.state & proton.Endpoint.REMOTE_CLOSED
    assert client.seen(SessionEnded)
    client.connection.close()
    client.run()
    assert client.connection.state & proton.Endpoint.REMOTE_CLOSED
    assert client.seen(ConnectionClosed)[0].error is None
    assert client.engine.closed


def test_our_goodbye_arrives_with_its_reason(client):
    client.engine.close(AmqpError("amqp:connection:forced", "going down"))
    client.run()
    assert client.connection.remote_condition.name == "amqp:connection:forced"
    client.connection.close()
    client.run()
    assert client.engine.closed


# -- Proton is the server ---------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["sasl", "plain"])
def server(request):
    """We are the client, and have begun a session."""
    pair = Pair(proton_is_client=False, sasl=request.param)
    pair.engine.open()
    pair.session = pair.engine.session()
    pair.run()
    pair.connection.open()
    (theirs,) = pair.theirs(proton.Event.SESSION_REMOTE_OPEN)
    theirs.open()
    pair.run()
    assert [type(event) for event in pair.events] == [Opened, SessionBegun]
    return pair


def answered(pair):
    """Proton's end of the link that we attached last."""
    pair.run()
    link = pair.theirs(proton.Event.LINK_REMOTE_OPEN)[-1]
    link.source.copy(link.remote_source)
    link.target.copy(link.remote_target)
    link.open()
    return link


@pytest.mark.parametrize("size", [0, 300, 70_000, 900_000])
def test_as_a_client_we_send_and_are_answered(server, size):
    ours = server.engine.attach_sender(server.session, "to", "q")
    theirs = answered(server)
    assert theirs.remote_target.address == "q"
    theirs.flow(10)
    server.run()
    assert ours.credit == 10
    sent = ours.send(b"1", bytes(size))
    server.run()
    delivery, data = take(theirs)
    assert data == bytes(size)
    delivery.update(proton.Delivery.ACCEPTED)
    delivery.settle()
    server.run()
    (event,) = server.seen(Disposed)
    assert (event.deliveries, event.outcome, event.settled) == ([sent], ACCEPTED, True)


def test_as_a_client_we_receive_and_settle(server):
    ours = server.engine.attach_receiver(server.session, "from", "q", credit=5)
    theirs = answered(server)
    server.run()
    assert theirs.credit == 5
    sent = [give(theirs, str(number), b"m" * 1000 * number) for number in range(5)]
    server.run()
    arrived = server.seen(Transferred)
    assert [len(event.data) for event in arrived] == [0, 1000, 2000, 3000, 4000]
    assert ours.credit == 0
    for event in arrived[:3]:
        event.delivery.accept()
    arrived[3].delivery.settle()
    server.run()
    assert [delivery.settled for delivery in sent] == [True, True, True, True, False]
    assert {delivery.remote_state for delivery in sent[:3]} == {proton.Delivery.ACCEPTED}


def test_as_a_client_we_settle_in_groups_and_are_answered(server):
    ours = server.engine.attach_receiver(server.session, "from", "q", credit=5, rcv_settle_mode=1)
    theirs = answered(server)
    numbers = []
    ours.receive_into(lambda number, tag, data: numbers.append(number))
    server.run()
    sent = [give(theirs, str(number), b"m") for number in range(3)]
    server.run()
    group = server.session.settle(numbers, ACCEPTED)
    server.run()
    assert [delivery.settled for delivery in sent] == [False] * 3
    assert {delivery.remote_state for delivery in sent} == {proton.Delivery.ACCEPTED}
    for delivery in sent:
        delivery.update(proton.Delivery.ACCEPTED)
        delivery.settle()
    server.run()
    assert (group.left, group.refusals) == (0, {})


def test_as_a_client_we_call_credit_back(server):
    ours = server.engine.attach_receiver(server.session, "from", "q", credit=5)
    theirs = answered(server)
    server.run()
    give(theirs, "1", b"m")
    ours.request_drain()
    server.run()
    assert theirs.drained()
    server.run()
    assert ours.credit == 0
    assert [event.link for event in server.seen(Flowed)] == [ours]


def test_as_a_client_we_say_goodbye(server):
    server.engine.close()
    server.run()
    server.connection.close()
    server.run()
    assert server.engine.closed
    assert server.engine.error is None
