"""`pairbus peek`: shows messages without locking them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from pairbus.cli.entity_path import EntityPath, SubQueue, parse_entity_path
from pairbus.cli.message_client import connect, explain_errors, peek_messages
from pairbus.cli.messages.filter import WHERE, Filter, FilterOptions
from pairbus.cli.messages.message_json import MessageJson, to_json_if_readable
from pairbus.cli.messages.table import (
    message_table,
    print_message,
    print_messages,
    print_no_messages,
)
from pairbus.cli.output import is_narrow_terminal, print_more_note, print_table
from pairbus.cli.shared_options import (
    AS_JSON,
    ENTITY,
    SUB_QUEUE,
    SUBSCRIPTION,
    ConnectionOptions,
    count_option,
    flag,
    flatten_options,
    option,
)
from pairbus.cli.target import Target
from pairbus.cli.watch import Outages, WatchOptions
from pairbus.fast.rows import MessageView, sequence_number

if TYPE_CHECKING:
    from pairbus.fast.client import FastClient

_COUNT: Final = 10
_WATCH_WIDTHS: Final = {
    "sequence": 8,
    "sequence, state": 15,
    "enqueued": 24,
    "state": 9,
    "message id": 36,
    "message id, enqueued": 36,
}


@flatten_options
def peek(
    entity: str = ENTITY,
    subscription: str | None = SUBSCRIPTION,
    *,
    from_: int = option("N", "First sequence number (default: 0).", "--from", min=0, default=0),
    count: int | None = count_option(
        "Maximum number of messages (default: 10; with --watch, no limit)."
    ),
    sub_queue: SubQueue | None = SUB_QUEUE,
    where: str | None = WHERE,
    whole: bool = flag("Print each message in full instead of a table.", "--whole"),
    watching: WatchOptions,
    connection: ConnectionOptions,
    as_json: bool = AS_JSON,
) -> None:
    """Show messages of a queue or a subscription without locking or changing them.

    It shows locked, deferred and scheduled messages, too. With --json, each line is a message that
    `pairbus send --json-lines` accepts. With --watch, it shows all messages from --from on, and
    then each new one. The policy needs the Listen right.

    Exit codes: 0 success (also if there is no message), 1 the namespace refused or did not answer,
    2 usage error, 130 interrupted.

    \b
    Examples:
      pairbus peek orders
      pairbus peek events audit --from 1200 --count 100 --json
      pairbus peek orders --where "amount > 1000"
      pairbus peek orders --sub-queue dead-letter --whole
      pairbus peek orders --watch
    """
    target = connection.target
    path = parse_entity_path(entity, subscription, sub_queue)
    filter = FilterOptions(where=where).parse()
    interval = watching.parse()
    is_limited = count is None and interval is None
    limit = _COUNT + 1 if is_limited else count
    messages = _peek(target, path, filter, start=from_, count=limit, interval=interval)
    is_filtered = bool(from_) or not filter.matches_everything
    if as_json or whole:
        found = False
        for message in islice(messages, _COUNT if is_limited else None):
            found = True
            print_message(message, as_json=as_json)
            if interval is not None:
                sys.stdout.flush()
        if not found and not as_json:
            print_no_messages(target, path, is_filtered=is_filtered)
        is_more = is_limited and next(messages, None) is not None
    elif interval is not None:
        _print_rows(messages, are_dead_letters=path.sub_queue is not None)
        return
    else:
        rows = list(messages)
        is_more = is_limited and len(rows) > _COUNT
        print_messages(rows[:_COUNT] if is_more else rows, target, path, is_filtered=is_filtered)
    if is_more:
        print_more_note(_COUNT)


def _print_rows(messages: Iterable[MessageJson], *, are_dead_letters: bool) -> None:
    """Print each message as soon as it arrives, as a row of a table."""
    is_terminal, is_narrow = sys.stdout.isatty(), is_narrow_terminal()
    for index, message in enumerate(messages):
        # Each row is a table of its own. So that they are aligned, nothing depends on the message.
        table = message_table(
            [message], are_dead_letters=are_dead_letters, is_narrow=is_narrow, has_states=True
        )
        table.show_header = index == 0
        table.expand = is_terminal
        *columns, body = table.columns
        for column in columns:
            width = _WATCH_WIDTHS.get(str(column.header), 7 if is_narrow else 12)
            if is_terminal:
                column.width, column.no_wrap = width, False
            else:
                column.min_width = width
        body.ratio = 1
        print_table(table)
        sys.stdout.flush()


def _peek(
    target: Target,
    path: EntityPath,
    filter: Filter,
    *,
    start: int,
    count: int | None,
    interval: float | None,
) -> Iterator[MessageJson]:
    # With a filter, any number of messages may have to be read to find `count`.
    limit = count if filter.matches_everything and interval is None else None
    with connect(target) as client, explain_errors(target, path, right="Listen"):
        now = time.time()
        if interval is None:
            found = peek_messages(client, target, path, start=start, limit=limit)
        else:
            found = _watch(client, target, path, start=start, interval=interval)
        matching = (message for message in found if filter.matches(message, now=now))
        for message in islice(matching, count):
            yield to_json_if_readable(message)


def _watch(
    client: FastClient, target: Target, path: EntityPath, *, start: int, interval: float
) -> Iterator[MessageView]:
    outages = Outages(target)
    while True:
        with outages.waited_out():
            for message in peek_messages(client, target, path, start=start):
                start = max(start, sequence_number(message) + 1)
                outages.answered()
                yield message
        time.sleep(interval)
