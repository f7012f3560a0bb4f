"""Tokens: made from any credential that the SDK takes, put on `$cbs`, and renewed in time.

The service needs one for each entity and connection, and ends links whose token has expired. Knows
nothing of messages.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote_plus

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

from pairbus.amqp.client.blocking import (
    ClientError,
    Connection,
    ConnectionLost,
    LinkLost,
    PeerSilent,
)
from pairbus.amqp.client.requests import RequestLinks, Response
from pairbus.amqp.codec.types import Timestamp
from pairbus.fast.errors import from_token_status
from pairbus.fast.token_cache import RETRY_SECONDS, SCOPE, renewal_time

SAS: Final = "servicebus.windows.net:sastoken"
JWT: Final = "jwt"
_LIFE_SECONDS: Final = 3600
_RENEWAL_SECONDS_MIN: Final = 1.0
_CBS: Final = "$cbs"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Token:
    text: str
    expires: float
    """Seconds since the epoch."""
    kind: str
    renew_at: float = math.inf

    def accepted(self, now: float) -> None:
        """Records that the service has accepted the token. From now on it is renewed in time."""
        if math.isfinite(self.expires):
            # Not at once: a signature stays the same, and our clock may be ahead of the service's.
            self.renew_at = max(renewal_time(self.expires, now=now), now + _RENEWAL_SECONDS_MIN)


TokenSource = Callable[[str, float], Token]
"""Makes a token for an audience, at a time."""


def sign(audience: str, name: str, key: str, *, expires: int) -> str:
    """Make a shared access signature."""
    resource = quote_plus(audience)
    digest = hmac.new(key.encode(), f"{resource}\n{expires}".encode(), hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest))
    return (
        f"SharedAccessSignature sr={resource}&sig={signature}&se={expires}&skn={quote_plus(name)}"
    )


def source_of(credential: Any) -> TokenSource:
    """As in the SDK, a credential is a named key, a signature, or an object with `get_token`."""
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
            f"the credential is a {type(credential).__name__}; expected AzureNamedKeyCredential, "
            "AzureSasCredential or an object with get_token()"
        )
    kind = getattr(credential, "token_type", JWT)
    kind = kind.decode() if isinstance(kind, bytes) else str(kind)

    def by_asking(audience: str, now: float) -> Token:
        token = credential.get_token(audience if kind == SAS else SCOPE)
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


class TokenAuthority:
    """The tokens of one connection."""

    def __init__(
        self, connection: Connection, source: TokenSource, *, clock: Callable[[], float]
    ) -> None:
        self._connection = connection
        self.source = source
        self._clock = clock
        self._requests: RequestLinks | None = None
        self._accepted: dict[str, Token] = {}
        self.renew_at = math.inf
        """When, by the clock, the next token must be renewed."""

    def start(self) -> None:
        """Ask for the links, before the connection is open. The SDK does that, too."""
        self._requests = RequestLinks(self._connection, _CBS)

    def authorize(self, audiences: Sequence[str], *, until: float) -> list[Exception | None]:
        """Put the tokens that are missing, all at once. Returns the error of each, or None."""
        missing = [one for one in audiences if not self._is_authorized(one)]
        try:
            errors = dict.fromkeys(audiences, None) | self._put(missing, until)
        finally:
            self._plan()
        return [errors[one] for one in audiences]

    def _is_authorized(self, audience: str) -> bool:
        token = self._accepted.get(audience)
        return token is not None and self._clock() < token.expires

    def renew(self, *, until: float) -> None:
        """Renew all that are due. A failure is tried again while the old token is valid.

        After that the token is dropped: the service ends its links, and their users get the error.
        """
        now = self._clock()
        due = [audience for audience, token in self._accepted.items() if now >= token.renew_at]
        try:
            for audience, error in self._put(due, until).items():
                if error is not None:
                    self._renewal_failed(audience, error, now=now)
        finally:
            self._plan()

    def _renewal_failed(self, audience: str, error: Exception, *, now: float) -> None:
        logger.warning("the token for %s cannot be renewed: %s", audience, error)
        token = self._accepted[audience]
        left = token.expires - now
        if left > 0:
            token.renew_at = now + min(RETRY_SECONDS, max(left / 2, 1.0))
        else:
            del self._accepted[audience]

    def _plan(self) -> None:
        """Call it after `_put`, also after Ctrl-C: otherwise nothing is renewed any more."""
        self.renew_at = min((one.renew_at for one in self._accepted.values()), default=math.inf)

    def _put(self, audiences: Sequence[str], until: float) -> dict[str, Exception | None]:
        """Returns the error of each audience, or None. Raises ConnectionLost, which affects all of
        them. Call `_plan` afterwards, whatever happens.
        """
        # No renewal may start while this waits: it would take the answers away.
        self.renew_at = math.inf
        errors: dict[str, Exception | None] = {}
        tokens: dict[str, Token] = {}
        now = self._clock()
        for audience in audiences:
            try:
                tokens[audience] = self.source(audience, now)
            except Exception as error:  # a credential may raise anything
                errors[audience] = error
        answers = self._ask(tokens, until) if tokens else []
        for (audience, token), answer in zip(tokens.items(), answers, strict=True):
            errors[audience] = _error_in(answer, audience)
            if errors[audience] is None:
                token.accepted(now)
                self._accepted[audience] = token
        return errors

    def _ask(self, tokens: Mapping[str, Token], until: float) -> list[Response | ClientError]:
        asked = [(_put_token(audience, token), token.text) for audience, token in tokens.items()]
        answers: list[Response | None] = [None] * len(asked)
        if len(asked) > 1:
            with contextlib.suppress(LinkLost, PeerSilent):
                answers = self._request_links(until).ask_all(asked, until=until, reply_to=False)
        # Requests without an answer are sent again, one by one: that also finds the reason.
        return [
            self._ask_one(*asked[index], until) if answer is None else answer
            for index, answer in enumerate(answers)
        ]

    def _ask_one(
        self, properties: Mapping[str, Any], body: str, until: float
    ) -> Response | ClientError:
        try:
            return self._request_links(until).ask(properties, body, until=until, reply_to=False)
        except ConnectionLost:
            raise
        except ClientError as error:
            return error

    def _request_links(self, until: float) -> RequestLinks:
        if self._requests is None or self._requests.is_over:
            if self._requests is not None:
                self._requests.detach()
            self._requests = RequestLinks(self._connection, _CBS)
        self._requests.wait_attached(until)
        return self._requests


def _error_in(answer: Response | ClientError, audience: str) -> Exception | None:
    if isinstance(answer, ClientError):
        return answer
    status = answer.properties.get("status-code")
    if isinstance(status, int) and 200 <= status < 300:
        return None
    description = str(answer.properties.get("status-description", ""))
    return from_token_status(status if isinstance(status, int) else None, description, audience)


def _put_token(audience: str, token: Token) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "operation": "put-token",
        "type": token.kind,
        "name": audience,
    }
    if math.isfinite(token.expires):
        properties["expiration"] = Timestamp(int(token.expires * 1000))
    return properties
