"""Prometheus' text format, as far as it is needed to read a few numbers: fetched, and parsed."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from pairbus.cli.reasons import why_unreachable
from pairbus.errors import NamespaceError, UsageError

_BYTES_MAX: Final = 16 * 1024 * 1024
_LINE: Final = re.compile(
    r"(?P<name>[a-zA-Z_:][\w:]*)\s*(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?"
)
_LABEL: Final = re.compile(r'([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?\s*')
_ESCAPES: Final = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    labels: Mapping[str, str]
    value: float


def parse_metrics(text: str) -> Iterator[Sample]:
    """What cannot be read is passed over: other programs' metrics may be among them."""
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        yield Sample(match["name"], dict(_labels(match["labels"] or "")), value)


def _labels(text: str) -> Iterator[tuple[str, str]]:
    for match in _LABEL.finditer(text):
        yield match[1], re.sub(r"\\[\\\"n]", lambda found: _ESCAPES[found[0]], match[2])


def check_url(text: str) -> str:
    """`host:9090` and `http://host:9090` mean its /metrics. Raises UsageError."""
    url = text.strip() if "//" in text else f"http://{text.strip()}"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--metrics {text!r} is no URL: http://HOST:PORT/metrics is expected")
    return url if parts.path not in ("", "/") else f"{url.rstrip('/')}/metrics"


def fetch(url: str, *, seconds: float) -> str:
    """Raises NamespaceError."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    assert parts.hostname is not None
    connection = kind(parts.hostname, parts.port, timeout=seconds)
    try:
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"Accept": "text/plain"})
        response = connection.getresponse()
        data = response.read(_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise NamespaceError(why_unreachable(error)) from error
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        raise NamespaceError(f"it answers with {response.status} {response.reason}")
    return data.decode("utf-8", "replace")
