"""Messages for people: nothing is markup, and nothing is too long."""

from __future__ import annotations

import pytest

from pairbus.dashboard.bodies import BODY_BYTES_MAX, BodyForm, beginning_of, best_form, body_text


@pytest.mark.parametrize(
    ("body", "form"),
    [
        (b'{"a": 1}', BodyForm.JSON),
        (b" [1]", BodyForm.JSON),
        (b"<a/>", BodyForm.XML),
        (b"hello", BodyForm.TEXT),
        (b"", BodyForm.TEXT),
        (b"\xff\xfe", BodyForm.HEX),
    ],
)
def test_the_form_is_chosen_by_the_content(body: bytes, form: BodyForm) -> None:
    assert best_form(body) is form


def test_json_and_xml_are_indented() -> None:
    assert body_text(b'{"a":[1]}', BodyForm.JSON) == ('{\n  "a": [\n    1\n  ]\n}', "")
    shown, note = body_text(b"<a><b>1</b></a>", BodyForm.XML)
    assert shown.splitlines()[1:] == ["<a>", "  <b>1</b>", "</a>"]
    assert note == ""


@pytest.mark.parametrize(
    "body",
    [
        b"<a>",
        b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>',
        b'<!DOCTYPE a SYSTEM "http://example.com/a.dtd"><a/>',
        b"<script>alert(1)</script",
    ],
)
def test_xml_that_is_broken_or_dangerous_is_shown_as_text(body: bytes) -> None:
    shown, note = body_text(body, BodyForm.XML)
    assert shown == body.decode()
    assert note.startswith("Not XML: ")


def test_deeply_nested_json_is_shown_as_text() -> None:
    shown, note = body_text(b"[" * 50_000, BodyForm.JSON)
    assert shown.startswith("[[[")
    assert note.startswith("Not JSON: ")


def test_hex_has_offsets_and_what_can_be_read() -> None:
    shown, _ = body_text(b"\x00\x01abc", BodyForm.HEX)
    assert shown == f"00000000  {'00 01 61 62 63':<47}  ..abc"


@pytest.mark.parametrize("form", list(BodyForm))
def test_a_large_body_is_cut_and_its_size_is_told(form: BodyForm) -> None:
    shown, note = body_text(b"[1]" + b" " * 300_000, form)
    assert len(shown) <= BODY_BYTES_MAX
    assert "of 293.0 KiB" in note


def test_the_beginning_is_one_line() -> None:
    assert beginning_of(b"one\ntwo") == "one two"
    assert beginning_of(b"x" * 500) == "x" * 80 + "\u2026"
