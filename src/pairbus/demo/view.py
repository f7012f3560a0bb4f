"""Who shows the demo: a live terminal, plain lines, or JSON for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final, Protocol

from rich.console import Console
from rich.live import Live

from pairbus.cli.output import print_table
from pairbus.demo.delivery_check import Line
from pairbus.demo.picture import (
    Moment,
    Report,
    ending,
    picture,
    remarks,
    sentence,
    table_of,
)
from pairbus.demo.script import Cue

PLAIN_SECONDS: Final = 5.0


class Show(Protocol):
    def tell(self, at: float, cue: Cue) -> None: ...

    def look(self, moment: Moment) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self, report: Report) -> None: ...

    def close(self) -> None: ...


def show_for(*, as_json: bool) -> Show:
    if as_json:
        return JsonShow()
    console = Console(markup=False, highlight=False)
    return LiveShow(console) if console.is_terminal else PlainShow()


# --- for programs, and without a terminal ---------------------------------------------------------


class JsonShow:
    """On stdout, one object in a line; the ledger is the last."""

    def __init__(self) -> None:
        self._looked = float("-inf")

    def tell(self, at: float, cue: Cue) -> None:
        action = None if cue.action is None else cue.action.value
        self._print("scene", at=at, scene=cue.scene.value, text=cue.text, action=action)

    def look(self, moment: Moment) -> None:
        if moment.at - self._looked >= 1:
            self._looked = moment.at
            told = asdict(moment)
            del told["history"]
            self._print("moment", **told)

    def note(self, text: str) -> None:
        self._print("note", text=text)

    def end(self, report: Report) -> None:
        told = {entity: _counts(line) for entity, line in report.lines.items()}
        self._print(
            "ledger",
            **_counts(report.ledger),
            entities=told,
            missing=report.missing,
            failure=report.failure,
            error=report.error,
            down_seconds=report.down_seconds,
            slowest_seconds=report.slowest_seconds,
            pings=report.pings,
            brought_home=report.moved,
        )

    def close(self) -> None:
        pass

    @staticmethod
    def _print(event: str, **told: Any) -> None:
        rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in told.items()}
        print(json.dumps({"event": event, **rounded}), flush=True)


def _counts(line: Line) -> dict[str, int]:
    return {**asdict(line), "lost": line.lost}


class PlainShow:
    """Lines on stdout."""

    def __init__(self) -> None:
        self._looked = 0.0

    def tell(self, at: float, cue: Cue) -> None:
        print(f"{at:6.1f} s  {cue.text}", flush=True)

    def look(self, moment: Moment) -> None:
        if moment.at - self._looked >= PLAIN_SECONDS:
            self._looked = moment.at
            print(
                f"{moment.at:6.1f} s  . {moment.sent} sent, {moment.backlog} in the backlog, "
                f"{moment.delivered} delivered",
                flush=True,
            )

    def note(self, text: str) -> None:
        print(text, flush=True)

    def end(self, report: Report) -> None:
        print()
        print_table(table_of(report))
        print("", *remarks(report), "", report.ledger, sep="\n", flush=True)

    def close(self) -> None:
        pass


# --- on a terminal --------------------------------------------------------------------------------


class LiveShow:
    """Sentences scroll up, and below them is the picture of the moment."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def tell(self, at: float, cue: Cue) -> None:
        self._console.print(sentence(at, cue))

    def look(self, moment: Moment) -> None:
        if self._live is None:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(picture(moment), refresh=True)

    def note(self, text: str) -> None:
        self._console.print(text)

    def end(self, report: Report) -> None:
        self.close()
        self._console.print(ending(report))
        # Not through rich, which would wrap it.
        print(report.ledger, flush=True)

    def close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()
