"""Where a namespace is and how to connect to it, in a form that can be sent to Spark's tasks.

A pickled address contains its secret; a printed one never does. A connection string from the
environment, or a credential from a factory, is fetched in the process that connects and is never
sent. Imports neither Spark nor the SDK, so that a command that only parses starts quickly.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from pairbus.errors import OptionsError

if TYPE_CHECKING:
    from pairbus.fast.client import FastClient

_FORM: Final = "Endpoint=sb://HOST/;SharedAccessKeyName=NAME;SharedAccessKey=KEY"


class Secret:
    """A string that does not show in a `repr`, an f-string or a traceback's locals."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionString:
    """The parts of a connection string."""

    text: Secret
    host: str
    port: int | None
    policy_name: str
    key: Secret
    signature: Secret
    is_emulator: bool
    """UseDevelopmentEmulator=true: AMQP without TLS, on the port of the Endpoint."""
    entity_path: str | None
    """The only entity that the string may be used for."""

    @classmethod
    def parse(cls, text: str, **more: Any) -> Self:
        """Raise OptionsError, which never quotes a key, if `text` is no connection string."""
        parts = _parts(text)
        host, port = _endpoint(parts.get("endpoint") or parts.get("hostname") or "")
        name, key = parts.get("sharedaccesskeyname", ""), parts.get("sharedaccesskey", "")
        signature = parts.get("sharedaccesssignature", "")
        if not signature and not (name and key):
            raise OptionsError(
                "the connection string has neither SharedAccessKeyName and SharedAccessKey nor "
                f"SharedAccessSignature; its form is {_FORM}"
            )
        if signature and key:
            raise OptionsError(
                "the connection string has a SharedAccessKey and a SharedAccessSignature; "
                "remove one of them"
            )
        return cls(
            text=Secret(text.strip()),
            host=host,
            port=port,
            policy_name=name,
            key=Secret(key),
            signature=Secret(signature),
            is_emulator=parts.get("usedevelopmentemulator", "").lower() == "true",
            entity_path=parts.get("entitypath") or None,
            **more,
        )

    @property
    def address(self) -> str:
        """The host, with the port if the string has one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    def credential(self) -> Any:
        """The credential in the form of the SDK."""
        from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

        signature = self.signature.reveal()
        if signature:
            return AzureSasCredential(signature)
        return AzureNamedKeyCredential(self.policy_name, self.key.reveal())


def _parts(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in text.strip().strip(";").split(";"):
        name, equals, value = part.partition("=")
        if not equals:
            raise OptionsError(f"the connection string has a part without '='; its form is {_FORM}")
        parts[name.strip().lower()] = value.strip()
    return parts


def _endpoint(text: str) -> tuple[str, int | None]:
    if not text:
        raise OptionsError(f"the connection string has no Endpoint; its form is {_FORM}")
    # With a ';' missing behind it, the Endpoint has swallowed the key.
    shown = "of the connection string" if "=" in text else repr(text)
    try:
        host, port = split_host(text)
    except ValueError:
        raise OptionsError(f"the Endpoint {shown} is not a URL; its form is sb://HOST/") from None
    if not host:
        raise OptionsError(f"the Endpoint {shown} names no host; its form is sb://HOST/")
    return host, port


def split_host(text: str) -> tuple[str, int | None]:
    """Split a host with or without scheme and port; the host may be empty. Raise ValueError."""
    parts = urlsplit(text if "//" in text else f"sb://{text}")
    return parts.hostname or "", parts.port


def check_entity_path(path: str, entity_path: str | None) -> None:
    """Raise OptionsError if a connection string for one entity is used for another."""
    if entity_path and not f"{path}/".lower().startswith(f"{entity_path}/".lower()):
        raise OptionsError(
            f"the connection string is for EntityPath {entity_path!r} only, not for {path!r}"
        )


@dataclass(frozen=True, slots=True)
class FromEnvironment:
    """The environment variable that holds a connection string."""

    name: str

    def read(self) -> ConnectionString:
        text = os.environ.get(self.name, "").strip()
        if not text:
            raise OptionsError(
                f"the environment variable {self.name} is not set; it must hold a connection "
                "string, on the driver and in the Python processes of the executors"
            )
        try:
            return ConnectionString.parse(text)
        except OptionsError as error:
            # Not chained: a chained error might quote a secret.
            raise OptionsError(f"in the environment variable {self.name}, {error}") from None


@dataclass(frozen=True, slots=True)
class WithCredential:
    """A credential of azure-identity's kind, or a function without arguments that makes one.

    The function is called once for each connection, in the process that connects.
    """

    namespace: str
    credential: Any
    use_tls: bool = True

    def __repr__(self) -> str:
        return f"WithCredential({self.namespace!r}, {type(self.credential).__name__})"

    def make(self) -> Any:
        return self.credential() if _is_factory(self.credential) else self.credential


@dataclass(frozen=True, slots=True)
class Address:
    """One namespace and how to connect to it. Make one with a `from_...` method."""

    source: ConnectionString | FromEnvironment | WithCredential
    ca_file: str | None = None
    """PEM file of the authorities to trust. None: those of the `certifi` package."""
    port: int | None = None
    """None: 5671, or the port in an emulator's connection string."""

    @classmethod
    def from_connection_string(
        cls, text: str, *, ca_file: object = None, port: int | None = None
    ) -> Self:
        """Raise OptionsError, without quoting the text, if it is no connection string."""
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
        """`credential` is pickled for the tasks; a class or function that makes one is better."""
        if not namespace or "/" in namespace or "=" in namespace:
            raise OptionsError(
                "expected the host of a namespace, such as contoso.servicebus.windows.net"
            )
        return cls(WithCredential(namespace, credential, use_tls), _text_or_none(ca_file), port)

    @property
    def host(self) -> str:
        """The host, with its port if there is one. An environment variable must be set."""
        if isinstance(self.source, WithCredential):
            return self.source.namespace
        return self._string().address

    @property
    def entity_path(self) -> str | None:
        """The only entity that the connection string may be used for, if it names one."""
        return None if isinstance(self.source, WithCredential) else self._string().entity_path

    def client(self, **options: Any) -> FastClient:
        """Make a client, not connected yet. `options` are FastClient's, e.g. timeout_seconds."""
        from pairbus.fast.client import FastClient

        where: dict[str, Any] = {"port": self.port, "ca_file": self.ca_file}
        if isinstance(self.source, WithCredential):
            namespace, credential = self.source.namespace, self.source.make()
            where["use_tls"] = self.source.use_tls
        else:
            string = self._string()
            namespace, credential = string.address, string.credential()
            where |= {"use_tls": not string.is_emulator, "entity_path": string.entity_path}
        return FastClient(namespace, credential, **where, **options)

    def _string(self) -> ConnectionString:
        assert not isinstance(self.source, WithCredential)
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
