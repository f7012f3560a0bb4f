"""Messages as people see them: nothing in one gives orders to a terminal."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from pairbus.cli.messages.table import escape_control, full_text, message_table, print_message

FORM = {
    "sequenceNumber": 5,
    "messageId": "m\x1b[2J",
    "subject": "two\nlines",
    "applicationProperties": {"n": 5, "t": {"type": "timestamp", "value": "2030"}, "x": None},
    "body": "text\n\tmore\x1b]0;title\x07",
}


def test_control_characters_are_shown_and_not_sent_to_a_terminal() -> None:
    assert escape_control("gr\u00fc\u00dfe") == "gr\u00fc\u00dfe"
    assert escape_control("a\x1b[1m\n") == "a\\x1b[1m\\n"

    page = full_text(FORM, on_terminal=True)
    assert "\x1b" not in page
    assert "subject: two\\nlines\n" in page
    assert page.endswith("\n\ntext\n\tmore\\x1b]0;title\\x07\n")

    out = io.StringIO()
    Console(file=out, width=500, markup=False, highlight=False).print(message_table([FORM]))
    assert "\x1b" not in out.getvalue()
    assert len(out.getvalue().splitlines()) == 2


def test_a_body_is_unchanged_if_stdout_is_not_a_terminal() -> None:
    assert full_text(FORM, on_terminal=False).endswith(f"\n\n{FORM['body']}\n")


@pytest.mark.parametrize("as_json", [True, False])
def test_no_ctrl_c_can_come_between_a_message_and_the_end_of_its_line(
    monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    written: list[str] = []
    out = io.StringIO()
    monkeypatch.setattr(out, "write", written.append)
    monkeypatch.setattr(sys, "stdout", out)

    print_message(FORM, as_json=as_json)

    [text] = written
    assert text.endswith("\n")


def test_properties_are_shown_with_their_types() -> None:
    page = full_text(FORM, on_terminal=False)

    assert "applicationProperties.n: 5\n" in page
    assert "applicationProperties.t: 2030 (timestamp)\n" in page
    assert "applicationProperties.x: null\n" in page


def test_a_table_describes_bodies_that_are_not_text() -> None:
    out = io.StringIO()
    forms = [
        {"sequenceNumber": 1, "body": "/w==", "bodyEncoding": "base64"},
        {"sequenceNumber": 2, "body": "/w==", "bodyEncoding": "base64", "bodyType": "value"},
        {"sequenceNumber": 3, "unreadable": "it is broken"},
    ]
    Console(file=out, width=500, markup=False, highlight=False).print(message_table(forms))

    first, second, third = (line.strip() for line in out.getvalue().splitlines()[1:])
    assert first.endswith("(binary, in base64)")
    assert second.endswith("(value, in base64)")
    assert third.endswith("(it is broken)")


def test_a_narrow_table_breaks_neither_an_id_nor_a_state() -> None:
    message_id = "eec3b2a5-c9e6-4b2b-a5c3-4729ee2067ed"
    form = {
        "sequenceNumber": 1200,
        "messageId": message_id,
        "enqueuedTime": "2026-11-17T06:36:11.928Z",
        "state": "scheduled",
        "subject": "order-created",
        "sessionId": "customer-17",
        "body": '{"order": 17, "customer": "Ann", "boxes": 5}',
    }
    out = io.StringIO()
    table = message_table([form], is_narrow=True)
    Console(file=out, width=80, markup=False, highlight=False).print(table)

    head, first, second, *_ = out.getvalue().splitlines()
    assert head.split() == ["sequence,", "state", "message", "id,", "enqueued", "subject",
                            "session", "body"]  # fmt: skip
    assert first.startswith(f"1200             {message_id}  ")
    assert second.startswith("scheduled        2026-11-17T06:36:11.928Z  ")
