"""What a namespace answers over HTTP: health, faults, meter, metrics, else its administration.

A plain ASGI application. Which port it is on, and that AMQP shares that port, it does not know.
Errors have the form of the service, so that the official clients can read them.
"""

from __future__ import annotations

import logging
import uuid
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pairbus.broker.admin.api import Administration
from pairbus.broker.admin.atom import escape
from pairbus.broker.admin.errors import Refused
from pairbus.broker.namespace import Namespace
from pairbus.broker.port.fault_routes import FaultGate, faults_routes
from pairbus.broker.port.meter_routes import MetricsGate, meter_routes

logger = logging.getLogger(__name__)

HEALTH_PATH: Final = "/$health"


def make_app(namespace: Namespace) -> Starlette:
    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "namespace": namespace.name})

    routes: list[BaseRoute] = [Route(HEALTH_PATH, health, methods=["GET"])]
    routes += faults_routes(namespace)
    routes += meter_routes(namespace)
    # The service's paths are entity names: they never end in a slash that could be redirected.
    app = Starlette(
        routes=routes,
        exception_handlers={
            HTTPException: _http_error,
            Refused: _refused,
            Exception: _unexpected_error,
        },
    )
    app.router.redirect_slashes = False
    # Names of entities are paths, with slashes that may be encoded: it reads them by itself.
    app.router.default = MetricsGate(namespace, FaultGate(namespace, Administration(namespace)))
    return app


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


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return error_response(error.status, error.detail, headers=error.headers)


async def _unexpected_error(request: Request, error: Exception) -> Response:
    # Starlette raises the error again after this answer, and the server logs it with its trace.
    return error_response(500, "The broker failed to answer; its log says why")
