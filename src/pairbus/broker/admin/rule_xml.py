"""Rules and authorization rules as XML, both ways: filters, actions, typed values, and keys.

`RuleDescription` compiles an expression and so checks it. Types that Service Bus does not know in
rules are refused here.
"""

from __future__ import annotations

import base64
import math
import re
import secrets
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final
from xml.etree.ElementTree import Element

from pairbus.broker.admin import atom
from pairbus.broker.admin.access import bad_request
from pairbus.broker.admin.atom import child, child_text, escape, moment, own_name, type_of
from pairbus.broker.entities.descriptions import RuleDescription
from pairbus.broker.entities.durations import format_duration, parse_duration
from pairbus.broker.entities.policies import Policy, Right
from pairbus.broker.rules import (
    CORRELATION_PROPERTIES,
    CorrelationFilter,
    FalseFilter,
    Filter,
    SqlAction,
    SqlFilter,
    TrueFilter,
)

ELEMENT: Final = "RuleDescription"
_SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"
_INT32: Final = range(-(2**31), 2**31)
_INT64: Final = range(-(2**63), 2**63)
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")
_VALUES_MAX: Final = 256
_KEYS_MAX: Final = 12
_KEY_LENGTH_MAX: Final = 256
_KEY_TYPE: Final = "SharedAccessAuthorizationRule"
_KEY_BYTES: Final = 32


# -- in ---------------------------------------------------------------------------------------


def read_rule(element: Element, name: str, *, now_ms: int) -> RuleDescription:
    """Without a filter, a rule matches every message; without an action, it changes none."""
    filter_, action = child(element, "Filter"), child(element, "Action")
    return RuleDescription(
        name=name,
        filter=TrueFilter() if filter_ is None else _read_filter(filter_),
        action=None if action is None else _read_action(action),
        created_ms=now_ms,
    )


def _read_filter(element: Element) -> Filter:
    match type_of(element):
        case "TrueFilter":
            return TrueFilter()
        case "FalseFilter":
            return FalseFilter()
        case "SqlFilter":
            return SqlFilter(_expression(element), _values(child(element, "Parameters")))
        case "CorrelationFilter":
            return CorrelationFilter(
                **{
                    attribute: child_text(element, name)
                    for name, attribute in CORRELATION_PROPERTIES.items()
                },
                properties=_values(child(element, "Properties")),
            )
        case other:
            raise bad_request(
                f"A filter's type is SqlFilter, TrueFilter, FalseFilter or CorrelationFilter, "
                f"not {other[:100]!r}"
            )


def _read_action(element: Element) -> SqlAction | None:
    match type_of(element):
        case "EmptyRuleAction":
            return None
        case "SqlRuleAction":
            return SqlAction(_expression(element), _values(child(element, "Parameters")))
        case other:
            raise bad_request(
                f"An action's type is SqlRuleAction or EmptyRuleAction, not {other[:100]!r}"
            )


def _expression(element: Element) -> str:
    text = child_text(element, "SqlExpression")
    if text is None:
        raise bad_request(f"The {own_name(element)} has no SqlExpression")
    return text


def _values(element: Element | None) -> dict[str, object]:
    values: dict[str, object] = {}
    for pair in () if element is None else element:
        key, value = child_text(pair, "Key"), child(pair, "Value")
        if key is None or value is None:
            raise bad_request(f"Each {own_name(pair)} needs a Key and a Value")
        if key in values:
            raise bad_request(f"The key {key[:100]!r} occurs twice")
        values[key] = _read_value(key, type_of(value), value.text or "")
    if len(values) > _VALUES_MAX:
        raise bad_request(
            f"The rule has {len(values)} values, but at most {_VALUES_MAX} are possible"
        )
    return values


def _read_value(key: str, kind: str, text: str) -> object:
    read = _READERS.get(kind)
    if read is None:
        known = ", ".join(_READERS)
        raise bad_request(
            f"The value of {key[:100]!r} has the type {kind[:100]!r}, but must be one of {known}"
        )
    try:
        return read(text if kind == "string" else text.strip())
    except (ValueError, OverflowError) as error:
        raise bad_request(
            f"The value of {key[:100]!r} is {text[:100]!r}, which is not a valid {kind}"
        ) from error


def _whole(size: range) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not _WHOLE.fullmatch(text) or int(text) not in size:
            raise ValueError(text)
        return int(text)

    return read


def _double(text: str) -> float:
    """XML writes INF where Python writes inf."""
    if "_" in text:
        raise ValueError(text)
    return float(text)


