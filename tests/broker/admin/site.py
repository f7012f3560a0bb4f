"""A namespace without sockets, and its HTTP application called as a server would call it."""

import asyncio
from dataclasses import dataclass
from urllib.parse import quote, urlsplit
from xml.etree.ElementTree import Element, fromstring

from pairbus.broker.admin.atom import ATOM, INSTANCE, SERVICE_BUS
from pairbus.broker.entities.namespace_options import NamespaceOptions
from pairbus.broker.entities.policies import Policy, Right, default_policy
from pairbus.broker.links.tokens import make_token
from pairbus.broker.namespace import Namespace
from pairbus.broker.port.http import make_app

SCHEMA = "http://www.w3.org/2001/XMLSchema"
HOST = "localhost:5671"
ROOT = default_policy()
SENDER = Policy(name="sender", key="c2VuZA==", rights=frozenset({Right.SEND}))
NOW = 1_800_000_000.0


def token(policy=ROOT, *, audience=f"https://{HOST}", expires_at=NOW + 3600):
    return make_token(policy, audience=audience, expires_at=expires_at)


def wrapped(description):
    """A description as a request's body, with the prefixes that our tests use."""
    return (
        f'<a:entry xmlns:a="{ATOM}" xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}" xmlns:x="{SCHEMA}">'
        f'<a:content type="application/xml">{description}</a:content></a:entry>'
    ).encode()


@dataclass
class Answer:
    status: int
    headers: dict
    body: bytes

    @property
    def xml(self) -> Element:
        return fromstring(self.body)

    @property
    def detail(self):
        assert self.xml.tag == "Error"
        assert self.xml.findtext("Code") == str(self.status)
        return self.xml.findtext("Detail").rpartition(". TrackingId:")[0]

    @property
    def description(self):
        """The element in an entry's content."""
        return self.xml.find(f"{{{ATOM}}}content")[0]

    def text(self, name):
        return self.description.findtext(f"{{{SERVICE_BUS}}}{name}")

    @property
    def titles(self):
        path = f"{{{ATOM}}}entry/{{{ATOM}}}title"
        return [title.text for title in self.xml.findall(path)]


def _answer(sent):
    headers = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
    content = b"".join(part.get("body", b"") for part in sent[1:])
    return Answer(sent[0]["status"], headers, content)


class Site:
    def __init__(self, **options):
        options = {"policies": (ROOT, SENDER), **options}
        self.now = NOW
        self.loop = asyncio.new_event_loop()
        self.namespace = Namespace(
            NamespaceOptions(**options), loop=self.loop, clock=lambda: self.now
        )
        self.namespace.open()
        self.app = make_app(self.namespace)

    def close(self):
        self.loop.run_until_complete(self.namespace.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def ask(
        self, method, address, body=b"", *, authorization=..., headers=(), chunks=None, answers=None
    ):
        """`address` is a path with its query, as in the request line.

        `answers` gets the answer, too, for an application that raises after it has answered.
        """
        sent = []
        try:
            self.loop.run_until_complete(
                self._ask(method, address, authorization, dict(headers), chunks or [body], sent)
            )
        finally:
            answer = _answer(sent)
            if answers is not None:
                answers.append(answer)
        return answer

    async def _ask(self, method, address, authorization, headers, chunks, sent):
        parts = list(chunks)

        async def receive():
            part = parts.pop(0)
            if part is None:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        async def send(message):
            sent.append(message)

        headers = {"host": HOST, **headers}
        if authorization is ...:
            authorization = token()
        if authorization is not None:
            headers["authorization"] = authorization
        url = urlsplit(address)
        scope = {
            "type": "http",
            "method": method,
            "path": url.path,
            "raw_path": url.path.encode(),
            "root_path": "",
            "query_string": url.query.encode(),
            "headers": [(key.lower().encode(), text.encode()) for key, text in headers.items()],
            "scheme": "https",
            "server": ("localhost", 5671),
        }
        await self.app(scope, receive, send)

    # -- shortcuts

    def get(self, path, **more):
        return self.ask("GET", f"/{path}?api-version=2021-05", **more)

    def put(self, path, description, *, update=False, headers=(), version="2021-05", **more):
        conditions = {"If-Match": "*"} if update else {}
        return self.ask(
            "PUT",
            f"/{path}?api-version={version}",
            wrapped(description),
            headers={**conditions, **dict(headers)},
            **more,
        )

    def delete(self, path, **more):
        return self.ask("DELETE", f"/{path}?api-version=2021-05", **more)

    def queue(self, name, inner=""):
        answer = self.put(quote(name, safe=""), f"<QueueDescription>{inner}</QueueDescription>")
        assert answer.status == 201, answer.body
        return answer

    def topic(self, name, inner=""):
        answer = self.put(quote(name, safe=""), f"<TopicDescription>{inner}</TopicDescription>")
        assert answer.status == 201, answer.body
        return answer

    def subscription(self, topic, name, inner=""):
        description = f"<SubscriptionDescription>{inner}</SubscriptionDescription>"
        answer = self.put(f"{quote(topic, safe='')}/subscriptions/{name}", description)
        assert answer.status == 201, answer.body
        return answer
