"""The names by which clients may call a namespace, in a `Host` header or in a token. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

_CLOUDS: Final = ("windows.net", "chinacloudapi.cn", "usgovcloudapi.net", "cloudapi.de")


class HostNames:
    def __init__(self, names: Iterable[str] | None = None) -> None:
        """None: every name is ours."""
        self._names = None if names is None else {name.lower() for name in names}

    def of_namespace(self, name: str) -> HostNames:
        """Also the names that the namespace would have on Azure: with `custom_endpoint_address`,
        the SDKs connect to one host and sign their tokens for another.
        """
        if self._names is None:
            return self
        on_azure = (f"{name}.servicebus.{cloud}" for cloud in _CLOUDS)
        return HostNames([*self._names, name, *on_azure])

    def has(self, host: str) -> bool:
        """Whether this host, without a port, is ours.

        A web page can make a name of its own point to this machine, and a token may be for a broker
        with another name. This cannot happen with an address, and behind a port forward we do not
        know the addresses by which clients reach us. So every address is ours.
        """
        return (
            self._names is None
            or host in self._names
            or host.endswith(".localhost")
            or _address(host) is not None
        )


def host_of(authority: str) -> str:
    """The host in `host:port`, in lower case; an empty string if there is none."""
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    address = _address(host)
    if address is None:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
