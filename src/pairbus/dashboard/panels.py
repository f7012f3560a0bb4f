"""The panels with tables and curves: backlog, timeline, clients, entities and cost."""

from __future__ import annotations

from collections.abc import Callable
from datetime import tzinfo
from typing import Any, Protocol

from nicegui import ui

from pairbus.cli.output import format_duration, format_size
from pairbus.cli.pair.targets import SECONDARY
from pairbus.dashboard import charts
from pairbus.dashboard.history import History
from pairbus.dashboard.live import Live
from pairbus.dashboard.model import Picture
from pairbus.dashboard.rows import Cell, EntityRow, Row
from pairbus.dashboard.texts import clock, count, utc_clock
from pairbus.dashboard.widgets import Chart, Table, panel, set_text, text


class Viewer(Protocol):
    """The person who looks at a page: time zone and theme."""

    zone: tzinfo

    @property
    def theme(self) -> charts.Theme: ...


def time_cell(at: float | None, viewer: Viewer, now: float) -> Cell:
    return Cell("-") if at is None else Cell(clock(at, viewer.zone, now=now), utc_clock(at))


class BacklogPanel:
    def __init__(self, viewer: Viewer) -> None:
        self._viewer = viewer
        with panel("Backlog", "backlog"):
            self._by = ui.radio({"queue": "by queue", "to": "by destination"}, value="queue").props(
                'inline dense aria-label="Curves"'
            )
            self._chart = Chart("Messages that wait in the backlog, over the last hour")
            self._note = text("p", "", "problem")
            self._table = Table(
                "Backlog queues",
                ("backlog queue", "waiting#", "dead letters#", "oldest#", "destinations"),
                empty="The backlog is not known yet.",
            )

    def update(self, picture: Picture, live: Live) -> None:
        error = picture.backlog_error
        set_text(self._note, f"Old numbers: {error}" if error else "")
        empty = "The backlog is not known yet."
        if SECONDARY not in live.targets:
            empty = "There is no --secondary."
        elif picture.backlog is not None:
            empty = "There are no backlog queues."
        self._table.update(picture.backlog or (), empty=empty)

    def draw(self, history: History, *, now: float) -> None:
        by = str(self._by.value)
        options = charts.backlog_chart(history, by=by, theme=self._viewer.theme, now=now)
        self._chart.draw(options)


class TimelinePanel:
    def __init__(self, viewer: Viewer) -> None:
        self._viewer = viewer
        with panel("Failovers and outages", "timeline"):
            self._chart = Chart("Failovers and outages over the last hour; the table has the same")
            self._table = Table(
                "Failovers and outages",
                ("what", "from", "until", "duration#"),
                empty="No failover and no outage in the last hour.",
                rows=6,
            )

    def update(self, picture: Picture, live: Live) -> None:
        rows = []
        for name, intervals in charts.timeline_rows(live.history):
            for one in reversed(intervals):
                begin = time_cell(one.begin, self._viewer, picture.at)
                if not one.is_begin_known:
                    begin = Cell(f"before {begin.text}", begin.title)
                end = time_cell(one.end, self._viewer, picture.at)
                if one.end is None:
                    end = Cell("lasts", tone="critical" if name.endswith(" down") else "warning")
                seconds = (one.end or picture.at) - one.begin
                key = (name, one.begin)
                rows.append(Row(key, (name, begin, end, format_duration(max(seconds, 1.0)))))
        self._table.update(rows)

    def draw(self, history: History, *, now: float) -> None:
        rows = charts.timeline_rows(history)
        options = charts.timeline_chart(history, theme=self._viewer.theme, now=now)
        height = charts.timeline_height(len(rows))
        self._chart.draw(options, is_visible=bool(rows), height=height)


