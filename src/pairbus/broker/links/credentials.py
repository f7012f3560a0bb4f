"""What a connection's tokens allow, until when.

Tokens come over `$cbs`, one for each entity that the client uses, and are renewed there; a password
(SASL PLAIN) holds for the namespace. The checks of a token itself are in `tokens.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from pairbus.broker.entities.policies import Policy, Right
from pairbus.broker.links import tokens
from pairbus.broker.links.paths import Path


class Credentials:
    def __init__(self) -> None:
        self._grants: dict[str, tokens.Grant] = {}
        self._identity: tokens.Grant | None = None

    def verify_plain(
        self, mechanism: str, user: str, password: str, policies: Iterable[Policy]
    ) -> None:
        """Raises TokenRefused. Whoever comes without a password shows its tokens over `$cbs`."""
        if mechanism == "PLAIN":
            self._identity = tokens.verify_plain(user, password, policies)

    def add(self, path: Path, grant: tokens.Grant) -> None:
        """The newest token for a path counts."""
        self._grants[str(path).lower()] = grant

    def allow(self, path: Path, right: Right, *, now_ms: int) -> bool:
        grants = [*self._grants.values(), *([self._identity] if self._identity else [])]
        return any(
            grant.allows(right)
            and grant.covers(str(path))
            and not grant.is_expired(now=now_ms / 1000)
            for grant in grants
        )
