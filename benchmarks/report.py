"""Turns the result of a run, plain data as in `--json`, into tables for a person.

The same tables are shown in a terminal (rich) and written as Markdown for README.md, so what is
published is what was printed. Nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

OURS = "pairbus"


@dataclass(slots=True)
class Table:
    title: str
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)
    is_grouped: bool = False  # a row with an empty first cell belongs to the one above


Shape = Callable[[dict[str, Any]], Iterator[Table]]
"""Which tables a command's result makes."""


def tables(result: dict[str, Any]) -> Iterator[Table]:
    if result["rows"]:
        yield _speed(result)
    if result["process"]:
        yield _process(result)
    if result["floors"]:
        yield _floors(result)
    if result["deep"]:
        yield _deep(result)
    yield measured_on(result)


def measured_on(result: dict[str, Any]) -> Table:
    rows = [[key, value] for key, value in result["machine"].items()]
    return Table("Measured on", ["", ""], rows)


def _speed(result: dict[str, Any]) -> Table:
    table = Table(
        f"Messages of {result['size']} bytes: the median of {result['rounds']} rounds (in brackets "
        "the slowest and the fastest), and processor time per message",
        ["", "", "a second", "pairbus is", "broker", "generator", "its share"],
        is_grouped=True,
    )
    for row in result["rows"]:
        aim = f"; aim {row['aim']:,}" if row["aim"] else ""
        for name in result["subjects"]:
            figure = row["figures"][name]
            table.rows.append(
                [
                    row["title"] + aim if name == OURS else "",
                    name,
                    rate(figure),
                    "" if name == OURS else f"{row['ratios'][name]:.2f} x",
                    f"{figure['broker_us']:.0f} us",
                    f"{figure['generator_us']:.1f} us",
                    f"{figure['generator_share']:.0%}",
                ]
            )
    return table


def rate(figure: dict[str, Any]) -> str:
    rates = figure["rates"]
    spread = f" ({min(rates):,.0f} - {max(rates):,.0f})" if len(rates) > 1 else ""
    return f"{figure['rate']:,.0f}{spread}"


def _process(result: dict[str, Any]) -> Table:
    table = Table("The process", ["", "aim", *result["process"]])
    for key, title, aim, shape in (
        ("startup_seconds", "start to the first answered connection", "0.5 s", "{:.2f} s"),
        ("idle_mb", "resident memory, idle", "60 MB", "{:.0f} MB"),
    ):
        cells = [shape.format(process[key]) for process in result["process"].values()]
        table.rows.append([title, aim, *cells])
    return table


def _floors(result: dict[str, Any]) -> Table:
    table = Table("The floor: what the foundations cost alone", ["", "per message", "a second"])
    for floor in result["floors"]:
        us = floor["microseconds"]
        table.rows.append([floor["name"], f"{us:.1f} us", f"{1e6 / us:,.0f}"])
    return table


def _deep(result: dict[str, Any]) -> Table:
    deep = result["deep"]
    table = Table(
        f"A deep queue of {deep['size']}-byte messages: cost per message at that depth",
        ["queued", "sent, us", "received, us", "sent a second", "received a second", "memory"],
    )
    for step in deep["steps"]:
        table.rows.append(
            [
                f"{step['depth']:,}",
                f"{step['send']['broker_us']:.0f}",
                f"{step['receive']['broker_us']:.0f}",
                f"{step['send']['rate']:,.0f}",
                f"{step['receive']['rate']:,.0f}",
                f"{step['memory_mb']:.0f} MB",
            ]
        )
    again = deep["restart"]
    table.rows.append(
        [
            f"restarted in {again['startup_seconds']:.2f} s (aim: 3 s)",
            "",
            f"{again['receive']['broker_us']:.0f}",
            "",
            f"{again['receive']['rate']:,.0f}",
            f"{again['memory_mb']:.0f} MB",
        ]
    )
    return table


def show(result: dict[str, Any], console: Console, shape: Shape = tables) -> None:
    for table in shape(result):
        shown = RichTable(title=table.title, title_justify="left", title_style="bold")
        for number, name in enumerate(table.header):
            left = number == 0 or (number == 1 and table.is_grouped)
            shown.add_column(name, justify="left" if left else "right", overflow="fold")
        for number, row in enumerate(table.rows):
            if table.is_grouped and row[0] and number:
                shown.add_section()
            shown.add_row(*row)
        console.print()
        console.print(shown)
    for note in result["notes"]:
        console.print(f"\nNote: {note}")


def markdown(result: dict[str, Any], shape: Shape = tables) -> str:
    return "\n\n".join(markdown_tables(result, shape))


def markdown_tables(result: dict[str, Any], shape: Shape = tables) -> list[str]:
    """Each table as text. The notes follow the last one."""
    found = []
    for table in shape(result):
        lines = [f"**{table.title}**", "", _line(table.header)]
        lines.append(_line(["---", *["--:"] * (len(table.header) - 1)]))
        found.append("\n".join([*lines, *map(_line, table.rows)]))
    found[-1] += "".join(f"\n\nNote: {note}" for note in result["notes"])
    return found


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
