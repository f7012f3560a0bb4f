"""Prometheus metrics: their text, and where they are."""

from __future__ import annotations

import pytest

from pairbus.cli.http import metrics_url, parse_metrics
from pairbus.errors import NamespaceError, UsageError

TEXT = r"""
# HELP a What it is.
# TYPE a counter
a_total 5.0
b{x="1",y="a \"b\" \\ c\nd, e}"} 1e3 1700000000000
c{} +Inf
"""


def test_samples_are_read() -> None:
    first, second, third = parse_metrics(TEXT)

    assert (first.name, first.labels, first.value) == ("a_total", {}, 5.0)
    assert (second.name, second.value) == ("b", 1000.0)
    assert second.labels == {"x": "1", "y": 'a "b" \\ c\nd, e}'}
    assert (third.name, third.value) == ("c", float("inf"))


@pytest.mark.parametrize("text", ["<html>no metrics</html>", 'a{x="1" 7', "a five"])
def test_what_is_not_prometheus_text_is_refused(text: str) -> None:
    with pytest.raises(NamespaceError, match="it does not answer with Prometheus metrics: "):
        list(parse_metrics(text))


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("localhost:9100", "http://localhost:9100/metrics"),
        ("http://h:1/", "http://h:1/metrics"),
        ("https://h/own?x=1", "https://h/own?x=1"),
    ],
)
def test_an_address_means_its_metrics(text: str, url: str) -> None:
    assert metrics_url(text) == url


@pytest.mark.parametrize(
    "text", ["", "nonsense", "ftp://h", "http://", "http://h:x", "http://[h", "h:x", "a..b:1"]
)
def test_what_is_not_a_url_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a URL: use http://HOST:PORT/metrics"):
        metrics_url(text)
