"""Faults on demand over HTTP: `/$faults` lists, starts and clears them; needs the Manage claim.

JSON both ways. `FaultGate` stands before the administration and does to it what faults do; the
paths here and `/$health` are not behind it, so that a fault can always be cleared while the port is
open.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.admin import access, targets
from pairbus.broker.admin.errors import Refused
from pairbus.broker.entities.policies import Right
from pairbus.broker.faults.active_faults import ActiveFaults, Silence
from pairbus.broker.faults.fault_json import from_json, running_to_json, script_from_json
from pairbus.broker.faults.kinds import SEED_MAX, Operation
from pairbus.broker.faults.schedule import RunningFault
from pairbus.broker.links import tokens
from pairbus.broker.links.request_codec import refusal
from pairbus.broker.namespace import Namespace
from pairbus.errors import ConfigError

FAULTS_PATH: Final = "/$faults"
_BODY_BYTES_MAX: Final = 1024 * 1024

Endpoint = Callable[[Request], Awaitable[Response]]


def faults_routes(namespace: Namespace) -> list[BaseRoute]:
    controller = namespace.faults

    def checked(endpoint: Endpoint) -> Endpoint:
        async def answer(request: Request) -> Response:
            try:
                check_manage(request, namespace)
                return await endpoint(request)
            except Refused as refused:
                return _error(refused.status, refused.detail, refused.headers)
            except ConfigError as error:
                return _error(400, str(error))
            except ClientDisconnect:
                return Response(status_code=400)  # which nobody reads

        return answer

    def fault(request: Request) -> RunningFault:
        number = request.path_params["number"]
        found = controller.find(number)
        if found is None:
            raise Refused(404, f"there is no fault {number}; GET {FAULTS_PATH} lists them")
        return found

    async def collection(request: Request) -> Response:
        if request.method == "GET":
            return _faults(controller.faults)
        if request.method == "DELETE":
            controller.clear(controller.faults)
            return _faults([])
        body = _read(await _body(request))
        if "script" not in body:
            return JSONResponse(running_to_json(controller.start(from_json(body))), 201)
        script = script_from_json(body["script"])
        return _faults(controller.script(script, seed=_seed(body)), 201)

    async def one(request: Request) -> Response:
        found = fault(request)
        if request.method == "DELETE":
            controller.clear([found])
        return JSONResponse(running_to_json(found))

    return [
        Route(FAULTS_PATH, checked(collection), methods=["GET", "POST", "DELETE"]),
        Route(FAULTS_PATH + "/{number:int}", checked(one), methods=["GET", "DELETE"]),
    ]


def check_manage(request: Request, namespace: Namespace) -> None:
    """By the broker's clock: who has made the namespace's jump must be able to get it back."""
    try:
        grant = tokens.verify(
            request.headers.get("authorization", ""),
            namespace.options.policies,
            audience="",
            now=namespace.faults.now(),
        )
    except tokens.TokenRefused as refused:
        raise access.unauthorized(refused.reason) from refused
    if not grant.allows(Right.MANAGE):
        raise access.unauthorized(f"policy {grant.policy_name!r} has no Manage claim")


def _faults(faults: list[RunningFault], status: int = 200) -> Response:
    return JSONResponse({"faults": [running_to_json(fault) for fault in faults]}, status)


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": text}, status, headers)


async def _body(request: Request) -> bytes:
    pieces = bytearray()
    async for piece in request.stream():
        pieces += piece
        if len(pieces) > _BODY_BYTES_MAX:
            raise Refused(413, f"the body has more than {_BODY_BYTES_MAX} bytes")
    return bytes(pieces)


def _read(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a fault, or an object with a script")
    return body


def _seed(body: dict[str, Any]) -> int | None:
    if unknown := [name for name in body if name not in ("script", "seed")]:
        raise ConfigError(f"a script has no {unknown[0]!r} beside it, but a seed")
    seed = body.get("seed")
    if seed is None:
        return None
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= SEED_MAX:
        raise ConfigError(f"seed is {seed!r}, but must be a whole number from 0 to {SEED_MAX}")
    return seed


class FaultGate:
    """In front of the administration of a namespace."""

    def __init__(self, namespace: Namespace, app: ASGIApp) -> None:
        self._namespace = namespace
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._namespace.active_faults is not None:
            await self._apply_faults(targets.parse(scope["raw_path"]).path)
        await self._app(scope, receive, send)

    async def _apply_faults(self, entity: str) -> None:
        """Raises Refused, or returns when the request may go on."""
        was_dropped = False
        while (faults := self._namespace.active_faults) is not None:
            silences = (faults.silence(None), faults.silence(entity))
            if not any(silences):
                break
            was_dropped = was_dropped or Silence.DROP in silences
            await self._namespace.faults.changed()
        if was_dropped:
            raise Refused(503, "the namespace could not be reached for a while")
        if faults is not None:
            await asyncio.sleep(faults.latency_seconds(None) + faults.latency_seconds(entity))
            _refuse(faults, entity)


def _refuse(faults: ActiveFaults, entity: str) -> None:
    if faults.is_cut_off:
        raise Refused(503, "the namespace cannot be contacted")
    error = faults.refusal_of_link(entity, receives=False) or faults.refusal(
        entity, Operation.MANAGE
    )
    if error is not None:
        raise Refused(_status(error), error.description)


def _status(error: AmqpError) -> int:
    """What the client got wrong is a status of its own; all else is the server's fault."""
    status = refusal(error).status
    return status if status not in (400, 410) else 500
