"""Every command takes a host name in place of a connection string, and logs in without a key."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from pairbus.broker import Broker, NamespaceOptions, QueueDescription
from pairbus.fast.identity import VARIABLE
from pairbus.testing import LocalCredential
from tests.cli.conftest import Run
from tests.cli.process import finished
from tests.fast.credentials import LOG

CREDENTIALS = "tests.fast.credentials"
BACKLOG = "localhost/x-servicebus-transfer/0"
QUEUES = [
    QueueDescription(name="orders"),
    QueueDescription(name="sorted", requires_session=True),
    QueueDescription(name=BACKLOG),
]


@pytest.fixture(scope="module")
def bearer_broker() -> Iterator[Broker]:
    options = NamespaceOptions(name="local", port=0, queues=QUEUES, accepts_bearer=True)
    with Broker(namespaces=[options]) as running:
        yield running


LogIn = Callable[[str], None]


@pytest.fixture
def log_in(monkeypatch: pytest.MonkeyPatch) -> LogIn:
    def log_in(name: str) -> None:
        monkeypatch.setenv(VARIABLE, f"{CREDENTIALS}:{name}")

    return log_in


@pytest.fixture
def host(bearer_broker: Broker, monkeypatch: pytest.MonkeyPatch, log_in: LogIn) -> str:
    """The namespace that commands are about, by its host name."""
    text = f"localhost:{bearer_broker.port}"
    monkeypatch.setenv("PAIRBUS_PRIMARY", text)
    monkeypatch.setenv("SSL_CERT_FILE", str(bearer_broker.ca_file))
    log_in("Issuer")
    return text


def test_every_command_takes_a_host_name(host: str, pairbus: Run) -> None:
    for words, printed in (
        (["send", "orders", "hello"], "sent 1 message"),
        (["peek", "orders"], "hello"),
        (["receive", "orders"], "hello"),
        (["send", "sorted", "in order", "--session-id", "a"], "sent 1 message"),
        (["receive", "sorted", "--next-session", "--delete"], "in order"),
        (["dead-letters", "list", "orders"], "no messages in the dead-letter queue"),
        (["entities", "create", "queue", "invoices"], "created queue 'invoices'"),
        (["entities", "list"], "invoices"),
        (["fault", "list"], "no faults are active"),
    ):
        done = pairbus(*words)
        assert done.code == 0, words
        assert printed in done.out + done.err, words


def test_status_takes_host_names_and_one_token_is_enough(
    host: str,
    bearer_broker: Broker,
    pairbus: Run,
    log_in: LogIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logins = tmp_path / "logins"
    monkeypatch.setenv(LOG, str(logins))
    log_in("counted")
    options = NamespaceOptions(name="backup", port=0, queues=QUEUES, accepts_bearer=True)
    with Broker(namespaces=[options]) as backup:
        done = pairbus(
            *("status", "--json", "--secondary", f"localhost:{backup.port}"),
            *("--primary-ca-file", str(bearer_broker.ca_file)),
            *("--secondary-ca-file", str(backup.ca_file)),
        )
    assert done.code == 0, done.err
    [backlog] = json.loads(done.out)["backlog"]["queues"]
    assert backlog["queue"] == BACKLOG
    assert len(logins.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "words", "role"),
    [
        ("sender", ["send", "orders", "x"], None),
        ("sender", ["peek", "orders"], "Data Receiver (or Data Owner) for 'orders'"),
        ("sender", ["receive", "orders"], "Data Receiver (or Data Owner) for 'orders'"),
        ("sender", ["receive", "orders", "--delete"], "Data Receiver (or Data Owner) for 'orders'"),
        ("sender", ["entities", "list"], "Data Owner"),
        ("receiver", ["receive", "orders", "--wait", "0.1s"], None),
        ("receiver", ["peek", "orders"], None),
        ("receiver", ["dead-letters", "list", "orders"], None),
        ("receiver", ["dead-letters", "purge", "orders", "--yes"], None),
        ("receiver", ["dead-letters", "resubmit", "orders", "--new-ids"], None),
        ("receiver", ["send", "orders", "x"], "Data Sender (or Data Owner) for 'orders'"),
        ("receiver", ["entities", "create", "queue", "more"], "Data Owner"),
    ],
    ids=str,
)
def test_a_missing_role_is_named(
    host: str, pairbus: Run, log_in: LogIn, name: str, words: list[str], role: str | None
) -> None:
    log_in(name)
    done = pairbus(*words)
    if role is None:
        assert done.code == 0, done.err
    else:
        assert done.code == 1
        text = f"rejected the identity of {name}: check that it has the role Azure Service Bus"
        assert done.err.startswith(f"pairbus: {host} {text} {role}.")
        assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["send", "orders", "x"],
        ["peek", "orders"],
        ["receive", "orders", "--delete"],
        ["entities", "list"],
        ["fault", "list"],
    ],
    ids=" ".join,
)
def test_a_credential_that_gives_no_token_is_reported_in_one_line(
    host: str, pairbus: Run, log_in: LogIn, words: list[str]
) -> None:
    log_in("refusing")
    done = pairbus(*words)
    reason = "refusing gave no token: AADSTS90033: a transient error has occurred"
    assert (done.code, done.err) == (1, f"pairbus: cannot log in to {host}: {reason}\n")


def test_a_namespace_that_takes_no_tokens_is_named(
    broker: Broker, pairbus: Run, log_in: LogIn
) -> None:
    log_in("Issuer")
    where = ("-c", f"localhost:{broker.port}", "--ca-file", str(broker.ca_file))
    status = pairbus("status", "--primary", where[1], "--primary-ca-file", where[3])
    for done in (pairbus("fault", "list", *where[:2], "--ca-file", where[3]), status):
        assert done.code == 1
        assert "or run it with --accept-bearer" in done.out + done.err
    for words in (
        ("send", "orders", "x"),
        ("receive", "orders", "--delete"),
        ("entities", "list"),
    ):
        done = pairbus(*words, *where)
        assert done.code == 1
        assert f"localhost:{broker.port} rejected the identity of Issuer: check" in done.err
        assert done.err.endswith("only if it runs with --accept-bearer\n")


def test_a_mistyped_credential_is_a_usage_error(
    pairbus: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "pairbus.testing:LocalCredentail")
    for words in (("send", "orders", "x"), ("entities", "list"), ("status",)):
        monkeypatch.setenv("PAIRBUS_PRIMARY", "localhost:1")
        done = pairbus(*words)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert "the credential pairbus.testing:LocalCredentail cannot be imported: " in done.err
        assert "has no attribute 'LocalCredentail'" in done.err


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("azure.identity:DefaultAzureCredential", 1, "pip install 'pairbus[identity]'"),
        ("nowhere:make", 2, "nowhere:make cannot be imported: no module 'nowhere'"),
        ("nowhere", 2, "PAIRBUS_CREDENTIAL: expected the name of a class or function"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_sent(
    pairbus: Run, monkeypatch: pytest.MonkeyPatch, name: str, code: int, said: str
) -> None:
    monkeypatch.setenv(VARIABLE, name)
    monkeypatch.setattr("pairbus.fast.identity.find_spec", lambda name: None)
    done = pairbus("send", "orders", "x", "-c", "contoso.servicebus.windows.net")
    assert done.code == code
    assert said in done.err
    assert done.err.count("\n") == 1


class ManagedIdentity(ThreadingHTTPServer):
    """The endpoint that a machine with a managed identity has, as on Azure's App Service."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ManagedIdentityRequest)
        self.resources: list[str] = []


class ManagedIdentityRequest(BaseHTTPRequestHandler):
    server: ManagedIdentity

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        self.server.resources += query["resource"]
        token, expires_on = LocalCredential().get_token("")
        body = json.dumps({"access_token": token, "expires_on": expires_on}).encode()
        self.send_response(200 if self.headers["X-IDENTITY-HEADER"] == "h" else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def test_by_default_the_identity_of_the_machine_logs_in(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """azure-identity itself, in a process of its own, without any setting of ours."""
    with ManagedIdentity() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"http://127.0.0.1:{server.server_port}/token")
        monkeypatch.setenv("IDENTITY_HEADER", "h")
        monkeypatch.delenv(VARIABLE)
        done = finished("send", "orders", "hello")
        server.shutdown()
    assert (done.returncode, done.stderr) == (0, "")
    assert server.resources == ["https://servicebus.azure.net/"]
