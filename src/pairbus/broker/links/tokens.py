"""Authorization: turns shared access signatures, PLAIN passwords and bearer tokens into grants.

Pure: the caller passes policies, audience and `now` (UTC epoch seconds), and gets a Grant or a
TokenRefused with a reason that may be shown to the client. The reason never contains a key or a
signature. The caller decides which link or request needs which right. `Credentials` holds the
grants of one connection.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, unquote

from pairbus.broker.entities.policies import Policy, Right
from pairbus.broker.hosts import HostNames, host_of, is_loopback
from pairbus.broker.links.paths import Path
from pairbus.errors import BrokerError

_SAS_PREFIX: Final = "SharedAccessSignature "
_BEARER_PREFIX: Final = "Bearer "
_FIELDS: Final = ("sr", "sig", "se", "skn")
_TOKEN_LENGTH_MAX: Final = 16_384
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SECONDS: Final = re.compile(r"[0-9]{1,12}")
# Clients encode the policy name once or twice; the bound limits the cost of a hostile name.
_DECODINGS_MAX: Final = 4
_BEARER_SECONDS: Final = 3600.0
_ROLES: Final = {
    "Azure Service Bus Data Sender": frozenset({Right.SEND}),
    "Azure Service Bus Data Receiver": frozenset({Right.LISTEN}),
    "Azure Service Bus Data Owner": frozenset(Right),
}
NEVER: Final = float("inf")


class TokenRefused(BrokerError):
    """The token is not valid. `reason` may be shown to the client that sent it.

    `policy_name` is what the token claims, where it can be read.
    """

    def __init__(self, reason: str, *, policy_name: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.policy_name = policy_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a verified token allows, where, and until when."""

    policy_name: str
    rights: frozenset[Right]
    scope: str
    """Lower-case path prefix without slashes at its ends; empty for the whole namespace."""
    expires_at: float
    """UTC epoch seconds."""
    policy_of_entity: Policy | None = None
    """Signed with a key of one entity: valid for it and its own sub-paths, such as its dead-letter
    queue or its subscriptions, as long as it has this policy. An entity whose name merely begins
    like it is another one.
    """

    def covers(self, entity_path: str) -> bool:
        path = normalise_path(entity_path)
        if not _is_within(path, self.scope):
            return False
        rest = path[len(self.scope) :]
        if self.policy_of_entity is None or not rest:
            return True
        return rest.startswith(("/$", "/subscriptions/"))

    def allows(self, right: Right) -> bool:
        return right in self.rights or Right.MANAGE in self.rights

    def is_expired(self, *, now: float) -> bool:
        return now >= self.expires_at


class Credentials:
    """What the tokens of one connection allow.

    Tokens come over `$cbs`, one for each entity that the client uses, and are renewed there. A
    password (SASL PLAIN) is valid for the whole namespace.
    """

    def __init__(self) -> None:
        self._grants: dict[str, Grant] = {}
        self._identity: Grant | None = None

    def verify_plain(self, user: str, password: str, policies: Iterable[Policy]) -> None:
        """Raises TokenRefused."""
        self._identity = verify_plain(user, password, policies)

    def add(self, path: Path, grant: Grant) -> None:
        """The newest token for a path counts."""
        self._grants[str(path).lower()] = grant

    def revoke(self, policies_of: Callable[[str], Sequence[Policy]]) -> None:
        """Drop the grants of policies that their entity no longer has, or has changed."""
        self._grants = {
            path: grant
            for path, grant in self._grants.items()
            if grant.policy_of_entity is None or grant.policy_of_entity in policies_of(grant.scope)
        }

    @property
    def has_grants(self) -> bool:
        """The client has shown a valid token, which may have expired since."""
        return bool(self._grants) or self._identity is not None

    def allow(self, path: Path, right: Right, *, now_ms: int) -> bool:
        return any(grant.allows(right) for grant in self._valid(path, now_ms))

    def policy_for(self, path: Path, *, now_ms: int) -> str | None:
        """The policy of a valid token that covers the path, if there is one."""
        return next((grant.policy_name for grant in self._valid(path, now_ms)), None)

    def _valid(self, path: Path, now_ms: int) -> Iterator[Grant]:
        name = str(path)
        # The path's own token comes first: a client may have hundreds, and check_tokens asks for
        # each of its links.
        grants = (self._grants.get(name.lower()), *self._grants.values(), self._identity)
        return (
            grant
            for grant in grants
            if grant is not None and grant.covers(name) and not grant.is_expired(now=now_ms / 1000)
        )


