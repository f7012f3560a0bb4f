"""The namespace of a command: its connection string or host name, and the CA to trust."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pairbus.errors import NamespaceError, OptionsError, UsageError
from pairbus.fast.connection_string import ConnectionString

ENVIRONMENT: Final = "PAIRBUS_PRIMARY"
CA_ENVIRONMENT: Final = "SSL_CERT_FILE"
_BETWEEN: Final = re.compile(
    r"(?<![=\s])\s+(?=(?:endpoint|hostname)\s*=|[\w\[][^\s=;]*[.:][^\s=;]*(?:\s|$))", re.IGNORECASE
)
"""The space before a connection string or a host name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(ConnectionString):
    """A namespace and how to connect to it."""

    ca_file: Path | None = None

    @property
    def is_local(self) -> bool:
        return is_loopback(self.host)

    @property
    def verify(self) -> bool | str:
        """The value for the SDK's `connection_verify`.

        A broker on this machine makes its own certificate, and data sent to it does not leave the
        machine, so it is trusted without a CA file. Any other namespace must prove its identity.
        """
        if self.ca_file is not None:
            return str(self.ca_file)
        if self.is_emulator and self.is_local:
            return False
        return os.environ.get(CA_ENVIRONMENT) or True

    def rejection(self, right: str, what: str = "") -> str:
        text = ConnectionString.rejection(self, right, what)
        if self.identity is None or not self.is_local:
            return text
        return f"{text}. A local broker takes host names only if it runs with --accept-bearer"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def split_targets(text: str) -> list[str]:
    """Split several connection strings or host names, separated by spaces. A signature may contain
    a space.
    """
    return [one for one in _BETWEEN.split(text.strip()) if one]


def parse_target(
    text: str | None, ca_file: Path | None = None, *, ca_option: str = "--ca-file"
) -> Target:
    if not text or not text.strip():
        raise UsageError(
            f"which namespace? Give its connection string or host name with -c, or in "
            f"{ENVIRONMENT}; `pairbus broker` prints a connection string"
        )
    if (count := len(split_targets(text))) > 1:
        raise UsageError(f"found {count} namespaces, separated by spaces; give only one")
    try:
        target = Target.parse(text, ca_file=ca_file)
        if target.identity is not None:
            target.identity.check_installed()
    except OptionsError as error:
        raise UsageError(str(error)) from None
    if isinstance(target.verify, str):
        _check_ca_file(target.verify, ca_option if ca_file else CA_ENVIRONMENT)
    return target


def _check_ca_file(path: str, name: str) -> None:
    """Each library that connects would report it in its own way, or not at all."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        raise UsageError(f"{name} {path}: holds no certificate in the form of PEM") from None
    except OSError as error:
        raise UsageError(f"{name} {path}: cannot be read: {error.strerror}") from None


def bearer_token(target: Target) -> str:
    """For a request over HTTP. Raises NamespaceError."""
    from pairbus.fast.token_cache import SCOPE, LoginFailed

    try:
        return str(target.credential().get_token(SCOPE).token)
    except LoginFailed as error:
        raise NamespaceError(f"cannot log in to {target.address}: {error.message}") from error


def login_failure(error: BaseException, target: Target) -> str | None:
    """The text for a credential that gave no token. The SDK wraps what it raises."""
    from pairbus.fast.token_cache import LoginFailed

    inner = getattr(error, "inner_exception", None)
    failed = next((one for one in (error, inner) if isinstance(one, LoginFailed)), None)
    return None if failed is None else f"cannot log in to {target.address}: {failed.message}"


def cannot_reach(target: Target, reason: str) -> str:
    text = f"cannot reach {target.address}: {reason}"
    if target.is_local and reason == os.strerror(errno.ECONNREFUSED):
        if not target.is_emulator and target.identity is None:
            text += "; a connection string for a local broker has UseDevelopmentEmulator=true"
        return f"{text}; is the broker running, and is this its port?"
    return text


def why_unreachable(error: BaseException) -> str:
    """Returns the innermost reason, because libraries wrap it in their own errors."""
    lowest: str | None = None
    seen: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:  # ends: each exception is visited once
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, ssl.SSLCertVerificationError):
            return (
                "its certificate is not trusted; name the file of its certificate authority with "
                f"--ca-file or in {CA_ENVIRONMENT}"
            )
        if isinstance(one, socket.gaierror):
            return "no host has that name"
        if isinstance(one, OSError) and one.strerror:
            lowest = lowest or one.strerror
        elif isinstance(one, TimeoutError):
            lowest = lowest or "it does not answer"
        wrapped = (getattr(one, name, None) for name in ("reason", "inner_exception"))
        related = (one.__cause__, one.__context__, *wrapped, *one.args)
        waiting += [each for each in related if isinstance(each, BaseException)]
    return lowest or " ".join(str(error).split()) or type(error).__name__
