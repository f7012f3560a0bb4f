"""`pairbus entities create rule`: an expression, or values to match, and perhaps an action."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Final

import typer

from pairbus.cli.options import AS_JSON, CA_FILE, CONNECTION_STRING
from pairbus.cli.target import parse_target
from pairbus.errors import UsageError

Value = str | int | float | bool | datetime | timedelta
"""What the SDK lets a property be compared with."""

_CORRELATION_FIELDS: Final = frozenset(
    (
        "label",
        "correlation_id",
        "message_id",
        "to",
        "reply_to",
        "session_id",
        "reply_to_session_id",
        "content_type",
    )
)


def _system(help: str) -> Any:
    return typer.Option(metavar="TEXT", help=f"Takes what has this {help}.", show_default=False)


def rule(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    subscription: Annotated[str, typer.Argument(metavar="SUBSCRIPTION")],
    name: Annotated[str, typer.Argument(metavar="NAME")],
    sql: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help="Takes what this is true of.", show_default=False),
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(
            metavar="STATEMENTS",
            help="What to change in a message that is taken; \"SET priority = 'high'\".",
            show_default=False,
        ),
    ] = None,
    label: Annotated[str | None, _system("subject")] = None,
    correlation_id: Annotated[str | None, _system("correlation id")] = None,
    message_id: Annotated[str | None, _system("message id")] = None,
    to: Annotated[str | None, _system("recipient")] = None,
    reply_to: Annotated[str | None, _system("address for replies")] = None,
    session_id: Annotated[str | None, _system("session")] = None,
    reply_to_session_id: Annotated[str | None, _system("session for replies")] = None,
    content_type: Annotated[str | None, _system("content type")] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            metavar="NAME=VALUE",
            help="Takes what has this application property; may be repeated. VALUE is a text, or "
            "a number, or true or false; \"'5'\" is a text.",
        ),
    ] = None,
    is_replacing: Annotated[
        bool,
        typer.Option(
            "--replace-default",
            help="Delete $Default afterwards, the rule that takes everything.",
        ),
    ] = False,
    connection_string: CONNECTION_STRING = None,
    ca_file: CA_FILE = None,
    as_json: AS_JSON = False,
) -> None:
    """Create a rule: an expression, or values that must match. Without either, it takes everything.

    \b
    Examples:
      pairbus entities create rule events audit big --sql "amount > 1000" --replace-default
      pairbus entities create rule events audit eu --label order --property region=eu
    """
    correlation = {
        field: value
        for field, value in locals().items()
        if field in _CORRELATION_FIELDS and value is not None
    }
    if sql is not None and (correlation or properties):
        raise UsageError("--sql and values that must match exclude each other")
    own = dict(map(_property, properties or ()))
    target = parse_target(connection_string, ca_file)
    from azure.servicebus.management import (
        CorrelationRuleFilter,
        SqlRuleAction,
        SqlRuleFilter,
        TrueRuleFilter,
    )

    from pairbus.cli.entities.entity_work import create_rule

    chosen: CorrelationRuleFilter | SqlRuleFilter = TrueRuleFilter()
    if sql is not None:
        chosen = SqlRuleFilter(sql)
    elif correlation or own:
        chosen = CorrelationRuleFilter(**correlation, properties=own)
    create_rule(
        target,
        (topic, subscription, name),
        replaced="$Default" if is_replacing else None,
        as_json=as_json,
        filter=chosen,
        action=None if action is None else SqlRuleAction(action),
    )


def _property(text: str) -> tuple[str, Value]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--property {text!r}: must be NAME=VALUE, such as region=eu")
    return name, parse_value(value)


def parse_value(text: str) -> Value:
    """What it looks like; in single quotes, a text whatever it looks like."""
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1]
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text
