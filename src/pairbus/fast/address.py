"""Where a namespace is and how to connect to it, in a form that can be sent to Spark's tasks.

A pickled address contains its secret; a printed one never does. A connection string from the
environment is read in the process that connects and is never sent. The same holds for the
credential of an identity: its name is sent, and each process logs in by itself. In place of a
credential object, its current token is sent. Neither Spark nor the SDK is imported before a client
is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pairbus.errors import OptionsError
from pairbus.fast.connection_string import ConnectionString
from pairbus.fast.identity import requirement

if TYPE_CHECKING:
    from pairbus.fast.client import FastClient


@dataclass(frozen=True, slots=True)
class FromEnvironment:
    """The environment variable that holds a connection string or a host name."""

    name: str

    def read(self) -> ConnectionString:
        text = os.environ.get(self.name, "").strip()
        if not text:
            raise OptionsError(
                f"the environment variable {self.name} is not set; it must hold a connection "
                "string or a host name, on the driver and in the Python processes of the executors"
            )
        try:
            return ConnectionString.parse(text)
        except OptionsError as error:
            # Not chained: a chained error might quote a secret.
            raise OptionsError(f"in the environment variable {self.name}, {error}") from None


@dataclass(frozen=True, slots=True)
class WithCredential:
    """A credential of azure-identity's kind, or a function without arguments that makes one.

    The function is called once in each process that connects.
    """

    address: str
    source: Any
    use_tls: bool = True
    tls_port: ClassVar[None] = None
    entity_path: ClassVar[None] = None

    def __repr__(self) -> str:
        return f"WithCredential({self.address!r}, {type(self.source).__name__})"

    @property
    def identity_name(self) -> str | None:
        """The name of the identity's credential, for errors; None: it is a key or a signature."""
        if _is_factory(self.source):
            return str(getattr(self.source, "__name__", type(self.source).__name__))
        return getattr(self.source, "name", None)  # of a TokenCache, or what is pickled for it

    def credential(self) -> Any:
        if not _is_factory(self.source):
            return self.source
        from pairbus.fast.token_cache import login

        return login(self.source)


@dataclass(frozen=True, slots=True)
class Address:
    """One namespace and how to connect to it. Make one with a `from_...` method."""

    source: ConnectionString | FromEnvironment | WithCredential
    ca_file: str | None = None
    """PEM file of the authorities to trust. None: that of SSL_CERT_FILE in the process that
    connects, or those of the `certifi` package.
    """
    port: int | None = None
    """None: 5671, or the port of a host name or of an emulator's connection string."""

    @classmethod
    def from_connection_string(
        cls, text: str, *, ca_file: object = None, port: int | None = None
    ) -> Self:
        """A connection string, or a host name. Raise OptionsError, without quoting the text, if it
        is neither.
        """
        return cls(ConnectionString.parse(text), _text_or_none(ca_file), port)

    @classmethod
    def from_env(cls, name: str, *, ca_file: object = None, port: int | None = None) -> Self:
        """The variable is read in each process that connects."""
        if not name:
            raise OptionsError("expected the name of an environment variable, not ''")
        return cls(FromEnvironment(name), _text_or_none(ca_file), port)

    @classmethod
    def from_credential(
        cls,
        namespace: str,
        credential: Any | Callable[[], Any],
        *,
        use_tls: bool = True,
        ca_file: object = None,
        port: int | None = None,
    ) -> Self:
        """With a class or function that makes a credential, each process of Spark logs in by
        itself. In place of a credential object, each task gets its current token.
        """
        if not namespace or "/" in namespace or "=" in namespace:
            raise OptionsError(
                "expected the host of a namespace, such as contoso.servicebus.windows.net"
            )
        if not _is_factory(credential):
            from pairbus.fast.token_cache import cached

            credential = cached(credential)
        return cls(WithCredential(namespace, credential, use_tls), _text_or_none(ca_file), port)

    @property
    def host(self) -> str:
        """The host, with its port if there is one. An environment variable must be set."""
        return self._read().address

    @property
    def entity_path(self) -> str | None:
        """The only entity that the connection string may be used for, if it names one."""
        return self._read().entity_path

    def needs(self, right: str) -> str:
        """What the login must have, as a sentence for an error."""
        name = self._read().identity_name
        if name is None:
            return f"The policy needs the {right} right"
        return f"The identity of {name} needs {requirement(right)}"

    def client(self, **options: Any) -> FastClient:
        """Make a client, not connected yet. `options` are FastClient's, e.g. timeout_seconds."""
        from pairbus.fast.client import FastClient

        source = self._read()
        return FastClient(
            source.address,
            source.credential(),
            use_tls=source.use_tls,
            port=self.port or source.tls_port,
            ca_file=self.ca_file,
            entity_path=source.entity_path,
            **options,
        )

    def refresh(self, client: FastClient) -> None:
        """Give an older client of the same namespace this address's credential. In place of a
        credential object, an address carries a token, which expires.
        """
        if isinstance(self.source, WithCredential):
            client.use_credential(self.source.credential())

    def _read(self) -> ConnectionString | WithCredential:
        return self.source.read() if isinstance(self.source, FromEnvironment) else self.source

    def __repr__(self) -> str:
        if isinstance(self.source, FromEnvironment):
            return f"<Address in ${self.source.name}>"
        return f"<Address {self.host}>"


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)


def _is_factory(credential: Any) -> bool:
    """A class is a factory, although it has a `get_token` like its instances."""
    return isinstance(credential, type) or (
        callable(credential) and not hasattr(credential, "get_token")
    )
