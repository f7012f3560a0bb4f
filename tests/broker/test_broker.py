"""`Broker` as a user's test has it: in a `with` block, in this process."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.broker import (
    Broker,
    NamespaceOptions,
    Policy,
    QueueDescription,
    Right,
    SubscriptionDescription,
)
from pairbus.broker.broker import _BrokerThread
from pairbus.broker.server import new_event_loop
from pairbus.errors import BrokerError, ConfigError, StartError
from tests.broker.listening import is_open, socket_count
from tests.waiting import wait_until


def health(port: int, ca_file: Path | None = None) -> object:
    connection: http.client.HTTPConnection
    if ca_file is None:
        connection = http.client.HTTPConnection("localhost", port, timeout=60)
    else:
        context = ssl.create_default_context(cafile=str(ca_file))
        connection = http.client.HTTPSConnection("localhost", port, timeout=60, context=context)
    try:
        connection.request("GET", "/$health")
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


@pytest.mark.req("X-08")
def test_a_broker_runs_as_long_as_its_block_and_leaves_nothing() -> None:
    threads, before = threading.active_count(), socket_count()

    with Broker(queues=["orders", QueueDescription(name="s", requires_session=True)]) as broker:
        port = broker.port
        assert f"sb://localhost:{port};" in broker.connection_string
        assert health(port) == {"status": "ok", "namespace": "local"}
        assert health(port, broker.ca_file) == health(port)
        ca_file = broker.ca_file
        hanging = socket.create_connection(("localhost", port))

    assert not is_open(port)
    assert threading.active_count() <= threads
    assert hanging.recv(10) == b""
    hanging.close()
    wait_until(lambda: socket_count() <= before, "no socket is left open")
    assert not ca_file.exists()


def test_topics_and_subscriptions_are_named_or_described() -> None:
    described = SubscriptionDescription(name="events/Subscriptions/b", max_delivery_count=3)
    with (
        Broker(topics=["news", "events/Subscriptions/a", described], sku="Premium") as broker,
        ServiceBusAdministrationClient.from_connection_string(
            broker.connection_string, connection_verify=str(broker.ca_file)
        ) as client,
    ):
        topics = [topic.name for topic in client.list_topics()]
        subscriptions = {each.name: each for each in client.list_subscriptions("events")}

        assert topics == ["events", "news"]
        assert list(subscriptions) == ["a", "b"]
        assert subscriptions["b"].max_delivery_count == 3
        assert client.get_namespace_properties().messaging_sku == "Premium"


def test_it_can_be_started_again_on_its_port(tmp_path: Path) -> None:
    broker = Broker(data=tmp_path)
    with broker:
        first, ca = broker.connection_string, broker.ca_file.read_bytes()

    with broker:
        assert broker.connection_string == first
        assert broker.ca_file.read_bytes() == ca
    broker.stop()


def test_several_namespaces_are_distinguished_by_name() -> None:
    names = ("east", "west")
    with Broker(namespaces=[NamespaceOptions(name=name) for name in names]) as broker:
        assert list(broker.namespaces) == ["east", "west"]
        for name in names:
            assert health(broker[name].port) == {"status": "ok", "namespace": name}
        with pytest.raises(
            BrokerError, match=r"several namespaces \(east, west\): .*broker\[name\]"
        ):
            _ = broker.connection_string
        with pytest.raises(KeyError, match="no namespace 'north'; the namespaces are east, west"):
            _ = broker["north"]


def test_policies_have_their_own_connection_strings() -> None:
    policies = [
        Policy(name="app", key="k1", rights=frozenset({Right.SEND})),
        Policy(name="ops", key="k2", rights=frozenset({Right.MANAGE})),
    ]
    with Broker(policies=policies) as broker:
        assert "SharedAccessKeyName=ops;SharedAccessKey=k2;" in broker.connection_string
        app = broker.connection_string_for("app")
        assert "SharedAccessKeyName=app;SharedAccessKey=k1;" in app


def test_errors_on_start_are_raised_by_start() -> None:
    threads = threading.active_count()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        broker = Broker(port=taken.getsockname()[1])
        with pytest.raises(StartError, match="is already in use"):
            broker.start()

    assert threading.active_count() <= threads
    with broker:
        assert broker.port


def test_a_start_that_is_interrupted_at_once_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, before = threading.active_count(), socket_count()
    is_asked, ask_to_stop = threading.Event(), _BrokerThread._ask_to_stop

    def ask(thread: _BrokerThread) -> None:
        ask_to_stop(thread)
        is_asked.set()

    def late_loop() -> asyncio.AbstractEventLoop:
        assert is_asked.wait(60)
        return new_event_loop()

    monkeypatch.setattr(_BrokerThread, "_ask_to_stop", ask)
    monkeypatch.setattr("pairbus.broker.broker.new_event_loop", late_loop)
    monkeypatch.setattr("pairbus.broker.broker._START_SECONDS", 0)

    with pytest.raises(TimeoutError):
        Broker().start()

    assert threading.active_count() <= threads
    wait_until(lambda: socket_count() <= before, "no socket is left open")


def test_misuse_is_explained() -> None:
    broker = Broker()
    with pytest.raises(BrokerError, match="not running"):
        _ = broker.connection_string
    with broker, pytest.raises(BrokerError, match="already running"):
        broker.start()
    with pytest.raises(ConfigError, match=r"queues must be a list of names, such as \['orders'\]"):
        Broker(queues="orders")
    with pytest.raises(ConfigError, match="topics must be a list of names"):
        Broker(topics="events")
    with pytest.raises(ConfigError, match="in each of the namespaces"):
        Broker(["q"], namespaces=[NamespaceOptions()])
    with pytest.raises(ConfigError, match="'no/' is not valid"):
        Broker(["no/"])


def test_a_program_that_forgets_to_stop_it_ends_all_the_same(tmp_path: Path) -> None:
    program = "from pairbus.broker import Broker; import sys; Broker(data=sys.argv[1]).start()"

    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], timeout=30, capture_output=True, text=True
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_importing_the_package_loads_none_of_the_heavy_parts() -> None:
    program = (
        "import sys, pairbus, pairbus.broker; from pairbus.broker import Broker;"
        "heavy = {'azure', 'uvicorn', 'starlette', 'cryptography', 'typer', 'rich', 'pyspark'};"
        "print(sorted(heavy & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout.strip() == "[]", done.stderr


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    import pairbus.broker

    with pytest.raises(AttributeError, match="nonsense"):
        _ = pairbus.broker.nonsense
    assert "Broker" in dir(pairbus.broker)


def test_it_works_without_uvloop(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with (
        Broker(queues=["orders"]) as broker,
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender("orders") as sender,
        client.get_queue_receiver("orders") as receiver,
    ):
        sender.send_messages(ServiceBusMessage("order 1"))
        [message] = receiver.receive_messages(max_wait_time=30)
        receiver.complete_message(message)

        assert str(message) == "order 1"
        assert health(int(broker.connection_string.partition("localhost:")[2].partition(";")[0]))
        with ServiceBusAdministrationClient.from_connection_string(
            broker.connection_string, connection_verify=str(broker.ca_file)
        ) as manager:
            assert manager.get_queue_runtime_properties("orders").total_message_count == 0


def test_a_file_that_was_not_closed_is_examined_and_nothing_is_written_if_it_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mark = b"a page of the message table"
    message = ServiceBusMessage(mark * 50)

    def send(connection_string: str) -> None:
        with ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client:
            client.get_queue_sender("orders").send_messages([message] * 100)

    with Broker(queues=["orders"], data=tmp_path) as broker:
        send(broker.connection_string)
    [file] = tmp_path.glob("*.db")
    content = bytearray(file.read_bytes())
    page = content.rindex(mark) // 4096 * 4096
    content[page : page + 8] = b"\xff" * 8
    file.write_bytes(content)
    file.with_suffix(".lock").write_text("1 closing")  # as after a kill

    with Broker(queues=["orders"], data=tmp_path) as broker:
        wait_until(lambda: "is damaged" in caplog.text, "the damage is logged")
        with pytest.raises(ServiceBusError, match="is damaged"):
            send(broker.connection_string)

    assert f"`pairbus broker --check {tmp_path}` shows all that is wrong" in caplog.text
    assert file.read_bytes() == content
