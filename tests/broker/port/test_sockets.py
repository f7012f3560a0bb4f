"""Addresses and listening sockets, on ports that the system picks."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from pairbus.broker.port.sockets import Host, close_all, listen, look_up
from pairbus.errors import StartError


@pytest.fixture
def opened() -> Iterator[list[socket.socket]]:
    sockets: list[socket.socket] = []
    yield sockets
    close_all(sockets)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("name", "is_loopback", "client_name"),
    [
        ("localhost", True, "localhost"),
        ("127.0.0.1", True, "127.0.0.1"),
        ("127.1.2.3", True, "127.1.2.3"),
        ("::1", True, "[::1]"),
        ("0.0.0.0", False, socket.gethostname()),
        ("::", False, socket.gethostname()),
        ("192.0.2.1", False, "192.0.2.1"),
    ],
)
def test_a_host_is_loopback_or_open_to_others(
    name: str, is_loopback: bool, client_name: str
) -> None:
    host = look_up(name)

    assert host.is_loopback is is_loopback
    assert host.client_name == client_name
    assert client_name.strip("[]") in host.certificate_names
    assert {"localhost", "127.0.0.1", "::1"} <= set(host.certificate_names)
    assert not {"0.0.0.0", "::"} & set(host.certificate_names)


@pytest.mark.parametrize("name", ["no.such.host.invalid", "a" * 300, "bad host"])
def test_an_unknown_host_is_named(name: str) -> None:
    with pytest.raises(StartError, match="is not known"):
        look_up(name)


def test_localhost_listens_on_both_loopback_addresses_and_one_port(
    opened: list[socket.socket],
) -> None:
    opened += listen(look_up("localhost"), 0, namespace="n")

    names = [each.getsockname() for each in opened]
    assert names[0][0] == "127.0.0.1"
    assert len(names) == (2 if has_ipv6() else 1)
    assert len({name[1] for name in names}) == 1
    for name in names:
        socket.create_connection(name[:2], timeout=30).close()


def test_a_machine_without_ipv6_listens_on_what_it_has(
    opened: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    class WithoutIpv6(socket.socket):
        def bind(self, address: Any) -> None:
            if ":" in address[0]:
                raise OSError(errno.EAFNOSUPPORT, "no")
            super().bind(address)

    monkeypatch.setattr(socket, "socket", WithoutIpv6)

    opened += listen(look_up("localhost"), 0, namespace="n")

    assert len(opened) == 1


def test_a_pick_that_is_taken_on_the_other_address_is_picked_again(
    opened: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    class UnluckyAtFirst(socket.socket):
        def bind(self, address: Any) -> None:
            calls.append(address[0])
            if len(calls) == 2:
                raise OSError(errno.EADDRINUSE, "taken")
            super().bind(address)

    monkeypatch.setattr(socket, "socket", UnluckyAtFirst)
    host = Host(name="two", addresses=("127.0.0.1", "127.0.0.2"), is_loopback=True)

    opened += listen(host, 0, namespace="n")

    assert calls == ["127.0.0.1", "127.0.0.2"] * 2


@pytest.mark.parametrize("taken", ["127.0.0.1", "::1"])
def test_a_taken_port_is_an_error_with_a_way_out(opened: list[socket.socket], taken: str) -> None:
    if ":" in taken and not has_ipv6():
        pytest.skip("no IPv6 here")
    opened += listen(look_up(taken), 0, namespace="other")
    port = opened[0].getsockname()[1]

    with pytest.raises(
        StartError, match=f"namespace 'n': port {port} is already in use.* or 0 to let"
    ):
        listen(look_up("localhost"), port, namespace="n")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.EACCES, "above 1023"),
        (errno.EADDRNOTAVAIL, "'192.0.2.1' is not an address of this machine"),
        (errno.EMFILE, "cannot listen on 192.0.2.1:0: Too many open files"),
    ],
)
def test_other_failures_are_explained(
    monkeypatch: pytest.MonkeyPatch, code: int, reason: str
) -> None:
    class Failing(socket.socket):
        def bind(self, address: Any) -> None:
            raise OSError(code, "Too many open files")

    monkeypatch.setattr(socket, "socket", Failing)

    with pytest.raises(StartError, match=reason):
        listen(look_up("192.0.2.1"), 0, namespace="n")


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(StartError, match="not an address of this machine"):
        listen(look_up("192.0.2.1"), 0, namespace="n")
