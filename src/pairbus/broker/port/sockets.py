"""Where a broker listens: a host's addresses, and sockets bound to all of them on one port.

It does not know the protocols on the sockets. Errors name the address, the port and the remedy.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pairbus.errors import StartError

_BACKLOG: Final = 1024
# A port that is free on one address may be in use on the other. Then the system picks again.
_PICKS_MAX: Final = 20
_NO_SUCH_FAMILY: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host to listen on, with its addresses."""

    name: str
    addresses: tuple[str, ...]
    is_loopback: bool
    """Only this machine can connect."""

    @property
    def client_name(self) -> str:
        """The host part of a client's address. IPv6 is in brackets."""
        if self.is_loopback and self.name not in self.addresses:
            return "localhost"
        if any(ipaddress.ip_address(address).is_unspecified for address in self.addresses):
            return socket.gethostname()
        return f"[{self.name}]" if ":" in self.name else self.name

    @property
    def certificate_names(self) -> tuple[str, ...]:
        names = ["localhost", "127.0.0.1", "::1", self.client_name.strip("[]"), self.name]
        return tuple(name for name in dict.fromkeys(names) if name not in ("0.0.0.0", "::"))


def look_up(name: str) -> Host:
    if name == "localhost":  # both addresses, independent of the hosts file
        return Host(name=name, addresses=("127.0.0.1", "::1"), is_loopback=True)
    try:
        found = socket.getaddrinfo(name or None, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise StartError(f"host {name!r} is not known; use an address of this machine") from error
    addresses = tuple(dict.fromkeys(str(address[0]) for *_, address in found))
    is_loopback = all(ipaddress.ip_address(address).is_loopback for address in addresses)
    return Host(name=name, addresses=addresses, is_loopback=is_loopback)


def listen(host: Host, port: int, *, namespace: str) -> list[socket.socket]:
    """Non-blocking sockets that accept connections from now on, all on one port."""
    for _ in range(_PICKS_MAX):
        sockets: list[socket.socket] = []
        try:
            _listen_on_each(host, port, sockets)
        except OSError as error:
            close_all(sockets)
            is_unlucky_pick = port == 0 and error.errno == errno.EADDRINUSE
            if not is_unlucky_pick:
                raise _explained(error, host, port, namespace) from error
        else:
            return sockets
    raise StartError(
        f"namespace {namespace!r}: no port is free on all of {', '.join(host.addresses)}"
    )


def close_all(sockets: Iterable[socket.socket]) -> None:
    for each in sockets:
        each.close()


def _listen_on_each(host: Host, port: int, sockets: list[socket.socket]) -> None:
    for address in host.addresses:
        try:
            sockets.append(_listen_on(address, port))
        except OSError as error:
            # A machine without IPv6 still has its IPv4 loopback address.
            if not sockets or not host.is_loopback or error.errno not in _NO_SUCH_FAMILY:
                raise
        port = sockets[0].getsockname()[1]


def reserve(listening: socket.socket) -> socket.socket:
    """Close it and bind its address without listening, so that connections are refused.

    `listen_again` makes it listen.
    """
    address, family = listening.getsockname(), listening.family
    listening.close()
    reserved = socket.socket(family, socket.SOCK_STREAM)
    try:
        _bind(reserved, address[0], address[1])
    except BaseException:
        reserved.close()
        raise
    return reserved


def listen_again(reserved: socket.socket) -> None:
    reserved.listen(_BACKLOG)


def _listen_on(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        _bind(listening, address, port)
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _bind(bound: socket.socket, address: str, port: int) -> None:
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if bound.family == socket.AF_INET6:
        # "::" stands for every address of the machine, IPv4 and IPv6. No other address does.
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address != "::")
    bound.setblocking(False)
    bound.bind((address, port))


def _explained(error: OSError, host: Host, port: int, namespace: str) -> StartError:
    reasons = {
        errno.EADDRINUSE: f"port {port} is already in use; choose another port, "
        "or 0 to let the system pick one",
        errno.EACCES: f"port {port} needs privileges; choose a port above 1023",
        errno.EADDRNOTAVAIL: f"{host.name!r} is not an address of this machine",
        errno.EAFNOSUPPORT: f"this machine has no addresses of the family of {host.name!r}",
    }
    reason = reasons.get(error.errno or 0, f"cannot listen on {host.name}:{port}: {error.strerror}")
    return StartError(f"namespace {namespace!r}: {reason}")
