"""Shows the demo: live on a terminal, as plain lines, as JSON for programs, or as an SVG file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pairbus.cli.output import make_table, print_json_line, print_table
from pairbus.demo.ledger import LedgerLine, total
from pairbus.demo.script import Step
from pairbus.json_style import camel_case_keys

PLAIN_SECONDS: Final = 5.0
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
class DemoRow:
    """One entity at one moment."""

    entity: str
    state: str
    on_primary: int
    diverted: int
    delivered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The whole demo at one moment."""

    at: float
    phase: str
    primary: str
    secondary: str
    syphon: str
    brought_home: int
    rows: tuple[DemoRow, ...]
    backlog: int
    history: tuple[int, ...]
    """The number of messages in the backlog, twice a second from the start."""

    @property
    def sent(self) -> int:
        return sum(row.on_primary + row.diverted for row in self.rows)

    @property
    def delivered(self) -> int:
        return sum(row.delivered for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    lines: dict[str, LedgerLine]
    rows: tuple[DemoRow, ...]
    down_seconds: float
    slowest_seconds: float
    pings: int
    brought_home: int
    missing: dict[str, list[str]]
    """The ids that did not arrive, by place."""
    failure: str
    """What did not happen in time."""
    error: str = ""
    """The error of the last send that failed."""

    @property
    def total(self) -> LedgerLine:
        return total(self.lines.values())

    @property
    def is_ok(self) -> bool:
        return self.total.is_ok and not self.failure


class View(Protocol):
    def step(self, at: float, step: Step) -> None: ...

    def update(self, snapshot: Snapshot) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self, result: DemoResult) -> None: ...

    def close(self) -> None: ...


def make_view(*, as_json: bool) -> View:
    if as_json:
        return JsonView()
    console = Console(markup=False, highlight=False)
    return LiveView(console) if console.is_terminal else PlainView()


# --- views ----------------------------------------------------------------------------------------


class JsonView:
    """One object per line on stdout; the last one is the ledger."""

    def __init__(self) -> None:
        self._updated_at = float("-inf")

    def step(self, at: float, step: Step) -> None:
        action = None if step.action is None else step.action.value
        self._print(
            "phase", elapsed_seconds=at, phase=step.phase.value, text=step.text, action=action
        )

    def update(self, snapshot: Snapshot) -> None:
        if snapshot.at - self._updated_at >= 1:
            self._updated_at = snapshot.at
            values = asdict(snapshot)
            del values["history"]
            values["entities"] = [camel_case_keys(row) for row in values.pop("rows")]
            self._print("snapshot", elapsed_seconds=values.pop("at"), **values)

    def note(self, text: str) -> None:
        self._print("note", text=text)

    def end(self, result: DemoResult) -> None:
        self._print(
            "ledger",
            **_counts(result.total),
            entities={entity: _counts(line) for entity, line in result.lines.items()},
            missing=result.missing,
            failure=result.failure,
            error=result.error,
            down_seconds=result.down_seconds,
            slowest_seconds=result.slowest_seconds,
            pings=result.pings,
            brought_home=result.brought_home,
        )

    def close(self) -> None:
        pass

    @staticmethod
    def _print(event: str, **values: Any) -> None:
        rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in values.items()}
        print_json_line({"event": event, **camel_case_keys(rounded)})


def _counts(line: LedgerLine) -> dict[str, int]:
    return {**asdict(line), "lost": line.lost}


class PlainView:
    """Lines on stdout."""

    def __init__(self) -> None:
        self._updated_at = 0.0

    def step(self, at: float, step: Step) -> None:
        print(f"{at:6.1f}s  {step.text}", flush=True)

    def update(self, snapshot: Snapshot) -> None:
        if snapshot.at - self._updated_at >= PLAIN_SECONDS:
            self._updated_at = snapshot.at
            print(
                f"{snapshot.at:6.1f}s  . {snapshot.sent} sent, {snapshot.backlog} in the backlog, "
                f"{snapshot.delivered} delivered",
                flush=True,
            )

    def note(self, text: str) -> None:
        print(text, flush=True)

    def end(self, result: DemoResult) -> None:
        print()
        print_table(_result_table(result))
        print("", *remarks(result), "", result.total, sep="\n", flush=True)

    def close(self) -> None:
        pass


