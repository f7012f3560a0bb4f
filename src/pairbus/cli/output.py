"""Tables and JSON on stdout, progress on stderr: how commands show what they found."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, track
from rich.table import Table

_WIDTH_MAX: Final = 10_000
_One = TypeVar("_One")


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def camel_case(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values under the keys that our JSON has. Not recursive: keys may be user data."""
    return {_camel_case(name): value for name, value in values.items()}


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def make_table(*columns: str, right: Sequence[str] = ()) -> Table:
    """Without any, there is no header, but two columns."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=bool(columns))
    for index, column in enumerate(columns or ("", "")):
        table.add_column(column, overflow="fold", no_wrap=index == 0)
    for column in right:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def print_table(table: RenderableType) -> None:
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


@contextmanager
def counted(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """The same where the work says how much of it is done; without a total it only counts."""
    console = Console(file=sys.stderr)
    if not console.is_terminal or (total is not None and total < 2):
        yield lambda count: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
