"""`pairbus dashboard` on the command line: what it refuses, and what it prints."""

from __future__ import annotations

import http.client
import io
import os
import re
import signal
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO

import pytest
import trustme

from pairbus.dashboard.command import allowed_hosts, check_access
from pairbus.dashboard.server import bind
from pairbus.errors import StartError, UsageError
from tests.cli.conftest import Run
from tests.cli.process import SECONDS, started

PRIMARY = (
    "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    tmp_path = tmp_path_factory.mktemp("certificate")
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    files = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    issued.cert_chain_pems[0].write_to_path(files[0])
    issued.private_key_pem.write_to_path(files[1])
    authority.cert_pem.write_to_path(files[2])
    return files


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"host": "0.0.0.0"}, "needs TLS"),
        ({"host": "example.com", "token": "x" * 20}, "needs TLS"),
        ({"token": "short"}, "at least 16 characters"),
        ({"token": "\udcff" * 20}, "characters that can be typed"),
        ({"certificate": Path("a")}, "belong together"),
        ({"certificate": Path("/no/cert"), "key": Path("/no/key")}, "/no/cert: cannot be read"),
        ({"certificate": Path("x" * 300), "key": Path("/no/key")}, "x: cannot be read"),
        ({"proxy_url": "http://pair.example.com"}, "must be https://"),
        ({"proxy_url": "https://pair.example.com/path"}, "a path is not supported"),
        ({"proxy_url": "https://pair.example.com:tls"}, "must be https://"),
        ({"proxy_url": "https://[::1"}, "must be https://"),
    ],
)
def test_what_would_not_be_safe_is_refused(settings: dict[str, object], text: str) -> None:
    every = {"host": "127.0.0.1", "token": None, "certificate": None, "key": None}
    with pytest.raises(UsageError, match=text):
        check_access(**{**every, "proxy_url": None, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--primary", PRIMARY, "--secondary", PRIMARY], "are the same namespace, localhost:1"),
        (["--primary", PRIMARY, "--metrics", "nonsense"], "--metrics 'nonsense' is not a URL"),
        (["--primary", PRIMARY, "--interval", "5"], "--interval '5' has no unit"),
        (["--port", "0"], "which namespaces?"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(pairbus: Run, words: list[str], text: str) -> None:
    done = pairbus("dashboard", *words)

    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert text in done.err


@pytest.mark.parametrize("host", ["192.0.2.1", "ü..b"])
def test_an_address_that_this_machine_does_not_have_is_named_with_what_to_change(
    host: str,
) -> None:
    with pytest.raises(StartError, match=rf"cannot listen on {re.escape(host)} .*with --host"):
        bind(host, 0)


def test_a_port_that_is_taken_is_named_with_what_to_change() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=rf"127\.0\.0\.1 port {port}: .*with --port"):
            bind("127.0.0.1", port)


def test_only_loopback_needs_no_token(certificate: tuple[Path, Path, Path]) -> None:
    cert, key, _ = certificate
    assert not check_access("127.0.0.1", None, None, None, None)
    assert not check_access("::1", None, None, None, None)
    assert check_access("0.0.0.0", None, cert, key, None)
    assert check_access("127.0.0.1", None, None, None, "https://pair.example.com")


def test_it_is_served_under_its_own_names_only() -> None:
    own = {"localhost:8765", "127.0.0.1:8765", "[::1]:8765"}
    assert allowed_hosts("127.0.0.1", 8765, None) == own
    assert allowed_hosts("127.0.0.1", 80, "https://pair.example.com/") == {"pair.example.com"}


@pytest.mark.parametrize(
    ("port", "proxy_url", "name"),
    [
        (80, None, "localhost"),
        (443, None, "localhost"),
        (8765, "https://pair.example.com:443/", "pair.example.com"),
        (8765, "https://pair.example.com:8443/", "pair.example.com:8443"),
    ],
)
def test_a_browser_leaves_out_the_port_of_http_and_https(
    port: int, proxy_url: str | None, name: str
) -> None:
    assert name in (allowed_hosts("127.0.0.1", port, proxy_url) or ())


class PublicDashboard:
    """One that other machines can reach, and what it prints."""

    def __init__(self, lines: IO[str], authority: Path) -> None:
        self.address, self.token = lines.readline(), lines.readline()
        self.port = int(self.address.rstrip("/\n").rpartition(":")[2])
        self._context = ssl.create_default_context(cafile=str(authority))

    def connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(
            "localhost", self.port, context=self._context, timeout=SECONDS
        )


@pytest.fixture(scope="module")
def public(certificate: tuple[Path, Path, Path]) -> Iterator[PublicDashboard]:
    cert, key, authority = certificate
    words = ["dashboard", "--host", "0.0.0.0", "--port", "0", "--primary", PRIMARY]
    own = {name: value for name, value in os.environ.items() if "PAIRBUS" not in name}
    tls = "--certificate", str(cert), "--key", str(key)
    with started(*words, *tls, env=own, stderr=None) as process:
        assert process.stdout is not None
        yield PublicDashboard(process.stdout, authority)
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0


@pytest.mark.req("X-09")
def test_on_another_address_it_makes_a_token_and_uses_tls(public: PublicDashboard) -> None:
    token = public.token.removeprefix("token: ").strip()
    assert public.address == f"dashboard ready: https://0.0.0.0:{public.port}/\n"
    assert len(token) >= 32
    with closing(public.connect()) as connection:
        connection.request("GET", "/")
        response = connection.getresponse()
        assert (response.status, response.headers["location"]) == (303, "/login")
        response.read()
        origin = {"Origin": f"https://localhost:{public.port}"}
        connection.request("POST", "/login", f"token={token}", origin)
        response = connection.getresponse()
        assert response.status == 303
        assert "Secure" in response.headers["set-cookie"]


def test_a_stranger_cannot_fill_the_memory_with_an_endless_header(public: PublicDashboard) -> None:
    with closing(public.connect()) as stranger:
        stranger.connect()
        stranger.send(b"GET / HTTP/1.1\r\nHost: ")
        with pytest.raises((ConnectionError, ssl.SSLError)):
            stranger.send(io.BytesIO(b"x" * 10_000_000))
