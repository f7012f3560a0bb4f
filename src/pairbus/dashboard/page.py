"""The page: shows the picture of the pair, and keeps it up to date. It decides nothing.

Each browser has a page of its own. Once per second it compares what it shows with the picture, and
sends only what has changed. What comes from messages and namespaces is only ever set as text.
"""

from __future__ import annotations

import time
from datetime import UTC, tzinfo
from importlib import resources
from typing import Any, Final

from nicegui import ui
from starlette.requests import Request

from pairbus.cli.output import format_milliseconds
from pairbus.cli.pair.targets import SECONDARY
from pairbus.dashboard import charts
from pairbus.dashboard.alerts import Alert, Severity
from pairbus.dashboard.browse import MessageBrowser
from pairbus.dashboard.faults import FaultPanel
from pairbus.dashboard.live import Live
from pairbus.dashboard.model import Picture, PictureNode
from pairbus.dashboard.panels import (
    BacklogPanel,
    ClientPanel,
    CostPanel,
    EntityPanel,
    TimelinePanel,
)
from pairbus.dashboard.security import LOGIN_PATH, SESSION
from pairbus.dashboard.texts import (
    Sentence,
    about,
    clock,
    plain_text,
    rate,
    utc_clock,
    zone_of,
)
from pairbus.dashboard.widgets import Chart, panel, plain_button, set_text, set_title, text

REFRESH_SECONDS: Final = 0.5
VIEWER_SECONDS_MAX: Final = 30.0
CHART_SECONDS: Final = 2.0
CALM_CHART_SECONDS: Final = 8.0
"""How often charts are drawn while nothing happens: only their axis moves."""
_TONES: Final = {
    None: "unknown",
    Severity.INFO: "ok",
    Severity.WARNING: "warning",
    Severity.CRITICAL: "critical",
}
_NODE_TONES: Final = {
    "up": "ok",
    "down": "critical",
    "failed over": "warning",
    "waits": "warning",
}
_VIEWER: Final = """
return [
  Intl.DateTimeFormat().resolvedOptions().timeZone,
  localStorage.getItem('pairbus-theme') ||
    (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'),
]
"""


def make_page(live: Live) -> None:
    """Registers the page with nicegui."""

    @ui.page("/")
    async def build(request: Request) -> None:
        await PairPage(live, request).show()


