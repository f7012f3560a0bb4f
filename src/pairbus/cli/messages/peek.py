"""`pairbus peek`: what a person types to look at messages."""

from __future__ import annotations

from typing import Annotated

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

WHERE = Annotated[
    str | None,
    typer.Option(
        metavar="CONDITION",
        help="In the language of subscription rules: \"amount > 5 AND sys.Subject LIKE 'a%'\".",
        show_default=False,
    ),
]


def peek(
    entity: ENTITY,
    subscription: SUBSCRIPTION = None,
    from_: Annotated[
        int, typer.Option("--from", min=0, metavar="N", help="The first sequence number.")
    ] = 0,
    count: Annotated[int, typer.Option(min=1, metavar="N", help="How many at most.")] = 10,
    sub_queue: SUB_QUEUE = None,
    where: WHERE = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="All of each message, and not a table.")
    ] = False,
    connection_string: CONNECTION_STRING = None,
    ca_file: CA_FILE = None,
    as_json: AS_JSON = False,
) -> None:
    """Look at messages without locking or changing anything.

    Those that are locked, deferred or scheduled are seen as well. With --json, each message is an
    object in a line of its own, which `send --json-lines` takes. Ends with 0, also if there is
    nothing; 1 if the namespace refused or did not answer; 2 if the words are wrong.

    \b
    Examples:
      pairbus peek orders
      pairbus peek events audit --from 1200 --count 100 --json
      pairbus peek orders --where "amount > 1000"
      pairbus peek orders --sub-queue dead-letter --whole
    """
    target = parse_target(connection_string, ca_file)
    from pairbus.cli.messages.peek_work import Wanted, run

    run(
        target,
        Wanted(
            entity=entity,
            subscription=subscription,
            start=from_,
            count=count,
            sub_queue=sub_queue,
            where=where,
            whole=whole,
        ),
        as_json=as_json,
    )
