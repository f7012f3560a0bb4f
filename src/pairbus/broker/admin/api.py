"""The administration API as an ASGI application: who asks for what, and the answers as ATOM.

Reads look at the namespace as it is; changes are made by `changes` and answered when they are
durable. A request that cannot be done raises Refused, and whoever hosts this application answers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pairbus.broker.admin import access, atom, targets
from pairbus.broker.admin import entity_xml as describe
from pairbus.broker.admin import rule_xml as rules
from pairbus.broker.admin.atom import Entry, Page, Place
from pairbus.broker.admin.changes import Changes
from pairbus.broker.admin.errors import Refused, bad_request
from pairbus.broker.entities.descriptions import RuleDescription
from pairbus.broker.messages.queue import Queue
from pairbus.broker.messages.topic import Subscription, Topic
from pairbus.broker.namespace import Namespace

_BODY_BYTES_MAX: Final = 256 * 1024
_PAGE_MAX: Final = 1000
_PAGE_DEFAULT: Final = 100
_API_VERSION: Final = re.compile(r"20[0-9]{2}-[01][0-9]")
_MESSAGE_SIZE_SINCE: Final = "2021-05"
_HOST: Final = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_METHODS: Final = ("GET", "PUT", "DELETE")
_NAMESPACE: Final = "$namespace"
"""What the meter calls the entity of an operation that has none, such as listing queues."""

T = TypeVar("T")


class Administration:
    """Of one namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await _Call(self._namespace, request).answer()
        await response(scope, receive, send)


