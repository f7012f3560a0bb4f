"""Asks a broker's `/$faults` over HTTP.

The SDK has no words for it, so the standard library's client and a signature of our own do.
"""

from __future__ import annotations

import json
import time
from http import HTTPStatus
from typing import Any, Final

from pairbus.broker.entities.policies import Policy, Right
from pairbus.broker.links.tokens import make_token
from pairbus.cli.http import HttpClient
from pairbus.cli.target import Target
from pairbus.errors import NamespaceError, UsageError

_PATH: Final = "/$faults"
_SECONDS_MAX: Final = 30.0
_TOKEN_SECONDS: Final = 300.0


class FaultClient:
    def __init__(self, target: Target) -> None:
        self._target = target

    def all(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask("GET")["faults"]
        return found

    def add(self, fault: dict[str, Any]) -> dict[str, Any]:
        return self._ask("POST", body=fault)

    def run(self, script: dict[str, Any]) -> list[dict[str, Any]]:
        planned: list[dict[str, Any]] = self._ask("POST", body=script)["faults"]
        return planned

    def clear(self, number: int) -> None:
        self._ask("DELETE", f"/{number}")

    def clear_all(self) -> None:
        self._ask("DELETE")

    def _ask(self, method: str, more: str = "", body: object = None) -> dict[str, Any]:
        headers = {"Authorization": self._authorization(), "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        try:
            with HttpClient.for_target(self._target, seconds=_SECONDS_MAX) as client:
                response = client.request(method, _PATH + more, body=data, headers=headers)
        except NamespaceError as error:
            raise NamespaceError(f"cannot reach {self._target.address}: {error}") from error
        return self._understood(response.status, response.body)

    def _understood(self, status: int, data: bytes) -> dict[str, Any]:
        address = self._target.address
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise NamespaceError(
                f"{address} has no faults on demand (it answers with {status}): "
                "is it a pairbus broker?"
            )
        if status == HTTPStatus.BAD_REQUEST:
            raise UsageError(str(answer.get("error")))
        if status >= HTTPStatus.BAD_REQUEST:
            raise NamespaceError(f"{address} says: {answer.get('error')}")
        return answer

    def _authorization(self) -> str:
        target = self._target
        if signature := target.signature.reveal():
            return signature
        policy = Policy(
            name=target.policy_name, key=target.key.reveal(), rights=frozenset({Right.MANAGE})
        )  # what it may do is decided by the broker
        return make_token(
            policy, audience=f"sb://{target.address}/", expires_at=time.time() + _TOKEN_SECONDS
        )
