"""`pairbus receive`: what a person types to take messages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pairbus.cli.options import (
    AS_JSON,
    CA_FILE,
    CONNECTION_STRING,
    ENTITY,
    SUB_QUEUE,
    SUBSCRIPTION,
)
from pairbus.cli.target import parse_target


def _text(metavar: str, help: str, *names: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, show_default=False)


def receive(
    entity: ENTITY,
    subscription: SUBSCRIPTION = None,
    count: Annotated[int, typer.Option(min=1, metavar="N", help="How many at most.")] = 1,
    is_all: Annotated[
        bool, typer.Option("--all", help="Until no more come, and not only --count.")
    ] = False,
    wait: Annotated[str, typer.Option(metavar="DURATION", help="For the next message.")] = "5s",
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Give them back at the end; that counts a delivery.")
    ] = False,
    dead_letter: Annotated[
        bool, typer.Option("--dead-letter", help="Put them into the dead-letter queue.")
    ] = False,
    delete: Annotated[
        bool,
        typer.Option(
            "--delete",
            help="The service deletes them as it sends them (receive and delete): what is on its "
            "way when something breaks is lost.",
        ),
    ] = False,
    reason: Annotated[str | None, _text("TEXT", "With --dead-letter.")] = None,
    description: Annotated[str | None, _text("TEXT", "With --dead-letter.")] = None,
    session: Annotated[str | None, _text("ID", "Of this session only.")] = None,
    next_session: Annotated[
        bool, typer.Option("--next-session", help="Of the next session that nobody holds.")
    ] = False,
    sub_queue: SUB_QUEUE = None,
    to: Annotated[
        Path | None,
        _text("DIR", "A file of JSON for each message, in this folder, in place of stdout."),
    ] = None,
    connection_string: CONNECTION_STRING = None,
    ca_file: CA_FILE = None,
    as_json: AS_JSON = False,
) -> None:
    """Take messages from a queue or a subscription, print them, and complete them.

    A message is completed when it has been written, and not before: who is killed in between
    receives it again. With --json, each is an object in a line, with its body as text, or in base64
    where it says so. Ctrl-C gives back what is not done. Ends with 0, also if nothing came; 1 if
    the namespace refused or did not answer, or the output broke; 2 if the words are wrong; 130 if
    it is interrupted.

    \b
    Examples:
      pairbus receive orders
      pairbus receive events audit --all --json > events.jsonl
      pairbus receive orders --count 100 --to ./orders
      pairbus receive orders --dead-letter --reason "bad data"
      pairbus receive sorted --next-session --all
    """
    target = parse_target(connection_string, ca_file)
    from pairbus.cli.messages.receive_work import Wanted, run

    run(
        target,
        Wanted(
            entity=entity,
            subscription=subscription,
            count=None if is_all else count,
            wait=wait,
            abandon=abandon,
            dead_letter=dead_letter,
            delete=delete,
            reason=reason,
            description=description,
            session=session,
            next_session=next_session,
            sub_queue=sub_queue,
            to=to,
        ),
        as_json=as_json,
    )
