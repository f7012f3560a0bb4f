"""The panel of faults, for brokers on this machine: try what an outage looks like."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final

from nicegui import ui

from pairbus.cli.output import format_duration
from pairbus.cli.parse import parse_positive_duration
from pairbus.dashboard.live import Live
from pairbus.dashboard.readings import Readings
from pairbus.dashboard.rows import Row
from pairbus.dashboard.widgets import Table, confirm, in_thread, panel, set_text, text
from pairbus.errors import UsageError

KINDS: Final = {
    "unreachable": "unreachable: connections are refused",
    "hang": "hang: no answer",
    "throttle": "throttle: the service is busy",
    "cannot_send": "cannot_send: sends fail",
    "restart": "restart: all connections are closed",
}
CLOSES_PORT: Final = ("unreachable", "restart")
"""For a whole namespace, nobody can reach the broker during these, not even to end them."""


class FaultPanel:
    def __init__(self, live: Live, who: str) -> None:
        self._live, self._who = live, who
        self._roles = [role for role, target in live.targets.items() if target.is_local]
        if not self._roles:
            return
        with panel("Faults of local brokers", "faults"):
            if live.changes.are_allowed:
                self._build_form()
            else:
                text(
                    "p", "Start the dashboard with --allow-changes to start and end faults.", "note"
                )
            self._note = text("p", "", "note").props('role="status"')
            self._problem = text("p", "", "problem").props('role="alert"')
            self._table = Table(
                "Faults",
                ("fault", "namespace", "entity", "state", "ends in#", "hits#"),
                empty="No faults are active or planned.",
                on_open=self._clear if live.changes.are_allowed else None,
                open_label="End",
            )

    def _build_form(self) -> None:
        with ui.element("div").classes("controls"):
            props = "dense outlined options-dense"
            self._role = ui.select(self._roles, value=self._roles[0], label="Namespace")
            self._kind = ui.select(KINDS, value="unreachable", label="Kind").classes("grow")
            self._entity = ui.input("Entity (empty: all)").props("dense outlined")
            self._duration = ui.input("Duration", value="20s").props("dense outlined")
            for one in (self._role, self._kind):
                one.props(props)
            ui.button("Start", on_click=self._start).props("no-caps unelevated")

    async def _start(self) -> None:
        role, kind = str(self._role.value), str(self._kind.value)
        set_text(self._problem, "")
        try:
            seconds = parse_positive_duration(str(self._duration.value), "the duration")
        except UsageError as error:
            set_text(self._problem, str(error))
            return
        entity = str(self._entity.value or "").strip()
        settings: dict[str, Any] = {"seconds": seconds}
        if entity:
            settings["entity"] = entity
        where = f"{entity!r} on the {role}" if entity else f"the whole {role}"
        lasts = format_duration(seconds)
        question = f"Start the fault {kind!r} for {where}, for {lasts}?"
        if kind in CLOSES_PORT and not entity:
            question += f" The broker closes its port, so you cannot end it: it ends after {lasts}."
        if not await confirm(question, "Start"):
            return
        call = partial(self._live.changes.add_fault, role, kind, settings, who=self._who)
        self._report(*await in_thread(call))

    async def _clear(self, key: tuple[str, int]) -> None:
        role, number = key
        if await confirm(f"End fault {number} of the {role} now?", "End"):
            call = partial(self._live.changes.clear_fault, role, number, who=self._who)
            self._report(*await in_thread(call))

    def _report(self, done: str | None, error: str) -> None:
        set_text(self._problem, error)
        set_text(self._note, f"{done[0].upper()}{done[1:]}." if done else "")

    def update(self, readings: Readings, *, now: float) -> None:
        if not self._roles:
            return
        rows, silent = [], []
        for role, answer in readings.faults.items():
            if answer.error is not None:
                silent.append(f"The faults of the {role} are unknown: {answer.error}")
            for one in answer.value or ():
                rows.append(_row(role, one, now))
        self._table.update(rows, empty=" ".join(silent) or "No faults are active or planned.")


def _row(role: str, fault: Mapping[str, Any], now: float) -> Row:
    ends = fault.get("endsAt")
    left = "until it is ended"
    if isinstance(ends, str):
        left = format_duration(max(datetime.fromisoformat(ends).timestamp() - now, 0.0))
    return Row(
        (role, fault.get("id")),
        (
            str(fault.get("kind")),
            role,
            str(fault.get("entity") or "all"),
            str(fault.get("state")),
            left,
            f"{fault.get('hits', 0):,}",
        ),
    )