class PairPage:
    def __init__(self, live: Live, request: Request) -> None:
        self._live = live
        self._session: str | None = request.scope.get(SESSION)
        self._who = request.client.host if request.client else "unknown"
        self.zone: tzinfo = UTC
        self.is_dark = False
        self._drawn_at = 0.0
        self._alerts: tuple[Alert, ...] | None = None

    @property
    def theme(self) -> charts.Theme:
        return charts.DARK if self.is_dark else charts.LIGHT

    async def show(self) -> None:
        style = resources.files("pairbus.dashboard").joinpath("style.css").read_text("utf-8")
        ui.add_head_html(f"<style>{style}</style>")
        ui.colors(primary="#0b5cad", negative="#a51d1d")
        self._dark_mode = ui.dark_mode(None)
        self._build()
        self.refresh()
        self._timer = ui.timer(REFRESH_SECONDS, self.refresh)
        await ui.context.client.connected()
        try:
            found = await ui.run_javascript(_VIEWER, timeout=VIEWER_SECONDS_MAX)
        except TimeoutError:
            return  # a browser that is too busy to answer gets UTC and the light theme's charts
        if found:
            self.zone = zone_of(found[0])
            self._set_dark(found[1] == "dark")

    # -- building --------------------------------------------------------------------------------

    def _build(self) -> None:
        text("a", "Skip to the messages", "skip").props('href="#messages"')
        with ui.element("div").classes("top"):
            text("h1", "pairbus")
            targets = self._live.targets.items()
            names = [f"{role} {target.address}" for role, target in targets]
            text("span", " and ".join(names), "names")
            mode = "changes allowed" if self._live.changes.are_allowed else "read-only"
            text("span", mode, "badge")
            self._updated = text("time", "")
            self._theme_button = plain_button("Dark theme", self._toggle)
        with ui.element("div").classes("board"):
            with ui.element("section").classes("summary").props('aria-label="Summary"') as banner:
                self._banner = banner
                self._sentence = text("p", "", "sentence").props('role="status"')
            self._build_pair()
            with panel("Alerts", "alerts"):
                self._alert_list = ui.element("ul").classes("alert-list")
                self._no_alerts = text("p", "Nothing needs your attention.", "empty")
            self._backlog = BacklogPanel(self)
            self._build_charts()
            self._timeline = TimelinePanel(self)
            self._clients = ClientPanel()
            self._cost = CostPanel()
            self._browser = MessageBrowser(self._live, self, self._who)
            self._entities = EntityPanel(self._browser.open)
            self._browser.build()
            self._faults = FaultPanel(self._live, self._who)
            self._unknown = text("p", "", "unknown-note")

    def _build_pair(self) -> None:
        with ui.element("section").classes("pair").props('aria-label="The pair"'):
            self._nodes: dict[str, dict[str, Any]] = {}
            self._flows: dict[str, Any] = {}
            self._node("clients", "apps")
            with ui.element("div").classes("namespaces primaries"):
                for role in self._live.readings.primaries:
                    self._node(role, "")
            self._node("syphon", "syphon")
            if SECONDARY in self._live.targets:
                self._node(SECONDARY, "secondary")
            self._arrow("sends", "sent to the primary", "to-primary", "→")
            self._arrow("diverted", "diverted to the backlog", "to-secondary", "→")
            self._arrow("home", "brought home", "to-syphon", "↑")
            self._arrow("home", "", "from-syphon", "↑")
            with ui.element("div").classes("numbers"):
                self._waiting = _number("messages wait")
                self._eta = _number("until all are home")

    def _node(self, key: str, area: str) -> None:
        with ui.element("div").classes(f"node {area}") as box:
            self._nodes[key] = {
                "box": box,
                "title": text("h2", key.capitalize()),
                "state": text("strong", "unknown", "state"),
                "detail": text("span", "", "detail"),
                "times": text("span", "", "detail"),
            }

    def _arrow(self, key: str, label: str, area: str, sign: str) -> None:
        with ui.element("div").classes(f"arrow {area}"):
            text("span", sign, "sign").props('aria-hidden="true"')
            rates = text("span", "", "rate")
            if label:
                text("span", label, "label")
                self._flows[key] = rates

    def _build_charts(self) -> None:
        with panel("Messages per second", "flows"):
            self._flow_chart = Chart("Messages per second over the last hour")
            self._flow_note = text("p", "No process publishes a rate yet.", "empty")
        with panel("Latency", "latency"):
            self._latency_chart = Chart("Latency of the namespaces over the last hour")

    # -- refreshing ------------------------------------------------------------------------------

    def refresh(self) -> None:
        live = self._live
        if live.sessions is not None and not live.sessions.is_open(self._session):
            ui.navigate.to(LOGIN_PATH)
            self._timer.deactivate()
            return
        picture, now = live.picture, time.time()
        self._show_summary(picture)
        self._show_pair(picture)
        self._show_alerts(picture)
        for one in (self._backlog, self._timeline, self._clients, self._entities, self._cost):
            one.update(picture, live)
        self._browser.update(picture)
        self._faults.update(live.readings, now=now)
        set_text(self._unknown, " ".join(picture.unknown))
        is_calm = not picture.waiting and not picture.severity
        if now - self._drawn_at >= (CALM_CHART_SECONDS if is_calm else CHART_SECONDS):
            self._drawn_at = now
            self.draw(now=now)

    def draw(self, *, now: float) -> None:
        history, theme = self._live.history, self.theme
        self._backlog.draw(history, now=now)
        self._timeline.draw(history, now=now)
        flows = charts.flow_chart(history, theme=theme, now=now)
        has_flows = len(flows["series"]) > 1
        self._flow_chart.draw(flows, is_visible=has_flows)
        self._flow_note.set_visibility(not has_flows)
        self._latency_chart.draw(charts.latency_chart(history, theme=theme, now=now))

    def _show_summary(self, picture: Picture) -> None:
        _set_tone(self._banner, _TONES[picture.severity])
        set_text(self._sentence, plain_text(picture.sentence, self.zone, now=picture.at))
        set_title(self._sentence, _utc_note(picture.sentence))
        set_text(self._updated, clock(picture.at, self.zone))
        set_title(self._updated, utc_clock(picture.at))

    def _show_pair(self, picture: Picture) -> None:
        for node in picture.nodes:
            if node.key in self._nodes:
                self._show_node(node)
        flows = picture.flows
        for key, value in (
            ("sends", flows.sends),
            ("diverted", flows.diverted),
            ("home", flows.brought_home),
        ):
            set_text(self._flows[key], rate(value))
        waiting = picture.waiting
        set_text(self._waiting, "unknown" if waiting is None else f"{waiting:,}")
        left = picture.seconds_to_empty
        is_down = any(one.state == "down" for one in picture.nodes if one.key != SECONDARY)
        eta = "after the outage" if is_down else "not going down"
        eta = "unknown" if waiting is None else eta
        if left is not None:
            eta = "-" if not waiting else about(left)
        set_text(self._eta, eta)

    def _show_node(self, node: PictureNode) -> None:
        parts = self._nodes[node.key]
        _set_tone(parts["box"], _NODE_TONES.get(node.state, "unknown"))
        set_text(parts["title"], node.title)
        set_text(parts["state"], node.state)
        set_text(parts["detail"], node.detail)
        times = ""
        if node.connect_seconds is not None:
            times = f"connect {format_milliseconds(node.connect_seconds)}"
            if node.round_trip_seconds is not None:
                times += f", round trip {format_milliseconds(node.round_trip_seconds)}"
        set_text(parts["times"], times)

    def _show_alerts(self, picture: Picture) -> None:
        if picture.alerts == self._alerts:
            return
        self._alerts = picture.alerts
        self._no_alerts.set_visibility(not picture.alerts)
        self._alert_list.clear()
        with self._alert_list:
            for alert in picture.alerts:
                with ui.element("li").classes(f"alert {_TONES[alert.severity]}"):
                    text("strong", alert.severity.name.lower(), "state")
                    said = text("p", plain_text(alert.text, self.zone, now=picture.at))
                    said.props["title"] = _utc_note(alert.text)
                    text("p", alert.remedy, "remedy")

    # -- theme -----------------------------------------------------------------------------------

    def _toggle(self) -> None:
        self._set_dark(not self.is_dark)
        value = "dark" if self.is_dark else "light"
        ui.run_javascript(f"localStorage.setItem('pairbus-theme', '{value}')")

    def _set_dark(self, is_dark: bool) -> None:
        self.is_dark = is_dark
        self._dark_mode.value = is_dark
        set_text(self._theme_button, "Light theme" if is_dark else "Dark theme")
        self.draw(now=time.time())


def _number(label: str) -> Any:
    with ui.element("div").classes("number-box"):
        value = text("strong", "")
        text("span", label)
    return value


def _set_tone(element: Any, tone: str) -> None:
    if tone not in element.classes:
        element.classes(add=tone, remove="ok warning critical unknown".replace(tone, ""))


def _utc_note(sentence: Sentence) -> str:
    return ", ".join(utc_clock(one) for one in sentence if not isinstance(one, str))
