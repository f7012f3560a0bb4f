"""The namespace that a command is about: its connection string, and which CA to trust."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pairbus.errors import OptionsError, UsageError
from pairbus.fast.connection_string import ConnectionString

ENVIRONMENT: Final = "PAIRBUS_PRIMARY"
_BETWEEN: Final = re.compile(r"\s+(?=endpoint\s*=)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(ConnectionString):
    """A namespace and how to connect to it."""

    ca_file: Path | None = None

    @property
    def is_local(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def verify(self) -> bool | str:
        """The value for the SDK's `connection_verify`.

        A broker on this machine makes its own certificate, and what is sent to it does not leave
        the machine, so it is trusted without a CA file. Any other namespace must prove who it is.
        """
        if self.ca_file is not None:
            return str(self.ca_file)
        return not (self.is_emulator and self.is_local)


def split_targets(text: str) -> list[str]:
    """Split several connection strings, separated by spaces. A signature may contain a space."""
    return [one for one in _BETWEEN.split(text.strip()) if one]


def parse_target(text: str | None, ca_file: Path | None = None) -> Target:
    if not text or not text.strip():
        raise UsageError(
            f"which namespace? Give its connection string with -c, or in {ENVIRONMENT}; "
            "`pairbus broker` prints one"
        )
    if (count := len(split_targets(text))) > 1:
        raise UsageError(f"found {count} connection strings; give only one")
    if ca_file is not None and not ca_file.is_file():
        raise UsageError(f"--ca-file {ca_file}: no such file")
    try:
        return Target.parse(text, ca_file=ca_file)
    except OptionsError as error:
        raise UsageError(str(error)) from None
