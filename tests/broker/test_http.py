"""The HTTP application, called as a server would call it, without one."""

from __future__ import annotations

import asyncio
import json
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pairbus.broker.http import error_response, make_app
from pairbus.broker.namespace import Namespace

NAMESPACE = cast(Namespace, SimpleNamespace(name="local"))


def ask(method: str, path: str, headers: Any = ()) -> tuple[int, dict[str, str], bytes]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"api-version=2024-05",
        "headers": [(b"host", b"localhost"), *headers],
        "scheme": "http",
        "server": ("localhost", 1),
    }
    asyncio.run(make_app(NAMESPACE)(scope, receive, send))
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answered, b"".join(part.get("body", b"") for part in sent[1:])


def test_health_is_json_that_names_the_namespace() -> None:
    status, headers, body = ask("GET", "/$health")

    assert status == 200
    assert headers["content-type"] == "application/json"
    assert json.loads(body) == {"status": "ok", "namespace": "local"}


@pytest.mark.parametrize("path", ["/orders", "/$Resources/queues", "/a%2Fb/subscriptions/s"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_all_else_is_administration_and_needs_a_token(method: str, path: str) -> None:
    status, headers, body = ask(method, path)

    assert status == 401
    assert "SharedAccessSignature" in headers["www-authenticate"]
    # The official clients parse a body only if its type says xml (PROTOCOL 7.1).
    assert "xml" in headers["content-type"]
    assert re.fullmatch(
        r"<Error><Code>401</Code><Detail>MissingToken: [^<]+\. TrackingId:[0-9a-f-]{36}"
        r"</Detail></Error>",
        body.decode(),
    )


def test_a_wrong_method_says_so() -> None:
    status, headers, body = ask("PUT", "/$health")

    assert status == 405
    assert "GET" in headers["allow"]
    assert b"<Code>405</Code><Detail>PUT is not possible at /$health." in body


def test_what_nobody_expected_is_told_without_its_inside() -> None:
    # This namespace has no policies to ask for, which is a mistake of ours.
    with pytest.raises(AttributeError):
        ask("GET", "/orders", [(b"authorization", b"x")])


def test_nothing_that_a_client_sends_breaks_the_xml() -> None:
    _, _, body = ask("GET", "/$a<b>&\x01\n" + "c" * 500)

    assert b"There is no resource &#x27;$a&lt;b&gt;&amp;ccc" in body.replace(b"'", b"&#x27;")
    assert len(body) < 500


def test_a_detail_ends_in_one_full_stop() -> None:
    body = bytes(error_response(409, "It exists.").body)

    assert body.startswith(b"<Error><Code>409</Code><Detail>It exists. TrackingId:")
