"""`pairbus status`: what a person types to see how a pair of namespaces is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from pairbus.cli.options import AS_JSON
from pairbus.cli.target import ENVIRONMENT


def _text(metavar: str, help: str, *names: str, envvar: str | None = None) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, envvar=envvar, show_default=False)


def status(
    primary: Annotated[
        list[str] | None,
        _text(
            "TEXT",
            "Connection string of the primary; once for each that has its backlog on this "
            "secondary. Default: those in PAIRBUS_PRIMARY, with spaces between them.",
        ),
    ] = None,
    secondary: Annotated[
        str | None,
        _text(
            "TEXT",
            "Connection string of the secondary. Its backlog needs Manage and Listen.",
            envvar="PAIRBUS_SECONDARY",
        ),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        _text(
            "NAME",
            "The primary's name in the paths of backlog queues; once for each primary, in their "
            "order. Default: the first label of its host; all, without a primary.",
        ),
    ] = None,
    primary_ca_file: Annotated[
        Path | None, _text("FILE", "The authority of the primaries' certificates.")
    ] = None,
    secondary_ca_file: Annotated[
        Path | None, _text("FILE", "The authority of the secondary's certificate.")
    ] = None,
    metrics: Annotated[
        list[str] | None,
        _text(
            "URL",
            "Where a client or a syphon serves its Prometheus metrics; may be repeated. In the "
            "environment, with spaces between them.",
            envvar="PAIRBUS_METRICS",
        ),
    ] = None,
    peek: Annotated[
        int,
        typer.Option(
            min=0, max=100_000, metavar="N", help="Look at so many messages of each backlog queue."
        ),
    ] = 100,
    timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="For whoever does not answer.")
    ] = "10s",
    watch: Annotated[
        str | None, _text("DURATION", "Again and again, so far apart, until Ctrl-C.")
    ] = None,
    as_json: AS_JSON = False,
) -> None:
    """Show both namespaces of a pair, the backlog, and what clients and syphons report.

    Whether a namespace can be reached is tried with AMQP; the round trip is that of HTTP, for its
    administration. Destinations are counted from the first messages of each queue (--peek). Which
    entities are failed over, and how fast a syphon is, only their processes know: name where they
    serve metrics. Nothing is changed or locked. Ends with 0 if all namespaces answer; 1 if one
    cannot be reached, or does not tell its backlog; 2 if the words are wrong.

    \b
    Examples:
      pairbus status
      pairbus status --metrics http://localhost:9100/metrics --watch 5s
      pairbus status --json
    """
    from pairbus.cli.pair.status_work import Wanted, run

    run(
        Wanted(
            primaries=tuple(primary or [os.environ.get(ENVIRONMENT, "")]),
            secondary=secondary,
            namespaces=tuple(namespace or ()),
            primary_ca_file=primary_ca_file,
            secondary_ca_file=secondary_ca_file,
            metrics=tuple(metrics or ()),
            look_at=peek,
            timeout=timeout,
            watch=watch,
            as_json=as_json,
        )
    )