class ClientPanel:
    def __init__(self) -> None:
        with panel("Clients and syphons", "clients"):
            self._table = Table(
                "Clients and syphons",
                (
                    "process",
                    "state",
                    "clients#",
                    "sent#",
                    "diverted#",
                    "failed over, or why unknown",
                ),
                empty="No process is given: name the URLs of their metrics with --metrics.",
            )
            self._syphons = Table(
                "Syphons",
                ("syphon", "brings home for", "rounds#", "mean round#", "brought home#"),
                empty="No syphon publishes metrics here.",
            )
            self._outbox = text("p", "", "note")

    def update(self, picture: Picture, live: Live) -> None:
        self._table.update(picture.clients)
        self._syphons.update(picture.syphons)
        set_text(self._outbox, picture.outbox)


class EntityPanel:
    """All entities of both namespaces, those with dead letters first."""

    def __init__(self, on_open: Callable[[str, str, bool], Any]) -> None:
        self._question: tuple[Any, ...] = ()
        """What the table shows, so that a thousand unchanged rows cost nothing."""
        with panel("Entities and dead letters", "entities"):
            with ui.element("div").classes("controls"):
                self._filter = ui.input("Filter by name").props("dense outlined").classes("grow")
                self._only_dead = ui.checkbox("only with dead letters")
            self._problems = text("p", "", "problem")
            self._table = Table(
                "Entities",
                (
                    "entity",
                    "namespace",
                    "kind",
                    "active#",
                    "dead letters#",
                    "reasons",
                    "scheduled#",
                    "size#",
                ),
                empty="The entities are not known yet.",
                on_open=lambda key: on_open(*key),
            )

    def update(self, picture: Picture, live: Live) -> None:
        problems = [
            f"The entities of the {role} are old or unknown: {answer.error}"
            for role, answer in live.readings.entities.items()
            if answer.error is not None
        ]
        set_text(self._problems, " ".join(problems))
        wanted = str(self._filter.value or "").strip().lower()
        question = (picture.entities, wanted, self._only_dead.value)
        if question == self._question and picture.entities:
            return
        self._question = question
        shown = [
            one
            for one in picture.entities
            if wanted in one.path.lower() and (one.dead_letters or not self._only_dead.value)
        ]
        shown.sort(key=lambda one: (-(one.dead_letters or 0), one.role, one.path))
        is_known = any(one.at is not None for one in live.readings.entities.values())
        empty = "No entity matches." if picture.entities else "There are no entities."
        self._table.update(
            [self._row(one) for one in shown],
            empty=empty if is_known else "The entities are not known yet.",
        )

    def _row(self, one: EntityRow) -> Row:
        state = f" (failed over at {one.failed_over_clients})" if one.failed_over_clients else ""
        dead = one.dead_letters
        return Row(
            (one.role, one.path, bool(dead)),
            (
                Cell(f"{one.path}{state}", tone="warning" if state else ""),
                one.role,
                "backlog queue" if one.is_backlog else one.kind,
                count(one.active),
                Cell(count(dead), tone="critical" if dead else ""),
                one.reasons or "-",
                count(one.scheduled),
                "-" if one.size_bytes is None else format_size(one.size_bytes),
            ),
        )


class CostPanel:
    def __init__(self) -> None:
        with panel("Cost", "cost"):
            self._table = Table(
                "Cost", ("", "operations#", "money#"), empty="No process counts its operations."
            )
            self._note = text("p", "", "note")

    def update(self, picture: Picture, live: Live) -> None:
        cost = picture.cost
        if cost is None:
            return
        month = cost.month_operations
        later = "known after a minute"
        self._table.update(
            [
                Row(
                    "now",
                    ("so far", f"{cost.operations:,.0f}", f"{cost.money:,.2f} {cost.currency}"),
                ),
                Row(
                    "month",
                    (
                        "a month at this rate, with the base charge",
                        later if month is None else f"{month:,.0f}",
                        "-"
                        if cost.month_money is None
                        else f"{cost.month_money:,.2f} {cost.currency}",
                    ),
                ),
            ]
        )
        set_text(self._note, f"{cost.source[0].upper()}{cost.source[1:]}. {cost.price_list}.")
