"""Who may see the dashboard: a guard in front of the page, for HTTP and for its WebSocket.

docs/dashboard.md lists what it checks. The page itself is nicegui's, and loads nothing from outside
of the machine; the headers tell the browser so.
"""

from __future__ import annotations

import hmac
import html
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE: Final = "pairbus_session"
SESSION: Final = "pairbus.session"
"""The key of a session's id in the scope of a request."""
LOGIN_PATH: Final = "/login"
SESSIONS_MAX: Final = 1000
WRONG_TOKENS_MAX: Final = 10
WRONG_TOKENS_SECONDS: Final = 60.0
FORM_BYTES_MAX: Final = 4096
_NOT_PASSED_ON: Final = (b"x-forwarded-prefix",)  # nicegui would put it into the page
_POLICY_VIOLATION: Final = 1008


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What the guard lets in."""

    hosts: frozenset[str] | None
    """Allowed values of the header Host, in lower case; None: all."""
    scheme: str
    """`https` with a certificate, or behind a proxy that has one."""
    token: str | None = None
    """None: everybody who can connect, which is only this machine."""


class LoginSessions:
    """The logins, and until when each is valid. In memory, so a restart ends all sessions."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        """How long a login is valid."""
        self._clock = clock
        self._until: dict[str, float] = {}
        self._wrong: deque[float] = deque(maxlen=WRONG_TOKENS_MAX)

    def open(self) -> str:
        now = self._clock()
        self._until = {name: until for name, until in self._until.items() if until > now}
        while len(self._until) >= SESSIONS_MAX:
            del self._until[next(iter(self._until))]  # the oldest
        session = secrets.token_urlsafe(32)
        self._until[session] = now + self.seconds
        return session

    def is_open(self, session: str | None) -> bool:
        return self._until.get(session or "", 0.0) > self._clock()

    @property
    def is_locked(self) -> bool:
        """Too many wrong tokens within a minute."""
        since = self._clock() - WRONG_TOKENS_SECONDS
        return len(self._wrong) == WRONG_TOKENS_MAX and self._wrong[0] > since

    def note_wrong_token(self) -> None:
        self._wrong.append(self._clock())


class Guard:
    """Checks every request before the page sees it, and adds security headers to every answer."""

    def __init__(self, app: ASGIApp, access: Access, sessions: LoginSessions) -> None:
        self._app = app
        self._access = access
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        scope["headers"] = [one for one in scope["headers"] if one[0] not in _NOT_PASSED_ON]
        request = HTTPConnection(scope)
        headers = request.headers
        scope[SESSION] = session = request.cookies.get(COOKIE)
        problem = self._problem(scope, headers)
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send, problem, session)
            return
        send = _with_headers(send, self._access, headers.get("host", ""))
        if problem is not None:
            await PlainTextResponse(problem, 403)(scope, receive, send)
        elif self._access.token is None:
            await self._app(scope, receive, send)
        elif scope["path"] == LOGIN_PATH:
            response = await self._login(scope, receive)
            await response(scope, receive, send)
        elif self._sessions.is_open(session):
            await self._app(scope, receive, send)
        elif headers.get("sec-fetch-mode", "navigate") == "navigate" and scope["method"] == "GET":
            await RedirectResponse(LOGIN_PATH, 303)(scope, receive, send)
        else:
            await PlainTextResponse("log in first", 401)(scope, receive, send)

    def _problem(self, scope: Scope, headers: Mapping[str, str]) -> str | None:
        """Why a request is refused, with or without a session; None if it is not."""
        host = headers.get("host", "").lower()
        if self._access.hosts is not None and host not in self._access.hosts:
            # Otherwise a page of another site could reach this one under a name of its own.
            return f"the dashboard is not served under the name {host!r}"
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"{self._access.scheme}://{host}":
            return "requests from other sites are refused"
        is_socket = scope["type"] == "websocket"
        if origin is None and (is_socket or scope["method"] not in ("GET", "HEAD")):
            return "the request has no Origin"
        # A link may lead here. A frame would not be shown, but each would cost a page's memory.
        is_link = (
            not is_socket
            and scope["method"] == "GET"
            and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest", "document") == "document"
        )
        is_foreign = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if is_foreign and not is_link:
            return "requests from other sites are refused"
        return None

    async def _websocket(
        self, scope: Scope, receive: Receive, send: Send, problem: str | None, session: str | None
    ) -> None:
        needs_session = self._access.token is not None
        if problem is not None or (needs_session and not self._sessions.is_open(session)):
            await receive()
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return

        async def checked_receive() -> Message:
            event = await receive()
            if needs_session and not self._sessions.is_open(session):
                if event["type"] != "websocket.disconnect":
                    await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
                return {"type": "websocket.disconnect", "code": _POLICY_VIOLATION}
            return event

        await self._app(scope, checked_receive, send)

    # -- login -----------------------------------------------------------------------------------

    async def _login(self, scope: Scope, receive: Receive) -> Response:
        if scope["method"] != "POST":
            return _login_page(200)
        if self._sessions.is_locked:
            return _login_page(429, "Too many wrong tokens. Try again in a minute.")
        form = await _read_form(receive)
        given = form.get("token", [""])[0].strip()
        assert self._access.token is not None
        # Constant time: the answer must not tell how much of a token was right.
        if not hmac.compare_digest(given.encode(), self._access.token.encode()):
            self._sessions.note_wrong_token()
            return _login_page(403, "This is not the token." if given else "Enter the token.")
        response = RedirectResponse("/", 303)
        response.set_cookie(
            COOKIE,
            self._sessions.open(),
            max_age=int(self._sessions.seconds),
            secure=self._access.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return response


async def _read_form(receive: Receive) -> dict[str, list[str]]:
    body = b""
    while len(body) <= FORM_BYTES_MAX:
        event = await receive()
        body += event.get("body", b"")
        if event["type"] != "http.request" or not event.get("more_body"):
            break
    return parse_qs(body[:FORM_BYTES_MAX].decode("utf-8", "replace"))


_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 0; display: grid; place-items: center;
  min-height: 100vh; background: #f5f6f8; color: #1a1d21; }
form { background: #fff; padding: 2rem; border-radius: 12px; width: min(22rem, 85vw);
  box-shadow: 0 1px 4px #0003; }
label, input, button { display: block; width: 100%; box-sizing: border-box; font: inherit; }
input, button { padding: .6rem; margin: .4rem 0 1rem; border-radius: 8px;
  border: 1px solid #767b83; }
button { background: #0b5cad; color: #fff; border: 0; cursor: pointer; }
:focus-visible { outline: 3px solid #f0a020; outline-offset: 2px; }
p { color: #a51d1d; }
@media (prefers-color-scheme: dark) {
  body { background: #14171b; color: #e8eaed; } form { background: #1f2329; }
  input { background: #14171b; color: inherit; } p { color: #ff9a9a; } }
"""


