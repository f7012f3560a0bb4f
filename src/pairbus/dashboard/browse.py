"""The panel of messages: look into any entity, and resubmit or purge dead letters."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, Final

from nicegui import ui

from pairbus.cli.entity_path import EntityPath, SubQueue, parse_entity_path
from pairbus.cli.output import format_count, format_size
from pairbus.dashboard.bodies import BodyForm, MessagePage, best_form, body_text
from pairbus.dashboard.live import Live
from pairbus.dashboard.messages import PAGE_COUNT, PeekedMessages, peek_page
from pairbus.dashboard.model import Picture
from pairbus.dashboard.panels import Viewer, time_cell
from pairbus.dashboard.rows import Cell, EntityRow, Row
from pairbus.dashboard.widgets import (
    Table,
    confirm,
    in_thread,
    panel,
    plain_button,
    set_text,
    text,
)

_PLAIN: Final = "messages"


class MessageBrowser:
    def __init__(self, live: Live, viewer: Viewer, who: str) -> None:
        self._live, self._viewer, self._who = live, viewer, who
        self._page: PeekedMessages | None = None
        self._asked: Any = None
        """The last question. The answers to earlier ones are not shown."""
        self._path: EntityPath | None = None
        self._role = ""
        self._starts: list[int] = [0]
        self._shown: MessagePage | None = None
        self._entities: tuple[EntityRow, ...] = ()

    def build(self) -> None:
        roles = list(self._live.targets)
        with panel("Messages", "messages"):
            if not roles:
                text("p", "No namespace is given.", "empty")
            with ui.element("div").classes("controls"):
                self._role_input = ui.select(
                    roles, value=roles[0] if roles else None, label="Namespace"
                ).props("dense outlined options-dense")
                self._entity_input = ui.select(
                    [], label="Queue or subscription", with_input=True
                ).props("dense outlined options-dense")
                self._entity_input.classes("grow")
                self._part_input = ui.select([_PLAIN, *SubQueue], value=_PLAIN, label="Part").props(
                    "dense outlined options-dense"
                )
                self._where_input = ui.input("Filter, such as amount > 5")
                self._where_input.props("dense outlined").classes("grow")
                self._where_input.on("keydown.enter", self._look)
                ui.button("Look", on_click=self._look).props("no-caps unelevated")
            self._note = text("p", "Choose an entity, and look into it. Nothing is locked.", "note")
            self._note.props('role="status"')
            self._problem = text("p", "", "problem").props('role="alert"')
            self._reasons = text("p", "", "note")
            self._table = Table(
                "Messages",
                (
                    "sequence#",
                    "enqueued",
                    "message id",
                    "subject",
                    "state",
                    "reason",
                    "body",
                    "size#",
                ),
                empty="No messages to show.",
                rows=PAGE_COUNT,
                on_open=self._show,
                open_label="Show",
                can_select=self._live.changes.are_allowed,
            )
            with ui.element("div").classes("controls"):
                self._back = plain_button("Previous messages", self._turn_back)
                self._next = plain_button("More messages", self._turn)
                if self._live.changes.are_allowed:
                    self._all = plain_button("Select all", self._table.select_all)
                    self._resubmit = plain_button("Resubmit", partial(self._change, "resubmit"))
                    self._purge = plain_button("Purge", partial(self._change, "purge"))
            self._build_message()
        self._show_controls()

    def _build_message(self) -> None:
        with ui.element("div").props('aria-live="polite"') as box:
            self._title = text("h3", "")
            self._form = ui.radio(list(BodyForm), value=BodyForm.TEXT, on_change=self._show_body)
            self._form.props('inline dense aria-label="Show the body as"')
            self._body_note = text("p", "", "note")
            self._body = text("pre", "", "body").props('tabindex="0" aria-label="Body"')
            self._properties = Table(
                "Application properties",
                ("application property", "type", "value"),
                empty="No application properties.",
                rows=20,
            )
            self._fields = Table(
                "Properties of the message", ("property", "value"), empty="-", rows=30
            )
        self._box = box
        box.set_visibility(False)

    def update(self, picture: Picture) -> None:
        """Keeps the names of the entities up to date."""
        self._entities = picture.entities
        names = self._names()
        if names != self._entity_input.options:
            self._offer(names, self._entity_input.value)

    def _names(self) -> list[str]:
        """Of the entities of the chosen namespace that can hold messages."""
        role = self._role_input.value
        return sorted(
            one.path for one in self._entities if one.role == role and one.kind != "topic"
        )

    def _offer(self, names: list[str], chosen: str | None) -> None:
        self._entity_input.set_options(names, value=chosen if chosen in names else None)

    async def open(self, role: str, path: str, has_dead_letters: bool) -> None:
        """From the table of entities."""
        self._role_input.set_value(role)
        self._offer(self._names(), path)
        self._part_input.set_value(SubQueue.DEAD_LETTER if has_dead_letters else _PLAIN)
        self._where_input.set_value("")
        await self._look()
        ui.run_javascript("document.getElementById('messages').scrollIntoView()")

    # -- looking ---------------------------------------------------------------------------------

    async def _look(self) -> None:
        entity, part = self._entity_input.value, self._part_input.value
        if not entity:
            set_text(self._problem, "Choose a queue or a subscription first.")
            return
        self._role = str(self._role_input.value)
        self._path = parse_entity_path(
            str(entity), None, None if part == _PLAIN else SubQueue(str(part))
        )
        self._starts = [0]
        await self._load()

    async def _turn(self) -> None:
        if self._page is not None and self._page.next_start is not None:
            self._starts.append(self._page.next_start)
            await self._load()

    async def _turn_back(self) -> None:
        if len(self._starts) > 1:
            self._starts.pop()
            await self._load()

    async def _load(self) -> None:
        assert self._path is not None
        set_text(self._note, f"Looking into {self._path.description} …")
        set_text(self._problem, "")
        # Until the answer is here, nothing can be selected: it would be purged from another entity.
        self._page = None
        self._table.update((), empty="Looking …")
        self._box.set_visibility(False)
        self._show_controls()
        where = str(self._where_input.value or "")
        target = self._live.targets[self._role]
        call = partial(peek_page, target, self._path, start=self._starts[-1], where=where)
        self._asked = call
        page, error = await in_thread(call)
        if self._asked is not call:
            return  # another look has begun
        self._page = page
        set_text(self._problem, error)
        self._show_page()

    def _show_page(self) -> None:
        assert self._path is not None
        page, now = self._page, self._live.picture.at
        messages = () if page is None else page.messages
        self._table.update(
            [
                Row(
                    one.sequence_number,
                    (
                        str(one.sequence_number),
                        time_cell(one.enqueued_at, self._viewer, now),
                        one.message_id or "-",
                        one.subject or "-",
                        one.state,
                        Cell(one.reason or "-", one.description),
                        one.beginning or "(empty)",
                        format_size(one.size),
                    ),
                )
                for one in messages
            ],
            empty=f"No matching messages in {self._path.description}.",
        )
        self._show_reasons(messages)
        scanned = 0 if page is None else page.scanned
        where = f"{self._path.description} on the {self._role}"
        set_text(
            self._note,
            f"{format_count(len(messages))} of {where}, out of {scanned:,} that were read. Nothing "
            "was locked.",
        )
        self._show_controls()

    def _show_reasons(self, messages: tuple[MessagePage, ...]) -> None:
        counts = Counter(one.reason for one in messages if one.reason)
        reasons = ", ".join(f"{reason} {number}" for reason, number in counts.items())
        set_text(self._reasons, f"Reasons on this page: {reasons}" if reasons else "")

    def _show_controls(self) -> None:
        page = self._page
        self._back.set_enabled(len(self._starts) > 1)
        self._next.set_enabled(page is not None and page.next_start is not None)
        if self._live.changes.are_allowed:
            is_dead = self._path is not None and self._path.sub_queue is SubQueue.DEAD_LETTER
            has_messages = page is not None and bool(page.messages)
            for button in (self._all, self._resubmit, self._purge):
                button.set_enabled(is_dead and has_messages)

    # -- one message -----------------------------------------------------------------------------

    def _show(self, number: int) -> None:
        found = [] if self._page is None else self._page.messages
        self._shown = next((one for one in found if one.sequence_number == number), None)
        if self._shown is None:
            return
        message = self._shown
        self._box.set_visibility(True)
        size = format_size(len(message.body))
        set_text(self._title, f"Message {number}: body of {size} ({message.body_kind})")
        self._form.set_value(best_form(message.body))
        self._show_body()
        self._properties.update(
            [Row(index, one) for index, one in enumerate(message.properties)],
        )
        self._fields.update([Row(name, (name, value)) for name, value in message.fields])

    def _show_body(self, _: Any = None) -> None:
        if self._shown is None:
            return
        shown, note = body_text(self._shown.body, BodyForm(str(self._form.value)))
        set_text(self._body, shown)
        set_text(self._body_note, " ".join(filter(None, (self._shown.error, note))))

    # -- changes ---------------------------------------------------------------------------------

    async def _change(self, action: str) -> None:
        # While the question waits for its answer, another look may begin: keep what it names.
        numbers, path, role = sorted(self._table.selected), self._path, self._role
        if not numbers or path is None:
            set_text(self._problem, "Select messages first.")
            return
        source = f"{path.description} on the {role}"
        if action == "resubmit":
            to = f"to {path.entity!r}"
            if path.subscription is not None:
                to = f"to topic {path.entity!r}, and so to all subscriptions whose rules match"
            question = f"Send {format_count(len(numbers))} of {source} again, {to}?"
        else:
            question = f"Delete {format_count(len(numbers))} of {source}? This cannot be undone."
        if not await confirm(question, action.capitalize()):
            return
        entity = EntityPath(entity=path.entity, subscription=path.subscription)
        changes = self._live.changes
        act = changes.resubmit if action == "resubmit" else changes.purge
        done, error = await in_thread(partial(act, role, entity.path, numbers, who=self._who))
        await self._load()
        if error:
            set_text(self._problem, error)
        else:
            set_text(self._note, f"{done[0].upper()}{done[1:]}.")
