"""The authorization rules of an entity as XML, both ways: keys that open this entity alone."""

from __future__ import annotations

import base64
import secrets
from typing import Final
from xml.etree.ElementTree import Element

from pairbus.broker.admin.atom import child, child_text, escape, moment, own_name, type_of
from pairbus.broker.admin.errors import bad_request
from pairbus.broker.entities.policies import Policy, Right

_RULES_MAX: Final = 12
_LENGTH_MAX: Final = 256
_TYPE: Final = "SharedAccessAuthorizationRule"
_KEY_BYTES: Final = 32


def read_keys(element: Element) -> tuple[Policy, ...]:
    policies = tuple(_read_key(one) for one in element)
    names = [policy.name.lower() for policy in policies]
    for name in names:
        if names.count(name) > 1:
            raise bad_request(f"There are two authorization rules with the KeyName {name!r}")
    if len(policies) > _RULES_MAX:
        raise bad_request(f"{len(policies)} authorization rules are more than {_RULES_MAX}")
    return policies


def _read_key(element: Element) -> Policy:
    if own_name(element) != "AuthorizationRule" or type_of(element) not in ("", _TYPE):
        raise bad_request(f"An authorization rule is an AuthorizationRule of the type {_TYPE}")
    name = child_text(element, "KeyName")
    if name is None or len(name) > _LENGTH_MAX:
        raise bad_request(f"An authorization rule needs a KeyName of 1 to {_LENGTH_MAX} characters")
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
            f"The authorization rule {name!r} has the right {text[:100]!r}, which is not of {known}"
        ) from error


def _key(element: Element, which: str, name: str) -> str:
    """As given, or made now, as the service does."""
    key = child_text(element, which)
    if key is None:
        return base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()
    if len(key) > _LENGTH_MAX or ";" in key:
        raise bad_request(
            f"The {which} of authorization rule {name!r} has at most {_LENGTH_MAX} characters "
            "and no ';'"
        )
    return key


def write_keys(policies: tuple[Policy, ...], *, created_ms: int, updated_ms: int) -> str:
    return "".join(
        f'<AuthorizationRule i:type="{_TYPE}">'
        "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
        f"<Rights>{''.join(_written(policy))}</Rights>"
        f"<CreatedTime>{moment(created_ms)}</CreatedTime>"
        f"<ModifiedTime>{moment(updated_ms)}</ModifiedTime>"
        f"<KeyName>{escape(policy.name)}</KeyName>"
        f"<PrimaryKey>{escape(policy.key)}</PrimaryKey>"
        f"<SecondaryKey>{escape(policy.secondary_key or policy.key)}</SecondaryKey>"
        "</AuthorizationRule>"
        for policy in policies
    )


def _written(policy: Policy) -> list[str]:
    return [f"<AccessRights>{right}</AccessRights>" for right in Right if right in policy.rights]
