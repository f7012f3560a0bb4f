"""Small parts of the page that several panels use."""

from __future__ import annotations

from typing import Any

from nicegui import run, ui

from pairbus.dashboard.charts import Options
from pairbus.dashboard.table import plain_button, text
from pairbus.errors import PairbusError, one_line


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


async def in_thread(call: Any, *arguments: Any) -> tuple[Any, str]:
    """The answer of a blocking call, or the text of its error."""
    try:
        return await run.io_bound(call, *arguments), ""
    except PairbusError as error:
        return None, str(error)
    except Exception as error:  # shown on the page: whoever clicked must learn of it
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
