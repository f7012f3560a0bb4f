"""The HTTP endpoints of a namespace: health, faults, meter, metrics, and the administration.

A plain ASGI application that does not know its port, or that AMQP shares it. Errors of the
administration have the form of the service, so that the official clients can read them; `/$faults`
and `/$meter` speak JSON and need the Manage claim. Faults on demand hit the administration alone,
so that a fault can always be cleared while the port is open.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.admin import access, targets
from pairbus.broker.admin.access import HttpRefused, read_body
from pairbus.broker.admin.api import administration
from pairbus.broker.admin.atom import escape
from pairbus.broker.entities.policies import DEFAULT_KEY, Right
from pairbus.broker.faults.active_faults import ActiveFaults, Silence
from pairbus.broker.faults.fault_json import from_json, running_to_json, script_from_json
from pairbus.broker.faults.kinds import DEFAULT_SECONDS, SEED_MAX, Fault, Operation
from pairbus.broker.faults.schedule import RunningFault
from pairbus.broker.links import tokens
from pairbus.broker.links.request_codec import refusal
from pairbus.broker.namespace import Namespace
from pairbus.broker.refusals import network_of, peer_name
from pairbus.errors import ConfigError, MissingExtra, requires_extra

HEALTH_PATH: Final = "/$health"
FAULTS_PATH: Final = "/$faults"
METER_PATH: Final = "/$meter"
METRICS_PATH: Final = "/$metrics"
_USUAL_METRICS_PATH: Final = "/metrics"
_USUAL_HEALTH_PATH: Final = "/health"
"""The path of the official emulator."""
_BODY_BYTES_MAX: Final = 1024 * 1024

HttpEndpoint = Callable[[Request], Awaitable[Response]]


def make_app(namespace: Namespace) -> Starlette:
    app = Starlette(
        routes=[
            Route(HEALTH_PATH, _health("ok"), methods=["GET"]),
            Route(FAULTS_PATH, _with_json_errors(_faults), methods=["GET", "POST", "DELETE"]),
            Route(
                FAULTS_PATH + "/{number:int}", _with_json_errors(_fault), methods=["GET", "DELETE"]
            ),
            Route(METER_PATH, _with_json_errors(_meter), methods=["GET"]),
            Route(METRICS_PATH, _metrics, methods=["GET"]),
        ],
        exception_handlers={
            HTTPException: _http_error,
            HttpRefused: _refused,
            Exception: _unexpected_error,
        },
    )
    app.state.namespace = namespace
    # The service's paths are entity names: they never end in a slash that could be redirected.
    app.router.redirect_slashes = False
    # Entity names may hold slashes, encoded or not, so the administration reads paths by itself.
    app.router.default = AdministrationGate(namespace, administration(namespace))
    return app


def _namespace(request: Request) -> Namespace:
    found: Namespace = request.app.state.namespace
    return found


def _health(status: str) -> HttpEndpoint:
    async def answer(request: Request) -> Response:
        return JSONResponse({"status": status, "namespace": _namespace(request).name})

    return answer


class AdministrationGate:
    """In front of the administration: monitoring first, then what faults on demand do to it.

    Monitoring asks at usual paths, which may be the path of a queue as well. A client that means
    the queue sends an `api-version`, as all clients of the administration do.
    """

    def __init__(self, namespace: Namespace, app: ASGIApp) -> None:
        self._namespace = namespace
        self._app = app
        self._monitoring = {
            _USUAL_METRICS_PATH: _metrics,
            _USUAL_HEALTH_PATH: _health("healthy"),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._monitoring.get(scope["path"])
        is_query = b"api-version" in scope["query_string"]
        if endpoint is not None and scope["method"] == "GET" and not is_query:
            response = await endpoint(Request(scope, receive))
            await response(scope, receive, send)
            return
        if self._namespace.active_faults is not None:
            await self._apply_faults(targets.parse(scope["raw_path"]).path)
        await self._app(scope, receive, send)

    async def _apply_faults(self, entity: str) -> None:
        """Raises HttpRefused, or returns when the request may continue."""
        was_dropped = False
        while (faults := self._namespace.active_faults) is not None:
            silences = (faults.silence(None), faults.silence(entity))
            if not any(silences):
                break
            was_dropped = was_dropped or Silence.DROP in silences
            await self._namespace.faults.changed()
        if was_dropped:
            raise HttpRefused(503, "the namespace could not be reached for a while")
        if faults is not None:
            await asyncio.sleep(faults.latency_seconds(None) + faults.latency_seconds(entity))
            _refuse(faults, entity)


def _refuse(faults: ActiveFaults, entity: str) -> None:
    if faults.is_cut_off:
        raise HttpRefused(503, "the namespace cannot be contacted")
    error = faults.refusal_of_link(entity, receives=False) or faults.refusal(
        entity, Operation.MANAGE
    )
    if error is not None:
        raise HttpRefused(_status(error), error.description)


def _status(error: AmqpError) -> int:
    """A client's mistake has a status of its own; everything else is the server's fault."""
    status = refusal(error).status
    return status if status not in (400, 410) else 500


# -- faults and meter -------------------------------------------------------------------------


def check_manage(request: Request, namespace: Namespace) -> tokens.Grant:
    """By the broker's clock: a token must stay valid while the namespace's clock is wrong."""
    try:
        grant = tokens.verify(
            request.headers.get("authorization", ""),
            namespace.options.policies,
            audience="",
            hosts=namespace.hosts,
            now=namespace.faults.now(),
            accepts_bearer=namespace.options.accepts_bearer,
        )
    except tokens.TokenRefused as refused:
        raise access.unauthorized(refused.reason, policy_name=refused.policy_name) from refused
    if not grant.allows(Right.MANAGE):
        raise access.unauthorized(
            f"policy {grant.policy_name!r} has no Manage claim", policy_name=grant.policy_name
        )
    return grant


def _check_faults_allowed(request: Request, namespace: Namespace) -> None:
    """Everybody knows the well-known key, so without `allows_faults` it can only list faults."""
    grant = check_manage(request, namespace)
    options = namespace.options
    if options.allows_faults or request.method == "GET":
        return
    keys = [key for one in options.policies if one.name == grant.policy_name for key in one.keys]
    if DEFAULT_KEY in keys or options.accepts_bearer:
        refused = HttpRefused(
            403,
            "this broker accepts faults only from a key of your own: start it with --allow-faults, "
            "or give it a policy with Manage (--policy-file)",
        )
        refused.policy_name = grant.policy_name
        raise refused


async def _meter(request: Request) -> Response:
    namespace = _namespace(request)
    check_manage(request, namespace)
    return JSONResponse(namespace.meter.read().as_dict())


async def _faults(request: Request) -> Response:
    namespace = _namespace(request)
    _check_faults_allowed(request, namespace)
    controller = namespace.faults
    if request.method == "GET":
        return _listing(controller.faults)
    if request.method == "DELETE":
        controller.clear(controller.faults)
        return _listing([])
    body = _read_json(await read_body(request, bytes_max=_BODY_BYTES_MAX))
    if "script" not in body:
        fault = _limited(from_json(body))
        _check_entity(namespace, fault)
        return JSONResponse(running_to_json(controller.start(fault)), 201)
    script = [(at, _limited(fault)) for at, fault in script_from_json(body["script"])]
    for _, fault in script:
        _check_entity(namespace, fault)
    return _listing(controller.script(script, seed=_seed(body)), 201)


def _limited(fault: Fault) -> Fault:
    """The client that starts a fault may never come back to clear it."""
    return replace(fault, seconds=DEFAULT_SECONDS) if fault.seconds is None else fault


def _check_entity(namespace: Namespace, fault: Fault) -> None:
    """A fault for a mistyped entity would do nothing, and nobody would notice."""
    path = fault.entity
    if path is None or namespace.find(path) is not None:
        return
    names = [entity.name for entity in namespace.directory]
    similar = get_close_matches(path, names, n=1, cutoff=0.7)
    hint = f"did you mean {similar[0]!r}?" if similar else "`pairbus entities list` lists them"
    raise HttpRefused(400, f"namespace {namespace.name!r} has no entity {path!r}; {hint}")


async def _fault(request: Request) -> Response:
    namespace, number = _namespace(request), request.path_params["number"]
    _check_faults_allowed(request, namespace)
    found = namespace.faults.find(number)
    if found is None:
        raise HttpRefused(404, f"there is no fault {number}; GET {FAULTS_PATH} lists them")
    if request.method == "DELETE":
        namespace.faults.clear([found])
    return JSONResponse(running_to_json(found))


def _listing(faults: list[RunningFault], status: int = 200) -> Response:
    return JSONResponse({"faults": [running_to_json(fault) for fault in faults]}, status)


def _read_json(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise HttpRefused(400, f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise HttpRefused(400, "the body must be a fault, or an object with a script")
    return body


def _seed(body: dict[str, Any]) -> int | None:
    if unknown := [name for name in body if name not in ("script", "seed")]:
        raise ConfigError(f"a script may have a seed beside it, but no {unknown[0]!r}")
    seed = body.get("seed")
    if seed is None:
        return None
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= SEED_MAX:
        raise ConfigError(f"seed is {seed!r}, but must be a whole number from 0 to {SEED_MAX}")
    return seed


async def _metrics(request: Request) -> Response:
    """Allows requests from this machine without a token, because a scraper has no key. Others need
    Manage.
    """
    namespace = _namespace(request)
    try:
        if not _is_from_loopback(request):
            check_manage(request, namespace)
        # Imported late: it is an extra, and loading it takes a while.
        with requires_extra(METRICS_PATH, "prometheus"):
            from pairbus.broker.port.metrics import CONTENT_TYPE, metrics_of
    except HttpRefused as refused:
        _log(request, refused)
        return Response(refused.detail, refused.status, refused.headers, media_type="text/plain")
    except MissingExtra as missing:
        return Response(f"{missing}\n", 501, media_type="text/plain")
    return Response(await metrics_of(namespace), headers={"content-type": CONTENT_TYPE})


def _is_from_loopback(request: Request) -> bool:
    try:
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


# -- errors -----------------------------------------------------------------------------------


def _with_json_errors(endpoint: HttpEndpoint) -> HttpEndpoint:
    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except HttpRefused as refused:
            _log(request, refused)
            return JSONResponse({"error": refused.detail}, refused.status, refused.headers)
        except ConfigError as error:
            return JSONResponse({"error": str(error)}, 400)

    return answer


def error_response(status: int, detail: str, *, headers: dict[str, str] | None = None) -> Response:
    body = (
        f"<Error><Code>{status}</Code>"
        f"<Detail>{escape(detail.rstrip('.'))}. TrackingId:{uuid.uuid4()}</Detail></Error>"
    )
    return Response(body, status, headers, media_type="application/xml; charset=utf-8")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    detail = error.detail
    if error.status_code == 405:
        detail = f"{request.method} is not possible at {request.url.path}"
    return error_response(error.status_code, detail, headers=headers)


def _log(request: Request, refused: HttpRefused) -> None:
    """Only what a key or a limit refuses. A missing entity is an ordinary answer."""
    namespace, client = _namespace(request), request.scope.get("client")
    if refused.status in (401, 403, 413):
        namespace.refusals.add(
            peer_name(client),
            refused.detail,
            entity=request.scope["path"].strip("/"),
            policy=refused.policy_name,
        )
    if refused.status == 401:
        namespace.bad_tokens.add(network_of(client))


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpRefused)
    _log(request, error)
    return error_response(error.status, error.detail, headers=error.headers)


async def _unexpected_error(request: Request, error: Exception) -> Response:
    # Starlette raises the error again after this answer, and the server logs it with its trace.
    return error_response(500, "The broker failed to answer; its log says why")
