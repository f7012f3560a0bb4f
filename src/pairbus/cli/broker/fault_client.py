"""Asks a broker's `/$faults` over HTTP.

The SDK has no words for it, so the standard library's client and a signature of our own do.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from typing import Any, Final

from pairbus.broker.entities.policies import Policy, Right
from pairbus.broker.links.tokens import make_token
from pairbus.cli.reasons import why_unreachable
from pairbus.cli.target import Target
from pairbus.errors import NamespaceError, UsageError

_PATH: Final = "/$faults"
_SECONDS_MAX: Final = 30.0
_TOKEN_SECONDS: Final = 300.0
_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024


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
        address = self._target.address
        headers = {"Authorization": self._authorization(), "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        connection = self._connect()
        try:
            connection.request(method, _PATH + more, data, headers)
            response = connection.getresponse()
            status, answer = response.status, response.read(_ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            raise NamespaceError(
                f"{address} cannot be reached: {why_unreachable(error)}"
            ) from error
        finally:
            connection.close()
        return self._understood(status, answer)

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
        if status == http.HTTPStatus.BAD_REQUEST:
            raise UsageError(str(answer.get("error")))
        if status >= http.HTTPStatus.BAD_REQUEST:
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

    def _connect(self) -> http.client.HTTPConnection:
        target = self._target
        if target.is_emulator and target.is_local:  # where the SDKs speak without TLS, too
            return http.client.HTTPConnection(target.host, target.port, timeout=_SECONDS_MAX)
        context = ssl.create_default_context(cafile=target.ca_file)
        return http.client.HTTPSConnection(
            target.host, target.port, timeout=_SECONDS_MAX, context=context
        )
