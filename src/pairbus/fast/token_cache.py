"""Logs in with an identity: makes its credential once in each process, and keeps its token.

A process opens several connections, and a credential may take a second to answer. So the token is
kept until shortly before its end, for all connections of the process. What a credential raises is
reported in one line.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError

from pairbus.errors import PairbusError, one_line

SCOPE: Final = "https://servicebus.azure.net//.default"
RETRY_SECONDS: Final = 30.0
_LAST_PART: Final = 0.1  # the last part of its life, in which a token is renewed
_LAST_SECONDS: Final = 300.0  # when azure-identity asks for another one, and not before
_ATTEMPT: Final = re.compile(r"^\t(\w+): (.*)$", re.MULTILINE)
_ABSENT: Final = re.compile(
    r"unavailable|not found|not installed|could not be found|requires the|No accounts were found"
)

logger = logging.getLogger(__name__)
# It logs as a warning what it raises, in dozens of lines. Where logging is not set up, Python would
# print them. A handler that is set up still gets them.
logging.getLogger("azure.identity").addHandler(logging.NullHandler())


class LoginFailed(ClientAuthenticationError):
    """The credential gave no token. The text is one line."""


def renewal_time(expires: float, *, now: float) -> float:
    """When to renew a token: early enough to try again if that fails.

    A credential may return the same token until it is about to expire. Then this is asked again,
    with the time that is left.
    """
    life = max(expires - now, 0.0)
    return expires - min(max(life * _LAST_PART, _LAST_SECONDS), life / 2)


class TokenCache:
    """A credential for the SDK and for the fast client that asks another one, as rarely as
    possible. Safe in any thread.

    Pickled, it is its current token: a Spark task gets a token that outlives it, and no secret that
    could make others.
    """

    def __init__(
        self, credential: Any, name: str = "", *, clock: Callable[[], float] = time.time
    ) -> None:
        self._credential = credential
        self.name = name or type(credential).__name__
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, ...], tuple[AccessToken, float]] = {}
        """By scopes: the token, and when to renew it."""

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """Raises LoginFailed."""
        if any(options.values()):  # for example `claims`, which a kept token does not have
            return self._ask(scopes, options)
        with self._lock:
            now = self._clock()
            token, renew_at = self._kept.get(scopes, (None, 0.0))
            if token is not None and now < renew_at:
                return token
            try:
                token = self._ask(scopes, options)
                renew_at = renewal_time(token.expires_on, now=now)
            except LoginFailed as error:
                if token is None or now >= token.expires_on:
                    raise
                logger.warning("the token cannot be renewed, the old one is still valid: %s", error)
                renew_at = now + min(RETRY_SECONDS, (token.expires_on - now) / 2)
            self._kept[scopes] = token, renew_at
            return token

    def _ask(self, scopes: tuple[str, ...], options: dict[str, Any]) -> AccessToken:
        try:
            token: AccessToken = self._credential.get_token(*scopes, **options)
            return token
        except Exception as error:  # a credential may raise anything
            raise LoginFailed(f"{self.name} gave no token: {reason_of(error)}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            return HandedOutToken, (self.name, self.get_token(SCOPE), "")
        except LoginFailed as error:
            return HandedOutToken, (self.name, None, str(error))


class HandedOutToken:
    """The token of another process, or why it got none."""

    def __init__(self, name: str, token: AccessToken | None, error: str) -> None:
        self.name = name
        self._token = token
        self._error = error

    def __repr__(self) -> str:
        return f"<HandedOutToken of {self.name}>"

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        if self._token is None:
            raise LoginFailed(self._error)
        return self._token


_login_lock = threading.Lock()  # two threads must not log in twice


def login(make: Callable[[], Any]) -> Any:
    """The credential that `make` makes, once in this process.

    Never raises, so that a Spark task reports a missing package like any other refusal.
    """
    try:
        with _login_lock:
            return _log_in(make)
    except Exception as error:
        name = _name_of(make)
        return HandedOutToken(name, None, f"{name} gave no token: {reason_of(error)}")


# Bounded: Spark makes a function that is defined in a notebook anew for each task.
@lru_cache(maxsize=16)
def _log_in(make: Callable[[], Any]) -> Any:
    return cached(make(), _name_of(make))


def _name_of(make: Callable[[], Any]) -> str:
    return str(getattr(make, "attribute", None) or getattr(make, "__name__", "the credential"))


def cached(credential: Any, name: str = "") -> Any:
    """Wraps a credential of azure-identity's kind. A key or a signature stays what it is."""
    if isinstance(credential, TokenCache) or hasattr(credential, "token_type"):
        return credential
    return TokenCache(credential, name) if hasattr(credential, "get_token") else credential


def reason_of(error: BaseException) -> str:
    """One line. DefaultAzureCredential lists all its attempts, with a page of advice."""
    attempts = dict(_ATTEMPT.findall(str(error)))
    if not attempts:
        own = isinstance(error, (PairbusError, ClientAuthenticationError))
        return one_line(error).removeprefix(f"{type(error).__name__}: " if own else "")
    reasons = [f"{name}: {text}" for name, text in attempts.items() if not _ABSENT.search(text)]
    if reasons:
        return one_line(Exception("; ".join(reasons))).removeprefix("Exception: ")
    tried = ", ".join(name.removesuffix("Credential") for name in attempts)
    return (
        f"it found no identity on this machine (it tried {tried}). Log in with `az login`, or set "
        "AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET"
    )
