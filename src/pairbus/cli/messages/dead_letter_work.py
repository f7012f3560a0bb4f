"""What `pairbus dead-letters` does.

Which ones are meant is found by looking, without locks. To remove one it must be locked, and the
service hands them out in its own order: those that are not meant are held meanwhile, and given back
at the end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Final, Literal

from pairbus.cli.connection import connect, explain_errors, peek_messages
from pairbus.cli.messages.dead_letter_ids import check_ids
from pairbus.cli.messages.dead_letter_moves import Fate, Resubmitting, purged, walk
from pairbus.cli.messages.entity_path import EntityPath, parse_entity_path
from pairbus.cli.messages.filter import Filter, chosen
from pairbus.cli.messages.message_json import Form, shown_form
from pairbus.cli.messages.table import line_of, page_of, table_of
from pairbus.cli.output import print_json, print_table, progress
from pairbus.cli.signals import Stop, graceful_stop
from pairbus.cli.target import Target
from pairbus.errors import NamespaceError, UsageError
from pairbus.fast.client import FastClient
from pairbus.fast.receiver import Receiver
from pairbus.fast.rows import MessageView, sequence_number

_SHOWN_MAX: Final = 100
"""Of a dry run, for people."""


class Found(dict[int, float | None]):
    """Sequence numbers, and when each was enqueued; the first of them to be shown."""

    def __init__(self) -> None:
        self.forms: list[Form] = []


# -- list and show ------------------------------------------------------------------------------


def show_list(
    target: Target, place: EntityPath, filter: Filter, *, count: int, as_json: bool
) -> None:
    forms = list(_forms(target, place, filter, count + 1))
    if as_json:
        for form in forms[:count]:
            print(line_of(form))
    else:
        print_table(table_of(forms[:count], are_dead=True))
    if len(forms) > count:
        print(f"there are more than these {count}: see --count", file=sys.stderr)


def show_whole(
    target: Target, place: EntityPath, filter: Filter, *, count: int, as_json: bool
) -> None:
    found = 0
    for form in _forms(target, place, filter, count):
        print(line_of(form) if as_json else page_of(form, on_terminal=sys.stdout.isatty()))
        found += 1
    if not found:
        raise NamespaceError(f"{place.description} has none of these, at {target.address}")


def _forms(target: Target, place: EntityPath, filter: Filter, count: int) -> Iterator[Form]:
    with connect(target) as client, explain_errors(target, place, right="Listen"):
        for message in islice(_found(client, target, place, filter), count):
            yield shown_form(message)


def _found(
    client: FastClient, target: Target, place: EntityPath, filter: Filter
) -> Iterator[MessageView]:
    now = time.time()
    start = min((some.start for some in filter.numbers), default=0)
    for message in peek_messages(client, target, place, start=start):
        if chosen(filter, message, now=now):
            yield message


# -- resubmit and purge -------------------------------------------------------------------------


def resubmit(
    target: Target,
    place: EntityPath,
    filter: Filter,
    *,
    to: str | None,
    count: int | None,
    ids: Literal["check", "keep", "new"],
    dry_run: bool,
    as_json: bool,
) -> None:
    goal = _goal(place, to)
    with ExitStack() as stack:
        client = stack.enter_context(connect(target))
        found = _numbers(client, target, place, filter, count)
        if found and ids == "check":
            check_ids(target, goal, found.values(), now=time.time())
        said = {"to": goal.entity}
        if dry_run:
            _tell_plan(found, "resubmitted", said, as_json=as_json)
            return
        if place.subscription is not None and to is None and found and not as_json:
            print(
                f"they go to the topic {goal.entity!r}, and so to all of its subscriptions whose "
                "rules match; --to says otherwise",
                file=sys.stderr,
            )
        fate = Fate()

        # On a connection of its own: thousands that are held on the other would be in its way.
        home = stack.enter_context(connect(target))

        def act(receiver: Receiver) -> Resubmitting:
            sender = home.sender(goal.path)
            return Resubmitting(receiver, sender, target, goal, fate, gives_new_ids=ids == "new")

        stop = _work(client, target, place, found, act, fate, "Resubmitting")
    _tell_done(fate, len(found), "resubmitted", said, place, as_json=as_json)
    stop.exit()


def purge(
    target: Target,
    place: EntityPath,
    filter: Filter,
    *,
    count: int | None,
    dry_run: bool,
    confirm: Callable[[str], None] | None,
    as_json: bool,
) -> None:
    with connect(target) as client:
        found = _numbers(client, target, place, filter, count)
        if dry_run:
            _tell_plan(found, "purged", {}, as_json=as_json)
            return
        if found and confirm is not None:
            confirm(f"Delete {len(found)} messages of {place.description} for good?")
        fate = Fate()
        stop = _work(
            client, target, place, found, lambda receiver: purged(receiver, fate), fate, "Purging"
        )
    _tell_done(fate, len(found), "purged", {}, place, as_json=as_json)
    stop.exit()


def _goal(place: EntityPath, to: str | None) -> EntityPath:
    if to is None:
        return EntityPath(entity=place.entity)
    goal = parse_entity_path(to)
    if not goal.accepts_messages:
        raise UsageError(f"--to {to!r} takes no messages: name a queue or a topic")
    return goal


def _numbers(
    client: FastClient, target: Target, place: EntityPath, filter: Filter, count: int | None
) -> Found:
    with explain_errors(target, place, right="Listen"), progress("Looking") as advance:
        found = Found()
        for message in islice(_found(client, target, place, filter), count):
            moment = message.annotation("x-opt-enqueued-time")
            found[sequence_number(message)] = moment / 1000 if isinstance(moment, int) else None
            if len(found.forms) < _SHOWN_MAX:  # of millions
                found.forms.append(shown_form(message))
            advance(1)
        return found


def _work(
    client: FastClient,
    target: Target,
    place: EntityPath,
    found: Found,
    act: Callable[[Receiver], Callable[..., None]],
    fate: Fate,
    word: str,
) -> Stop:
    with (
        graceful_stop(is_idle=lambda: fate.is_opening) as stop,
        explain_errors(target, place, right="Listen"),
        progress(word, len(found)) as advance,
    ):
        if found:
            walk(client, place, set(found), act, fate, advance, stop)
    return stop


def _tell_plan(found: Found, word: str, said: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        print_json({word: 0, "dryRun": True, "sequenceNumbers": list(found), **said})
        return
    if found:
        print_table(table_of(found.forms, are_dead=True))
    if len(found) > len(found.forms):
        print(f"... and {len(found) - len(found.forms)} more")
    where = "".join(f" to {one!r}" for one in said.values())
    print(f"{len(found)} would be {word}{where}; nothing was changed")


def _tell_done(
    fate: Fate, total: int, word: str, said: dict[str, str], place: EntityPath, *, as_json: bool
) -> None:
    left = total - fate.done
    if as_json:
        print_json({word: fate.done, "left": left, **said})
    else:
        where = "".join(f" to {one!r}" for one in said.values())
        print(f"{fate.done} {word}{where}")
    if fate.unreadable:
        raise NamespaceError(f"{fate.unreadable} cannot be read, and stay in {place.description}")
    if left and not fate.is_stopped:
        behind = f", or they lie behind {fate.held} others" if fate.held else ""
        raise NamespaceError(
            f"{left} more could not be had: somebody else has them, they are gone{behind}"
        )
