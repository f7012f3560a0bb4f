"""`pairbus syphon`: what a person types to bring diverted messages home."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pairbus.cli.options import AS_JSON

PRIMARIES = Annotated[
    list[str] | None,
    typer.Option(
        "--primary",
        envvar="PAIRBUS_PRIMARY",
        metavar="TEXT",
        help="Connection string of the primary: where messages belong. Needs Send. Once for each "
        "primary that has its backlog on this secondary.",
        show_default=False,
        show_envvar=False,
    ),
]
SECONDARY = Annotated[
    str | None,
    typer.Option(
        "--secondary",
        envvar="PAIRBUS_SECONDARY",
        metavar="TEXT",
        help="Connection string of the secondary: where they wait. Needs Manage and Listen.",
        show_default=False,
        show_envvar=False,
    ),
]


def syphon(
    primary: PRIMARIES = None,
    secondary: SECONDARY = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="The primary's name in the paths of backlog queues; once for each primary, in "
            "their order. Default: the first label of its host.",
            show_default=False,
        ),
    ] = None,
    primary_ca_file: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="The authority of the primary's certificate: one for all, or one for each.",
            show_default=False,
        ),
    ] = None,
    secondary_ca_file: Annotated[
        Path | None, typer.Option(help="The authority of the secondary's certificate.")
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Spark's master: that of a cluster, or local[N,4]. "
            "Default: local[2,4], or what spark-submit says.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="End when nothing is left that could be brought home.")
    ] = False,
    ledger: Annotated[
        Path | None, typer.Option(help="Folder for the account of all that was moved (Parquet).")
    ] = None,
    keep_ttl_running: Annotated[
        bool,
        typer.Option(
            "--keep-ttl-running",
            help="Time to live goes on while a message waits in the backlog; else it begins anew.",
        ),
    ] = False,
    shares: Annotated[
        int,
        typer.Option(
            min=1,
            help="Tasks for one backlog queue; with more than one, order is not kept.",
        ),
    ] = 1,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help="Serve metrics for Prometheus on this port; 0 is any.",
            show_default=False,
        ),
    ] = None,
    metrics_host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="... of this address; 0.0.0.0 is all of them."),
    ] = "127.0.0.1",
    as_json: AS_JSON = False,
) -> None:
    """Bring diverted messages home: from the backlog queues to their entities, on Spark.

    Runs until Ctrl-C or SIGTERM, which it obeys within a few seconds and with nothing left locked.
    On a terminal it shows how it goes; else it tells now and then, in lines on stderr.
    Connection strings are better given in the environment (PAIRBUS_PRIMARY, PAIRBUS_SECONDARY)
    than as options, which other users of the machine can see; those of several primaries with a
    space in between. Ends with 0 if all went well, 1 if a namespace refused or did not answer, and
    2 if the words are wrong.

    \b
    Examples:
      pairbus syphon
      pairbus syphon --once --ledger ./ledger
      pairbus syphon --master spark://HOST:7077 --json
    """
    from pairbus.cli.pair.syphon_work import Wanted, run

    run(
        Wanted(
            primaries=tuple(primary or ()),
            secondary=secondary,
            namespaces=tuple(namespace or ()),
            primary_ca_files=tuple(primary_ca_file or ()),
            secondary_ca_file=secondary_ca_file,
            master=master,
            once=once,
            ledger=ledger,
            ttl_keeps_running=keep_ttl_running,
            shares=shares,
            metrics_port=metrics_port,
            metrics_host=metrics_host,
            as_json=as_json,
        )
    )
