"""What faults do to one connection's bytes and events, without a network."""

from types import SimpleNamespace

import pytest

from pairbus.amqp.engine import Attached, Detached, RemoteAttach, SessionBegun, Transferred
from pairbus.broker.entities.policies import Right
from pairbus.broker.faults import CutInTransfer, Hang, Slow, Unreachable
from pairbus.broker.faults.faulty_transport import DelayLine, FaultyTransport
from pairbus.broker.links import paths
from tests.broker.faults.examples import active

pytestmark = pytest.mark.req("B-13")

MEGABYTE = 1024 * 1024


class Loop:
    """Time stands still until it is moved."""

    def __init__(self):
        self.now = 100.0
        self.calls = []

    def time(self):
        return self.now

    def call_at(self, at, callback):
        call = SimpleNamespace(at=at, callback=callback, cancel=lambda: self.calls.remove(call))
        self.calls.append(call)
        return call

    def pass_time(self, seconds):
        self.now += seconds
        for call in [call for call in self.calls if call.at <= self.now]:
            self.calls.remove(call)
            call.callback()


class Connection:
    def __init__(self):
        self.namespace = SimpleNamespace(active_faults=None, loop=Loop(), run=lambda: None)
        self.links = []
        self.took, self.handled, self.written, self.ended = [], [], [], []
        self.is_closing = self.is_paused = False
        self.feeds = 0
        self.waiting_output = b""
        self.faulty_transport = FaultyTransport(self, self.namespace)

    @property
    def loop(self):
        return self.namespace.loop

    def suffer(self, *faults):
        self.namespace.active_faults = active(*faults) if faults else None
        self.faulty_transport.faults_changed()

    def take(self, data):
        self.took.append(data)

    def handle(self, event):
        self.handled.append(event)

    def output(self):
        data, self.waiting_output = self.waiting_output, b""
        return data

    def write(self, data):
        self.written.append(data)

    def cut(self):
        self.is_closing = True

    def end(self, link, error):
        self.ended.append((link, error.condition))

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False

    def entity_of(self, link):
        return paths.parse(link.remote.target_address).entity

    def offer_messages(self):
        self.feeds += 1

    def has_output(self):
        pass

    def drop_faulty_transport(self):
        pass


class Link:
    is_sender = False

    def __init__(self, address, *, is_open=True):
        self.remote = RemoteAttach(target_address=address)
        self.context = SimpleNamespace(right=Right.SEND) if is_open else None


def transfer(link, data=b"x"):
    return Transferred(link, None, data, 0, False)


@pytest.fixture
def connection():
    return Connection()


def test_bytes_pass_where_nothing_is_wrong_with_the_namespace(connection):
    connection.suffer(Hang("orders"))
    connection.faulty_transport.received_bytes(b"a")
    assert connection.took == [b"a"]
    assert not connection.faulty_transport.holds_output()


def test_a_hang_keeps_bytes_in_their_order_and_output_too(connection):
    connection.suffer(Hang())
    for data in (b"a", b"b"):
        connection.faulty_transport.received_bytes(data)
    assert connection.took == []
    assert connection.faulty_transport.holds_output()
    assert connection.faulty_transport.is_silent
    connection.suffer()
    assert connection.took == [b"a", b"b"]
    assert connection.faulty_transport.is_over


def test_a_client_that_sends_too_much_into_a_hang_is_paused(connection):
    connection.suffer(Hang())
    for _ in range(4):
        connection.faulty_transport.received_bytes(bytes(MEGABYTE))
    assert not connection.is_paused
    connection.faulty_transport.received_bytes(b"x")
    assert connection.is_paused
    connection.suffer()
    assert not connection.is_paused
    assert len(connection.took) == 5


def test_what_was_dropped_ends_the_connection_when_it_could_go_on(connection):
    connection.suffer(Unreachable(mode="drop"))
    connection.faulty_transport.received_bytes(b"lost")
    connection.suffer(Unreachable(mode="drop"), Hang("orders"))
    assert not connection.is_closing
    connection.suffer()
    assert connection.is_closing
    assert connection.took == []


def test_a_connection_that_lost_nothing_goes_on(connection):
    connection.suffer(Unreachable(mode="drop"))
    connection.suffer()
    assert not connection.is_closing
    connection.faulty_transport.received_bytes(b"a")
    assert connection.took == [b"a"]


def test_latency_is_waited_for(connection):
    connection.suffer(Slow(latency_seconds=2))
    connection.faulty_transport.received_bytes(b"a")
    connection.loop.pass_time(1)
    connection.faulty_transport.received_bytes(b"b")
    connection.loop.pass_time(1)
    assert connection.took == [b"a"]
    connection.loop.pass_time(1)
    assert connection.took == [b"a", b"b"]


def test_a_latency_ends_with_the_fault(connection):
    connection.suffer(Slow(latency_seconds=3600))
    connection.faulty_transport.received_bytes(b"a")
    connection.suffer(Slow(latency_seconds=3600), Hang("orders"))
    assert connection.took == []
    connection.suffer()
    assert connection.took == [b"a"]


