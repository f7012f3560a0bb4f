"""The parts that panels are made of: texts, tables, charts and questions.

A table has real table elements, and is paged and filtered on the server. A page of rows is a fixed
number of elements whose texts change, so a thousand entities cost the browser no more than twenty.
All values are text: the browser never reads them as HTML.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nicegui import run, ui
from nicegui.elements.mixins.text_element import TextElement

from pairbus.dashboard.charts import Options
from pairbus.dashboard.rows import Cell, Row
from pairbus.dashboard.texts import sendable
from pairbus.errors import PairbusError, one_line

ROWS: Final = 10


def text(tag: str, value: str = "", classes: str = "") -> Any:
    """An HTML element that holds nothing but text."""
    element = TextElement(tag=tag, text=value)
    return element.classes(classes) if classes else element


def set_text(element: Any, value: str) -> None:
    """Sends nothing if nothing has changed."""
    value = sendable(value)
    if element.text != value:
        element.text = value


def set_title(element: Any, value: str) -> None:
    value = sendable(value)
    if element.props.get("title") != value:
        element.props["title"] = value
        element.update()


@dataclass(slots=True)
class _Line:
    element: Any
    cells: list[Any]
    checkbox: Any = None
    button: Any = None
    row: Row | None = None
    tones: list[str] = field(default_factory=list)


class Table:
    """`columns` are titles; those that end in # are numbers."""

    def __init__(
        self,
        title: str,
        columns: Sequence[str],
        *,
        empty: str,
        rows: int = ROWS,
        on_open: Callable[[Any], Any] | None = None,
        open_label: str = "Look",
        can_select: bool = False,
    ) -> None:
        self._columns = [one.removesuffix("#") for one in columns]
        self._is_number = [one.endswith("#") for one in columns]
        self._size = rows
        self._all: Sequence[Row] = ()
        self._page = 0
        self._empty_text = empty
        self.selected: set[Any] = set()
        self._lines: list[_Line] = []
        self._on_open, self._open_label, self._can_select = on_open, open_label, can_select
        box = ui.element("div").classes("table-box")
        box.props(f'tabindex="0" role="region" aria-label="{title}"')  # it may have to scroll
        with box, ui.element("table"):
            text("caption", title, "visually-hidden")
            with ui.element("thead"), ui.element("tr"):
                if can_select:
                    text("th", "Select", "narrow")
                for name, is_number in zip(self._columns, self._is_number, strict=True):
                    text("th", name, "number" if is_number else "").props('scope="col"')
                if on_open is not None:
                    text("th", "Action", "narrow")
            self._body = ui.element("tbody")
        self._table = box
        self._empty = text("p", empty, "empty")
        with ui.element("nav").classes("pager").props(f'aria-label="Pages of {title}"') as pager:
            self._back = plain_button("Previous", lambda: self._turn(-1))
            self._where = text("span", "")
            self._next = plain_button("Next", lambda: self._turn(1))
        self._pager = pager
        self._show()

    def update(self, rows: Sequence[Row], *, empty: str | None = None) -> None:
        if rows == self._all and (empty is None or empty == self._empty_text):
            return
        self._all = rows
        self._empty_text = self._empty_text if empty is None else empty
        self.selected &= {one.key for one in rows}
        self._show()

    def select_all(self) -> None:
        """All rows, on all pages."""
        self.selected = {one.key for one in self._all}
        for line in self._lines:
            if line.checkbox is not None and line.row is not None:
                line.checkbox.set_value(True)

    def _turn(self, by: int) -> None:
        self._page += by
        self._show()

    def _show(self) -> None:
        pages = max(-(-len(self._all) // self._size), 1)
        self._page = min(max(self._page, 0), pages - 1)
        shown = self._all[self._page * self._size : (self._page + 1) * self._size]
        while len(self._lines) < len(shown):
            self._add_line()
        for index, line in enumerate(self._lines):
            row = shown[index] if index < len(shown) else None
            line.element.set_visibility(row is not None)
            if row is not None and row != line.row:
                self._fill(line, row)
            line.row = row
        self._table.set_visibility(bool(self._all))
        set_text(self._empty, self._empty_text)
        self._empty.set_visibility(not self._all)
        self._pager.set_visibility(pages > 1)
        first = self._page * self._size
        set_text(self._where, f"{first + 1:,} to {first + len(shown):,} of {len(self._all):,}")
        self._back.set_enabled(self._page > 0)
        self._next.set_enabled(self._page < pages - 1)

    def _add_line(self) -> None:
        with self._body, ui.element("tr") as element:
            line = _Line(element, [])
            if self._can_select:
                with ui.element("td").classes("narrow"):
                    line.checkbox = ui.checkbox(
                        on_change=lambda event: self._select(line, event.value)
                    )
            for is_number in self._is_number:
                line.cells.append(text("td", "", "number" if is_number else ""))
                line.tones.append("")
            if self._on_open is not None:
                on_open = self._on_open
                with ui.element("td").classes("narrow"):
                    line.button = plain_button(self._open_label, None)
                    # The row that was clicked, even if another has taken its place by now.
                    line.button.on(
                        "click",
                        lambda event: on_open(json.loads(event.args)),
                        js_handler="(event) => emit(event.currentTarget.dataset.key)",
                    )
        self._lines.append(line)

    def _fill(self, line: _Line, row: Row) -> None:
        cells = [one if isinstance(one, Cell) else Cell(one) for one in row.cells]
        for index, cell in enumerate(cells):
            element = line.cells[index]
            set_text(element, cell.text)
            set_title(element, cell.title)
            if element.props.get("data-label") != self._columns[index]:
                element.props["data-label"] = self._columns[index]
            if line.tones[index] != cell.tone:
                element.classes(add=cell.tone or None, remove=line.tones[index] or None)
                line.tones[index] = cell.tone
        name = cells[0].text
        if line.checkbox is not None:
            line.row = row
            line.checkbox.props["aria-label"] = f"Select {name}"
            line.checkbox.set_value(row.key in self.selected)
            line.checkbox.update()
        if line.button is not None:
            line.button.props["aria-label"] = f"{self._open_label}: {name}"
            line.button.props["data-key"] = json.dumps(row.key)
            line.button.update()

    def _select(self, line: _Line, is_on: bool) -> None:
        if line.row is None:
            return
        if is_on:
            self.selected.add(line.row.key)
        else:
            self.selected.discard(line.row.key)


def plain_button(label: str, on_click: Callable[[], Any] | None) -> Any:
    # Without a color: nicegui's would win over the style sheet, which has one for each theme.
    button = ui.button(label, on_click=on_click, color=None)
    return button.props("flat dense no-caps").classes("plain")


class Chart:
    """A chart that is sent again only if it has changed."""

    def __init__(self, label: str) -> None:
        self._element = ui.echart({"series": []}).classes("chart")
        self._element.props(f'role="img" aria-label="{label}"')
        self._options: Options = {}

    def draw(self, options: Options, *, is_visible: bool = True, height: int | None = None) -> None:
        self._element.set_visibility(is_visible)
        if options == self._options or not is_visible:
            return
        self._options = options
        self._element.options.clear()
        self._element.options.update(options)
        if height is not None:
            self._element.style(f"height: {height}px")
        self._element.update()


def panel(title: str, name: str) -> Any:
    section = ui.element("section").classes(f"panel {name}").props(f'id="{name}"')
    section.props(f'aria-labelledby="{name}-title"')
    with section:
        text("h2", title).props(f'id="{name}-title"')
    return section


async def in_thread(call: Callable[[], Any]) -> tuple[Any, str]:
    """The answer of a blocking call, or the text of its error."""
    try:
        return await run.io_bound(call), ""
    except PairbusError as error:
        return None, str(error)
    except Exception as error:  # shown on the page, to the person who clicked
        return None, one_line(error)


async def confirm(question: str, action: str) -> bool:
    """Asks once more before a change."""
    with (
        ui.dialog().props('aria-label="Confirm a change" role="alertdialog"') as dialog,
        ui.card(),
    ):
        text("p", question)
        with ui.element("div").classes("controls"):
            plain_button("Cancel", lambda: dialog.submit(False)).props("autofocus")
            ui.button(action, on_click=lambda: dialog.submit(True)).props(
                "no-caps unelevated color=negative"
            )
    is_sure = await dialog
    dialog.delete()
    return bool(is_sure)