class _Call:
    """One request."""

    def __init__(self, namespace: Namespace, request: Request) -> None:
        self._namespace = namespace
        self._request = request
        self._place = _place(request)
        self._changes = Changes(
            namespace, request, self._place, has_message_size=self._has_message_size
        )

    @property
    def _has_message_size(self) -> bool:
        version = self._place.api_version
        return version is None or version >= _MESSAGE_SIZE_SINCE

    async def answer(self) -> Response:
        request = self._request
        target = targets.parse(request.scope["raw_path"])
        if request.method not in _METHODS:
            raise _not_allowed(request, _METHODS)
        access.check_manage(request, self._namespace, target)
        response = await self._answer(target)
        of_entity = not isinstance(target, targets.NamespaceInfo | targets.Queues | targets.Topics)
        self._namespace.meter.of(target.path if of_entity else _NAMESPACE).manage += 1
        return response

    async def _answer(self, target: targets.Target) -> Response:
        request = self._request
        match request.method, target:
            case "GET", _:
                return self._get(target)
            case "PUT", targets.Entity() | targets.Subscription() | targets.Rule():
                return await self._put(target)
            case "DELETE", targets.Entity() | targets.Subscription() | targets.Rule():
                await self._changes.delete(target)
                return Response(status_code=200)
        raise _not_allowed(request, ("GET",))

    # -- reading

    def _get(self, target: targets.Target) -> Response:
        find = self._changes
        match target:
            case targets.NamespaceInfo():
                return self._entry(self._namespace_info())
            case targets.Queues():
                return self._feed(target, "Queues", self._namespace.queues)
            case targets.Topics():
                return self._feed(target, "Topics", self._namespace.topics)
            case targets.Subscriptions():
                return self._feed(target, "Subscriptions", _in_order(find.topic(target.topic)))
            case targets.Rules():
                return self._rules(target, find.subscription(target))
            case targets.Entity():
                return self._entry(self._described(find.entity(target.path)))
            case targets.Subscription():
                return self._entry(self._described(find.subscription(target)))
            case targets.Rule():
                subscription = find.subscription(target)
                return self._entry(_rule_entry(subscription, find.rule(target, subscription)))

    def _feed(self, target: targets.List, title: str, entities: Sequence[Queue]) -> Response:
        page, shown = self._page(entities)
        return self._page_response(target, title, page, [self._described(one) for one in shown])

    def _rules(self, target: targets.Rules, subscription: Subscription) -> Response:
        ordered = sorted(subscription.description.rules, key=lambda rule: rule.name.lower())
        page, shown = self._page(ordered)
        entries = [_rule_entry(subscription, rule) for rule in shown]
        return self._page_response(target, "Rules", page, entries)

    def _page(self, found: Sequence[T]) -> tuple[Page, Sequence[T]]:
        skip = self._number("$skip", 0)
        top = min(self._number("$top", _PAGE_DEFAULT), _PAGE_MAX)
        if top == 0:
            raise bad_request("$top is 0, but must be at least 1")
        page = Page(skip=skip, top=top, has_next=len(found) > skip + top)
        return page, found[skip : skip + top]

    def _number(self, name: str, default: int) -> int:
        text = self._request.query_params.get(name)
        if text is None:
            return default
        if not _NUMBER.fullmatch(text):
            raise bad_request(f"{name} is {text[:100]!r}, but must be a whole number from 0")
        return int(text)

    def _page_response(
        self, target: targets.List, title: str, page: Page, entries: Sequence[Entry]
    ) -> Response:
        text = atom.feed(
            entries,
            page,
            self._place,
            path=target.address,
            title=title,
            author=self._namespace.name,
            now_ms=self._namespace.now_ms(),
        )
        return Response(text, media_type=atom.FEED_TYPE)

    # -- writing

    async def _put(self, target: targets.Entity | targets.Subscription | targets.Rule) -> Response:
        content = atom.read_content(await self._body())
        is_update = self._request.headers.get("if-match") is not None
        changes = self._changes
        match target:
            case targets.Rule():
                put_rule = changes.update_rule if is_update else changes.create_rule
                entry = _rule_entry(*await put_rule(target, content))
            case targets.Subscription():
                put_one = changes.update_subscription if is_update else changes.create_subscription
                entry = self._described(await put_one(target, content))
            case targets.Entity():
                put = changes.update_entity if is_update else changes.create_entity
                entry = self._described(await put(target, content))
        return self._entry(entry, status=200 if is_update else 201)

    async def _body(self) -> bytes:
        body = bytearray()
        try:
            async for chunk in self._request.stream():
                body += chunk
                if len(body) > _BODY_BYTES_MAX:
                    raise Refused(
                        413,
                        f"The body has more than {_BODY_BYTES_MAX} bytes",
                        headers={"Connection": "close"},
                    )
        except ClientDisconnect as error:
            raise bad_request("The body ended early") from error
        return bytes(body)

    # -- entries

    def _entry(self, entry: Entry, *, status: int = 200) -> Response:
        text = atom.entry(entry, self._place, author=self._namespace.name)
        return Response(text, status, media_type=atom.ENTRY_TYPE)

    def _described(self, entity: Queue) -> Entry:
        return Entry(
            path=entity.name,
            title=_title(entity),
            created_ms=entity.created_ms,
            updated_ms=entity.updated_ms,
            content=describe.write_entity(
                entity, self._place, has_message_size=self._has_message_size
            ),
        )

    def _namespace_info(self) -> Entry:
        namespace = self._namespace
        created = atom.moment(namespace.created_ms)
        units = "<MessagingUnits>1</MessagingUnits>" if namespace.options.sku == "Premium" else ""
        inner = (
            f"<CreatedTime>{created}</CreatedTime>"
            f"<MessagingSKU>{namespace.options.sku}</MessagingSKU>{units}"
            f"<ModifiedTime>{created}</ModifiedTime><Name>{namespace.name}</Name>"
            "<NamespaceType>Messaging</NamespaceType>"
        )
        return Entry(
            path="$namespaceinfo",
            title=namespace.name,
            created_ms=namespace.created_ms,
            updated_ms=namespace.created_ms,
            content=atom.description("NamespaceInfo", inner),
        )


def _title(entity: Queue) -> str:
    return entity.description.own_name if isinstance(entity, Subscription) else entity.name


def _rule_entry(subscription: Subscription, rule: RuleDescription) -> Entry:
    return Entry(
        path=f"{subscription.name}/Rules/{rule.name}",
        title=rule.name,
        created_ms=rule.created_ms,
        updated_ms=rule.created_ms,
        content=rules.write_rule(rule),
    )


def _in_order(topic: Topic) -> list[Subscription]:
    return [topic.subscriptions[name] for name in sorted(topic.subscriptions)]


def _place(request: Request) -> Place:
    version = request.query_params.get("api-version")
    if version is not None and not _API_VERSION.fullmatch(version):
        raise bad_request(f"The api-version {version[:100]!r} is not known, but 2021-05 is")
    host = request.headers.get("host", "localhost")
    if not _HOST.fullmatch(host):
        raise bad_request("The Host header is not the name of a host")
    return Place(scheme=request.scope["scheme"], host=host, api_version=version)


def _not_allowed(request: Request, methods: Sequence[str]) -> Refused:
    path = targets.shown(request.url.path)
    return Refused(
        405,
        f"{request.method} is not possible at {path}",
        headers={"Allow": ", ".join(methods)},
    )
