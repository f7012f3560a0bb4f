"""Tables and JSON on stdout, progress on stderr; durations and sizes as text.

rich is imported by the first function that needs it, so that `--help` does not wait for it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pairbus.errors import OutputError

if TYPE_CHECKING:
    from rich.table import Table

_NARROW_WIDTH: Final = 120
_KIB: Final = 1024


def json_text(value: object, *, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False)


def print_json(value: object) -> None:
    print(json_text(value, indent=2))


def print_json_line(value: object) -> None:
    """One line of a stream. It is flushed, so that a reader has it at once."""
    print(json_text(value), flush=True)


def write_file(path: Path, text: str, option: str) -> None:
    """Raises OutputError."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {option} {path}: {error.strerror}") from error


def print_more_note(count: int) -> None:
    print(f"there are more than {format_count(count)}; use --count", file=sys.stderr)


def make_table(*columns: str, right: Sequence[str] = ()) -> Table:
    """Without column names the table has two columns and no header."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", show_header=bool(columns))
    for index, column in enumerate(columns or ("", "")):
        # A name stays on one line if another column can be wrapped. Numbers are never cut.
        table.add_column(column, overflow="fold", no_wrap=index == 0 and len(columns) != 1)
    for column in right:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def print_rows(table: Table, *, if_empty: str) -> None:
    """Print a table, or a line on stderr if it is empty."""
    if table.row_count:
        print_table(table)
    else:
        print(if_empty, file=sys.stderr)


def is_narrow_terminal() -> bool:
    from rich.console import Console

    console = Console()
    return console.is_terminal and console.width < _NARROW_WIDTH


def print_table(*parts: Table | str) -> None:
    """Tables of `make_table`, and lines of text between them."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    if console.is_terminal:
        for part in parts:
            console.print(part)
        return
    for part in parts:
        for line in [part] if isinstance(part, str) else _plain_lines(part):
            print(line)


def _plain_lines(table: Table) -> Iterator[str]:
    """For a program that reads them: each row is one line, however wide it is.

    rich could print that, too, but is slow for 20,000 rows.
    """
    from rich.cells import cell_len

    padded: list[list[str]] = []
    for column in table.columns:
        content = [*([column.header] if table.show_header else []), *column.cells]
        cells = [" ".join(str(cell).splitlines()) for cell in content]
        lengths = [cell_len(cell) for cell in cells]
        width = max([column.min_width or 0, *lengths])
        gaps = [" " * (width - length) for length in lengths]
        is_right = column.justify == "right"
        pairs = zip(cells, gaps, strict=True)
        padded.append([gap + cell if is_right else cell + gap for cell, gap in pairs])
    return ("  ".join(row).rstrip() for row in zip(*padded, strict=True))


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, if that is a terminal and there is more than one thing to do.

    Yields a function that takes how many more are done. Without a total it only counts.
    """
    if total is not None and total < 2:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield lambda count: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


def format_count(count: int, noun: str = "message", plural: str = "") -> str:
    """`1 message`, `1,234 messages`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error for a name that does not exist; empty if no other is like it."""
    similar = get_close_matches(name, known, n=1, cutoff=0.7)
    return f"; did you mean {similar[0]!r}?" if similar else ""


def was_or_were(count: int) -> str:
    return "was" if count == 1 else "were"


def format_duration(seconds: float) -> str:
    """`12s`, `5m 3s`, `2h 7m`, `3d 4h`: the two largest parts; below a second, `250ms`."""
    if not math.isfinite(seconds):
        return "-"
    if 0 < seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    left = int(max(seconds, 0))
    parts = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"


def format_milliseconds(seconds: float | None) -> str:
    """`12.3ms`, for a time that is measured; `-` if there is none."""
    if seconds is None:
        return "-"
    value = seconds * 1000
    return f"{value:.1f}ms" if value < 100 else f"{value:,.0f}ms"


def format_size(count: float) -> str:
    """`512 B`, `1.5 KiB`, `20.0 MiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < _KIB:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= _KIB
    return f"{size:.1f} TiB"
