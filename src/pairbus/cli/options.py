"""What several commands have in common, so that it looks and is spelt the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pairbus.cli.completion import complete_queue_or_topic, complete_subscription
from pairbus.cli.messages.entity_path import SubQueue
from pairbus.cli.target import ENVIRONMENT


def _connection_string(needs: str) -> Any:
    return typer.Option(
        "--connection-string",
        "-c",
        metavar="TEXT",
        envvar=ENVIRONMENT,
        help=f"Of the namespace; its policy needs {needs}.",
        show_default=False,
    )


CONNECTION_STRING = Annotated[str | None, _connection_string("Manage")]
CONNECTION_TO_SEND = Annotated[str | None, _connection_string("Send")]
CONNECTION_TO_LISTEN = Annotated[str | None, _connection_string("Listen")]
CONNECTION_TO_BOTH = Annotated[str | None, _connection_string("Listen, and Send to resubmit")]
ENTITY = Annotated[
    str,
    typer.Argument(
        metavar="ENTITY",
        help="A queue, or the topic of SUBSCRIPTION.",
        autocompletion=complete_queue_or_topic,
    ),
]
SUBSCRIPTION = Annotated[
    str | None,
    typer.Argument(
        metavar="SUBSCRIPTION",
        help="Of the topic ENTITY.",
        show_default=False,
        autocompletion=complete_subscription,
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
SUB_QUEUE = Annotated[
    SubQueue | None,
    typer.Option(help="What was put aside in it, in place of its messages.", show_default=False),
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
