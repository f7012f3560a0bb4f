"""What several commands have in common, so that it looks and is spelt the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pairbus.console.target import ENVIRONMENT

CONNECTION_STRING = Annotated[
    str | None,
    typer.Option(
        "--connection-string",
        "-c",
        metavar="TEXT",
        envvar=ENVIRONMENT,
        help="Of the namespace; its policy needs Manage.",
        show_default=False,
    ),
]
CA_FILE = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="PAIRBUS_CA_FILE",
        help="The authority to trust for TLS. Not needed for Azure, nor for a broker on this "
        "machine whose connection string says UseDevelopmentEmulator=true.",
        show_default=False,
    ),
]
AS_JSON = Annotated[bool, typer.Option("--json", help="JSON for programs, and no table.")]


def command_group(name: str, help: str) -> typer.Typer:
    """Commands under one word, which by itself shows what there is."""
    group = typer.Typer(name=name, rich_markup_mode=None)

    @group.callback(invoke_without_command=True, help=help)
    def show_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return group
