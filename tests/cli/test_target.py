"""Connection strings, whose errors never repeat a key; and why a namespace is unreachable."""

from __future__ import annotations

import re
import socket
import ssl
import sys
import time
import tomllib
from pathlib import Path

import pytest

from pairbus.broker import Broker
from pairbus.broker.entities.policies import default_policy
from pairbus.broker.links.tokens import make_token
from pairbus.cli.target import parse_target, split_targets, why_unreachable
from pairbus.errors import UsageError
from tests.cli.conftest import Run

ROOT = Path(__file__).parents[2]
KEY = "SharedAccessKeyName=p;SharedAccessKey=s3cret="
LOCAL = f"Endpoint=sb://localhost:5672;{KEY};UseDevelopmentEmulator=true;"
AZURE = f"Endpoint=sb://shop.servicebus.windows.net/;{KEY}"


def test_a_local_broker_is_recognized() -> None:
    target = parse_target(LOCAL)

    assert (target.host, target.port, target.address) == ("localhost", 5672, "localhost:5672")
    assert (target.policy_name, target.key.reveal()) == ("p", "s3cret=")
    assert (target.is_emulator, target.is_local, target.verify) == (True, True, False)


def test_the_certificate_of_azure_is_verified() -> None:
    target = parse_target(f"  {AZURE};EntityPath=orders ")

    assert (target.address, target.port) == ("shop.servicebus.windows.net", None)
    assert (target.is_emulator, target.is_local, target.verify) == (False, False, True)


@pytest.mark.parametrize(
    ("text", "verify"),
    [
        (LOCAL.replace("localhost", "127.0.0.1"), False),
        (LOCAL.replace("localhost", "[::1]"), False),
        (LOCAL.replace("localhost", "192.0.2.7"), True),
        (LOCAL.replace("localhost", "localhost.example.com"), True),
        (LOCAL.replace("true", "false"), True),
        (LOCAL.replace("UseDevelopmentEmulator=true;", ""), True),
    ],
)
def test_only_a_broker_on_this_machine_is_not_verified(text: str, verify: bool) -> None:
    assert parse_target(text).verify is verify


def test_a_ca_file_is_used_wherever_it_is_given(ca_file: Path) -> None:
    assert parse_target(LOCAL, ca_file).verify == str(ca_file)
    assert parse_target(AZURE, ca_file).verify == str(ca_file)


@pytest.mark.parametrize("text", [LOCAL, AZURE])
@pytest.mark.parametrize("content", ["", "-----BEGIN CERTIFICATE-----\nx"])
def test_a_ca_file_without_a_certificate_is_refused(
    text: str, content: str, tmp_path: Path
) -> None:
    file = tmp_path / "ca.pem"
    file.write_text(content)

    with pytest.raises(UsageError, match=r"^--ca-file .*ca\.pem: holds no certificate in the form"):
        parse_target(text, file)


def test_a_ca_file_that_cannot_be_looked_at_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^--ca-file x+: cannot be read: File name too long$"):
        parse_target(AZURE, Path("x" * 300))


def test_ssl_cert_file_is_used_unless_the_broker_is_trusted_anyway(
    ca_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(ca_file))

    assert parse_target(AZURE).verify == str(ca_file)
    assert parse_target(LOCAL).verify is False
    monkeypatch.setenv("SSL_CERT_FILE", "absent.pem")
    with pytest.raises(
        UsageError, match=r"^SSL_CERT_FILE absent\.pem: cannot be read: No such file"
    ):
        parse_target(AZURE)
    assert parse_target(LOCAL).verify is False


def test_several_connection_strings_are_split() -> None:
    signed = "Endpoint=sb://h;SharedAccessSignature=SharedAccessSignature sr=a&sig=b"

    assert split_targets(f" {LOCAL}  {signed}\n{AZURE} ") == [LOCAL, signed, AZURE]
    assert split_targets("  ") == []


def test_host_names_are_split_like_connection_strings() -> None:
    signed = "Endpoint=sb://h;SharedAccessSignature=SharedAccessSignature sr=a&sig=b"
    hosts = ["east.example", "sb://west.example/", "localhost:5671", "[::1]:5672"]

    assert split_targets(" ".join([*hosts, signed, AZURE])) == [*hosts, signed, AZURE]
    assert split_targets(f"{LOCAL} {hosts[0]} {signed} {hosts[2]}") == [
        LOCAL,
        hosts[0],
        signed,
        hosts[2],
    ]
    spaced = "Endpoint = sb://h ; SharedAccessKeyName = p ; SharedAccessKey = k"
    assert split_targets(spaced) == [spaced]


