"""Tokens: made of whatever credential the SDK takes, shown on `$cbs`, and renewed in time.

The service wants one for each entity and connection, and ends the links whose token has run out.
A token is renewed when a tenth of its life is left, as the SDK does. Knows nothing of messages.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote_plus

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

from pairbus.amqp.client.connection import Connection, ConnectionLost
from pairbus.amqp.client.requests import Requests
from pairbus.amqp.codec.types import Timestamp
from pairbus.fast.errors import of_token

SAS: Final = "servicebus.windows.net:sastoken"
JWT: Final = "jwt"
_SCOPE: Final = "https://servicebus.azure.net//.default"
_LIFE_SECONDS: Final = 3600
_RETRY_SECONDS: Final = 30.0
_LAST_PART: Final = 0.1  # of its life, in which a token is renewed
_CBS: Final = "$cbs"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Token:
    text: str
    expires: float
    """Seconds since the epoch."""
    kind: str


TokenSource = Callable[[str, float], Token]
"""An audience and the time -> a token for it."""


def sign(audience: str, name: str, key: str, *, expires: int) -> str:
    """A shared access signature."""
    resource = quote_plus(audience)
    digest = hmac.new(key.encode(), f"{resource}\n{expires}".encode(), hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest))
    return (
        f"SharedAccessSignature sr={resource}&sig={signature}&se={expires}&skn={quote_plus(name)}"
    )


def source_of(credential: Any) -> TokenSource:
    """By the SDK's rules: a named key, a signature, or an object with `get_token`."""
    if isinstance(credential, AzureNamedKeyCredential):

        def by_key(audience: str, now: float) -> Token:
            name, key = credential.named_key
            expires = int(now) + _LIFE_SECONDS
            return Token(sign(audience, name, key, expires=expires), expires, SAS)

        return by_key
    if isinstance(credential, AzureSasCredential):

        def by_signature(audience: str, now: float) -> Token:
            text = credential.signature
            return Token(text, _expiry(text), SAS)

        return by_signature
    if not callable(getattr(credential, "get_token", None)):
        raise TypeError(
            f"a credential of {type(credential).__name__}: AzureNamedKeyCredential, "
            "AzureSasCredential or an object with get_token() is expected"
        )
    kind = getattr(credential, "token_type", JWT)
    kind = kind.decode() if isinstance(kind, bytes) else str(kind)

    def by_asking(audience: str, now: float) -> Token:
        token = credential.get_token(audience if kind == SAS else _SCOPE)
        text = token.token.decode() if isinstance(token.token, bytes) else token.token
        return Token(text, float(token.expires_on), kind)

    return by_asking


def _expiry(signature: str) -> float:
    for item in signature.partition(" ")[2].split("&"):
        key, _, value = item.partition("=")
        if key == "se":
            try:
                return float(value)
            except ValueError:
                break
    return math.inf


class Cbs:
    """The tokens of one connection."""

    def __init__(
        self, connection: Connection, source: TokenSource, *, clock: Callable[[], float]
    ) -> None:
        self._connection = connection
        self._source = source
        self._clock = clock
        self._requests: Requests | None = None
        self._shown: dict[str, _Shown] = {}
        self.renew_at = math.inf
        """When, by the clock, the first of them is to be renewed."""

    def authorize(self, audience: str, *, until: float) -> None:
        """The service has accepted a token for this audience. Raises if it has not."""
        if not self.is_shown(audience):
            self._show(audience, until)
            self._plan()

    def authorize_all(self, audiences: Sequence[str], *, until: float) -> None:
        """The same for several in the time of one. Who was refused is told by `authorize`."""
        now = self._clock()
        try:
            tokens = [(one, self._source(one, now)) for one in audiences if not self.is_shown(one)]
        except Exception:  # a credential may raise anything
            return
        if not tokens:
            return
        answers = self._asking(until).ask_all(
            [(_put(audience, token), token.text) for audience, token in tokens], until=until
        )
        for (audience, token), answer in zip(tokens, answers, strict=True):
            if answer is not None and _is_success(answer.properties.get("status-code")):
                self._shown[audience] = _Shown(token, now)
        self._plan()

    def is_shown(self, audience: str) -> bool:
        shown = self._shown.get(audience)
        return shown is not None and self._clock() < shown.expires

    def renew(self, *, until: float) -> None:
        """All whose time has come. What fails is tried again as long as the old token holds.

        Then it is forgotten: the service ends what stood on it, and says so to who needs it.
        """
        self.renew_at = math.inf  # while waiting for the answer, nobody is to begin again
        for audience, shown in list(self._shown.items()):
            now = self._clock()
            if now < shown.renew_at:
                continue
            try:
                self._show(audience, until)
            except ConnectionLost:
                raise
            except Exception as error:  # a credential may raise anything
                logger.warning("the token for %s cannot be renewed: %s", audience, error)
                left = shown.expires - now
                if left > 0:
                    shown.renew_at = now + min(_RETRY_SECONDS, max(left / 2, 1.0))
                else:
                    del self._shown[audience]
        self._plan()

    def _plan(self) -> None:
        self.renew_at = min((one.renew_at for one in self._shown.values()), default=math.inf)

    def _show(self, audience: str, until: float) -> None:
        now = self._clock()
        token = self._source(audience, now)
        asked = _put(audience, token)
        answer = self._asking(until).ask(asked, token.text, until=until, reply_to=False)
        status = answer.properties.get("status-code")
        if not _is_success(status):
            description = str(answer.properties.get("status-description", ""))
            raise of_token(status if isinstance(status, int) else None, description, audience)
        self._shown[audience] = _Shown(token, now)

    def _asking(self, until: float) -> Requests:
        if self._requests is None or not self._requests.alive:
            self._requests = Requests(self._connection, _CBS, until=until)
        return self._requests


def _put(audience: str, token: Token) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "operation": "put-token",
        "type": token.kind,
        "name": audience,
    }
    if math.isfinite(token.expires):
        properties["expiration"] = Timestamp(int(token.expires * 1000))
    return properties


def _is_success(status: object) -> bool:
    return isinstance(status, int) and 200 <= status < 300


class _Shown:
    """A token that the service has accepted on this connection."""

    __slots__ = ("expires", "renew_at")

    def __init__(self, token: Token, now: float) -> None:
        self.expires = token.expires
        self.renew_at = token.expires - _LAST_PART * max(token.expires - now, 0.0)
        if not math.isfinite(token.expires):
            self.renew_at = math.inf
