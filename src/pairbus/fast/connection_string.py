"""The one parser of connection strings, and of host names in their place.

It imports no SDK, so a command that only parses starts fast.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import urlsplit

from pairbus.errors import OptionsError
from pairbus.fast.identity import Identity, requirement

_FORM: Final = "Endpoint=sb://HOST/;SharedAccessKeyName=NAME;SharedAccessKey=KEY"
_WORDS: Final = (
    "Endpoint",
    "SharedAccessKeyName",
    "SharedAccessKey",
    "SharedAccessSignature",
    "EntityPath",
    "UseDevelopmentEmulator",
)
_NO_TEXT: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_HOST: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", re.IGNORECASE)


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


_EMPTY: Final = Secret("")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionString:
    """The parts of a connection string, or a host name whose client logs in with an identity."""

    text: Secret
    """As the SDK understands it, which is stricter: it takes only `true`, and only `sb://HOST`."""
    host: str
    port: int | None
    policy_name: str = ""
    key: Secret = _EMPTY
    signature: Secret = _EMPTY
    identity: Identity | None = None
    """What logs in, if there is no key and no signature."""
    is_emulator: bool = False
    """UseDevelopmentEmulator=true: AMQP without TLS, on the port of the Endpoint."""
    entity_path: str | None = None
    """The only entity that the string may be used for."""

    @classmethod
    def parse(cls, text: str, **more: Any) -> Self:
        """Raise OptionsError, which never quotes a key, if `text` is neither."""
        if "=" not in text:
            identity = Identity.from_environment()
            return cls.of_host(text, identity, **more)
        parts = _parts(text)
        endpoint = parts.get("endpoint") or parts.get("hostname")
        if not endpoint:
            raise OptionsError(
                f"the connection string has no Endpoint; its form is {_FORM}{_misspelled(parts)}"
            )
        host, port = _endpoint(endpoint)
        name, key = parts.get("sharedaccesskeyname", ""), parts.get("sharedaccesskey", "")
        signature = parts.get("sharedaccesssignature", "")
        if not signature and not (name and key):
            raise OptionsError(
                "the connection string has neither SharedAccessKeyName and SharedAccessKey nor "
                f"SharedAccessSignature; its form is {_FORM}{_misspelled(parts)}"
            )
        if signature and key:
            raise OptionsError(
                "the connection string has a SharedAccessKey and a SharedAccessSignature; "
                "remove one of them"
            )
        is_emulator = parts.get("usedevelopmentemulator", "").lower() == "true"
        return cls(
            text=Secret(_sdk_text(parts, host, port, is_emulator=is_emulator)),
            host=host,
            port=port,
            policy_name=name,
            key=Secret(key),
            signature=Secret(signature),
            is_emulator=is_emulator,
            entity_path=parts.get("entitypath") or None,
            **more,
        )

    @classmethod
    def of_host(cls, text: str, identity: Identity, **more: Any) -> Self:
        """Raise OptionsError, without quoting the text, if it is not the host of a namespace."""
        try:
            host, port = split_host(text.strip())
        except ValueError:
            host, port = "", None
        if not _is_host(host, text, port):
            raise OptionsError(
                f"expected a connection string, whose form is {_FORM}, or the host name of a "
                "namespace, such as contoso.servicebus.windows.net"
            )
        return cls(text=Secret(text.strip()), host=host, port=port, identity=identity, **more)

    @property
    def address(self) -> str:
        """The host, with the port if the string has one."""
        return _join_host(self.host, self.port)

    @property
    def use_tls(self) -> bool:
        return not self.is_emulator

    @property
    def tls_port(self) -> int | None:
        """The port, if this is a host name. None for a connection string: it is 5671, or, without
        TLS, in the address.
        """
        return None if self.identity is None else self.port

    @property
    def identity_name(self) -> str | None:
        return None if self.identity is None else self.identity.attribute

    def credential(self) -> Any:
        """The credential in the form of the SDK."""
        if self.identity is not None:
            from pairbus.fast.token_cache import login

            return login(self.identity)
        from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

        signature = self.signature.reveal()
        if signature:
            return AzureSasCredential(signature)
        return AzureNamedKeyCredential(self.policy_name, self.key.reveal())

    def rejection(self, right: str, what: str = "") -> str:
        """The text for a namespace that refuses the login. `what`: the entity that it is for."""
        where = f" for {what}" if what else ""
        if self.identity is not None:
            return (
                f"{self.address} rejected the identity of {self.identity.attribute}: check that it "
                f"has {requirement(right)}{where}. A new role takes some minutes to apply"
            )
        if self.signature.reveal():
            return (
                f"{self.address} rejected the shared access signature: check that it has not "
                f"expired, and that the policy has the {right} right{where}"
            )
        return (
            f"{self.address} rejected policy {self.policy_name!r}: check the key, and that the "
            f"policy has the {right} right{where}"
        )


def _parts(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in text.strip().strip(";").split(";"):
        name, equals, value = part.partition("=")
        if not equals:
            raise OptionsError(f"the connection string has a part without '='; its form is {_FORM}")
        parts[name.strip().lower()] = value.strip()
    # Each library that signs or sends them would report it in its own way, or not at all.
    if any(map(_NO_TEXT.search, parts.values())):
        raise OptionsError("the connection string has a control character, or is not UTF-8")
    if not parts.get("sharedaccesssignature", "").isascii():
        raise OptionsError("the SharedAccessSignature of the connection string is not ASCII")
    return parts


def _misspelled(parts: dict[str, str]) -> str:
    """Other unknown words are not shown: a key in the wrong place could be one."""
    known = {word.lower(): word for word in _WORDS}
    for name in parts.keys() - known.keys():
        for close in difflib.get_close_matches(name, known, n=1, cutoff=0.8):
            return f". It has {name!r}: did you mean {known[close]}?"
    return ""


def _sdk_text(parts: dict[str, str], host: str, port: int | None, *, is_emulator: bool) -> str:
    names = ("SharedAccessKeyName", "SharedAccessKey", "SharedAccessSignature", "EntityPath")
    own = {name: parts[name.lower()] for name in names if parts.get(name.lower())}
    own = {"Endpoint": f"sb://{_join_host(host, port)}/", **own}
    if is_emulator:
        own["UseDevelopmentEmulator"] = "true"
    return ";".join(f"{name}={value}" for name, value in own.items())


def _join_host(host: str, port: int | None) -> str:
    host = f"[{host}]" if ":" in host else host
    return host if port is None else f"{host}:{port}"


def _endpoint(text: str) -> tuple[str, int | None]:
    # If the ';' after it is missing, the Endpoint contains the key.
    shown = "of the connection string" if "=" in text else repr(text)
    try:
        host, port = split_host(text)
    except ValueError as error:
        why = "" if "=" in text else f" ({error})"
        raise OptionsError(
            f"the Endpoint {shown} is not a URL{why}; its form is sb://HOST/"
        ) from None
    if not host:
        raise OptionsError(f"the Endpoint {shown} names no host; its form is sb://HOST/")
    return host, port


def _is_host(host: str, text: str, port: int | None) -> bool:
    """A single word could be a mistyped key, or only the first label of a name."""
    try:
        ipaddress.ip_address(host)
        return True
    except ValueError:
        pass
    rest = text.strip().partition("//")[2] or text.strip()
    is_alone = rest.rstrip("/").lower() in (host, f"{host}:{port}")
    is_clear = "." in host or port is not None or host == "localhost"
    return is_alone and is_clear and _HOST.fullmatch(host) is not None


def split_host(text: str) -> tuple[str, int | None]:
    """Split a host with or without scheme and port; the host may be empty. Raise ValueError."""
    parts = urlsplit(text if "//" in text else f"sb://{text}")
    host, port = parts.hostname or "", parts.port
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError("a part of the host name is empty or too long") from None
    return host, port


def check_entity_path(path: str, entity_path: str | None) -> None:
    """Raise OptionsError if a connection string for one entity is used for another."""
    if entity_path and not f"{path}/".lower().startswith(f"{entity_path}/".lower()):
        raise OptionsError(
            f"the connection string is for EntityPath {entity_path!r} only, not for {path!r}"
        )