def verify(
    token: str,
    policies: Iterable[Policy],
    *,
    audience: str,
    hosts: HostNames,
    now: float,
    accepts_bearer: bool = False,
) -> Grant:
    """Check a token from `$cbs` or from an Authorization header. Its label does not matter.

    The SDKs label SAS tokens "jwt" and send them as "Bearer", so the content decides. `audience`
    is what the token is presented for; the token must cover it, and name one of our `hosts`. With
    `accepts_bearer`, any other token counts as one of Azure's identity service and is *not*
    checked: for local use only.
    """
    if len(token) > _TOKEN_LENGTH_MAX:
        raise TokenRefused(
            f"the token has {len(token)} characters, but at most {_TOKEN_LENGTH_MAX} are allowed"
        )
    if token[: len(_BEARER_PREFIX)].lower() == _BEARER_PREFIX.lower():
        token = token[len(_BEARER_PREFIX) :].lstrip()
    if token.startswith(_SAS_PREFIX):
        return _verify_signature(token, policies, audience=audience, hosts=hosts, now=now)
    if accepts_bearer and token:
        return _unchecked_bearer(token, now=now)
    raise TokenRefused(
        "the token is not a shared access signature, and this broker cannot check bearer tokens "
        "(JWT): use a connection string with a SharedAccessKey, or run it with --accept-bearer"
    )


def grant(
    token: str,
    *,
    shared: Sequence[Policy],
    own: Sequence[Policy],
    entity: str,
    audience: str,
    hosts: HostNames,
    now: float,
    accepts_bearer: bool,
) -> Grant:
    """Check with a key of the namespace (`shared`), else with one of the entity (`own`).

    A key of the entity is valid only for that entity, even if its token claims a wider scope.
    """
    try:
        return verify(
            token, shared, audience=audience, hosts=hosts, now=now, accepts_bearer=accepts_bearer
        )
    except TokenRefused:
        if not own:
            raise
    # The shared policies fail here again; they are listed so that the reason names the right key.
    found = verify(token, [*own, *shared], audience=audience, hosts=hosts, now=now)
    return replace(found, scope=entity.lower(), policy_of_entity=_policy(found.policy_name, own))


def verify_plain(user: str, password: str, policies: Iterable[Policy]) -> Grant:
    """SASL PLAIN: the user is a policy's name, the password its key. Valid for the namespace."""
    policy = _policy(user, policies)
    if policy is None or not _is_one_of(password, policy.keys):
        raise _wrong_key(user)
    return Grant(policy_name=policy.name, rights=policy.rights, scope="", expires_at=NEVER)


def make_token(policy: Policy, *, audience: str, expires_at: float) -> str:
    """A token as the SDKs make it: percent-encoded audience, signed in its encoded form."""
    resource = quote(audience, safe="")
    expiry = str(int(expires_at))
    signature = quote(_sign(policy.key, resource, expiry), safe="")
    return (
        f"{_SAS_PREFIX}sr={resource}&sig={signature}&se={expiry}&skn={quote(policy.name, safe='')}"
    )


def normalise_path(address: str) -> str:
    """`amqps://host:5671/Orders/?api-version=1` and `/orders` are both `orders`."""
    address = re.split("[?#]", address, maxsplit=1)[0]
    match = _SCHEME.match(address)
    if match:
        address = address[match.end() :].partition("/")[2]
    return address.strip("/").lower()


def _verify_signature(
    token: str, policies: Iterable[Policy], *, audience: str, hosts: HostNames, now: float
) -> Grant:
    fields = _fields(token[len(_SAS_PREFIX) :])
    expires_at = _expiry(fields["se"])
    name = _decoded(fields["skn"])
    policy = _policy(name, policies)
    # The signature is over the resource as it stands in the token, encoded or not.
    # Compared as text: base64 has several spellings of the same bytes, and only one was signed.
    keys = () if policy is None else policy.keys
    expected = [_sign(key, fields["sr"], fields["se"]) for key in keys]
    if policy is None or not _is_one_of(unquote(fields["sig"]), expected):
        raise _wrong_key(name)
    if expires_at <= now:
        raise TokenRefused(
            f"the token expired at {_utc(expires_at)}; it is now {_utc(now)}", policy_name=name
        )
    try:
        scope = _covered_scope(unquote(fields["sr"]), audience, hosts)
    except TokenRefused as refused:
        refused.policy_name = name
        raise
    return Grant(policy_name=policy.name, rights=policy.rights, scope=scope, expires_at=expires_at)


