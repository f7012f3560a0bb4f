"""Tables and JSON on stdout, progress on stderr: how commands show what they found."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from rich.console import Console
from rich.progress import track
from rich.table import Table

_WIDTH_MAX: Final = 10_000
_One = TypeVar("_One")


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def make_table(*columns: str, right: Sequence[str] = ()) -> Table:
    """Without any, there is no header, but two columns."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=bool(columns))
    for index, column in enumerate(columns or ("", "")):
        table.add_column(column, overflow="fold", no_wrap=index == 0)
    for column in right:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def print_table(table: Table) -> None:
    console = Console(markup=False, highlight=False)
    if console.is_terminal:
        console.print(table)
        return
    # A program reads it: nothing is to be wrapped, and nothing padded.
    page = io.StringIO()
    Console(file=page, width=_WIDTH_MAX, markup=False, highlight=False).print(table)
    for line in page.getvalue().splitlines():
        print(line.rstrip())


def watched(things: Sequence[_One], what: str) -> Iterable[_One]:
    """With a progress bar, where somebody watches and there is something to wait for."""
    console = Console(file=sys.stderr)
    if len(things) < 2 or not console.is_terminal:
        return things
    return track(things, what, console=console, transient=True)
