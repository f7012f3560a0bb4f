"""What a namespace counts, over HTTP: `/$meter` as JSON, `/$metrics` and `/metrics` for Prometheus.

The meter is for who may manage; so are the metrics, but on this machine they are for everybody,
because a scraper has no key. No fault on demand touches these paths.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pairbus.broker.admin.errors import Refused
from pairbus.broker.namespace import Namespace
from pairbus.broker.port.fault_routes import check_manage

METER_PATH: Final = "/$meter"
METRICS_PATH: Final = "/$metrics"
_USUAL_PATH: Final = "/metrics"


def meter_routes(namespace: Namespace) -> list[BaseRoute]:
    async def meter(request: Request) -> Response:
        try:
            check_manage(request, namespace)
        except Refused as refused:
            return JSONResponse({"error": refused.detail}, refused.status, refused.headers)
        return JSONResponse(namespace.meter.read().as_dict())

    async def metrics(request: Request) -> Response:
        return await _metrics(request, namespace)

    return [
        Route(METER_PATH, meter, methods=["GET"]),
        Route(METRICS_PATH, metrics, methods=["GET"]),
    ]


class MetricsGate:
    """In front of the administration: scrapers ask at `/metrics`, which may be a queue's path too.

    Who means the queue says an `api-version`, as all clients of the administration do.
    """

    def __init__(self, namespace: Namespace, app: ASGIApp) -> None:
        self._namespace = namespace
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["path"] == _USUAL_PATH
            and scope["method"] == "GET"
            and b"api-version" not in scope["query_string"]
        ):
            response = await _metrics(Request(scope, receive), self._namespace)
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def _metrics(request: Request, namespace: Namespace) -> Response:
    try:
        if not _is_from_here(request):
            check_manage(request, namespace)
        # Not before it is asked for: it is an extra, and loading it takes a while.
        from pairbus.broker.port.metrics import CONTENT_TYPE, metrics_of
    except Refused as refused:
        return Response(refused.detail, refused.status, refused.headers, media_type="text/plain")
    except ImportError:
        text = "metrics need the package prometheus-client: pip install pairbus[prometheus]\n"
        return Response(text, 501, media_type="text/plain")
    return Response(await metrics_of(namespace), headers={"content-type": CONTENT_TYPE})


def _is_from_here(request: Request) -> bool:
    try:
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False
