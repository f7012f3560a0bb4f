"""Faults on demand as an application sees them, through the official SDK.

Each test has a broker of its own. By default, clients do not retry.
"""

from __future__ import annotations

import gc
import json
import socket
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.broker import Broker, NamespaceOptions, QueueDescription
from pairbus.broker.faults import Hang, Throttle, Unreachable
from pairbus.broker.links.tokens import make_token
from pairbus.errors import BrokerError
from pairbus.testing import ManualClock
from tests.interop.bus import POLICIES, Bus, take
from tests.interop.conftest import Closing
from tests.interop.shells import Shell, both_clients

pytestmark = [
    pytest.mark.req("B-13"),
    # The blocking SDK forgets to close a socket that its peer has closed first.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
QUICK = 1.0
"""Seconds that a client waits for an answer that does not come."""
PATIENT = {"retry_total": 5, "retry_backoff_factor": 0.1}
MINUTES = 60.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(runs=True)


@pytest.fixture(scope="module")
def backstage() -> Iterator[Closing]:
    """Closes brokers and clients while the next test runs, because the SDK is slow at it."""
    closing = Closing()
    yield closing
    closing.wait()
    with warnings.catch_warnings():  # see above: collected here, they affect no other module
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def views() -> list[Bus]:
    """To be closed before the broker is."""
    return []


@pytest.fixture
def broker(clock: ManualClock, views: list[Bus], backstage: Closing) -> Iterator[Broker]:
    queues = ["orders", QueueDescription(name="other", lock_duration=timedelta(minutes=1))]
    topics = ["events", "events/Subscriptions/audit"]
    running = Broker(queues=queues, topics=topics, policies=POLICIES, clock=clock).start()
    yield running

    def end() -> None:
        running.faults.clear()
        for view in views:
            view.close()
        running.stop()

    backstage.soon(end)


@pytest.fixture
def bus(shell: Shell, broker: Broker, clock: ManualClock, views: list[Bus]) -> Bus:
    views.append(Bus(shell=shell, broker=broker, queue="orders", clock=clock))
    return views[0]


@contextmanager
def refused(error: type[Exception], condition: str = "") -> Iterator[None]:
    with pytest.raises(error) as raised:
        yield
    assert type(raised.value) is error
    assert condition in str(raised.value)


def message(body: str = "x") -> ServiceBusMessage:
    return ServiceBusMessage(body)


# each symptom alone


@both_clients
def test_cannot_send_leaves_receiving(bus, broker):
    bus.send("before")
    with broker.faults.cannot_send("Orders") as fault:
        with refused(ServiceBusError, "amqp:internal-error"):
            bus.send("meanwhile")
        with refused(ServiceBusError, "amqp:internal-error"):
            bus.sender().schedule_messages(message(), datetime.now(UTC))
        assert [str(one) for one in take(bus.receiver())] == ["before"]
        bus.send("elsewhere", queue="other")
        assert fault.hits == 2
    bus.send("after")
    assert bus.left_bodies() == ["before", "after"]


@both_clients
def test_cannot_receive_leaves_sending(bus, broker):
    waiting = bus.receiver()
    with broker.faults.cannot_receive("orders", condition="com.microsoft:timeout"):
        bus.send("meanwhile")
        with refused(OperationTimeoutError):
            waiting.receive_messages(max_wait_time=30)
        with refused(OperationTimeoutError):
            bus.receiver().peek_messages()
    assert [str(one) for one in take(bus.receiver())] == ["meanwhile"]


def test_a_topics_fault_is_its_subscriptions_too(bus, broker):
    sender = bus.enter(bus.client.get_topic_sender("events"))
    receiver = bus.client.get_subscription_receiver("events", "audit")
    receiver = bus.enter(receiver)
    with broker.faults.cannot_receive("events"):
        sender.send_messages(message("meanwhile"))
        with refused(ServiceBusError):
            receiver.receive_messages(max_wait_time=30)
    with (
        broker.faults.cannot_send("events/Subscriptions/audit"),
        broker.faults.cannot_receive("events/Subscriptions/other"),
    ):
        sender.send_messages(message("unhindered"))
        assert [str(one) for one in take(receiver, 2)] == ["meanwhile", "unhindered"]


@pytest.fixture
def admin(broker: Broker) -> Iterator[ServiceBusAdministrationClient]:
    client = ServiceBusAdministrationClient.from_connection_string(
        broker.connection_string, connection_verify=str(broker.ca_file), retry_total=0
    )
    with client:
        yield client


def test_cannot_manage_leaves_sending(broker, admin):
    with broker.faults.cannot_manage(), pytest.raises(HttpResponseError) as raised:
        admin.get_queue("orders")
    assert raised.value.status_code == 500
    assert "cannot manage" in str(raised.value)
    with broker.faults.cannot_manage("orders"):
        assert admin.get_queue("other").name == "other"
        with pytest.raises(HttpResponseError):
            admin.delete_queue("orders")
    assert admin.get_queue("orders").name == "orders"


@pytest.mark.parametrize(
    ("start", "status"),
    [
        (lambda faults: faults.throttle(), 503),
        (lambda faults: faults.cannot_contact(), 503),
        (lambda faults: faults.error(on="manage", condition="amqp:not-found"), 404),
        (lambda faults: faults.error(on="manage", condition="com.example:odd"), 500),
    ],
    ids=["throttle", "cannot contact", "error", "an error unheard of"],
)
def test_administration_sees_other_faults_by_their_status(broker, admin, start, status):
    with start(broker.faults), pytest.raises(HttpResponseError) as raised:
        admin.get_queue("orders")
    assert raised.value.status_code == status


def test_administration_is_slow_with_the_rest(broker, admin):
    admin.get_queue("orders")
    began = time.monotonic()
    with broker.faults.slow("orders", latency_seconds=0.3):
        admin.get_queue("orders")
    assert time.monotonic() - began >= 0.3


def test_administration_waits_for_the_end_of_a_hang(broker, admin):
    began = time.monotonic()
    fault = broker.faults.hang(seconds=0.5)
    assert admin.get_queue("orders").name == "orders"
    assert time.monotonic() - began >= 0.4
    assert fault.state == "over"


def test_administration_gets_no_answer_where_all_is_dropped(broker, admin):
    admin.get_queue("orders")  # the next request must not spend the fault's time on connecting
    fault = broker.faults.unreachable(mode="drop", seconds=2)
    with pytest.raises(HttpResponseError) as raised:
        admin.get_queue("orders")
    assert (raised.value.status_code, fault.state) == (503, "over")


@both_clients
def test_cannot_contact_ends_the_connection(bus, broker):
    sender = bus.sender()
    with broker.faults.cannot_contact():
        with refused(ServiceBusConnectionError):
            sender.send_messages(message())
        with refused(ServiceBusConnectionError):
            bus.connect().get_queue_sender("orders").send_messages(message())
        assert http(broker, "GET", "/$health")[0] == 200
    bus.send("after")
    assert bus.left_bodies() == ["after"]


def test_an_entity_that_cannot_be_contacted_has_no_links(bus, broker):
    sender, receiver, other = bus.sender(), bus.receiver(), bus.sender("other")
    peeking = bus.receiver()
    peeking.peek_messages()
    with broker.faults.cannot_contact("orders"):
        with refused(ServiceBusError):
            peeking.peek_messages()
        with refused(ServiceBusConnectionError):
            sender.send_messages(message())
        with refused(ServiceBusConnectionError, "detach-forced"):
            receiver.receive_messages(max_wait_time=30)
        other.send_messages(message())
    sender.send_messages(message("after"))
    assert bus.left_bodies() == ["after"]


# the service's failures


def test_a_throttled_client_gets_through_with_its_retries(bus, broker):
    client = bus.connect(**PATIENT)
    with broker.faults.throttle("orders", rate=0.5, seed=1) as fault:
        for _ in range(3):
            bus.sender(client=client).send_messages(message())
        assert fault.hits > 0


@pytest.mark.parametrize(
    ("condition", "error"),
    [
        ("amqp:resource-limit-exceeded", ServiceBusQuotaExceededError),
        ("com.example:never-heard-of", ServiceBusError),
    ],
)
def test_any_error_can_be_had_on_a_send(bus, broker, condition, error):
    with broker.faults.error("orders", condition=condition, times=1), refused(error, condition):
        bus.send("first")
    bus.send("second")
    assert bus.left_bodies() == ["second"]


@both_clients
def test_an_error_can_be_had_at_each_operation(bus, broker):
    error = broker.faults.error
    bus.send("x")
    receiver = bus.receiver()
    with error("orders", on="attach"), refused(ServiceBusError, "internal-error"):
        bus.sender(client=bus.connect()).send_messages(message())
    with error("orders", on="management"), refused(ServiceBusError, "internal-error"):
        receiver.peek_messages()
    with error("orders", on="receive"), refused(ServiceBusError, "internal-error"):
        receiver.receive_messages(max_wait_time=30)
    [received] = take(receiver)
    with error("orders", on="settle"), refused(ServiceBusError, "internal-error"):
        receiver.complete_message(received)
    assert bus.left_bodies() == ["x"]


def test_messages_that_were_acknowledged_appear_fifteen_minutes_later(bus, broker):
    receiver = bus.receiver()
    with broker.faults.delayed_visibility("orders"):
        bus.send("late")
    bus.send("on time")
    [on_time] = take(receiver)
    receiver.complete_message(on_time)
    assert str(on_time) == "on time"
    bus.advance(14.9 * MINUTES)
    assert receiver.receive_messages(max_wait_time=0.3) == []
    bus.advance(0.1 * MINUTES)
    assert [str(one) for one in take(receiver)] == ["late"]


@both_clients
def test_a_restart_closes_connections_and_keeps_locks(bus, broker):
    bus.send("locked")
    receiver, sender = bus.receiver(client=bus.connect(**PATIENT)), bus.sender()
    [locked] = take(receiver)
    restart = broker.faults.restart(seconds=30)
    with refused(ServiceBusConnectionError):
        sender.send_messages(message("meanwhile"))
    assert not can_connect(broker)
    bus.advance(30)
    assert restart.state == "over"
    assert can_connect(broker)
    sender.send_messages(message("after"))
    other = bus.receiver(client=bus.connect())
    assert [str(one) for one in take(other)] == ["after"], "the first is still locked"
    receiver.complete_message(locked)
    assert bus.left_bodies() == ["after"]


def test_an_entity_restarts_alone(bus, broker):
    sender, receiver, other = bus.sender(), bus.receiver(), bus.sender("other")
    broker.faults.restart("orders", seconds=60)
    with refused(ServiceBusConnectionError):
        sender.send_messages(message())
    with refused(ServiceBusConnectionError):
        receiver.receive_messages(max_wait_time=30)
    other.send_messages(message())
    bus.advance(60)
    sender.send_messages(message("after"))
    assert [str(one) for one in take(receiver)] == ["after"]


# the datacenter is lost


def can_connect(broker: Broker) -> bool:
    try:
        socket.create_connection(("localhost", broker.port), timeout=30).close()
    except ConnectionRefusedError:
        return False
    return True


@both_clients
def test_an_unreachable_namespace_refuses_connections(bus, broker):
    sender = bus.sender()
    fault = broker.faults.unreachable()
    with refused(ServiceBusConnectionError):
        sender.send_messages(message())
    with refused(ServiceBusConnectionError):
        bus.connect().get_queue_sender("orders").send_messages(message())
    assert not can_connect(broker)
    assert [one.id for one in broker.faults.active()] == [fault.id], "it can still be asked"
    fault.clear()
    sender.send_messages(message("after"))
    assert bus.left_bodies() == ["after"]


@both_clients
def test_a_namespace_that_drops_what_it_is_sent_stores_nothing(bus, broker):
    sender = bus.sender()
    sender.send_messages(message("before"))
    fault = broker.faults.unreachable(mode="drop")
    with refused(OperationTimeoutError):
        sender.send_messages(message("lost"), timeout=QUICK)
    with socket.create_connection(("localhost", broker.port), timeout=0.3) as newcomer:
        newcomer.sendall(b"AMQP\x03\x01\x00\x00")  # for which the SDK would wait for ever
        with pytest.raises(TimeoutError):
            newcomer.recv(1)
    assert http(broker, "GET", "/$health")[0] == 200
    assert http(broker, "DELETE", f"/$faults/{fault.id}")[0] == 200
    bus.send("after", queue="other")
    assert bus.left_bodies() == ["before"]


def test_an_entity_that_drops_what_it_is_sent_leaves_others_alone(bus, broker):
    sender, other = bus.sender(), bus.sender("other")
    with broker.faults.unreachable("orders", mode="drop"):
        with refused(OperationTimeoutError):
            sender.send_messages(message("lost"), timeout=QUICK)
        other.send_messages(message())
    bus.connect().get_queue_sender("orders").send_messages(message("after"))
    assert bus.left_bodies() == ["after"]


@both_clients
@pytest.mark.parametrize("entity", [None, "orders"], ids=["namespace", "entity"])
def test_what_hangs_is_done_when_it_no_longer_does(bus, broker, entity):
    sender, receiver = bus.sender(), bus.receiver()
    bus.send("before", queue="other")
    with broker.faults.hang(entity):
        with refused(OperationTimeoutError):
            sender.send_messages(message("late"), timeout=QUICK)
        assert receiver.receive_messages(max_wait_time=0.3) == []
    assert [str(one) for one in take(receiver)] == ["late"], "an unknown outcome, for the sender"


# slow


@pytest.mark.parametrize("entity", [None, "orders"], ids=["namespace", "entity"])
def test_a_slow_namespace_delays_answers(bus, broker, entity):
    sender = bus.sender()
    began = time.monotonic()
    with broker.faults.slow(entity, latency_seconds=0.1) as fault:
        for number in range(5):
            sender.send_messages(message(f"{number}"))
    assert time.monotonic() - began >= 0.5
    assert fault.hits >= 5
    assert bus.left_bodies() == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("entity", [None, "orders"], ids=["namespace", "entity"])
def test_limited_bandwidth_delays_both_directions(bus, broker, entity):
    sender, receiver = bus.sender(), bus.receiver()
    receiver.peek_messages()
    with broker.faults.slow(entity, bytes_per_second=100_000):
        began = time.monotonic()
        sender.send_messages(message("x" * 50_000))
        assert time.monotonic() - began >= 0.5
        sender.send_messages(message("y"))
        began = time.monotonic()
        take(receiver, 2)
        assert time.monotonic() - began >= 0.5


# unknown outcomes


@both_clients
def test_a_cut_after_accept_leaves_a_stored_message_without_an_acknowledgement(bus, broker):
    broker.faults.cut_after_accept("orders", times=1)
    with refused(ServiceBusConnectionError):
        bus.send("unknown")
    assert bus.left_bodies() == ["unknown"]
    assert broker.faults.active() == []


def test_a_client_that_retries_a_cut_sends_twice(bus, broker):
    broker.faults.cut_after_accept("orders", times=1)
    bus.sender(client=bus.connect(**PATIENT)).send_messages(message("again"))
    assert bus.left_bodies() == ["again", "again"]


@pytest.mark.parametrize("size", [10, 200_000], ids=["one frame", "several frames"])
def test_a_cut_in_a_transfer_stores_nothing(bus, broker, size):
    other = bus.sender("other")
    broker.faults.cut_in_transfer("orders", times=1)
    other.send_messages(message())
    with refused(ServiceBusConnectionError):
        bus.sender().send_messages(message("x" * size))
    assert bus.left() == []
    bus.sender(client=bus.connect(**PATIENT)).send_messages(message("after"))
    assert bus.left_bodies() == ["after"]


# the disk and the clock


def test_a_full_disk_refuses_sends_and_settlements(bus, broker):
    bus.send("before")
    receiver = bus.receiver()
    [received] = take(receiver)
    with broker.faults.disk_full():
        with refused(ServiceBusError, "disk is full"):
            bus.send("meanwhile")
        with refused(ServiceBusError, "disk is full"):
            receiver.complete_message(received)
    bus.send("after")
    assert bus.left_bodies() == ["before", "after"]


def test_a_slow_disk_makes_slow_sends(bus, broker):
    sender = bus.sender()
    began = time.monotonic()
    with broker.faults.slow_disk(latency_seconds=0.3):
        sender.send_messages(message())
    assert time.monotonic() - began >= 0.3


def test_the_namespaces_clock_jumps_and_comes_back(bus, broker):
    bus.send("locked", queue="other")
    receiver = bus.receiver("other")
    [first] = take(receiver)
    with broker.faults.clock_jump(90):
        [again] = take(receiver)
        assert again.delivery_count == 1
        assert again.locked_until_utc - first.locked_until_utc > timedelta(seconds=85)
        bus.send("later")
    bus.send("earlier")
    later, earlier = bus.left()
    assert later.enqueued_time_utc - earlier.enqueued_time_utc > timedelta(seconds=80)


# who notices, when it ends, and what is listed


def test_other_namespaces_do_not_notice(shell):
    options = [NamespaceOptions(name=name, queues=[QueueDescription(name="q")]) for name in "ab"]
    with Broker(namespaces=options) as broker:
        with pytest.raises(BrokerError, match="several namespaces"):
            _ = broker.faults
        broker["a"].faults.unreachable()
        client = shell.client(broker["b"].connection_string, retry_total=0)
        with client, client.get_queue_sender("q") as sender:
            sender.send_messages(message())
        assert broker["b"].faults.active() == []


def test_a_script_goes_by_the_clock(bus, broker):
    steps = [(0, Throttle("orders", seconds=10)), (60, Unreachable(seconds=10)), (90, Hang())]
    with broker.faults.script(steps) as script:
        with refused(ServiceBusServerBusyError, "com.microsoft:server-busy"):
            bus.send("busy")
        bus.advance(10)
        bus.send("between")
        bus.advance(50)
        with refused(ServiceBusConnectionError):
            bus.send("gone")
        bus.advance(10)
        bus.send("back")
        assert [one.state for one in script.faults] == ["over", "over", "planned"]
    bus.advance(60)
    bus.send("for good")
    assert bus.left_bodies() == ["between", "back", "for good"]
    assert broker.faults.active() == []


def test_a_broker_stops_in_the_middle_of_everything(shell):
    with Broker(queues=["q"]) as broker:
        client = shell.client(broker.connection_string, retry_total=0)
        with client, client.get_queue_sender("q") as sender:
            sender.send_messages(message())
            for start in (broker.faults.disk_full, broker.faults.hang, broker.faults.restart):
                start()
            began = time.monotonic()
            broker.stop()
            assert time.monotonic() - began < 30
            broker.start()
            assert broker.faults.active() == []


# over HTTP


def http(
    broker: Broker, method: str, path: str, body: object = None, *, policy: str | None = None
) -> tuple[int, dict]:
    """With a token of the policy; by default that of the broker's first policy."""
    names = {each.name: each for each in POLICIES}
    token = make_token(
        names[policy or POLICIES[0].name],
        audience=f"sb://localhost:{broker.port}/",
        expires_at=time.time() + 3600,
    )
    request = urllib.request.Request(
        f"http://localhost:{broker.port}{path}",
        method=method,
        data=body if isinstance(body, bytes | None) else json.dumps(body).encode(),
        headers={"Authorization": token} if policy != "" else {},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_faults_are_started_listed_and_cleared_over_http(bus, broker):
    fault = {"kind": "cannot_send", "entity": "orders", "seconds": 60}
    status, started = http(broker, "POST", "/$faults", fault)
    assert (status, started["state"], started["id"]) == (201, "active", 1)
    with refused(ServiceBusError):
        bus.send("meanwhile")
    _, listed = http(broker, "GET", "/$faults")
    assert [(one["kind"], one["hits"]) for one in listed["faults"]] == [("cannot_send", 1)]
    assert http(broker, "GET", "/$faults/1")[1] == listed["faults"][0]
    assert http(broker, "DELETE", "/$faults/1")[1]["state"] == "over"
    bus.send("after")
    assert http(broker, "GET", "/$faults/1")[0] == 404
    assert http(broker, "DELETE", "/$faults") == (200, {"faults": []})


@pytest.mark.parametrize("fault", [{"kind": "unreachable"}, {"kind": "restart"}])
def test_the_answer_to_a_request_that_closes_the_port_still_arrives(broker, fault):
    status, started = http(broker, "POST", "/$faults", {**fault, "seconds": 60})
    assert (status, started["state"]) == (201, "active")
    assert not can_connect(broker)
    broker.faults.clear()
    assert can_connect(broker)


def test_a_jump_of_the_clock_can_be_taken_back_over_http(broker):
    http(broker, "POST", "/$faults", {"kind": "clock_jump", "offsetSeconds": 86_400})
    assert http(broker, "DELETE", "/$faults")[0] == 200
