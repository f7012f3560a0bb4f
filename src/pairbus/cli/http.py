"""The HTTP client of the commands, for requests that the SDK does not support, and for Prometheus
metrics.

The standard library's client: no proxies between a machine and itself, bounded answers, and a
request on an open connection can be timed.
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from string import punctuation
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote, urlsplit

from pairbus.cli.target import Target, bearer_token, why_unreachable
from pairbus.errors import NamespaceError, UsageError
from pairbus.fast.connection_string import split_host

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

_BYTES_MAX: Final = 16 * 1024 * 1024
_TOKEN_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    reason: str
    body: bytes


class HttpClient(AbstractContextManager["HttpClient"]):
    """One connection, opened by the first request."""

    def __init__(
        self, host: str, port: int | None, *, tls: ssl.SSLContext | None, seconds: float
    ) -> None:
        self._connection = (
            http.client.HTTPConnection(host, port, timeout=seconds)
            if tls is None
            else http.client.HTTPSConnection(host, port, timeout=seconds, context=tls)
        )

    @classmethod
    def for_target(cls, target: Target, *, seconds: float) -> Self:
        # Like the SDK, do not use TLS for an emulator.
        is_plain = target.is_emulator and target.is_local
        tls = None if is_plain else ssl.create_default_context(cafile=target.ca_file)
        return cls(target.host, target.port, tls=tls, seconds=seconds)

    @classmethod
    def for_url(cls, url: str, *, seconds: float) -> Self:
        parts = urlsplit(url)
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        return cls(parts.hostname or "", parts.port, tls=tls, seconds=seconds)

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """Raises NamespaceError with the reason only. The caller adds the address."""
        try:
            self._connection.request(method, path, body, dict(headers or {}))
            response = self._connection.getresponse()
            return HttpResponse(response.status, response.reason, response.read(_BYTES_MAX))
        except (OSError, http.client.HTTPException) as error:
            raise NamespaceError(why_unreachable(error)) from error


def authorization(target: Target) -> str:
    """The header of that name. Raises NamespaceError."""
    # Use the broker's signing code: the fast client's would load the SDK.
    from pairbus.broker.entities.policies import Policy, Right
    from pairbus.broker.links.tokens import make_token

    if target.identity is not None:
        return f"Bearer {bearer_token(target)}"
    if signature := target.signature.reveal():
        return signature
    # The rights have no effect here: a signature does not contain them, and the broker knows those
    # of its own policy.
    policy = Policy(
        name=target.policy_name, key=target.key.reveal(), rights=frozenset({Right.MANAGE})
    )
    return make_token(
        policy, audience=f"sb://{target.address}/", expires_at=time.time() + _TOKEN_SECONDS
    )


# -- Prometheus ----------------------------------------------------------------------------------


def metrics_url(text: str) -> str:
    """Adds /metrics to `host:9090` and `http://host:9090`. Raises UsageError."""
    has_scheme = "//" in text
    url = text.strip() if has_scheme else f"http://{text.strip()}"
    try:
        host, port = split_host(url)
        is_url = bool(host) and (has_scheme or port is not None)
    except ValueError:
        is_url = False
    if not is_url or urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"--metrics {text!r} is not a URL: use http://HOST:PORT/metrics")
    return url if urlsplit(url).path not in ("", "/") else f"{url.rstrip('/')}/metrics"


def scrape(url: str, *, seconds: float) -> list[Sample]:
    """The metrics that a process publishes. Raises NamespaceError."""
    return list(parse_metrics(fetch_metrics(url, seconds=seconds)))


def fetch_metrics(url: str, *, seconds: float) -> str:
    """Raises NamespaceError."""
    parts = urlsplit(url)
    path = quote(parts.path + (f"?{parts.query}" if parts.query else ""), safe=punctuation)
    with HttpClient.for_url(url, seconds=seconds) as client:
        response = client.request("GET", path, headers={"Accept": "text/plain"})
    if response.status != http.HTTPStatus.OK:
        raise NamespaceError(f"it answers with {response.status} {response.reason}")
    return response.body.decode("utf-8", "replace")


def parse_metrics(text: str) -> Iterator[Sample]:
    """Raises NamespaceError for a line that it cannot read, like Prometheus."""
    from prometheus_client.parser import text_string_to_metric_families

    families: Any = text_string_to_metric_families(text)
    try:
        for family in families:
            yield from family.samples
    except ValueError as error:
        raise NamespaceError(f"it does not answer with Prometheus metrics: {error}") from error
