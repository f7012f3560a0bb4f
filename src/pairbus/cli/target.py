"""Which namespace a command is about: a connection string, taken apart.

Knows nothing of the SDK. What it complains about never repeats a key.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pairbus.errors import ConfigError

ENVIRONMENT: Final = "PAIRBUS_PRIMARY"
_BETWEEN: Final = re.compile(r"\s+(?=endpoint\s*=)", re.IGNORECASE)
_FORM: Final = "Endpoint=sb://HOST/;SharedAccessKeyName=NAME;SharedAccessKey=KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A namespace and a way in."""

    text: str = field(repr=False)
    host: str
    port: int | None
    policy_name: str = ""
    key: str = field(default="", repr=False)
    signature: str = field(default="", repr=False)
    is_emulator: bool = False
    ca_file: Path | None = None

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def is_local(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def verify(self) -> bool | str:
        """What `connection_verify` is to be.

        A broker on this machine has a certificate of its own making, and what is sent to it does
        not leave the machine: without a CA file it is trusted. Everybody else must prove who they
        are.
        """
        if self.ca_file is not None:
            return str(self.ca_file)
        return not (self.is_emulator and self.is_local)


def split_targets(text: str) -> list[str]:
    """Several connection strings, with spaces between them. A signature may hold a space."""
    return [one for one in _BETWEEN.split(text.strip()) if one]


def parse_target(text: str | None, ca_file: Path | None = None) -> Target:
    if not text or not text.strip():
        raise ConfigError(
            f"which namespace? Give its connection string with -c, or in {ENVIRONMENT}; "
            "`pairbus broker` prints one"
        )
    if (count := len(split_targets(text))) > 1:
        raise ConfigError(f"here are {count} connection strings: give the one that is meant")
    parts: dict[str, str] = {}
    for part in text.strip().strip(";").split(";"):
        name, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"the connection string has a part without '='; its form is {_FORM}")
        parts[name.strip().lower()] = value.strip()
    host, port = _host_and_port(parts.get("endpoint", ""))
    has_key = parts.get("sharedaccesskeyname") and parts.get("sharedaccesskey")
    if not has_key and not parts.get("sharedaccesssignature"):
        raise ConfigError(
            "the connection string has neither SharedAccessKeyName and SharedAccessKey nor a "
            f"SharedAccessSignature; its form is {_FORM}"
        )
    if ca_file is not None and not ca_file.is_file():
        raise ConfigError(f"--ca-file {ca_file}: there is no such file")
    return Target(
        text=text.strip(),
        host=host,
        port=port,
        policy_name=parts.get("sharedaccesskeyname", ""),
        key=parts.get("sharedaccesskey", ""),
        signature=parts.get("sharedaccesssignature", ""),
        is_emulator=parts.get("usedevelopmentemulator", "").lower() == "true",
        ca_file=ca_file,
    )


def _host_and_port(endpoint: str) -> tuple[str, int | None]:
    if not endpoint:
        raise ConfigError(f"the connection string has no Endpoint; its form is {_FORM}")
    try:
        parts = urlsplit(endpoint if "//" in endpoint else f"sb://{endpoint}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"the Endpoint {endpoint!r} is not a URL: {error}") from error
    if not host:
        raise ConfigError(f"the Endpoint {endpoint!r} names no host; its form is {_FORM}")
    return host, port
