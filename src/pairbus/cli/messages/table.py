"""Messages for people: as rows of a table, or in full."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pairbus.cli.entity_path import EntityPath
from pairbus.cli.message_client import topic_note
from pairbus.cli.messages.message_json import ENCODING, UNREADABLE, MessageJson
from pairbus.cli.output import is_narrow_terminal, json_text, make_table, print_table
from pairbus.cli.target import Target
from pairbus.errors import NamespaceError

if TYPE_CHECKING:
    from rich.table import Table

_BODY_CHARACTERS_MAX: Final = 60
# The keys of a message in the order in which people look for them.
_ORDER: Final = (
    "sequenceNumber", "messageId", "subject", "sessionId", "contentType", "correlationId", "to",
    "replyTo", "replyToSessionId", "partitionKey", "state", "enqueuedTime", "deliveryCount",
    "deadLetterReason", "deadLetterErrorDescription", "deadLetterSource",
)  # fmt: skip


def print_message(message: MessageJson, *, as_json: bool) -> None:
    """As one line of JSON, or as readable text with all keys."""
    on_terminal = sys.stdout.isatty()
    text = json_text(message) if as_json else full_text(message, on_terminal=on_terminal)
    sys.stdout.write(f"{text}\n")  # at once: a Ctrl-C must not come between a line and its end


def full_text(message: MessageJson, *, on_terminal: bool) -> str:
    """A whole message: its keys, an empty line, and its body.

    The body is printed unchanged, except for characters that control a terminal.
    """
    body = _body(message)
    if on_terminal:
        body = escape_control(body, except_for="\n\t")
    fields = (f"{escape_control(name)}: {escape_control(text)}" for name, text in _fields(message))
    return "\n".join([*fields, "", body, ""])


def escape_control(text: str, *, except_for: str = "") -> str:
    """Shows control characters as escapes, because the content of a message is not trusted."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in except_for else one.encode("unicode_escape").decode()
        for one in text
    )


def _fields(message: MessageJson) -> Iterator[tuple[str, str]]:
    for name in (*_ORDER, *(name for name in message if name not in _ORDER)):
        value = message.get(name)
        if value is None or name in ("body", ENCODING):
            continue
        if isinstance(value, Mapping):
            for key, one in value.items():
                yield f"{name}.{key}", _value(one)
        else:
            yield name, str(value)
    if ENCODING in message:
        yield ENCODING, message[ENCODING]


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{value.get('value')} ({value.get('type')})"
    return value if isinstance(value, str) else json.dumps(value)


def _body(message: MessageJson) -> str:
    return str(message.get("body", ""))


def print_no_messages(target: Target, path: EntityPath, *, is_filtered: bool) -> None:
    """Raises NamespaceError if there are none because `path` is a topic."""
    if note := topic_note(target, path):
        raise NamespaceError(note)
    which = "matching messages" if is_filtered else "messages"
    print(f"no {which} in {path.description}", file=sys.stderr)


def print_messages(
    messages: list[MessageJson], target: Target, path: EntityPath, *, is_filtered: bool
) -> None:
    """As a table, or as a line on stderr if there are none. Raises NamespaceError."""
    if not messages:
        print_no_messages(target, path, is_filtered=is_filtered)
        return
    are_dead_letters = path.sub_queue is not None
    is_narrow = is_narrow_terminal()
    print_table(message_table(messages, are_dead_letters=are_dead_letters, is_narrow=is_narrow))


def message_table(
    messages: Iterable[MessageJson],
    *,
    are_dead_letters: bool = False,
    is_narrow: bool = False,
    has_states: bool | None = None,
) -> Table:
    """A narrow table has the state and the time on a second line, so that an id fits on one."""
    messages = list(messages)
    if has_states is None:
        # Most messages are active, so the column is shown only if a message is not.
        has_states = any(message.get("state", "active") != "active" for message in messages)
    own, own_key = ("reason", "deadLetterReason") if are_dead_letters else ("session", "sessionId")
    columns = ["sequence", "enqueued", *(["state"] * has_states), "message id"]
    if is_narrow:
        columns = ["sequence, state" if has_states else "sequence", "message id, enqueued"]
    table = make_table(*columns, "subject", own, "body")
    for column in table.columns[: len(columns)]:
        column.no_wrap = True
    for message in messages:
        keys = ("messageId", "subject", own_key)
        message_id, *texts = (escape_control(str(message.get(key) or "-")) for key in keys)
        number, enqueued = str(message.get("sequenceNumber")), message.get("enqueuedTime") or "-"
        state = [str(message.get("state", "active"))] * has_states
        first = [number, enqueued, *state, message_id]
        if is_narrow:
            first = ["\n".join([number, *state]), f"{message_id}\n{enqueued}"]
        table.add_row(*first, *texts, _beginning_of_body(message))
    return table


def _beginning_of_body(message: MessageJson) -> str:
    if UNREADABLE in message:
        return f"({message[UNREADABLE]})"
    if ENCODING in message:
        return f"({message.get('bodyType') or 'binary'}, in {message[ENCODING]})"
    text = _body(message)
    cut = text[:_BODY_CHARACTERS_MAX]
    shown = "".join(one if one.isprintable() else " " for one in cut)
    return f"{shown}..." if len(text) > len(cut) else shown
