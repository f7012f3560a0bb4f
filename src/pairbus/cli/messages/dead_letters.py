"""`pairbus dead-letters`: lists, shows, resubmits and purges dead letters.

The messages that match the filter are found by peeking, without locks. Resubmitting and purging
lock them, in `dead_letter_moves.py`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from pairbus.cli.entity_path import EntityPath, SubQueue, parse_entity_path
from pairbus.cli.message_client import connect, explain_errors, peek_messages
from pairbus.cli.messages.filter import Filter, FilterOptions
from pairbus.cli.messages.message_json import MessageJson, to_json_if_readable
from pairbus.cli.messages.table import message_table, print_message, print_messages
from pairbus.cli.output import (
    format_count,
    is_narrow_terminal,
    print_json,
    print_more_note,
    print_table,
    progress,
    was_or_were,
)
from pairbus.cli.shared_options import (
    AS_JSON,
    ENTITY,
    IS_SURE,
    SUB_QUEUE_NAMES,
    SUBSCRIPTION,
    ConnectionOptions,
    command_group,
    complete_queue_or_topic,
    confirm,
    count_option,
    flag,
    flatten_options,
    option,
)
from pairbus.cli.target import Target
from pairbus.errors import NamespaceError, UsageError
from pairbus.fast.rows import MessageView, sequence_number

if TYPE_CHECKING:
    from pairbus.cli.messages.dead_letter_moves import Result
    from pairbus.fast.client import FastClient

_DRY_RUN_SHOWN_MAX: Final = 100

app = command_group(
    "dead-letters",
    "List, show, resubmit and purge the dead letters of a queue or a subscription.\n\n"
    "All commands have the same filter; all its conditions must be true of a message. The policy "
    "needs the Listen right, and the Send right to resubmit.\n\n"
    "Exit codes: 0 success, 1 the namespace refused or did not answer, or messages are left, 2 "
    "usage error, 130 interrupted.\n\n"
    "\b\n"
    "Examples:\n"
    "  pairbus dead-letters list orders\n"
    "  pairbus dead-letters resubmit orders --reason MaxDeliveryCountExceeded",
)

SUB_QUEUE = option(
    SUB_QUEUE_NAMES, "Which sub-queue (default: dead-letter).", default=SubQueue.DEAD_LETTER
)
DRY_RUN = flag("Show which messages would be affected; change nothing.", "--dry-run")
COUNT_MAX = count_option("Maximum number of messages (default: all).")


@app.command("list")
@flatten_options
def list_(
    entity: str = ENTITY,
    subscription: str | None = SUBSCRIPTION,
    *,
    filters: FilterOptions,
    count: int = count_option("Maximum number of messages (default: 100).", default=100),
    sub_queue: SubQueue = SUB_QUEUE,
    connection: ConnectionOptions,
    as_json: bool = AS_JSON,
) -> None:
    """List dead letters without locking or changing them.

    \b
    Examples:
      pairbus dead-letters list orders
      pairbus dead-letters list events audit --reason MaxDeliveryCountExceeded
      pairbus dead-letters list orders --where "amount > 1000" --json
    """
    target, path = connection.target, parse_entity_path(entity, subscription, sub_queue)
    filter = filters.parse()
    messages = list(_peek(target, path, filter, count + 1))
    if as_json:
        for message in messages[:count]:
            print_message(message, as_json=True)
    else:
        is_filtered = not filter.matches_everything
        print_messages(messages[:count], target, path, is_filtered=is_filtered)
    if len(messages) > count:
        print_more_note(count)


@app.command()
@flatten_options
def show(
    entity: str = ENTITY,
    subscription: str | None = SUBSCRIPTION,
    *,
    filters: FilterOptions,
    count: int = count_option("Maximum number of messages (default: 10).", default=10),
    sub_queue: SubQueue = SUB_QUEUE,
    connection: ConnectionOptions,
    as_json: bool = AS_JSON,
) -> None:
    """Show dead letters in full: properties, reason, description and body.

    \b
    Example:
      pairbus dead-letters show orders --sequence 1200
    """
    target, path = connection.target, parse_entity_path(entity, subscription, sub_queue)
    found = 0
    for message in _peek(target, path, filters.parse(), count):
        print_message(message, as_json=as_json)
        found += 1
    if not found:
        raise NamespaceError(f"{path.description} in {target.address} has no matching message")


@app.command()
@flatten_options
def resubmit(
    entity: str = ENTITY,
    subscription: str | None = SUBSCRIPTION,
    *,
    to: str | None = option(
        "ENTITY",
        "Queue or topic to send to (default: the queue itself; for a subscription its "
        "topic, and so all subscriptions of the topic whose rules match).",
        autocompletion=complete_queue_or_topic,
    ),
    filters: FilterOptions,
    count: int | None = COUNT_MAX,
    new_ids: bool = flag("Give the messages new message ids.", "--new-ids"),
    keep_ids: bool = flag(
        "Keep message ids without checking for duplicate detection. Use it only if the "
        "target has none: otherwise messages can be lost.",
        "--keep-ids",
    ),
    dry_run: bool = DRY_RUN,
    sub_queue: SubQueue = SUB_QUEUE,
    connection: ConnectionOptions,
    as_json: bool = AS_JSON,
) -> None:
    """Send dead letters again, and remove each one when its copy is accepted.

    The copy has the same message id, body and properties, without what was added when it was
    dead-lettered. Its time to live starts again, and it is not scheduled. If the command is killed
    between sending and removing, the message is in both places; nothing is lost.

    An entity with duplicate detection drops a message id that it has seen within its history
    window. Such messages are refused unless you use --new-ids. The check needs the Manage right;
    --keep-ids skips it.

    \b
    Examples:
      pairbus dead-letters resubmit orders --dry-run
      pairbus dead-letters resubmit orders --reason MaxDeliveryCountExceeded
      pairbus dead-letters resubmit events audit --sequence 5,7 --to repairs
    """
    if new_ids and keep_ids:
        raise UsageError("--new-ids and --keep-ids cannot be combined")
    target, path = connection.target, parse_entity_path(entity, subscription, sub_queue)
    destination = _parse_destination(path, to)
    filter = filters.parse()
    from pairbus.cli.messages import dead_letter_moves as moves  # loads the SDK

    with connect(target) as client:
        if to is not None:
            moves.check_destination(client, target, destination)
        found = _find(client, target, path, filter, count)
        if found.enqueued and not new_ids and not keep_ids:
            moves.check_duplicates(target, destination, found.enqueued.values(), now=time.time())
        if dry_run:
            _print_plan(found, "resubmitted", as_json=as_json, to=destination.entity)
            return
        if path.subscription is not None and to is None and found.enqueued and not as_json:
            print(
                f"sending to topic {destination.entity!r}, and so to all its subscriptions whose "
                "rules match; use --to to send elsewhere",
                file=sys.stderr,
            )
        with progress("Resubmitting", len(found.enqueued)) as advance:
            result = moves.resubmit(
                client, target, path, destination, set(found.enqueued), new_ids, advance
            )
    _print_result(result, found, "resubmitted", path, as_json=as_json, to=destination.entity)


@app.command()
@flatten_options
def purge(
    entity: str = ENTITY,
    subscription: str | None = SUBSCRIPTION,
    *,
    filters: FilterOptions,
    count: int | None = COUNT_MAX,
    dry_run: bool = DRY_RUN,
    is_sure: bool = IS_SURE,
    sub_queue: SubQueue = SUB_QUEUE,
    connection: ConnectionOptions,
    as_json: bool = AS_JSON,
) -> None:
    """Delete dead letters permanently.

    \b
    Examples:
      pairbus dead-letters purge orders --older-than 30d --dry-run
      pairbus dead-letters purge orders --yes
    """
    target, path = connection.target, parse_entity_path(entity, subscription, sub_queue)
    filter = filters.parse()
    from pairbus.cli.messages import dead_letter_moves as moves  # loads the SDK

    with connect(target) as client:
        found = _find(client, target, path, filter, count)
        if dry_run:
            _print_plan(found, "purged", as_json=as_json)
            return
        if found.enqueued and not is_sure:
            confirm(f"Delete {format_count(len(found.enqueued))} of {path.description}?")
        with progress("Purging", len(found.enqueued)) as advance:
            result = moves.purge(client, target, path, set(found.enqueued), advance)
    _print_result(result, found, "purged", path, as_json=as_json)


# -- finding -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Found:
    enqueued: dict[int, float | None] = field(default_factory=dict)
    """When each message was enqueued, in seconds since 1970, by its sequence number."""
    first: list[MessageJson] = field(default_factory=list)
    """The first ones in full, for a dry run: there may be millions."""


def _find(
    client: FastClient, target: Target, path: EntityPath, filter: Filter, count: int | None
) -> _Found:
    found = _Found()
    with explain_errors(target, path, right="Listen"), progress("Searching") as advance:
        for message in islice(_matching(client, target, path, filter), count):
            time_ms = message.annotation("x-opt-enqueued-time")
            number = sequence_number(message)
            found.enqueued[number] = time_ms / 1000 if isinstance(time_ms, int) else None
            if len(found.first) < _DRY_RUN_SHOWN_MAX:
                found.first.append(to_json_if_readable(message))
            advance(1)
    return found


def _peek(target: Target, path: EntityPath, filter: Filter, count: int) -> Iterator[MessageJson]:
    with connect(target) as client, explain_errors(target, path, right="Listen"):
        for message in islice(_matching(client, target, path, filter), count):
            yield to_json_if_readable(message)


def _matching(
    client: FastClient, target: Target, path: EntityPath, filter: Filter
) -> Iterator[MessageView]:
    now = time.time()
    for message in peek_messages(client, target, path, start=filter.first_number):
        if filter.matches(message, now=now):
            yield message


def _parse_destination(path: EntityPath, to: str | None) -> EntityPath:
    if to is None:
        return EntityPath(entity=path.entity)
    destination = parse_entity_path(to)
    if not destination.accepts_messages:
        raise UsageError(f"--to {to!r} does not accept messages: name a queue or a topic")
    return destination


# -- output --------------------------------------------------------------------------------------


def _print_plan(found: _Found, what: str, *, as_json: bool, to: str | None = None) -> None:
    total = len(found.enqueued)
    if as_json:
        where = {} if to is None else {"to": to}
        numbers = list(found.enqueued)
        print_json({what: 0, "dryRun": True, "sequenceNumbers": numbers, **where})
        return
    if found.first:
        table = message_table(found.first, are_dead_letters=True, is_narrow=is_narrow_terminal())
        print_table(table)
    if total > len(found.first):
        print(f"... and {total - len(found.first):,} more")
    suffix = "" if to is None else f" to {to!r}"
    print(f"{format_count(total)} would be {what}{suffix}; nothing was changed")


def _print_result(
    result: Result,
    found: _Found,
    what: str,
    path: EntityPath,
    *,
    as_json: bool,
    to: str | None = None,
) -> None:
    left = len(found.enqueued) - result.done
    if as_json:
        print_json({what: result.done, "left": left, **({} if to is None else {"to": to})})
    else:
        print(f"{what} {format_count(result.done)}{'' if to is None else f' to {to!r}'}")
    result.stop.exit()
    if result.unreadable:
        raise NamespaceError(
            f"{format_count(result.unreadable)} cannot be read and stay in {path.description}"
        )
    if left:
        others = format_count(result.held, "other dead letter")
        behind = f", behind {others}" if result.held else ""
        raise NamespaceError(
            f"{format_count(left)} {was_or_were(left)} not {what}: locked by another receiver"
            f"{behind}, or gone"
        )
