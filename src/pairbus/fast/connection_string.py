"""A connection string, read by the SDK's rules. What is wrong with one is said without its key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    namespace: str
    """The host, with its port if the string has one."""
    credential: Any = field(repr=False)
    is_emulator: bool = False
    """Plain AMQP, without TLS."""
    entity_path: str | None = None


def parse_connection_string(text: str) -> Settings:
    pairs: dict[str, str] = {}
    for part in text.strip().rstrip(";").split(";"):
        word, equals, value = part.partition("=")
        if not equals:
            raise ValueError("the connection string has a part without '='; it is key=value;...")
        pairs[word.strip().lower()] = value
    endpoint = pairs.get("endpoint") or pairs.get("hostname") or ""
    host = urlsplit(endpoint).netloc.strip()
    if not host:
        raise ValueError(
            f"the connection string's Endpoint is {endpoint!r}; sb://<host>/ is expected"
        )
    name, key = pairs.get("sharedaccesskeyname"), pairs.get("sharedaccesskey")
    signature = pairs.get("sharedaccesssignature")
    credential: Any
    if signature and not key:
        credential = AzureSasCredential(signature)
    elif name and key and not signature:
        credential = AzureNamedKeyCredential(name, key)
    else:
        raise ValueError(
            "the connection string needs either SharedAccessKeyName and SharedAccessKey, "
            "or SharedAccessSignature"
        )
    return Settings(
        namespace=host,
        credential=credential,
        is_emulator=pairs.get("usedevelopmentemulator") == "true",
        entity_path=pairs.get("entitypath") or None,
    )
