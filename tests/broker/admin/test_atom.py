"""ATOM: requests from any client, and responses that every client can read."""

from xml.etree.ElementTree import fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker.admin import atom
from pairbus.broker.admin.access import HttpRefused
from pairbus.broker.admin.atom import ATOM, Entry, Page, RequestAddress

PLACE = RequestAddress(scheme="https", host="localhost:1", api_version="2021-05")
ENTRY = Entry(path="a/b", title="a/b", created_ms=1_800_000_000_123, updated_ms=0, content="<D/>")

BOMB = (
    b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    b'<entry xmlns="http://www.w3.org/2005/Atom"><content>&b;</content></entry>'
)
REFUSED = {
    "nothing": (b"", "not XML"),
    "no XML": (b"hello", "not XML"),
    "half of it": (b"<entry>", "not XML"),
    "an unknown encoding": (b'<?xml version="1.0" encoding="klingon"?><a/>', "not XML"),
    "a document type": (b"<!DOCTYPE entry><entry/>", "document type"),
    "entities that multiply": (BOMB, "document type"),
    "a file of ours": (
        b'<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><x>&f;</x>',
        "document type",
    ),
    "another element": (b"<QueueDescription/>", "not an ATOM entry"),
    "another namespace": (b"<entry><content><Q/></content></entry>", "not an ATOM entry"),
    "no content": (f'<entry xmlns="{ATOM}"/>'.encode(), "not an ATOM entry"),
    "an empty content": (f'<entry xmlns="{ATOM}"><content/></entry>'.encode(), "not an ATOM entry"),
    "two descriptions": (
        f'<entry xmlns="{ATOM}"><content><a/><b/></content></entry>'.encode(),
        "not an ATOM entry",
    ),
}


@pytest.mark.parametrize(("body", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_body_is_refused_that_is(body, reason):
    with pytest.raises(HttpRefused, match=reason) as refused:
        atom.read_content(body)

    assert refused.value.status == 400


def test_prefixes_are_the_clients_own_business():
    body = f'<x:entry xmlns:x="{ATOM}"><x:content><y:Q xmlns:y="urn:y"/></x:content></x:entry>'

    assert atom.own_name(atom.read_content(body.encode())) == "Q"


def test_deep_nesting_costs_nothing_but_its_bytes():
    deep = b"<a>" * 30_000 + b"</a>" * 30_000
    body = f'<entry xmlns="{ATOM}"><content>'.encode() + deep + b"</content></entry>"

    assert atom.own_name(atom.read_content(body)) == "a"


@given(st.text())
def test_whatever_is_escaped_can_be_read_again(text):
    escaped = atom.escape(text)

    element = fromstring(f'<a b="{escaped}">{escaped}</a>')

    is_xml = [one in "\t\n\r" or (one >= " " and one not in "\ufffe\uffff") for one in text]
    expected = [
        one if is_kept else "\N{REPLACEMENT CHARACTER}"
        for one, is_kept in zip(text, is_xml, strict=True)
    ]
    assert list(element.text or "") == expected


def test_an_entry_has_all_that_clients_look_for():
    entry = fromstring(atom.entry(ENTRY, PLACE, author="local"))

    names = [child.tag.removeprefix(f"{{{ATOM}}}") for child in entry]
    assert names == ["id", "title", "published", "updated", "author", "link", "content"]
    assert entry.findtext(f"{{{ATOM}}}id") == "https://localhost:1/a/b?api-version=2021-05"
    assert entry.findtext(f"{{{ATOM}}}published") == "2027-01-15T08:00:00.123Z"
    assert entry.find(f"{{{ATOM}}}content")[0].tag == f"{{{ATOM}}}D"


@pytest.mark.parametrize("has_next", [True, False])
def test_a_page_has_two_links_only_if_there_is_another(has_next):
    page = Page(skip=20, top=10, has_next=has_next)
    text = atom.feed(
        [ENTRY], page, PLACE, path="$Resources/Queues", title="Q", author="a", now_ms=0
    )

    links = [link.attrib for link in fromstring(text).findall(f"{{{ATOM}}}link")]

    base = "https://localhost:1/$Resources/Queues?"
    expected = [{"rel": "self", "href": f"{base}$skip=20&$top=10&api-version=2021-05"}]
    if has_next:
        expected.append({"rel": "next", "href": f"{base}$skip=30&$top=10&api-version=2021-05"})
    assert links == expected


def test_a_time_that_never_came_is_the_first_there_is():
    assert atom.moment(None) == "0001-01-01T00:00:00Z"
