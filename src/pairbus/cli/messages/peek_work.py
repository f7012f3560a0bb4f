"""What `pairbus peek` does."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from pairbus.cli.connection import connect, explain_errors, peek_messages
from pairbus.cli.messages.entity_path import EntityPath, SubQueue, parse_entity_path
from pairbus.cli.messages.filter import Choice, chosen, parse_filter
from pairbus.cli.messages.message_json import Form, shown_form
from pairbus.cli.messages.table import line_of, page_of, table_of
from pairbus.cli.output import print_table
from pairbus.cli.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    entity: str
    subscription: str | None
    start: int
    count: int
    sub_queue: SubQueue | None
    where: str | None
    whole: bool


def run(target: Target, wanted: Wanted, *, as_json: bool) -> None:
    place = parse_entity_path(wanted.entity, wanted.subscription, wanted.sub_queue)
    forms = _forms(target, place, wanted)
    if as_json or wanted.whole:
        for form in forms:
            print(line_of(form) if as_json else page_of(form, on_terminal=sys.stdout.isatty()))
    else:
        print_table(table_of(forms, are_dead=place.sub_queue is not None))


def _forms(target: Target, place: EntityPath, wanted: Wanted) -> Iterator[Form]:
    filter = parse_filter(Choice(where=wanted.where))
    # What is not filtered need not be looked at beyond the count.
    limit = wanted.count if filter.is_all else None
    with connect(target) as client, explain_errors(target, place, right="Listen"):
        found = peek_messages(client, target, place, start=wanted.start, limit=limit)
        now = time.time()
        right = (message for message in found if chosen(filter, message, now=now))
        for message in islice(right, wanted.count):
            yield shown_form(message)
