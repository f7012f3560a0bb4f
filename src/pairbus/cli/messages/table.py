"""How messages are shown: a row of a table, or the whole of one, for people or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rich.table import Table

from pairbus.cli.messages.message_json import ENCODING, UNREADABLE, Form
from pairbus.cli.output import make_table

_BODY_CHARACTERS_MAX: Final = 60
# What a message has, in the order in which people look for it.
_ORDER: Final = (
    "sequenceNumber", "messageId", "subject", "sessionId", "contentType", "correlationId", "to",
    "replyTo", "replyToSessionId", "partitionKey", "state", "enqueuedTime", "deliveryCount",
    "deadLetterReason", "deadLetterErrorDescription", "deadLetterSource",
)  # fmt: skip


def line_of(form: Form) -> str:
    """JSON in one line."""
    return json.dumps(form, ensure_ascii=False)


def page_of(form: Form, *, on_terminal: bool) -> str:
    """All of a message, for people: what is said of it, an empty line, and its body.

    A body is printed as it is, but for what would give orders to a terminal.
    """
    body = _body(form)
    if on_terminal:
        body = visible(body, besides="\n\t")
    fields = (f"{visible(name)}: {visible(value)}" for name, value in _fields(form))
    return "\n".join([*fields, "", body, ""])


def visible(text: str, *, besides: str = "") -> str:
    """Control characters as they are written in programs: a message is anybody's text."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in besides else one.encode("unicode_escape").decode()
        for one in text
    )


def _fields(form: Form) -> Iterator[tuple[str, str]]:
    for name in (*_ORDER, *(name for name in form if name not in _ORDER)):
        value = form.get(name)
        if value is None or name in ("body", ENCODING):
            continue
        if isinstance(value, Mapping):
            for key, one in value.items():
                yield f"{name}.{key}", _value(one)
        else:
            yield name, str(value)
    if ENCODING in form:
        yield ENCODING, form[ENCODING]


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{value.get('value')} ({value.get('type')})"
    return value if isinstance(value, str) else json.dumps(value)


def _body(form: Form) -> str:
    return str(form.get("body", ""))


def table_of(forms: Iterable[Form], *, are_dead: bool = False) -> Table:
    forms = list(forms)
    own = ("Reason",) if are_dead else ("Session",)
    # A column only where it says something: scheduled and deferred messages are not handed out.
    has_states = any(form.get("state", "active") != "active" for form in forms)
    states = ("State",) if has_states else ()
    table = make_table("Sequence", "Enqueued", *states, "Message id", "Subject", *own, "Body")
    for form in forms:
        name = "deadLetterReason" if are_dead else "sessionId"
        texts = (visible(str(form.get(key) or "-")) for key in ("messageId", "subject", name))
        number, moment = form.get("sequenceNumber"), form.get("enqueuedTime") or "-"
        state = (str(form.get("state", "active")),) if has_states else ()
        table.add_row(str(number), moment, *state, *texts, _glance(form))
    return table


def _glance(form: Form) -> str:
    """The beginning of the body: a table is to look at, `show` and --json have all of it."""
    if UNREADABLE in form:
        return f"({form[UNREADABLE]})"
    if ENCODING in form:
        return f"({form.get('bodyType') or 'binary'}, in {form[ENCODING]})"
    text = _body(form)
    cut = text[:_BODY_CHARACTERS_MAX]
    shown = "".join(one if one.isprintable() else " " for one in cut)
    return f"{shown}..." if len(text) > len(cut) else shown
