"""Pictures of the demo: the moment, the table at the end, and both as a drawing for a page."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pairbus.cli.output import make_table
from pairbus.demo.delivery_check import Line, total
from pairbus.demo.script import Cue

WIDTH: Final = 96
CURVE_WIDTH: Final = 32
_BARS: Final = " ▁▂▃▄▅▆▇█"
_STATES: Final = {
    "healthy": "green",
    "up": "green",
    "ready": "green",
    "failed over": "yellow",
    "starting": "yellow",
    "suspect": "yellow",
    "down": "bold red",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One entity at this moment."""

    entity: str
    state: str
    on_primary: int
    diverted: int
    delivered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    at: float
    scene: str
    primary: str
    secondary: str
    syphon: str
    moved: int
    rows: tuple[Row, ...]
    backlog: int
    history: tuple[int, ...]
    """How many messages were in the backlog, twice a second from the beginning."""

    @property
    def sent(self) -> int:
        return sum(row.on_primary + row.diverted for row in self.rows)

    @property
    def delivered(self) -> int:
        return sum(row.delivered for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    lines: dict[str, Line]
    rows: tuple[Row, ...]
    down_seconds: float
    slowest_seconds: float
    pings: int
    moved: int
    missing: dict[str, list[str]]
    """Ids that did not arrive, by place."""
    failure: str
    """What did not happen in time."""
    error: str = ""
    """Of the last send that failed."""

    @property
    def ledger(self) -> Line:
        return total(self.lines.values())

    @property
    def is_good(self) -> bool:
        return self.ledger.is_whole and not self.failure


def sentence(at: float, cue: Cue) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", width=7, style="dim")
    grid.add_column(style="bold" if cue.action else "")
    grid.add_row(f"{at:.1f} s", cue.text)
    return grid


def picture(moment: Moment) -> RenderableType:
    names = Text()
    for name, state in (
        ("primary", moment.primary),
        ("secondary", moment.secondary),
        ("syphon", moment.syphon),
    ):
        word = state.partition(",")[0]
        names.append("● ", style=_STATES.get(word, ""))
        names.append(name, style="bold").append(f" {state}    ")
    table = make_table("entity", "state", right=("on primary", "diverted", "delivered"))
    for row in moment.rows:
        table.add_row(
            row.entity,
            Text(row.state, style=_STATES.get(row.state, "")),
            f"{row.on_primary:,}",
            f"{row.diverted:,}",
            f"{row.delivered:,}",
        )
    highest = max(moment.history, default=0)
    backlog = Text.assemble(
        ("backlog  ", "bold"),
        (bars(moment.history, CURVE_WIDTH), "yellow"),
        f"  {moment.backlog:,} wait, {highest:,} at most, {moment.moved:,} home",
    )
    return Panel(
        Group(names, Text(""), table, Text(""), backlog),
        title=f"pairbus demo: {moment.scene}",
        subtitle=f"{moment.at:.0f} s",
        width=WIDTH,
    )


def bars(values: Sequence[int], width: int) -> str:
    """A curve of blocks, of the whole time: of each stretch, the highest."""
    if not values:
        return " " * width
    highest = max(*values, 1)
    stretch = max(1.0, len(values) / width)
    tops = [
        max(values[int(n * stretch) : max(int((n + 1) * stretch), int(n * stretch) + 1)])
        for n in range(min(width, len(values)))
    ]
    return "".join(_BARS[-(-top * (len(_BARS) - 1) // highest)] for top in tops).ljust(width)


def ending(report: Report) -> RenderableType:
    said = [Text(remark) for remark in remarks(report)]
    return Group(Text(""), table_of(report), Text(""), *said, Text(""))


def table_of(report: Report) -> Table:
    table = make_table(
        "entity",
        right=("sent", "to primary", "diverted", "delivered", "lost", "duplicated"),
    )
    for row in report.rows:
        table.add_row(row.entity, *_cells(report.lines[row.entity], row.on_primary, row.diverted))
    sums = sum(row.on_primary for row in report.rows), sum(row.diverted for row in report.rows)
    table.add_row("all", *_cells(report.ledger, *sums), style="bold")
    return table


def _cells(line: Line, on_primary: int, diverted: int) -> list[str]:
    counts = (line.sent, on_primary, diverted, line.delivered, line.lost, line.duplicated)
    return [f"{count:,}" for count in counts]


def remarks(report: Report) -> list[str]:
    """What the table does not say."""
    ledger = report.ledger
    said = [
        f"The primary was down for {report.down_seconds:.1f} s. Sends that failed: "
        f"{ledger.raised}; the slowest took {report.slowest_seconds:.1f} s. Brought home by the "
        f"syphon: {report.moved:,}."
    ]
    if report.error:
        said.append(f"The last send that failed: {' '.join(report.error.split())[:500]}")
    if ledger.repeated:
        said.append(
            f"Handed out again, because the receiver's answer died with the primary: "
            f"{ledger.repeated}."
        )
    if ledger.late:
        said.append(f"Given out once in vain, and again when the lock had run out: {ledger.late}.")
    if ledger.strange:
        said.append(f"Arrived, though the demo has not sent them: {ledger.strange}.")
    for place, ids in report.missing.items():
        more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
        said.append(f"Never arrived in {place}: {', '.join(ids[:5])}{more}.")
    if report.failure:
        said.append(f"This did not go as it should: {report.failure}.")
    return said


# --- for a page -----------------------------------------------------------------------------------

_SVG: Final = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def svg(told: Sequence[tuple[float, Cue]], moment: Moment, report: Report) -> str:
    """All of it as it was on the terminal, with the fonts that the reader has."""
    console = Console(
        record=True,
        width=WIDTH,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        markup=False,
        highlight=False,
        legacy_windows=False,
    )
    for at, cue in told:
        console.print(sentence(at, cue))
    console.print(picture(moment), ending(report), Text(str(report.ledger), style="bold"))
    return console.export_svg(title="pairbus demo", code_format=_SVG, unique_id="demo")
