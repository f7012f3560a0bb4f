"""A client for a broker's `/$faults`, over HTTP."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any, Final

from pairbus.cli.http import HttpClient, HttpResponse, authorization
from pairbus.cli.target import Target, cannot_reach
from pairbus.errors import NamespaceError, UsageError

_PATH: Final = "/$faults"
_SECONDS_MAX: Final = 30.0


class FaultClient:
    def __init__(self, target: Target, *, seconds: float = _SECONDS_MAX) -> None:
        """`seconds`: how long to wait for an answer."""
        self._target = target
        self._seconds = seconds

    def all(self) -> list[dict[str, Any]]:
        faults: list[dict[str, Any]] = self._call("GET")["faults"]
        return faults

    def add(self, fault: dict[str, Any]) -> dict[str, Any]:
        return self._call("POST", body=fault)

    def run(self, script: dict[str, Any]) -> list[dict[str, Any]]:
        planned: list[dict[str, Any]] = self._call("POST", body=script)["faults"]
        return planned

    def clear(self, number: int) -> None:
        response = self._request("DELETE", f"{_PATH}/{number}")
        if response.status == HTTPStatus.NOT_FOUND and _json(response) is not None:
            raise NamespaceError(
                f"{self._target.address} has no fault {number}; `pairbus fault list` shows the "
                "faults and their ids"
            )
        self._check(response)

    def clear_all(self) -> None:
        self._call("DELETE")

    def _call(self, method: str, *, body: object = None) -> dict[str, Any]:
        return self._check(self._request(method, _PATH, body))

    def _request(self, method: str, path: str, body: object = None) -> HttpResponse:
        headers = {"Authorization": authorization(self._target), "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        try:
            with HttpClient.for_target(self._target, seconds=self._seconds) as client:
                return client.request(method, path, body=data, headers=headers)
        except NamespaceError as error:
            text = cannot_reach(self._target, str(error))
            is_closed = isinstance(error.__cause__, ConnectionRefusedError)
            if is_closed and self._target.is_local:
                text += " The fault `unreachable` closes the port until its duration is over."
            raise NamespaceError(text) from error

    def _check(self, response: HttpResponse) -> dict[str, Any]:
        address, answer = self._target.address, _json(response)
        if answer is None:
            raise NamespaceError(
                f"{address} has no faults on demand (it answers with {response.status}): "
                "is it a pairbus broker?"
            )
        if response.status == HTTPStatus.BAD_REQUEST:
            raise UsageError(str(answer.get("error")))
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise NamespaceError(f"{address} answers: {answer.get('error')}")
        return answer


def _json(response: HttpResponse) -> dict[str, Any] | None:
    """None if the answer is not that of a pairbus broker."""
    try:
        answer = json.loads(response.body)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None