def _is_one_of(given: str, right: Iterable[str]) -> bool:
    """Compares all of them in constant time, so that the duration does not show which one differs,
    or where.
    """
    return any([hmac.compare_digest(given.encode(), one.encode()) for one in right])


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in text.strip().split("&"):
        name, _, value = part.partition("=")
        if name in fields:
            raise TokenRefused(f"the shared access signature has {name!r} twice")
        fields[name] = value
    missing = [name for name in _FIELDS if not fields.get(name)]
    if missing:
        raise TokenRefused(f"the shared access signature lacks {', '.join(missing)}")
    return fields


def _expiry(text: str) -> float:
    if not _SECONDS.fullmatch(text):
        raise TokenRefused(f"the expiry se={text[:40]!r} is not a whole number of unix seconds")
    return float(text)


def _policy(name: str, policies: Iterable[Policy]) -> Policy | None:
    return next((policy for policy in policies if policy.name == name), None)


def _wrong_key(name: str) -> TokenRefused:
    """One text for an unknown policy and for a wrong key: the policies of an entity are known only
    where the entity exists, and nobody may learn that without a valid key.
    """
    return TokenRefused(
        f"there is no policy {name[:100]!r} with this key: check SharedAccessKeyName and "
        "SharedAccessKey in the connection string",
        policy_name=name,
    )


def _decoded(text: str) -> str:
    for _ in range(_DECODINGS_MAX):
        plain = unquote(text)
        if plain == text:
            break
        text = plain
    return text


def _sign(key: str, resource: str, expiry: str) -> str:
    # The key's text is the secret: it looks like base64, and is not decoded.
    digest = hmac.digest(key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256)
    return base64.b64encode(digest).decode()


def _covered_scope(resource: str, audience: str, hosts: HostNames) -> str:
    """The path that the token is valid for, after checking that the audience lies in it.

    The scope comes from the signed resource alone, because the client chooses the audience. A
    resource without a scheme is refused: it is unclear whether `a.b/c` starts with a host or with
    an entity, and a wrong guess would widen the token. An audience may be a bare path.
    """
    host, scope = _host_and_path(resource)
    if not host:
        raise TokenRefused(f"the resource sr={resource[:200]!r} is not a URI like sb://HOST/ENTITY")
    if not hosts.has(host):
        raise TokenRefused(
            f"the token is for the host {host[:200]!r}, which is not a name of this broker: use an "
            "address or localhost, or start the broker with that name as --host or --namespace"
        )
    audience_host, path = _host_and_path(audience)
    if (not audience_host or host == audience_host) and _is_within(path, scope):
        return scope
    raise TokenRefused(
        f"the token is for {resource[:200]!r}, which does not cover {audience[:200]!r}"
    )


def _host_and_path(address: str) -> tuple[str, str]:
    """Without the port: some clients of one namespace write it and others do not."""
    match = _SCHEME.match(address)
    if match is None:
        return "", normalise_path(address)
    authority = address[match.end() :].partition("/")[0]
    host = host_of(authority)
    return "localhost" if is_loopback(host) else host, normalise_path(address)


def _is_within(path: str, scope: str) -> bool:
    return not scope or path == scope or path.startswith(f"{scope}/")


def _unchecked_bearer(token: str, *, now: float) -> Grant:
    """A JWT's `exp` is honoured where it can be read, so that clients exercise their renewal.

    So are `roles` that name those of Service Bus, so that a test can show which ones are needed.
    """
    expires_at = now + _BEARER_SECONDS
    rights: frozenset[Right] = frozenset()
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        expires_at = float(claims.get("exp", expires_at))
        roles = claims.get("roles")
        rights = frozenset().union(*(_ROLES.get(str(role), ()) for role in roles or ()))
    except (IndexError, AttributeError, TypeError, ValueError, OverflowError, RecursionError):
        pass  # not a JWT, or one with other claims: it is valid for an hour
    # Written as a negation, so that an expiry of NaN, which JSON allows, is refused.
    if not now < expires_at:
        raise TokenRefused(f"the bearer token expired; it is now {_utc(now)}")
    rights = rights or frozenset(Right)
    return Grant(policy_name="bearer", rights=rights, scope="", expires_at=expires_at)


def _utc(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.0f} s after 1970"