def _login_page(status: int, problem: str = "") -> Response:
    note = f'<p role="alert">{html.escape(problem)}</p>' if problem else ""
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'  # without a session, there is no other
        f"<title>pairbus dashboard: log in</title><style>{_STYLE}</style></head><body><main>"
        '<form method="post" action="/login"><h1>pairbus dashboard</h1>'
        f"{note}"
        '<label for="token">Token</label><input id="token" name="token" type="password" '
        'autocomplete="current-password" required autofocus><button>Log in</button></form></main>'
        "</body></html>"
    )
    return HTMLResponse(page, status, {"cache-control": "no-store"})


# -- headers -------------------------------------------------------------------------------------


def content_security_policy(nonce: str, host: str, scheme: str) -> str:
    """What nicegui's page needs, and nothing from outside of the machine.

    Vue compiles templates in the browser, which needs 'unsafe-eval'. Its components and ECharts set
    style attributes. Scripts and style elements of the page carry the nonce of the answer.
    """
    socket = f"{'wss' if scheme == 'https' else 'ws'}://{host}" if host else "'self'"
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' 'nonce-{nonce}' 'unsafe-eval'",
            f"style-src-elem 'self' 'nonce-{nonce}'",
            "style-src-attr 'unsafe-inline'",
            "img-src 'self' data:",
            "font-src 'self'",
            f"connect-src 'self' {socket}",
            "form-action 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
        )
    )


def _with_headers(send: Send, access: Access, host: str) -> Send:
    """Adds the headers, and the nonce to what the page itself has of scripts and styles.

    Only the template has literal `<script` and `<style`: everything else in it is escaped, so a
    message cannot get a nonce. A page is held back until it is complete: its length changes.
    """
    nonce = secrets.token_urlsafe(16)
    safe_host = "".join(one for one in host if one.isalnum() or one in ".-:[]")
    added = {
        "content-security-policy": content_security_policy(nonce, safe_host, access.scheme),
        "x-frame-options": "DENY",
        "x-content-type-options": "nosniff",
        "referrer-policy": "same-origin",  # with "no-referrer", the login would have no Origin
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=()",
    }
    started: dict[str, Any] = {}
    body = bytearray()

    async def wrapped(event: Message) -> None:
        if event["type"] == "http.response.start":
            headers = MutableHeaders(raw=list(event["headers"]))
            headers.update(added)
            event = {**event, "headers": headers.raw}
            if headers.get("content-type", "").startswith("text/html"):
                started.update(event)
                return
        elif event["type"] == "http.response.body" and started:
            body.extend(event.get("body", b""))
            if event.get("more_body"):
                return
            marked = _with_nonce(bytes(body), nonce)
            MutableHeaders(raw=started["headers"])["content-length"] = str(len(marked))
            await send(dict(started))
            started.clear()
            event = {"type": "http.response.body", "body": marked}
        await send(event)

    return wrapped


def _with_nonce(page: bytes, nonce: str) -> bytes:
    mark = f' nonce="{nonce}"'.encode()
    return page.replace(b"<script", b"<script" + mark).replace(b"<style", b"<style" + mark)
