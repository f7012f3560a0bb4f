"""May this request be made? A token with the Manage claim, for the entity or for the namespace.

The token is in the Authorization header, as a shared access signature or as a Bearer that is one.
Tokens are read by `broker.links.tokens`; which keys count for which path the namespace says.
"""

from __future__ import annotations

import hmac
import re
from typing import Final

from starlette.requests import Request

from pairbus.broker.admin.errors import Refused
from pairbus.broker.admin.targets import Target
from pairbus.broker.entities.policies import Right
from pairbus.broker.links import tokens
from pairbus.broker.namespace import Namespace

_CHALLENGE: Final = {"WWW-Authenticate": "SharedAccessSignature, Bearer"}
_CLAIMS: Final = {
    "GET": "Manage,EntityRead claims required for this operation",
    "PUT": "Authorization failed for specified action: Manage,EntityWrite",
    "DELETE": "Authorization failed for specified action: Manage,EntityDelete",
}
"""The service's words, by which people look for help."""
_EXPIRY: Final = re.compile(r"&se=([0-9]{1,12})(?:&|$)")


def unauthorized(detail: str) -> Refused:
    return Refused(401, detail, headers=_CHALLENGE)


def check_manage(request: Request, namespace: Namespace, target: Target) -> None:
    """Raises Refused. To be asked first: what exists is not told to strangers."""
    grant = _grant(_token(request), namespace, target.path, audience=target.address)
    if not grant.allows(Right.MANAGE):
        claims = _CLAIMS.get(request.method, "Manage claim is required for this operation")
        raise unauthorized(f"{claims}: policy {grant.policy_name!r} has no right to Manage")


def check_target(request: Request, namespace: Namespace, target: str, *, header: str) -> None:
    """May this client have messages forwarded to the target?

    By the token of the request, or by another that is in a header just for this.
    """
    refusal = "there is none"
    for token in (_token(request), request.headers.get(header)):
        if token is None:
            continue
        if _is_for_host(token, request, namespace):
            return
        try:
            if _grant(token, namespace, target, audience=target).allows(Right.SEND):
                return
            refusal = "its policy has no right to Send"
        except Refused as refused:
            refusal = refused.detail
    raise unauthorized(f"Forwarding to {target!r} needs a token for it in {header}: {refusal}")


def _token(request: Request) -> str:
    token = request.headers.get("authorization")
    if not token:
        raise unauthorized("MissingToken: The authorization header was not found")
    return token


def _grant(token: str, namespace: Namespace, path: str, *, audience: str) -> tokens.Grant:
    """By a key of the namespace, else by one of the entity at the path; for this audience only."""
    shared, own = namespace.options.policies, namespace.policies_of(path)
    now = namespace.clock()
    try:
        return tokens.verify(
            token,
            shared,
            audience=audience,
            now=now,
            accepts_bearer=namespace.options.accepts_bearer,
        )
    except tokens.TokenRefused as refused:
        if not own:
            raise unauthorized(f"InvalidToken: {refused.reason}") from refused
    try:
        return tokens.verify(token, [*own, *shared], audience=audience, now=now)
    except tokens.TokenRefused as refused:
        raise unauthorized(f"InvalidToken: {refused.reason}") from refused


def _is_for_host(token: str, request: Request, namespace: Namespace) -> bool:
    """Node's client signs the bare host for a target's token, which is no URI."""
    found = _EXPIRY.search(token)
    host = request.headers.get("host")
    if found is None or not host:
        return False
    expires_at = float(found[1])
    return expires_at > namespace.clock() and any(
        policy.allows(Right.SEND)
        and hmac.compare_digest(
            token.encode(), tokens.make_token(policy, audience=host, expires_at=expires_at).encode()
        )
        for policy in namespace.options.policies
    )
