"""`pairbus peek`: shows messages without locking them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer

from pairbus.cli.connection import connect, explain_errors, peek_messages, topic_note
from pairbus.cli.entity_path import EntityPath, parse_entity_path
from pairbus.cli.messages.filter import WHERE, Filter, FilterOptions
from pairbus.cli.messages.message_json import MessageJson, to_json_if_readable
from pairbus.cli.messages.table import full_text, json_line, message_table
from pairbus.cli.options import (
    AS_JSON,
    ENTITY,
    SUB_QUEUE,
    SUBSCRIPTION,
    ConnectionOptions,
    flatten_options,
    option,
)
from pairbus.cli.output import print_table
from pairbus.cli.target import Target


@flatten_options
def peek(
    entity: ENTITY,
    subscription: SUBSCRIPTION = None,
    *,
    from_: Annotated[
        int, option("--from", min=0, metavar="N", help="First sequence number (default: 0).")
    ] = 0,
    count: Annotated[
        int, option(min=1, metavar="N", help="Maximum number of messages (default: 10).")
    ] = 10,
    sub_queue: SUB_QUEUE = None,
    where: WHERE = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Print each message in full instead of a table.")
    ] = False,
    connection: ConnectionOptions,
    as_json: AS_JSON = False,
) -> None:
    """Show messages of a queue or a subscription without locking or changing them.

    It shows locked, deferred and scheduled messages, too. With --json, each line is a message that
    `pairbus send --json-lines` accepts. The policy needs the Listen right.

    Exit codes: 0 success (also if there is no message), 1 the namespace refused or did not answer,
    2 usage error, 130 interrupted.

    \b
    Examples:
      pairbus peek orders
      pairbus peek events audit --from 1200 --count 100 --json
      pairbus peek orders --where "amount > 1000"
      pairbus peek orders --sub-queue dead-letter --whole
    """
    target = connection.target
    path = parse_entity_path(entity, subscription, sub_queue)
    filter = FilterOptions(where=where).parse()
    messages = _peek(target, path, filter, start=from_, count=count)
    if as_json or whole:
        for message in messages:
            on_terminal = sys.stdout.isatty()
            print(json_line(message) if as_json else full_text(message, on_terminal=on_terminal))
        return
    found = list(messages)
    print_table(message_table(found, are_dead_letters=path.sub_queue is not None))
    if not found and (note := topic_note(target, path)):
        print(note, file=sys.stderr)


def _peek(
    target: Target, path: EntityPath, filter: Filter, *, start: int, count: int
) -> Iterator[MessageJson]:
    # With a filter, any number of messages may have to be read to find `count`.
    limit = count if filter.matches_everything else None
    with connect(target) as client, explain_errors(target, path, right="Listen"):
        now = time.time()
        found = peek_messages(client, target, path, start=start, limit=limit)
        matching = (message for message in found if filter.matches(message, now=now))
        for message in islice(matching, count):
            yield to_json_if_readable(message)