def boolean(text: str) -> bool:
    value = {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if value is None:
        raise ValueError(text)
    return value


_READERS: Final[dict[str, Callable[[str], object]]] = {
    "string": str,
    "int": _whole(_INT32),
    "long": _whole(_INT64),
    "boolean": boolean,
    "double": _double,
    "dateTime": datetime.fromisoformat,
    "duration": parse_duration,
}


# -- out --------------------------------------------------------------------------------------


def write_rule(rule: RuleDescription) -> str:
    """Always with filter and action: clients read them without a check."""
    return atom.description(
        ELEMENT,
        f"{_write_filter(rule.filter)}{_write_action(rule.action)}"
        f"<CreatedAt>{moment(rule.created_ms)}</CreatedAt><Name>{escape(rule.name)}</Name>",
    )


def _write_filter(filter_: Filter) -> str:
    match filter_:
        case CorrelationFilter():
            inner = "".join(
                f"<{name}>{escape(value)}</{name}>"
                for name, attribute in CORRELATION_PROPERTIES.items()
                if (value := getattr(filter_, attribute)) is not None
            )
            inner += _write_values("Properties", filter_.properties)
        case SqlFilter():
            inner = _write_sql(filter_.expression, filter_.parameters)
        case TrueFilter():
            inner = _write_sql("1=1", {})
        case FalseFilter():
            inner = _write_sql("1=0", {})
    return f'<Filter i:type="{type(filter_).__name__}">{inner}</Filter>'


def _write_action(action: SqlAction | None) -> str:
    if action is None:
        return '<Action i:type="EmptyRuleAction"/>'
    inner = _write_sql(action.expression, action.parameters)
    return f'<Action i:type="SqlRuleAction">{inner}</Action>'


def _write_sql(expression: str, parameters: Mapping[str, object]) -> str:
    return (
        f"<SqlExpression>{escape(expression)}</SqlExpression>"
        "<CompatibilityLevel>20</CompatibilityLevel>"
        f"{_write_values('Parameters', parameters)}"
        "<RequiresPreprocessing>true</RequiresPreprocessing>"
    )


def _write_values(name: str, values: Mapping[str, object]) -> str:
    if not values:
        return f"<{name}/>"
    pairs = []
    for key, value in values.items():
        kind, text = _write_value(value)
        # The Python client needs a prefix in the type, and the Node client one of exactly four
        # letters.
        pairs.append(
            f"<KeyValueOfstringanyType><Key>{escape(key)}</Key>"
            f'<Value i:type="d6p1:{kind}" xmlns:d6p1="{_SCHEMA}">{escape(text)}</Value>'
            "</KeyValueOfstringanyType>"
        )
    return f"<{name}>{''.join(pairs)}</{name}>"


def _write_value(value: object) -> tuple[str, str]:
    match value:
        case bool():
            return "boolean", str(value).lower()
        case int():
            return "int" if value in _INT32 else "long", str(value)
        case float():
            return "double", _double_text(value)
        case datetime():
            return "dateTime", value.isoformat().replace("+00:00", "Z")
        case timedelta():
            return "duration", format_duration(value)
    return "string", str(value)


def _double_text(value: float) -> str:
    if math.isinf(value):
        return "INF" if value > 0 else "-INF"
    return "NaN" if math.isnan(value) else repr(value)


# -- authorization rules: keys that open one entity alone ------------------------------------


def read_keys(element: Element) -> tuple[Policy, ...]:
    if len(element) > _KEYS_MAX:
        raise bad_request(
            f"There are {len(element)} authorization rules, but at most {_KEYS_MAX} are possible"
        )
    policies = tuple(_read_key(one) for one in element)
    names = [policy.name.lower() for policy in policies]
    for name in names:
        if names.count(name) > 1:
            raise bad_request(f"There are two authorization rules with the KeyName {name!r}")
    return policies


def _read_key(element: Element) -> Policy:
    if own_name(element) != "AuthorizationRule" or type_of(element) not in ("", _KEY_TYPE):
        raise bad_request(f"An authorization rule is an AuthorizationRule of the type {_KEY_TYPE}")
    name = child_text(element, "KeyName")
    if name is None or len(name) > _KEY_LENGTH_MAX:
        raise bad_request(
            f"An authorization rule needs a KeyName of 1 to {_KEY_LENGTH_MAX} characters"
        )
    rights = child(element, "Rights")
    held = frozenset(_right(one.text or "", name) for one in (() if rights is None else rights))
    if not held:
        raise bad_request(f"The authorization rule {name!r} has no AccessRights")
    if Right.MANAGE in held and held != frozenset(Right):
        raise bad_request(f"The authorization rule {name!r}: Manage needs Send and Listen as well")
    return Policy(
        name=name,
        key=_key(element, "PrimaryKey", name),
        secondary_key=_key(element, "SecondaryKey", name),
        rights=held,
    )


def _right(text: str, name: str) -> Right:
    try:
        return Right(text)
    except ValueError as error:
        known = ", ".join(Right)
        raise bad_request(
            f"The authorization rule {name!r} has the right {text[:100]!r}, not one of {known}"
        ) from error


def _key(element: Element, which: str, name: str) -> str:
    """Returns the given key, or makes a new one like the service."""
    key = child_text(element, which)
    if key is None:
        return base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()
    if len(key) > _KEY_LENGTH_MAX or ";" in key:
        raise bad_request(
            f"The {which} of authorization rule {name!r} has at most {_KEY_LENGTH_MAX} characters "
            "and no ';'"
        )
    return key


def write_keys(policies: tuple[Policy, ...], *, created_ms: int, updated_ms: int) -> str:
    return "".join(
        f'<AuthorizationRule i:type="{_KEY_TYPE}">'
        "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
        f"<Rights>{''.join(_write_rights(policy))}</Rights>"
        f"<CreatedTime>{moment(created_ms)}</CreatedTime>"
        f"<ModifiedTime>{moment(updated_ms)}</ModifiedTime>"
        f"<KeyName>{escape(policy.name)}</KeyName>"
        f"<PrimaryKey>{escape(policy.key)}</PrimaryKey>"
        f"<SecondaryKey>{escape(policy.secondary_key or policy.key)}</SecondaryKey>"
        "</AuthorizationRule>"
        for policy in policies
    )


def _write_rights(policy: Policy) -> list[str]:
    return [f"<AccessRights>{right}</AccessRights>" for right in Right if right in policy.rights]
