"""Credentials like those of azure-identity, for brokers that accept bearer tokens: one that counts,
one that expires, one that refuses. Tests name them, also on Spark's workers, which import only
this file.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable
from typing import Any

from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError

LOG = "PAIRBUS_TEST_LOGINS"
"""The variable that names a file, to which each new token adds a line with a process id."""


class Issuer:
    """Issues tokens that are valid for `seconds`, by its clock, and keeps their scopes."""

    def __init__(
        self, *, seconds: float = 3600, clock: Callable[[], float] = time.time, roles: Any = ()
    ) -> None:
        self.seconds = seconds
        self.roles = list(roles)
        self.scopes: list[str] = []
        self.is_down = False
        self._clock = clock

    @property
    def count(self) -> int:
        return len(self.scopes)

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        if self.is_down:
            raise ClientAuthenticationError("AADSTS90033: a transient error has occurred")
        self.scopes += scopes
        if LOG in os.environ:
            with open(os.environ[LOG], "a") as file:
                file.write(f"{os.getpid()}\n")
        expires_on = int(self._clock() + self.seconds)
        claims = {"exp": expires_on, "roles": self.roles, "number": self.count}
        payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
        return AccessToken(f"e30.{payload}.", expires_on)


def counted() -> Issuer:
    return Issuer()


def sender() -> Issuer:
    return Issuer(roles=["Azure Service Bus Data Sender"])


def receiver() -> Issuer:
    return Issuer(roles=["Azure Service Bus Data Receiver"])


def refusing() -> Issuer:
    issuer = Issuer()
    issuer.is_down = True
    return issuer
