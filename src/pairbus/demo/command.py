"""`pairbus demo`: what a person types to see an outage, and what it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    seconds: Annotated[
        float,
        typer.Option(
            min=2,
            max=20,
            help="How long all is well, and about how long the outage is. The whole takes some "
            "twenty seconds more, of which most are Spark's.",
        ),
    ] = 12,
    rate: Annotated[
        float, typer.Option(min=4, max=200, help="Messages a second, over all entities.")
    ] = 40,
    seed: Annotated[
        int,
        typer.Option(help="Decides what is sent, and the moments: another one, another kill."),
    ] = 0,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Go on afterwards, for you to play with; says how. Ctrl-C ends it."
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="JSON lines for programs: what happens, at last the ledger."),
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg", help="Draw it all into a file.", hidden=True),
    ] = None,
) -> None:
    """Kill a namespace under load and lose nothing: all of pairbus, on this machine.

    Two namespaces start, paired senders, a receiver with the official SDK, and a syphon on Spark.
    Then the primary is killed, sends fail over, the primary comes back, and the syphon brings
    home what waited. At the end is the account, by message id. Needs Java 17 or newer; everything
    is in processes and a folder of its own, which are gone afterwards, also after Ctrl-C. Ends
    with 0 if all messages have arrived once, with 1 if not, and with 2 if something is missing.

    \b
    Examples:
      pairbus demo
      pairbus demo --seed 7 --rate 100
      pairbus demo --keep
      pairbus demo --json | tail -n 1
    """
    from pairbus.demo.demo_work import Wanted, run

    code = run(
        Wanted(seconds=seconds, rate=rate, seed=seed, keep=keep, as_json=as_json, picture=picture)
    )
    raise typer.Exit(code)
