"""Where a namespace is and how to get in, in a form that travels to Spark's tasks.

Pickled, it holds its secret; printed, compared with others in an error, or shown in a plan or a
log, it never does. Whatever lives in the environment or is made by a factory is fetched in the
process that connects, so that it travels not at all. Imports nothing of Spark.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from pairbus.errors import OptionsError
from pairbus.fast import FastClient
from pairbus.fast.connection_string import Settings, parse_connection_string


class Secret:
    """A text that does not show in a `repr`, an f-string or a traceback's locals."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "<hidden>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


@dataclass(frozen=True, slots=True)
class Variable:
    """The environment variable that holds a connection string."""

    name: str


@dataclass(frozen=True, slots=True)
class Keyless:
    """A credential of azure-identity's kind, or a function without arguments that makes one.

    The function is called once for each connection, where the connection is made.
    """

    namespace: str
    credential: Any
    use_tls: bool = True

    def __repr__(self) -> str:
        return f"Keyless({self.namespace!r}, {type(self.credential).__name__})"


@dataclass(frozen=True, slots=True)
class Address:
    """One namespace. Make it with one of the `from_...` methods."""

    source: Secret | Variable | Keyless
    ca_file: str | None = None
    """Of the authority to trust, in PEM; None: those that certifi knows."""
    port: int | None = None
    """None: 5671, or the one that an emulator's connection string names."""

    @classmethod
    def from_connection_string(
        cls, text: str, *, ca_file: str | None = None, port: int | None = None
    ) -> Self:
        """Raises OptionsError, without the text, if it is no connection string."""
        _parsed(text, "the connection string")
        return cls(Secret(text), _text_or_none(ca_file), port)

    @classmethod
    def from_env(cls, name: str, *, ca_file: str | None = None, port: int | None = None) -> Self:
        """It is looked up when it is needed: in each process that connects."""
        if not name:
            raise OptionsError("the name of an environment variable is expected, not ''")
        return cls(Variable(name), _text_or_none(ca_file), port)

    @classmethod
    def from_credential(
        cls,
        namespace: str,
        credential: Any | Callable[[], Any],
        *,
        use_tls: bool = True,
        ca_file: str | None = None,
        port: int | None = None,
    ) -> Self:
        """`credential` travels pickled; a factory of one, a class or a function, travels better."""
        if not namespace or "/" in namespace or "=" in namespace:
            raise OptionsError(
                "a namespace's host is expected, such as contoso.servicebus.windows.net"
            )
        return cls(Keyless(namespace, credential, use_tls), _text_or_none(ca_file), port)

    @property
    def host(self) -> str:
        """As the connection string names it. With an environment variable it must be set."""
        if isinstance(self.source, Keyless):
            return self.source.namespace
        return self.settings().namespace

    @property
    def entity_path(self) -> str | None:
        """The one entity that the connection string is for, if it is for one."""
        return None if isinstance(self.source, Keyless) else self.settings().entity_path

    def settings(self) -> Settings:
        match self.source:
            case Secret():
                return _parsed(self.source.reveal(), "the connection string")
            case Variable(name):
                return _parsed(_from_environment(name), f"in the environment variable {name}")
            case Keyless(namespace, credential, use_tls):
                made = credential() if _is_factory(credential) else credential
                return Settings(namespace=namespace, credential=made, is_emulator=not use_tls)

    def client(self, **options: Any) -> FastClient:
        """One that is not connected yet. `options` are FastClient's, such as timeout_seconds."""
        settings = self.settings()
        return FastClient(
            settings.namespace,
            settings.credential,
            use_tls=not settings.is_emulator,
            port=self.port,
            ca_file=self.ca_file,
            **options,
        )

    def __repr__(self) -> str:
        if isinstance(self.source, Variable):
            return f"<Address in ${self.source.name}>"
        return f"<Address {self.host}>"


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)


def _is_factory(credential: Any) -> bool:
    """A class is one, although it has a `get_token` like what it makes."""
    return isinstance(credential, type) or (
        callable(credential) and not hasattr(credential, "get_token")
    )


def _from_environment(name: str) -> str:
    text = os.environ.get(name, "").strip()
    if not text:
        raise OptionsError(
            f"the environment variable {name} is not set; it should hold a connection string, on "
            "the driver and in the Python processes of the executors"
        )
    return text


def _parsed(text: str, what: str) -> Settings:
    try:
        return parse_connection_string(text)
    except ValueError as error:
        # Not chained: what is chained might quote what should not be quoted.
        raise OptionsError(f"{what}: {error}") from None
