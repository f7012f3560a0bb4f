"""`pairbus broker` as a person, a script and an operating system meet it."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import re
import resource
import signal
import socket
import sqlite3
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.broker import Broker, NamespaceOptions, Server
from pairbus.broker.port.web import HttpConnection
from pairbus.broker.server import new_event_loop
from pairbus.cli.broker.serve import collect_connections, raise_file_limit
from tests.cli.conftest import Run
from tests.cli.process import COMMAND, SECONDS


class Process:
    """A `pairbus broker` that is ready."""

    def __init__(self, *words: str, cwd: Path, namespaces: int = 1) -> None:
        self.popen = subprocess.Popen(
            [*COMMAND, "broker", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
        )
        assert self.popen.stdout is not None
        self.lines = [self.popen.stdout.readline() for _ in range(namespaces)]
        self.ports = [int(found) for found in re.findall(r"sb://[^;]+:(\d+);", "".join(self.lines))]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        """Exit code, what else was on stdout, stderr."""
        self.popen.send_signal(number)
        out, err = self.popen.communicate(timeout=SECONDS)
        return self.popen.returncode, out, err


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def starting(*words: str, namespaces: int = 1) -> Process:
        started.append(Process(*words, cwd=tmp_path, namespaces=namespaces))
        return started[-1]

    yield starting
    for process in started:
        if process.popen.poll() is None:
            process.popen.kill()
        process.popen.communicate()


def get_health(port: int, context: ssl.SSLContext | None = None) -> object:
    connection: http.client.HTTPConnection
    if context is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    else:
        connection = http.client.HTTPSConnection("localhost", port, timeout=60, context=context)
    try:
        connection.request("GET", "/$health")
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def test_it_says_when_each_namespace_is_ready_and_nothing_else(
    start: Callable[..., Process],
) -> None:
    process = start("--namespace", "east", "--namespace", "west", "--memory", namespaces=2)

    assert [re.sub(r":\d+;", ":PORT;", line) for line in process.lines] == [
        f"{name} ready: Endpoint=sb://localhost:PORT;SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true\n"
        for name in ("east", "west")
    ]
    for name, port in zip(("east", "west"), process.ports, strict=True):
        assert get_health(port) == {"status": "ok", "namespace": name}
    code, out, err = process.stop()
    assert (code, out) == (0, "")
    assert "SIGTERM: stopping" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_it_cleanly_while_clients_are_connected(
    start: Callable[..., Process], number: signal.Signals
) -> None:
    process = start("--memory", "--log-level", "error")
    with (
        socket.create_connection(("127.0.0.1", process.ports[0]), timeout=SECONDS) as silent,
        socket.create_connection(("::1", process.ports[0]), timeout=SECONDS) as amqp,
    ):
        amqp.sendall(b"AMQP\x00\x01\x00\x00")
        assert amqp.recv(8) == b"AMQP\x00\x01\x00\x00"

        assert process.stop(number) == (0, "", "")

        assert silent.recv(1) == b""


def test_messages_and_certificates_are_kept_in_the_folder(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start("--queue", "orders")
    ca_file = tmp_path / "pairbus-data" / "certificates" / "ca.pem"
    deadline = time.monotonic() + SECONDS
    while not ca_file.exists() and process.popen.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)  # it is made right after "ready", in another process
    context = ssl.create_default_context(cafile=str(ca_file))
    assert get_health(process.ports[0], context) == {"status": "ok", "namespace": "local"}
    code, _, err = process.stop()
    assert code == 0
    assert f"TLS clients must trust {ca_file}" in err

    again = start()
    assert get_health(again.ports[0], context) == {"status": "ok", "namespace": "local"}
    assert again.stop()[0] == 0
    assert (tmp_path / "pairbus-data" / "local.db").exists()


def test_tls_only_refuses_the_rest(start: Callable[..., Process], tmp_path: Path) -> None:
    process = start("--memory", "--tls-only", "--policy", "app:k:Send", "--policy", "ops:m:Manage")

    assert re.fullmatch(
        r"local ready: Endpoint=sb://localhost:\d+;SharedAccessKeyName=ops;SharedAccessKey=m\n",
        process.lines[0],
    )
    with socket.create_connection(("127.0.0.1", process.ports[0]), timeout=SECONDS) as plain:
        plain.sendall(b"AMQP\x03\x01\x00\x00")
        assert plain.recv(100) == b"AMQP\x02\x01\x00\x00"


def test_a_second_signal_ends_it_at_once(start: Callable[..., Process]) -> None:
    process = start("--memory")
    # A peer that does not read keeps a polite stop waiting for a while.
    with socket.create_connection(("127.0.0.1", process.ports[0])) as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        stuck.sendall(b"GET /nothing HTTP/1.1\r\nhost: h\r\n\r\n" * 20_000)
        process.popen.send_signal(signal.SIGINT)
        assert process.popen.stderr is not None
        while "SIGINT: stopping" not in process.popen.stderr.readline():
            pass

        code, _, _ = process.stop(signal.SIGINT)

        assert code == 130, "after a polite stop it is 0"


ErrorOf = Callable[..., str]


@pytest.fixture
def error_of(pairbus: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ErrorOf:
    """Runs what must fail, in a folder of its own, and returns the error."""

    def fail(*words: str, code: int = 2) -> str:
        monkeypatch.chdir(tmp_path)
        done = pairbus("broker", *words)
        assert (done.code, done.out, done.err.count("\n")) == (code, "", 1), done
        return done.err.removeprefix("pairbus: ").rstrip()

    return fail


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--nonsense"], "No such option: --nonsense"),
        (["--log-level", "loud"], "'loud' is not one of"),
        (["--memory", "--data", "x"], "--data and --memory cannot be combined"),
        (["--policy", "app:k:Fly"], "'Fly' is not a right; use Manage, Send, Listen"),
        (["--namespace", "a:b"], "'b' is not a port"),
        (["--queue", "no good"], "queue name 'no good' is not valid"),
        (["--memory", "--host", "192.0.2.1"], "has the well-known key"),
        (["--config", "absent.json"], "absent.json: cannot be read"),
        (["--subscription", "events"], "must be TOPIC/NAME, such as events/audit"),
        (["--sku", "Basic"], "'Basic' is not one of"),
        (["--check", "x" * 300], "x: cannot be read: File name too long"),
    ],
)
def test_a_mistake_is_one_clear_line(
    error_of: ErrorOf, tmp_path: Path, words: list[str], error: str
) -> None:
    assert error in error_of(*words)
    assert not (tmp_path / "pairbus-data").exists()


def test_an_address_of_another_machine_is_a_failure(error_of: ErrorOf) -> None:
    error = error_of("--memory", "--host", "192.0.2.1", "--policy", "a:own:Send", code=1)

    assert "'192.0.2.1' is not an address of this machine" in error


def test_a_bad_configuration_is_reported_with_file_and_line(
    error_of: ErrorOf, tmp_path: Path
) -> None:
    (tmp_path / "Config.json").write_text('{\n "UserConfig": {\n  "Namespaces": 7\n }\n}\n')

    error = error_of("--memory", "--config", "Config.json")

    assert error.startswith("Config.json:3: ")


TOPICS = """\
{"UserConfig": {"Namespaces": [{"Name": "shop", "Topics": [{"Name": "events", "Subscriptions": [
  {"Name": "all"},
  {"Name": "big", "Rules": [{"Name": "r", "Properties": {
    "FilterType": "Sql", "SqlFilter": {"SqlExpression": "amount > 1000"}}}]}
]}]}]}}
"""


@pytest.mark.req("B-08")
def test_topics_subscriptions_and_rules_of_a_file_work(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    (tmp_path / "Config.json").write_text(TOPICS)
    options = ["--config", "Config.json", "--namespace", "shop:0", "--memory"]
    process = start(*options, "--subscription", "events/more")
    text = process.lines[0].partition(" ready: ")[2].strip()

    with ServiceBusClient.from_connection_string(text) as client:
        with client.get_topic_sender("events") as sender:
            for amount in (5, 5000):
                message = ServiceBusMessage("m", application_properties={"amount": amount})
                sender.send_messages(message)
        counts = {}
        for name in ("all", "big", "more"):
            with client.get_subscription_receiver("events", name) as receiver:
                counts[name] = len(receiver.peek_messages(max_message_count=10))

    assert counts == {"all": 2, "big": 1, "more": 2}


def test_a_bad_rule_is_reported_with_file_and_line(error_of: ErrorOf, tmp_path: Path) -> None:
    (tmp_path / "Config.json").write_text(TOPICS.replace("> 1000", ">"))

    error = error_of("--memory", "--config", "Config.json")

    assert error.startswith(
        "Config.json:4: rule 'r' of subscription 'events/Subscriptions/big': "
        "the expression 'amount >' is not valid at line 1, column 9"
    )


def test_a_port_that_is_taken_is_an_error(error_of: ErrorOf) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = error_of("--memory", "--namespace", f"n:{port}", code=1)

    assert error.startswith(f"namespace 'n': port {port} is already in use")


def test_a_folder_that_is_not_writable_is_an_error(error_of: ErrorOf, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert "file/below" in error_of("--data", "file/below", code=1)


def test_a_second_broker_on_the_same_file_is_an_error(
    start: Callable[..., Process], error_of: ErrorOf
) -> None:
    start()

    assert "local.db" in error_of(code=1)


def test_a_file_of_a_newer_version_is_an_error(error_of: ErrorOf, tmp_path: Path) -> None:
    folder = tmp_path / "pairbus-data"
    with Broker(name="local", data=folder):
        pass
    with closing(sqlite3.connect(folder / "local.db")) as file:
        file.execute("PRAGMA user_version = 1000000")

    error = error_of(code=1)

    assert "local.db" in error
    assert "newer" in error


def test_check_examines_the_data_files_of_a_folder(pairbus: Run, tmp_path: Path) -> None:
    file = tmp_path / "data" / "local.db"
    with Broker(queues=["orders"], data=file.parent):
        pass

    good = pairbus("broker", "--check", str(file.parent))
    file.write_bytes(file.read_bytes()[:-4096])
    bad = pairbus("broker", "--check", str(file.parent))
    none = pairbus("broker", "--check", str(tmp_path))

    assert good == (0, f"{file}: no damage found\n", "")
    assert (bad.code, none.code) == (1, 2)
    assert "restore them from a backup" in bad.err
    assert "has no data file" in none.err


def test_options_may_come_from_the_environment(
    start: Callable[..., Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAIRBUS_DATA", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PAIRBUS_POLICY", "app:from-the-environment:Send,Listen")
    monkeypatch.setenv("PAIRBUS_HOST", "127.0.0.1")

    process = start()

    assert "Endpoint=sb://127.0.0.1:" in process.lines[0]
    assert "SharedAccessKey=from-the-environment;" in process.lines[0]
    assert (tmp_path / "elsewhere" / "local.db").exists()
    assert process.stop()[0] == 0
    # The command line has the last word.
    assert start("--memory").stop()[0] == 0


def test_a_key_on_the_command_line_is_warned_about_and_one_in_a_file_is_not(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    (tmp_path / "policies.txt").write_text("app:s3cret:Manage\n")
    shown = start("--memory", "--policy", "app:s3cret:Manage", "--log-level", "warning")
    hidden = start("--memory", "--policy-file", "policies.txt", "--log-level", "warning")

    for process in (shown, hidden):
        assert "SharedAccessKeyName=app;SharedAccessKey=s3cret;" in process.lines[0]
    assert "see the keys of --policy in its list of processes" in shown.stop()[2]
    assert hidden.stop() == (0, "", "")


def test_the_broker_may_open_as_many_files_as_the_system_allows() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(16_384, hard), hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_faults_with_the_well_known_key_need_a_broker_that_allows_them(
    pairbus: Run, start: Callable[..., Process]
) -> None:
    strict, willing = start("--memory"), start("--memory", "--allow-faults")
    add = ("fault", "add", "cannot_send", "--duration", "1m", "-c")
    connections = [one.lines[0].partition(": ")[2].strip() for one in (strict, willing)]

    refused, done = (pairbus(*add, connection) for connection in connections)

    assert (refused.code, done.code) == (1, 0)
    assert "start it with --allow-faults, or give it a policy with Manage" in refused.err
    assert done.out.startswith("fault 1 is active: cannot_send on all entities")


def connections_in_memory() -> int:
    return sum(isinstance(each, HttpConnection) for each in gc.get_objects())


async def use_many_connections(count: int) -> None:
    """Returns when most of the connections, which have ended, are not in memory any more."""
    server = Server([NamespaceOptions(name="local")])
    await server.start()
    collecting = asyncio.create_task(collect_connections(server, pause_seconds=0.01))
    try:
        port = server.endpoints["local"].port
        async with asyncio.timeout(SECONDS):
            for _ in range(count):
                reader, writer = await asyncio.open_connection("localhost", port)
                writer.write(b"GET /$health HTTP/1.0\r\n\r\n")
                assert b"200 OK" in await reader.read()
                writer.close()
            while connections_in_memory() > count // 2:
                await asyncio.sleep(0.02)
    finally:
        collecting.cancel()
        await server.stop()


def test_connections_that_have_ended_do_not_stay_in_memory() -> None:
    gc.disable()  # the thresholds of the command have the same effect
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(use_many_connections(100))
    finally:
        gc.enable()