def test_output_goes_by_the_width_of_the_line(connection):
    connection.suffer(Slow(bytes_per_second=10))
    connection.waiting_output = bytes(20)
    assert connection.faulty_transport.holds_output()
    connection.loop.pass_time(1)
    connection.waiting_output = bytes(10)
    assert connection.faulty_transport.holds_output()
    assert connection.written == []
    connection.loop.pass_time(1)
    assert connection.written == [bytes(20)]
    connection.loop.pass_time(1)
    assert connection.written == [bytes(20), bytes(10)]
    assert not connection.faulty_transport.holds_output()


def test_an_entitys_line_is_busy_with_what_it_gave(connection):
    orders, other = "Orders", "other"
    connection.suffer(Slow("orders", bytes_per_second=10))
    connection.faulty_transport.count_output(orders, 20)
    connection.faulty_transport.count_output(other, 20)
    assert (
        connection.faulty_transport.may_deliver(orders),
        connection.faulty_transport.may_deliver(other),
    ) == (False, True)
    feeds = connection.feeds
    connection.loop.pass_time(2)
    assert connection.faulty_transport.may_deliver(orders)
    assert connection.feeds == feeds + 1


@pytest.mark.parametrize("fault", [Hang, lambda entity: Slow(entity, latency_seconds=5)])
def test_an_entitys_events_wait_in_their_order_and_others_pass(connection, fault):
    orders, other = Link("orders"), Link("other")
    connection.suffer(fault("orders"))
    events = [Attached(orders), transfer(orders), transfer(other), Detached(orders, True, None)]
    for event in events:
        connection.faulty_transport.received_event(event)
    begun = SessionBegun(None)
    connection.faulty_transport.received_event(begun)
    assert connection.handled == [events[2], begun]
    connection.suffer()
    assert connection.handled[2:] == [events[0], events[1], events[3]]


def test_an_entity_that_hangs_gives_nothing(connection):
    connection.suffer(Hang("orders"))
    assert not connection.faulty_transport.may_deliver("orders")
    assert connection.faulty_transport.may_deliver("other")
    connection.suffer(Hang())
    assert not connection.faulty_transport.may_deliver("other")


def test_links_that_lost_something_are_closed_when_it_is_over(connection):
    spoke, attaching, left = Link("orders"), Link("orders", is_open=False), Link("orders")
    connection.links = [spoke, attaching, left, Link("orders")]
    connection.suffer(Unreachable("orders", mode="drop"))
    detached = Detached(left, True, None)
    for event in (transfer(spoke), Attached(attaching), transfer(left), detached):
        connection.faulty_transport.received_event(event)
    assert connection.handled == [detached]
    connection.suffer(Unreachable("orders", mode="drop"), Hang("other"))
    assert connection.ended == []
    connection.suffer()
    assert dict(connection.ended) == dict.fromkeys([spoke, attaching], "amqp:link:detach-forced")


def test_links_of_an_entity_that_cannot_be_reached_are_closed_at_once(connection):
    orders, other = Link("orders"), Link("other")
    connection.links = [orders, Link("orders/$management", is_open=False), other, Link("$cbs")]
    connection.suffer(Unreachable("orders"))
    assert connection.ended == [(link, "amqp:link:detach-forced") for link in connection.links[:2]]


def test_a_cut_is_thrown_for_once_a_message(connection):
    link = Link("orders")
    connection.suffer(CutInTransfer(probability=0.5, seed=2))
    thrown = []
    for _ in range(200):
        connection.is_closing = False
        for _ in range(5):
            connection.faulty_transport.received_part(link)
            if connection.is_closing:
                break
        else:
            connection.faulty_transport.received_event(transfer(link))
        thrown.append(connection.is_closing)
    assert 70 < sum(thrown) < 130


def test_only_messages_of_senders_are_cut(connection):
    requests = Link("orders/$management", is_open=False)
    connection.suffer(CutInTransfer())
    connection.faulty_transport.received_event(transfer(requests))
    connection.faulty_transport.received_part(requests)
    assert not connection.is_closing
    connection.faulty_transport.received_event(transfer(Link("orders")))
    assert connection.is_closing


def test_a_connection_that_is_gone_has_nothing_on_its_way(connection):
    connection.suffer(Slow(latency_seconds=1))
    connection.faulty_transport.received_bytes(b"a")
    connection.faulty_transport.close()
    connection.loop.pass_time(2)
    assert connection.took == []
    assert connection.loop.calls == []


# delay lines


def test_a_line_keeps_the_order_whatever_the_latencies():
    line = DelayLine()
    line.put("slow", 1, now=0.0, latency_seconds=5)
    line.put("fast", 1, now=0.0, latency_seconds=1)

    assert (line.take(now=4.9), line.next_at) == (None, 5.0)
    assert [line.take(now=5.0), line.take(now=5.0), line.take(now=5.0)] == ["slow", "fast", None]


def test_a_line_carries_one_thing_after_the_other():
    line = DelayLine()
    line.put("a", 10, now=0.0, transmission_seconds=2)
    line.put("b", 20, now=1.0, transmission_seconds=2)

    assert line.size_bytes == 30
    assert line.take(now=2.0) == "a"
    assert (line.take(now=3.9), line.take(now=4.0)) == (None, "b")
    assert (line.size_bytes, len(line), line.next_at) == (0, 0, None)


def test_a_line_without_its_latency_gives_all_it_has():
    line = DelayLine()
    line.put("a", 1, now=0.0, latency_seconds=3600)
    line.hurry()

    assert line.take(now=0.0) == "a"
