"""`pairbus entities create rule`: an expression, or values that must match; and maybe an action."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any, Final

import typer

from pairbus.cli.administration import EntityKind, administration, describe
from pairbus.cli.entities.views import entity_name
from pairbus.cli.messages.message_json import parse_property
from pairbus.cli.output import print_json
from pairbus.cli.shared_options import AS_JSON, ConnectionOptions, flatten_options, option
from pairbus.errors import UsageError

DEFAULT_RULE: Final = "$Default"

Value = str | int | float | bool | datetime
"""The types that the SDK can compare a property with."""
_VALUES: Final[dict[str, Any]] = {
    "string": str,
    "boolean": lambda text: {"true": True, "false": False}[text],
    "int": int,
    "long": int,
    "double": float,
    "timestamp": datetime.fromisoformat,
}


def _matching(what: str) -> Any:
    return option(metavar="TEXT", help=f"Match messages with this {what}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationOptions:
    """Values that a message must have."""

    subject: Annotated[str | None, _matching("subject (label)")] = None
    correlation_id: Annotated[str | None, _matching("correlation id")] = None
    message_id: Annotated[str | None, _matching("message id")] = None
    to: Annotated[str | None, _matching("address of the receiver")] = None
    reply_to: Annotated[str | None, _matching("address for replies")] = None
    session_id: Annotated[str | None, _matching("session")] = None
    reply_to_session_id: Annotated[str | None, _matching("session for replies")] = None
    content_type: Annotated[str | None, _matching("content type")] = None
    property_: Annotated[
        list[str] | None,
        option(
            "--property",
            "-p",
            metavar="NAME[:TYPE]=VALUE",
            help="Match messages with this application property; may be repeated. TYPE is "
            "int, long, double, boolean, timestamp or string (default).",
        ),
    ] = None

    def parse(self) -> dict[str, Any]:
        """Returns the arguments of the SDK's CorrelationRuleFilter, if there are any. Raises
        UsageError.
        """
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if "subject" in given:
            given["label"] = given.pop("subject")
        if properties := given.pop("property_", None):
            given["properties"] = dict(map(_parse_value, properties))
        return given


def _parse_value(text: str) -> tuple[str, Value]:
    name, typed = parse_property(text)
    kind, value = typed["type"], typed["value"]
    try:
        return name, _VALUES[str(kind)](value)
    except KeyError:
        if kind not in _VALUES:
            allowed = ", ".join(_VALUES)
            raise UsageError(f"--property {text!r}: a rule can compare only {allowed}") from None
    except ValueError:
        pass
    raise UsageError(f"--property {text!r}: {value!r} is not a valid {kind}")


@flatten_options
def rule(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic of the subscription.")],
    subscription: Annotated[
        str, typer.Argument(metavar="SUBSCRIPTION", help="Subscription that gets the rule.")
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new rule.")],
    *,
    sql: Annotated[
        str | None,
        option(metavar="EXPRESSION", help="Match messages for which this expression is true."),
    ] = None,
    correlation: CorrelationOptions,
    action: Annotated[
        str | None,
        option(
            metavar="STATEMENTS",
            help="Change a matching message, as in \"SET priority = 'high'\".",
        ),
    ] = None,
    replace_default: Annotated[
        bool,
        typer.Option(
            "--replace-default",
            help="Then delete the rule $Default, which matches every message.",
        ),
    ] = False,
    connection: ConnectionOptions,
    as_json: AS_JSON = False,
) -> None:
    """Create a rule with an expression, or with values that must match.

    Without either, the rule matches every message.

    \b
    Examples:
      pairbus entities create rule events audit big --sql "amount > 1000" --replace-default
      pairbus entities create rule events audit eu --subject order --property region=eu
    """
    matching = correlation.parse()
    if sql is not None and matching:
        raise UsageError("--sql and values that must match cannot be combined")
    target, path = connection.target, (topic, subscription, name)
    from azure.servicebus.management import (
        CorrelationRuleFilter,
        SqlRuleAction,
        SqlRuleFilter,
        TrueRuleFilter,
    )

    filter: CorrelationRuleFilter | SqlRuleFilter = TrueRuleFilter()
    if sql is not None:
        filter = SqlRuleFilter(sql)
    elif matching:
        filter = CorrelationRuleFilter(**matching)
    done = {"created": path}
    with administration(target) as admin:
        admin.create(
            EntityKind.RULE,
            path,
            filter=filter,
            action=None if action is None else SqlRuleAction(action),
        )
        if not as_json:
            print(f"created {describe(EntityKind.RULE, path)}")
        if replace_default:
            # Delete it last: the subscription must not miss a message in between.
            done["deleted"] = (topic, subscription, DEFAULT_RULE)
            admin.delete(EntityKind.RULE, done["deleted"])
            if not as_json:
                print(f"deleted {describe(EntityKind.RULE, done['deleted'])}")
    if as_json:
        print_json({what: entity_name(EntityKind.RULE, which) for what, which in done.items()})