class LiveView:
    """On a terminal, texts scroll up, and below them is the current state."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def step(self, at: float, step: Step) -> None:
        self._console.print(_step_line(at, step))

    def update(self, snapshot: Snapshot) -> None:
        if self._live is None:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(state_panel(snapshot), refresh=True)

    def note(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)  # a connection string is copied from it

    def end(self, result: DemoResult) -> None:
        self.close()
        self._console.print(_result_page(result))
        # Not through rich, which would wrap it.
        print(result.total, flush=True)

    def close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()


# --- what they show -------------------------------------------------------------------------------


def _step_line(at: float, step: Step) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", width=7, style="dim")
    grid.add_column(style="bold" if step.action else "")
    grid.add_row(f"{at:.1f}s", step.text)
    return grid


def state_panel(snapshot: Snapshot) -> RenderableType:
    states = Text()
    for name, state in (
        ("primary", snapshot.primary),
        ("secondary", snapshot.secondary),
        ("syphon", snapshot.syphon),
    ):
        states.append("● ", style=_STATES.get(state.partition(",")[0], ""))
        states.append(name, style="bold").append(f" {state}    ")
    table = make_table("entity", "state", right=("on primary", "diverted", "delivered"))
    for row in snapshot.rows:
        table.add_row(
            row.entity,
            Text(row.state, style=_STATES.get(row.state, "")),
            f"{row.on_primary:,}",
            f"{row.diverted:,}",
            f"{row.delivered:,}",
        )
    highest = max(snapshot.history, default=0)
    backlog = Text.assemble(
        ("backlog  ", "bold"),
        (bars(snapshot.history, CURVE_WIDTH), "yellow"),
        f"  {snapshot.backlog:,} now, {highest:,} at most, {snapshot.brought_home:,} brought home",
    )
    return Panel(
        Group(states, Text(""), table, Text(""), backlog),
        title=f"pairbus demo: {snapshot.phase}",
        subtitle=f"{snapshot.at:.0f}s",
        width=WIDTH,
    )


def bars(values: Sequence[int], width: int) -> str:
    """A curve of block characters over the whole time. Each shows the maximum of its interval."""
    if not values:
        return " " * width
    highest = max(*values, 1)
    interval = max(1.0, len(values) / width)
    tops = [
        max(values[int(n * interval) : max(int((n + 1) * interval), int(n * interval) + 1)])
        for n in range(min(width, len(values)))
    ]
    return "".join(_BARS[-(-top * (len(_BARS) - 1) // highest)] for top in tops).ljust(width)


def _result_page(result: DemoResult) -> RenderableType:
    texts = [Text(remark) for remark in remarks(result)]
    return Group(Text(""), _result_table(result), Text(""), *texts, Text(""))


def _result_table(result: DemoResult) -> Table:
    table = make_table(
        "entity",
        right=("sent", "to primary", "diverted", "delivered", "lost", "duplicated"),
    )
    for row in result.rows:
        line = result.lines[row.entity]
        table.add_row(row.entity, *_cells(line, row.on_primary, row.diverted))
    sums = sum(row.on_primary for row in result.rows), sum(row.diverted for row in result.rows)
    table.add_row("total", *_cells(result.total, *sums), style="bold")
    return table


def _cells(line: LedgerLine, on_primary: int, diverted: int) -> list[str]:
    counts = (
        *(line.sent, on_primary, diverted),
        *(line.delivered, line.lost, line.duplicated),
    )
    return [f"{count:,}" for count in counts]


def remarks(result: DemoResult) -> list[str]:
    """What the table does not show."""
    line = result.total
    texts = [
        f"The primary was down for {result.down_seconds:.1f}s. Failed sends: {line.raised}; "
        f"the slowest send took {result.slowest_seconds:.1f}s. The syphon brought "
        f"{result.brought_home:,} messages home."
    ]
    if result.error:
        texts.append(f"Error of the last failed send: {result.error}")
    if line.repeated:
        texts.append(
            "Delivered again, because the primary was killed before it stored the settlement: "
            f"{line.repeated}."
        )
    if line.late:
        texts.append(
            "Lost on the way to the receiver, and delivered again when the lock expired: "
            f"{line.late}."
        )
    if line.unexpected:
        texts.append(f"Unexpected messages, which the demo did not send: {line.unexpected}.")
    for place, ids in result.missing.items():
        more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
        texts.append(f"Never arrived in {place}: {', '.join(ids[:5])}{more}.")
    if result.failure:
        texts.append(f"Something went wrong: {result.failure}.")
    return texts


# --- as a file ------------------------------------------------------------------------------------

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


def to_svg(steps: Sequence[tuple[float, Step]], snapshot: Snapshot, result: DemoResult) -> str:
    """The demo as it looked on the terminal. The file uses the fonts of its reader."""
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
    for at, step in steps:
        console.print(_step_line(at, step))
    console.print(
        state_panel(snapshot), _result_page(result), Text(str(result.total), style="bold")
    )
    return console.export_svg(title="pairbus demo", code_format=_SVG, unique_id="demo")
