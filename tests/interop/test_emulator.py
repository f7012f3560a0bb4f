"""In place of the official emulator: its Config.json, its ports, its connection strings.

One test for all of it, because the ports are fixed. If one of them is taken, it is skipped.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.interop.test_node import NODE, _node

CONFIG = {
    "UserConfig": {
        "Namespaces": [{"Name": "sbemulatorns", "Queues": [{"Name": "queue.1"}], "Topics": []}],
        "Logging": {"Type": "File"},
    }
}
KEY = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE"
WELL_KNOWN = f"Endpoint=sb://localhost;{KEY};UseDevelopmentEmulator=true;"
WELL_KNOWN_ADMINISTRATION = f"Endpoint=sb://localhost:5300;{KEY};UseDevelopmentEmulator=true;"
SECONDS = 60
SCRIPT = """
import { ServiceBusAdministrationClient, ServiceBusClient } from "@azure/service-bus";
const [plain, administration] = process.argv.slice(1);
const client = new ServiceBusClient(plain);
await client.createSender("queue.1").sendMessages({ body: "from node" });
const [message] = await client.createReceiver("queue.1").receiveMessages(1);
const admin = new ServiceBusAdministrationClient(administration);
await admin.createQueue("made.by.node");
const queues = [];
for await (const queue of admin.listQueues()) queues.push(queue.name);
console.log(JSON.stringify([message.body, queues.sort()]));
await client.close();
"""


@pytest.fixture
def emulator(tmp_path: Path, fixed_ports: None) -> Iterator[Path]:
    """The folder of a `pairbus broker --config Config.json` that runs in it."""
    for port in (5672, 5300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"port {port} is taken")
    (tmp_path / "Config.json").write_text(json.dumps(CONFIG))
    process = subprocess.Popen(
        [sys.executable, "-m", "pairbus", "broker", "--config", "Config.json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line and "already in use" in (error := process.communicate()[1]):
        pytest.skip(error)
    assert line.startswith("sbemulatorns ready: Endpoint=sb://localhost:5672;")
    yield tmp_path
    process.terminate()
    process.communicate(timeout=SECONDS)


@pytest.mark.req("B-02")
def test_the_well_known_connection_strings_and_the_health_check_work_unchanged(
    emulator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The administration clients speak HTTPS also to the emulator, so they need the authority.
    authority = str(emulator / "pairbus-data" / "certificates" / "ca.pem")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", authority)
    _check_python()
    for port in (5300, 5672):
        _check_health(port)
    _check_node({"PATH": os.environ["PATH"], "NODE_EXTRA_CA_CERTS": authority})


def _check_python() -> None:
    with (
        ServiceBusClient.from_connection_string(WELL_KNOWN) as client,
        client.get_queue_sender("queue.1") as sender,
        client.get_queue_receiver("queue.1") as receiver,
    ):
        sender.send_messages(ServiceBusMessage("hello"))
        [message] = receiver.receive_messages(max_wait_time=30)
        receiver.complete_message(message)
    with ServiceBusAdministrationClient.from_connection_string(
        WELL_KNOWN_ADMINISTRATION
    ) as administration:
        administration.create_queue("made.by.python")
        names = [queue.name for queue in administration.list_queues()]
        assert sorted(names) == ["made.by.python", "queue.1"]


def _check_health(port: int) -> None:
    connection = http.client.HTTPConnection("localhost", port, timeout=SECONDS)
    connection.request("GET", "/health")
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    assert (answer.status, body) == (200, {"status": "healthy", "namespace": "sbemulatorns"})


def _check_node(environment: dict[str, str]) -> None:
    words = ["--input-type=module", "-e", SCRIPT, "--", WELL_KNOWN, WELL_KNOWN_ADMINISTRATION]
    process = subprocess.run(
        [_node(), *words],
        cwd=NODE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert process.stdout, process.stderr
    assert json.loads(process.stdout) == [
        "from node",
        ["made.by.node", "made.by.python", "queue.1"],
    ]