def test_keys_do_not_show_in_a_traceback() -> None:
    assert "s3cret" not in repr(parse_target(LOCAL))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "which namespace?"),
        ("  ", "which namespace?"),
        ("s3cret", "expected a connection string, .* or the host name"),
        (f"{LOCAL} {AZURE}", "found 2 namespaces, separated by spaces; give only one"),
    ],
)
def test_an_error_does_not_repeat_the_key(text: str | None, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        parse_target(text)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def layered(below: BaseException) -> BaseException:
    try:
        try:
            raise below
        except BaseException as error:
            raise RuntimeError("a library's own words") from error
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (layered(ConnectionRefusedError(111, "Connection refused")), "Connection refused"),
        (layered(ssl.SSLCertVerificationError(1, "unknown CA")), "its certificate is not trusted"),
        (layered(socket.gaierror(-2, "unknown")), "no host has that name"),
        (layered(TimeoutError("timed out")), "it does not answer"),
        (RuntimeError("two\nlines"), "two lines"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_the_reason_is_that_of_the_lowest_layer(error: BaseException, words: str) -> None:
    assert why_unreachable(error).startswith(words)


def signed(text: str) -> str:
    """The same namespace, with a shared access signature instead of a key."""
    [endpoint] = re.findall("Endpoint=([^;]+)", text)
    token = make_token(default_policy(), audience=f"{endpoint}/", expires_at=time.time() + 600)
    return f"Endpoint={endpoint};SharedAccessSignature={token};UseDevelopmentEmulator=true"


FORMS = {
    "a signature": signed,
    "an emulator in capitals": lambda text: text.replace("=true", "=True"),
    "a host name": lambda text: text.replace("Endpoint=sb://", "HostName="),
    "a host name, and a signature": lambda text: signed(text).replace("Endpoint=", "hostname = "),
}
COMMANDS = (
    "send orders hello",
    "peek orders",
    "receive orders --wait 1s",
    "receive orders --wait 0.1s --delete",
    "dead-letters list orders",
    "entities list",
    "fault list",
    "status",
)


@pytest.mark.parametrize("form", FORMS)
def test_every_command_takes_every_form_of_a_connection_string(
    pairbus: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    text = FORMS[form](broker.connection_string)
    monkeypatch.setenv("PAIRBUS_PRIMARY", text)

    for command in COMMANDS:
        done = pairbus(*command.split())
        assert done.code == 0, f"pairbus {command}: {done.err}"


def test_every_command_uses_tls_with_the_authority_in_ssl_cert_file(
    pairbus: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = broker.connection_string.replace(";UseDevelopmentEmulator=true", "")
    monkeypatch.setenv("PAIRBUS_PRIMARY", text)
    refused = pairbus("peek", "orders")
    assert refused.code == 1
    assert refused.err.endswith(
        "its certificate is not trusted; name the file of its certificate authority with "
        "--ca-file or in SSL_CERT_FILE\n"
    )

    monkeypatch.setenv("SSL_CERT_FILE", str(broker.ca_file))
    for command in COMMANDS:
        done = pairbus(*command.split())
        assert done.code == 0, f"pairbus {command}: {done.err}"


def test_the_sdk_needs_a_package_of_the_extra_for_tls_to_a_port(
    pairbus: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = broker.connection_string.replace(";UseDevelopmentEmulator=true", "")
    monkeypatch.setenv("PAIRBUS_PRIMARY", text)
    monkeypatch.setenv("SSL_CERT_FILE", str(broker.ca_file))
    monkeypatch.setitem(sys.modules, "websocket", None)

    done = pairbus("receive", "orders", "--next-session")
    assert (done.code, done.err) == (
        1,
        "pairbus: receiving from a session over TLS to a port needs websocket-client, which is not "
        "installed: pip install 'pairbus[cli]'\n",
    )

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["cli"]
    assert [one for one in extra if one.startswith("websocket-client>=")]


@pytest.mark.parametrize("form", FORMS)
def test_the_syphon_takes_every_form_of_a_connection_string(
    pairbus: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """It asks the secondary before it starts Spark, so a wrong key ends it there."""
    primary = FORMS[form](broker.connection_string)
    monkeypatch.setenv("PAIRBUS_PRIMARY", f"{primary} {primary.replace('localhost', '127.0.0.1')}")
    secondary = FORMS[form](broker.connection_string.replace("localhost", "[::1]"))
    wrong = re.sub("SAS_KEY|sig=", lambda found: f"{found[0]}x", secondary)
    monkeypatch.setenv("PAIRBUS_SECONDARY", wrong)

    done = pairbus("syphon", "--once")

    assert done.code == 1
    assert "the secondary: [::1]:" in done.err
    assert "the policy has the Manage right" in done.err
