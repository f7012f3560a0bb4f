"""The guard in front of the page: who gets in, and what a browser gets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pairbus.dashboard.security import (
    COOKIE,
    WRONG_TOKENS_MAX,
    WRONG_TOKENS_SECONDS,
    Access,
    Guard,
    LoginSessions,
)
from pairbus.testing import ManualClock

TOKEN = "correct horse battery staple"
HOST = "127.0.0.1:8765"
ORIGIN = f"http://{HOST}"
PAGE = b"<html><script>1</script><style>a</style><div>&lt;script&gt;</div></html>"

pytestmark = pytest.mark.req("X-09")


async def page(scope: Any, receive: Any, send: Any) -> None:
    """Stands for nicegui."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            await send({"type": "websocket.send", "text": "hello"})
        return
    names = [name for name, _ in scope["headers"]]
    assert b"x-forwarded-prefix" not in names
    headers = [(b"content-type", b"text/html"), (b"content-length", b"1")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": PAGE[:20], "more_body": True})
    await send({"type": "http.response.body", "body": PAGE[20:]})


class Visitor:
    def __init__(self, *, token: str | None = None, hosts: frozenset[str] | None = None) -> None:
        self.clock = ManualClock()
        self.sessions = LoginSessions(60.0, clock=self.clock)
        access = Access(hosts=hosts or frozenset({HOST}), scheme="http", token=token)
        self.guard = Guard(page, access, self.sessions)

    def ask(
        self, path: str = "/", method: str = "GET", body: bytes = b"", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        scope = {
            "type": "http",
            "path": path,
            "method": method,
            "headers": _encoded({"host": HOST, **headers}),
        }
        sent = self._run(scope, [{"type": "http.request", "body": body}])
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], found, b"".join(one.get("body", b"") for one in sent)

    def open_socket(self, **headers: str) -> list[str]:
        """The types of the events that the guard lets out."""
        scope = {"type": "websocket", "path": "/ws", "headers": _encoded({"host": HOST, **headers})}
        events = [{"type": one} for one in ("websocket.connect", "websocket.receive")]
        return [
            one["type"] for one in self._run(scope, [*events, {"type": "websocket.disconnect"}])
        ]

    def _run(self, scope: dict[str, Any], events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return events.pop(0)

        async def send(event: dict[str, Any]) -> None:
            sent.append(event)

        asyncio.run(self.guard(scope, receive, send))
        return sent

    def log_in(self, token: str = TOKEN) -> tuple[int, str]:
        body = f"token={token.replace(' ', '+')}".encode()
        status, headers, _ = self.ask("/login", "POST", body, origin=ORIGIN)
        return status, headers.get("set-cookie", "").partition(";")[0]


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]


def test_a_page_gets_a_policy_and_a_nonce_of_its_own() -> None:
    visitor = Visitor()
    status, headers, body = visitor.ask(x_forwarded_prefix="/evil")
    policy = headers["content-security-policy"]
    nonce = policy.partition("'nonce-")[2].partition("'")[0]
    assert status == 200
    assert f'<script nonce="{nonce}">' in body.decode()
    assert f'<style nonce="{nonce}">' in body.decode()
    assert b"&lt;script&gt;" in body
    assert headers["content-length"] == str(len(body))
    assert headers["x-frame-options"] == "DENY"
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "http:" not in policy
    assert "*" not in policy
    assert nonce not in visitor.ask()[1]["content-security-policy"]


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {}, 200),
        ("GET", {"host": "evil.example:8765"}, 403),  # DNS rebinding
        ("GET", {"host": "127.0.0.1"}, 403),
        ("GET", {"origin": ORIGIN}, 200),
        ("GET", {"origin": "http://evil.example"}, 403),
        ("GET", {"origin": "null"}, 403),
        ("GET", {"sec_fetch_site": "same-origin", "sec_fetch_mode": "cors"}, 200),
        ("GET", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}, 403),
        ("GET", {"sec_fetch_site": "same-site", "sec_fetch_mode": "cors"}, 403),  # another port
        ("GET", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, 200),  # a link
        ("POST", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, 403),
        (
            "GET",
            {
                "sec_fetch_site": "cross-site",
                "sec_fetch_mode": "navigate",
                "sec_fetch_dest": "iframe",
            },
            403,
        ),
        ("POST", {}, 403),
        ("POST", {"origin": ORIGIN}, 200),
    ],
)
def test_requests_from_other_sites_are_refused(
    method: str, headers: dict[str, str], status: int
) -> None:
    assert Visitor().ask("/", method, **headers)[0] == status


@pytest.mark.parametrize("headers", [{}, {"origin": "http://evil.example"}, {"origin": "null"}])
def test_a_websocket_from_elsewhere_is_closed_before_it_opens(headers: dict[str, str]) -> None:
    assert Visitor().open_socket(**headers) == ["websocket.close"]
    assert "websocket.send" in Visitor().open_socket(origin=ORIGIN)


def test_without_a_session_there_is_only_the_login() -> None:
    visitor = Visitor(token=TOKEN)
    status, headers, _ = visitor.ask()
    assert (status, headers["location"]) == (303, "/login")
    assert visitor.ask("/_nicegui/x.js", sec_fetch_mode="no-cors")[0] == 401
    assert visitor.open_socket(origin=ORIGIN) == ["websocket.close"]
    assert b'name="token"' in visitor.ask("/login")[2]


def test_the_token_opens_a_session_that_ends() -> None:
    visitor = Visitor(token=TOKEN)
    assert visitor.log_in("")[0] == 403
    assert visitor.log_in(TOKEN[:-1])[0] == 403
    status, cookie = visitor.log_in()
    assert status == 303
    assert visitor.ask(cookie=cookie)[0] == 200
    assert "websocket.send" in visitor.open_socket(origin=ORIGIN, cookie=cookie)
    assert visitor.ask(cookie=f"{COOKIE}=guessed")[0] == 303
    visitor.clock.advance(61)
    assert visitor.ask(cookie=cookie)[0] == 303
    assert visitor.open_socket(origin=ORIGIN, cookie=cookie) == ["websocket.close"]


def test_the_cookie_is_for_this_site_and_not_for_scripts() -> None:
    visitor = Visitor(token=TOKEN)
    body = f"token={TOKEN.replace(' ', '+')}".encode()
    _, headers, _ = visitor.ask("/login", "POST", body, origin=ORIGIN)
    assert "HttpOnly" in headers["set-cookie"]
    assert "SameSite=strict" in headers["set-cookie"]


def test_wrong_tokens_lock_the_login_for_a_minute() -> None:
    visitor = Visitor(token=TOKEN)
    for _ in range(WRONG_TOKENS_MAX):
        assert visitor.log_in("wrong")[0] == 403
    assert visitor.log_in()[0] == 429
    visitor.clock.advance(WRONG_TOKENS_SECONDS + 1)
    assert visitor.log_in()[0] == 303


def test_a_login_from_another_site_is_refused() -> None:
    visitor = Visitor(token=TOKEN)
    body = f"token={TOKEN.replace(' ', '+')}".encode()
    assert visitor.ask("/login", "POST", body, origin="http://evil.example")[0] == 403
    assert visitor.ask("/login", "POST", body)[0] == 403


@pytest.mark.parametrize("form", [b"token=" + b"x" * 100_000, b"token=a&" * 50, b"\xff%ff"])
def test_a_form_that_no_browser_sends_is_a_wrong_token(form: bytes) -> None:
    assert Visitor(token=TOKEN).ask("/login", "POST", form, origin=ORIGIN)[0] == 403
