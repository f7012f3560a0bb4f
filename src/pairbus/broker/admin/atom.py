"""ATOM in and out: the entry in a request, the entries and feeds in responses.

Requests are parsed without document types and entities; the caller limits their size. Responses are
written as text: their shape is fixed, and the values in them are escaped here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode
from xml.etree.ElementTree import Element, ParseError
from xml.sax.saxutils import escape as escape_markup

from defusedxml import ElementTree, common

from pairbus.broker.admin.access import bad_request

ATOM: Final = "http://www.w3.org/2005/Atom"
SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"
TYPE: Final = f"{{{INSTANCE}}}type"
ENTRY_TYPE: Final = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE: Final = "application/atom+xml;type=feed;charset=utf-8"
NEVER: Final = "0001-01-01T00:00:00Z"

_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


# -- in ---------------------------------------------------------------------------------------


def read_content(body: bytes) -> Element:
    """The description in the entry of a request: `entry/content/*`."""
    try:
        entry: Element = ElementTree.fromstring(body, forbid_dtd=True)
    except common.DefusedXmlException as error:
        raise bad_request("The body has a document type or entities, which are refused") from error
    except (ParseError, ValueError, LookupError) as error:  # the latter two: odd encodings
        raise bad_request(f"The body is not XML: {error}") from error
    content = entry.find(f"{{{ATOM}}}content")
    if entry.tag != f"{{{ATOM}}}entry" or content is None or len(content) != 1:
        raise bad_request("The body is not an ATOM entry with a description as its content")
    return content[0]


def own_name(element: Element) -> str:
    """The name without its XML namespace, which some clients omit."""
    return element.tag.rpartition("}")[2]


def child(element: Element, name: str) -> Element | None:
    return next((one for one in element if own_name(one) == name), None)


def child_text(element: Element, name: str) -> str | None:
    """The child's text; None if there is no such child, or it is empty."""
    found = child(element, name)
    return None if found is None else found.text or None


def type_of(element: Element) -> str:
    """`i:type`, without the prefix that its value may have."""
    return element.get(TYPE, "").rpartition(":")[2]


# -- out --------------------------------------------------------------------------------------


def escape(text: str) -> str:
    """For elements and attributes. Replaces characters that XML cannot hold."""
    return escape_markup(_NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text), _QUOTED)


_QUOTED: Final = {'"': "&quot;", "\r": "&#13;"}


def moment(milliseconds: int | None) -> str:
    """In UTC. None stands for never."""
    if milliseconds is None:
        return NEVER
    seconds, rest = divmod(milliseconds, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03d}Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAddress:
    """The broker's address as the client wrote it, for the absolute addresses in responses."""

    scheme: str
    host: str
    api_version: str | None

    def url(self, path: str, **query: int) -> str:
        parameters = [(f"${name}", str(value)) for name, value in query.items()]
        if self.api_version is not None:
            parameters.append(("api-version", self.api_version))
        tail = f"?{urlencode(parameters, safe='$')}" if parameters else ""
        return f"{self.scheme}://{self.host}/{path}{tail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    path: str
    """From the root; Node's client reads the names of subscriptions and rules from it."""
    title: str
    created_ms: int
    updated_ms: int
    content: str
    """XML, a single element."""


def entry(one: Entry, address: RequestAddress, *, author: str, is_root: bool = True) -> str:
    url = escape(address.url(one.path))
    return (
        (f'<entry xmlns="{ATOM}">' if is_root else "<entry>") + f"<id>{url}</id>"
        f'<title type="text">{escape(one.title)}</title>'
        f"<published>{moment(one.created_ms)}</published>"
        f"<updated>{moment(one.updated_ms)}</updated>"
        f"<author><name>{escape(author)}</name></author>"
        f'<link rel="self" href="{url}"/>'
        f'<content type="application/xml">{one.content}</content></entry>'
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    skip: int
    top: int
    has_next: bool


def feed(
    entries: Iterable[Entry],
    page: Page,
    address: RequestAddress,
    *,
    path: str,
    title: str,
    author: str,
    now_ms: int,
) -> str:
    """One page. It has exactly two links, because clients use the second one for the next page."""
    url = escape(address.url(path, skip=page.skip, top=page.top))
    links = [f'<link rel="self" href="{url}"/>']
    if page.has_next:
        following = address.url(path, skip=page.skip + page.top, top=page.top)
        links.append(f'<link rel="next" href="{escape(following)}"/>')
    return "".join(
        (
            f'<feed xmlns="{ATOM}"><title type="text">{escape(title)}</title><id>{url}</id>',
            f"<updated>{moment(now_ms)}</updated>",
            *links,
            *(entry(one, address, author=author, is_root=False) for one in entries),
            "</feed>",
        )
    )


def description(name: str, inner: str) -> str:
    """The element that an entry's content holds. The prefix `i` is what Node's client expects."""
    return f'<{name} xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">{inner}</{name}>'
