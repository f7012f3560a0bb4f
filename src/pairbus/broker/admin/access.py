"""Checks the token of a request: it needs the Manage claim for the entity or for the namespace.

The token is in the Authorization header, as a shared access signature or as a Bearer that is one.
This module also has `HttpRefused`, which the whole administration raises, and reads a body up to a
limit. `pairbus.broker.port.http` decides how a refusal looks on the wire.
"""

from __future__ import annotations

import hmac
import re
from typing import Final

from starlette.requests import ClientDisconnect, Request

from pairbus.broker.entities.policies import Right
from pairbus.broker.links import tokens
from pairbus.broker.namespace import Namespace
from pairbus.errors import BrokerError

_CHALLENGE: Final = {"WWW-Authenticate": "SharedAccessSignature, Bearer"}
_CLAIMS: Final = {
    "GET": "Manage,EntityRead claims required for this operation",
    "PUT": "Authorization failed for specified action: Manage,EntityWrite",
    "DELETE": "Authorization failed for specified action: Manage,EntityDelete",
}
"""The service's own texts, so that a search for them finds its documentation."""
_EXPIRY: Final = re.compile(r"&se=([0-9]{1,12})(?:&|$)")


class HttpRefused(BrokerError):
    """The request is not possible, or not allowed for this client. It has a status, and a text for
    the client.
    """

    policy_name: str | None = None
    """Of the token that was refused, as far as it is known."""

    def __init__(self, status: int, detail: str, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers or {}


def bad_request(detail: str) -> HttpRefused:
    return HttpRefused(400, f"SubCode=40000. {detail}")


def not_found(what: str) -> HttpRefused:
    return HttpRefused(404, f"SubCode=40400. Not Found. There is no {what}")


def conflict(detail: str) -> HttpRefused:
    return HttpRefused(409, f"SubCode=40900. Conflict. {detail}")


def unauthorized(detail: str, *, policy_name: str | None = None) -> HttpRefused:
    refused = HttpRefused(401, detail, headers=_CHALLENGE)
    refused.policy_name = policy_name
    return refused


async def read_body(request: Request, *, bytes_max: int) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > bytes_max:
                raise HttpRefused(
                    413,
                    f"The body has more than {bytes_max} bytes",
                    headers={"Connection": "close"},
                )
    except ClientDisconnect as error:
        raise bad_request("The body ended early") from error
    return bytes(body)


def check_manage(request: Request, namespace: Namespace, path: str, *, audience: str) -> None:
    """Raises HttpRefused. Call this first: an unauthorized client must not learn which entities
    exist.
    """
    grant = _grant(_token(request), namespace, path, audience=audience)
    if not grant.allows(Right.MANAGE):
        claims = _CLAIMS.get(request.method, "Manage claim is required for this operation")
        raise unauthorized(
            f"{claims}: policy {grant.policy_name!r} has no right to Manage",
            policy_name=grant.policy_name,
        )


def check_target(request: Request, namespace: Namespace, target: str, *, header: str) -> None:
    """Checks whether this client may have messages forwarded to the target.

    It checks the token of the request, or another one in a header for this purpose.
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
        except HttpRefused as refused:
            refusal = refused.detail
    raise unauthorized(f"Forwarding to {target!r} needs a token for it in {header}: {refusal}")


def _token(request: Request) -> str:
    token = request.headers.get("authorization")
    if not token:
        raise unauthorized("MissingToken: The authorization header was not found")
    return token


def _grant(token: str, namespace: Namespace, path: str, *, audience: str) -> tokens.Grant:
    """Checks with the keys of the namespace, then with those of the entity at the path, for this
    audience only.
    """
    try:
        return tokens.grant(
            token,
            shared=namespace.options.policies,
            own=namespace.policies_of(path),
            entity=path,
            audience=audience,
            hosts=namespace.hosts,
            now=namespace.clock(),
            accepts_bearer=namespace.options.accepts_bearer,
        )
    except tokens.TokenRefused as refused:
        raise unauthorized(
            f"InvalidToken: {refused.reason}", policy_name=refused.policy_name
        ) from refused


def _is_for_host(token: str, request: Request, namespace: Namespace) -> bool:
    """The Node client signs the bare host for a target's token, which is not a URI."""
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
