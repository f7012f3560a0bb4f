"""An identity in place of a key: the name of what makes its credential, and the roles it needs.

Imports no SDK, so that a command which only parses starts fast. `token_cache.py` logs in.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Self

from pairbus.errors import MissingExtra, OptionsError

VARIABLE: Final = "PAIRBUS_CREDENTIAL"
DEFAULT: Final = "azure.identity:DefaultAzureCredential"
ROLES: Final = {
    "Send": "Azure Service Bus Data Sender",
    "Listen": "Azure Service Bus Data Receiver",
    "Manage": "Azure Service Bus Data Owner",
}
"""The role that grants each right."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A class or function without arguments that makes a credential. Call it to make one.

    Pickled, it is only its name: each process makes its own credential.
    """

    module: str
    attribute: str

    @classmethod
    def named(cls, name: str) -> Self:
        module, _, attribute = name.strip().partition(":")
        if not module or not attribute:
            raise OptionsError(
                "expected the name of a class or function without arguments, such as "
                f"{DEFAULT}, not {name!r}"
            )
        return cls(module, attribute)

    @classmethod
    def from_environment(cls) -> Self:
        """The one that PAIRBUS_CREDENTIAL names, or azure-identity's default."""
        name = os.environ.get(VARIABLE, "").strip() or DEFAULT
        try:
            return cls.named(name)
        except OptionsError as error:
            raise OptionsError(f"{VARIABLE}: {error}") from None

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}"

    def check_installed(self) -> None:
        """Raise now what the first login would. The default is not imported: that takes long."""
        try:
            if find_spec(self.module) is not None:
                if str(self) != DEFAULT:
                    self._load()
                return
        except ModuleNotFoundError:
            pass
        if self.module.startswith("azure.identity"):
            raise MissingExtra(
                "logging in without a key", package="azure-identity", extra="identity"
            )
        raise OptionsError(f"the credential {self} cannot be imported: no module {self.module!r}")

    def __call__(self) -> Any:
        self.check_installed()
        return self._load()()

    def _load(self) -> Any:
        try:
            return getattr(import_module(self.module), self.attribute)
        except (ImportError, AttributeError) as error:
            raise OptionsError(f"the credential {self} cannot be imported: {error}") from error


def requirement(right: str) -> str:
    """The role that an identity needs, for the text of an error."""
    return f"the role {ROLES[right]}{'' if right == 'Manage' else ' (or Data Owner)'}"
