"""Turns the result of a run, plain data as in `--json`, into tables for a person.

The same tables are shown in a terminal (rich) and written as Markdown for README.md, so what is
published is what was printed. Nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Iterator
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


def tables(result: dict[str, Any]) -> Iterator[Table]:
    if result["rows"]:
        yield _speed(result)
        yield _cost(result)
    if result["process"]:
        yield _process(result)
    if result["floors"]:
        yield _floors(result)
    if result["deep"]:
        yield _deep(result)
    machine = Table("Measured on", ["", ""])
    machine.rows = [[key, value] for key, value in result["machine"].items()]
    yield machine


def _speed(result: dict[str, Any]) -> Table:
    peers = [name for name in result["subjects"] if name != OURS]
    table = Table(
        f"Messages a second, {result['size']} bytes each, median of {result['rounds']} "
        "(in brackets: the slowest and the fastest)",
        ["", "aim", OURS, *(text for peer in peers for text in (peer, "ratio"))],
    )
    for row in result["rows"]:
        cells = [row["title"], _number(row["aim"]), _rate(row["figures"][OURS])]
        for peer in peers:
            cells += [_rate(row["figures"][peer]), f"{row['ratios'][peer]:.2f} x"]
        table.rows.append(cells)
    return table


def _rate(figure: dict[str, Any]) -> str:
    rates = figure["rates"]
    spread = f" ({min(rates):,.0f} - {max(rates):,.0f})" if len(rates) > 1 else ""
    return f"{figure['rate']:,.0f}{spread}"


def _cost(result: dict[str, Any]) -> Table:
    table = Table(
        "Processor time per message: broker + generator (the generator's share of both)",
        ["", *result["subjects"]],
    )
    for row in result["rows"]:
        cells = [row["title"]]
        for name in result["subjects"]:
            figure = row["figures"][name]
            cells.append(
                f"{figure['broker_us']:.0f} + {figure['generator_us']:.0f} us "
                f"({figure['generator_share']:.0%})"
            )
        table.rows.append(cells)
    return table


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


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def show(result: dict[str, Any], console: Console) -> None:
    for table in tables(result):
        shown = RichTable(title=table.title, title_justify="left", title_style="bold")
        for number, name in enumerate(table.header):
            shown.add_column(name, justify="left" if number == 0 else "right", overflow="fold")
        for row in table.rows:
            shown.add_row(*row)
        console.print()
        console.print(shown)
    for note in result["notes"]:
        console.print(f"\nNote: {note}")


def markdown(result: dict[str, Any]) -> str:
    lines: list[str] = []
    for table in tables(result):
        lines += ["", f"**{table.title}**", "", _line(table.header)]
        lines.append(_line(["---", *["--:"] * (len(table.header) - 1)]))
        lines += [_line(row) for row in table.rows]
    lines += [f"\nNote: {note}" for note in result["notes"]]
    return "\n".join(lines).strip()


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
