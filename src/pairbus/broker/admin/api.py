"""The administration API as an ASGI application: checks the request, answers with ATOM.

Reads show the current state. `changes` makes changes, and the answer is sent when they are durable.
A request that is not possible raises HttpRefused, which the hosting application turns into an
answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pairbus.broker.admin import access, atom, changes, entity_xml, rule_xml
from pairbus.broker.admin.access import HttpRefused, bad_request
from pairbus.broker.admin.atom import Entry, Page
from pairbus.broker.admin.targets import AdminRequest, TargetKind, shown
from pairbus.broker.entities.descriptions import RuleDescription
from pairbus.broker.messages.queue import Queue
from pairbus.broker.messages.topic import Subscription
from pairbus.broker.namespace import Namespace

_BODY_BYTES_MAX: Final = 256 * 1024
_PAGE_MAX: Final = 1000
_PAGE_DEFAULT: Final = 100
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_METHODS: Final = ("GET", "PUT", "DELETE")
_CHANGEABLE: Final = (TargetKind.ENTITY, TargetKind.SUBSCRIPTION, TargetKind.RULE)
_NAMESPACE: Final = "$namespace"
"""The entity name in the meter for an operation without an entity, such as listing queues."""

T = TypeVar("T")


def administration(namespace: Namespace) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response = await _answer(AdminRequest(namespace, Request(scope, receive)))
        await response(scope, receive, send)

    return app


async def _answer(request: AdminRequest) -> Response:
    target, method, namespace = request.target, request.http.method, request.namespace
    if method not in _METHODS:
        raise _not_allowed(request, _METHODS)
    access.check_manage(request.http, namespace, target.path, audience=target.address)
    if method == "GET":
        response = _READERS[target.kind](request)
    elif target.kind not in _CHANGEABLE:
        raise _not_allowed(request, ("GET",))
    elif method == "PUT":
        response = await _put(request)
    else:
        await changes.delete(request)
        response = Response(status_code=200)
    namespace.meter.of(target.path if target.is_of_entity else _NAMESPACE).manage += 1
    return response


# -- reading ----------------------------------------------------------------------------------


def _get_subscriptions(request: AdminRequest) -> Response:
    subscriptions = request.topic().subscriptions
    ordered = [subscriptions[name] for name in sorted(subscriptions)]
    return _feed(request, "Subscriptions", ordered)


def _get_rules(request: AdminRequest) -> Response:
    subscription = request.subscription()
    ordered = sorted(subscription.description.rules, key=lambda rule: rule.name.lower())
    page, found = _page(request, ordered)
    entries = [_rule_entry(subscription, rule) for rule in found]
    return _page_response(request, "Rules", page, entries)


def _get_rule(request: AdminRequest) -> Response:
    subscription = request.subscription()
    return _entry_response(request, _rule_entry(subscription, request.rule(subscription)))


def _get_entity(request: AdminRequest) -> Response:
    return _entry_response(request, _entry(request, request.entity()))


_READERS: Final[dict[TargetKind, Callable[[AdminRequest], Response]]] = {
    TargetKind.NAMESPACE: lambda request: _entry_response(request, _namespace_entry(request)),
    TargetKind.QUEUES: lambda request: _feed(request, "Queues", request.namespace.queues),
    TargetKind.TOPICS: lambda request: _feed(request, "Topics", request.namespace.topics),
    TargetKind.ENTITY: _get_entity,
    TargetKind.SUBSCRIPTIONS: _get_subscriptions,
    TargetKind.SUBSCRIPTION: _get_entity,
    TargetKind.RULES: _get_rules,
    TargetKind.RULE: _get_rule,
}


def _feed(request: AdminRequest, title: str, entities: Sequence[Queue]) -> Response:
    page, found = _page(request, entities)
    return _page_response(request, title, page, [_entry(request, one) for one in found])


def _page(request: AdminRequest, found: Sequence[T]) -> tuple[Page, Sequence[T]]:
    skip = _number(request, "$skip", 0)
    top = min(_number(request, "$top", _PAGE_DEFAULT), _PAGE_MAX)
    if top == 0:
        raise bad_request("$top is 0, but must be at least 1")
    page = Page(skip=skip, top=top, has_next=len(found) > skip + top)
    return page, found[skip : skip + top]


def _number(request: AdminRequest, name: str, default: int) -> int:
    text = request.http.query_params.get(name)
    if text is None:
        return default
    if not _NUMBER.fullmatch(text):
        raise bad_request(f"{name} is {text[:100]!r}, but must be a whole number from 0")
    return int(text)


def _page_response(
    request: AdminRequest, title: str, page: Page, entries: Sequence[Entry]
) -> Response:
    text = atom.feed(
        entries,
        page,
        request.address,
        path=request.target.address,
        title=title,
        author=request.namespace.name,
        now_ms=request.namespace.now_ms(),
    )
    return Response(text, media_type=atom.FEED_TYPE)


# -- writing ----------------------------------------------------------------------------------


async def _put(request: AdminRequest) -> Response:
    body = await access.read_body(request.http, bytes_max=_BODY_BYTES_MAX)
    content = atom.read_content(body)
    is_update = request.http.headers.get("if-match") is not None
    if request.target.kind is TargetKind.RULE:
        put_rule = changes.update_rule if is_update else changes.create_rule
        entry = _rule_entry(*await put_rule(request, content))
    else:
        put = changes.update_entity if is_update else changes.create_entity
        entry = _entry(request, await put(request, content))
    return _entry_response(request, entry, status=200 if is_update else 201)


# -- entries ----------------------------------------------------------------------------------


def _entry_response(request: AdminRequest, entry: Entry, *, status: int = 200) -> Response:
    text = atom.entry(entry, request.address, author=request.namespace.name)
    return Response(text, status, media_type=atom.ENTRY_TYPE)


def _entry(request: AdminRequest, entity: Queue) -> Entry:
    return Entry(
        path=entity.name,
        title=entity.description.own_name if isinstance(entity, Subscription) else entity.name,
        created_ms=entity.created_ms,
        updated_ms=entity.updated_ms,
        content=entity_xml.write_entity(
            entity, request.address, has_message_size=request.has_message_size
        ),
    )


def _rule_entry(subscription: Subscription, rule: RuleDescription) -> Entry:
    return Entry(
        path=f"{subscription.name}/Rules/{rule.name}",
        title=rule.name,
        created_ms=rule.created_ms,
        updated_ms=rule.created_ms,
        content=rule_xml.write_rule(rule),
    )


def _namespace_entry(request: AdminRequest) -> Entry:
    namespace = request.namespace
    created = atom.moment(namespace.store.created_ms)
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
        created_ms=namespace.store.created_ms,
        updated_ms=namespace.store.created_ms,
        content=atom.description("NamespaceInfo", inner),
    )


def _not_allowed(request: AdminRequest, methods: Sequence[str]) -> HttpRefused:
    path = shown(request.http.url.path)
    return HttpRefused(
        405,
        f"{request.http.method} is not possible at {path}",
        headers={"Allow": ", ".join(methods)},
    )
