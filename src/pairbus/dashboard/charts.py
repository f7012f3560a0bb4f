"""The options of the charts, for ECharts: plain values, no code. Pure.

Times are in milliseconds since 1970; ECharts shows them in the viewer's zone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pairbus.cli.pair.targets import SECONDARY
from pairbus.dashboard.history import HOUR_SECONDS, History, Interval
from pairbus.dashboard.texts import client_name

Options = dict[str, Any]

TIMELINE_ROWS_MAX: Final = 24
_FEW_ROWS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    text: str
    line: str
    shade: str
    """Outages."""
    colors: tuple[str, ...]


LIGHT: Final = Theme(
    text="#3c434c",
    line="#d9dde3",
    shade="rgba(200, 40, 40, 0.13)",
    colors=("#0b5cad", "#c2540a", "#1b7f4b", "#8a3ab9", "#7a6a00", "#0f7c8a", "#b3235f", "#5b6570"),
)
DARK: Final = Theme(
    text="#dde2e8",
    line="#39414b",
    shade="rgba(255, 90, 90, 0.2)",
    colors=("#6cb2ff", "#ffab66", "#6fd6a0", "#d6a2ff", "#e6d15c", "#66d3e0", "#ff8fbf", "#b6bec8"),
)
FLOWS: Final = {
    "flow:sends": "sent to the primary",
    "flow:diverted": "diverted",
    "flow:home": "brought home",
}


def backlog_chart(history: History, *, by: str, theme: Theme, now: float) -> Options:
    """`by` is "queue" or "to": the curves by backlog queue, or by destination."""
    prefix = f"{by}:"
    curves = {
        name.removeprefix(prefix): history.curve(name, now=now) for name in history.names(prefix)
    }
    options = _chart(curves, history, theme, now=now, unit="messages")
    for series in options["series"]:
        series |= {"stack": "all", "areaStyle": {"opacity": 0.25}}
    return options


def flow_chart(history: History, *, theme: Theme, now: float) -> Options:
    known = history.names("flow:")
    curves = {title: history.curve(name, now=now) for name, title in FLOWS.items() if name in known}
    return _chart(curves, history, theme, now=now, unit="messages/s")


def latency_chart(history: History, *, theme: Theme, now: float) -> Options:
    curves = {
        name.removeprefix("latency:"): history.curve(name, now=now)
        for name in history.names("latency:")
    }
    return _chart(curves, history, theme, now=now, unit="ms")


def _chart(
    curves: Mapping[str, Sequence[tuple[float, float | None]]],
    history: History,
    theme: Theme,
    *,
    now: float,
    unit: str,
) -> Options:
    series: list[Options] = [
        {
            "type": "line",
            "name": name,
            "showSymbol": False,
            "connectNulls": False,
            "lineStyle": {"width": 2},
            "data": [
                [round(at * 1000), None if value is None else round(value, 2)]
                for at, value in points
            ],
        }
        for name, points in curves.items()
    ]
    # A series of its own for the shades, so that they are there before the first curve.
    series.append(
        {
            "type": "line",
            "name": "",
            "data": [],
            "silent": True,
            "markArea": {
                "silent": True,
                "itemStyle": {"color": theme.shade},
                "data": _shades(history, now),
            },
        }
    )
    return _frame(theme, history, now) | {
        "tooltip": {"trigger": "axis", "confine": True, "renderMode": "richText"},
        "legend": _legend(list(curves), theme),
        "yAxis": {
            "type": "value",
            "min": 0,
            "name": unit,
            "minInterval": 1 if unit == "messages" else 0,
            "nameTextStyle": {"color": theme.text, "align": "left"},
            "axisLabel": {"color": theme.text},
            "splitLine": {"lineStyle": {"color": theme.line}},
        },
        "series": series,
    }


def _frame(theme: Theme, history: History, now: float) -> Options:
    first = max(history.started_at, now - HOUR_SECONDS)
    return {
        "animation": False,
        "color": list(theme.colors),
        "textStyle": {"color": theme.text, "fontFamily": "inherit"},
        "grid": {"left": 12, "right": 18, "top": 34, "bottom": 36, "containLabel": True},
        "xAxis": {
            "type": "time",
            "min": round(first * 1000),
            "max": round(max(now, first + 60) * 1000),
            "axisLabel": {"color": theme.text, "hideOverlap": True},
            "axisLine": {"lineStyle": {"color": theme.line}},
        },
    }


def _legend(names: list[str], theme: Theme) -> Options:
    return {
        "show": len(names) > 1,
        "type": "scroll",
        "bottom": 0,
        "data": names,
        "textStyle": {"color": theme.text},
        "pageTextStyle": {"color": theme.text},
    }


def _shades(history: History, now: float) -> list[list[Options]]:
    """Outages of the primaries."""
    first = max(history.started_at, now - HOUR_SECONDS)
    return [
        [
            {"xAxis": round(max(one.begin, first) * 1000)},
            {"xAxis": round((one.end or now) * 1000)},
        ]
        for role, outages in history.outages.items()
        if role != SECONDARY
        for one in outages
    ]


# -- the timeline --------------------------------------------------------------------------------


def timeline_rows(history: History) -> list[tuple[str, Sequence[Interval]]]:
    """The outages of the namespaces first, then the failovers, the latest first."""
    rows: list[tuple[str, Sequence[Interval]]] = [
        (f"{role} down", some) for role, some in history.outages.items() if some
    ]
    latest = sorted(history.failovers.items(), key=lambda item: -item[1][-1].begin)
    rows += [(f"{key.entity} at {client_name(key.client)}", some) for key, some in latest]
    return rows


def timeline_chart(history: History, *, theme: Theme, now: float) -> Options:
    rows = timeline_rows(history)[:TIMELINE_ROWS_MAX]
    names = [name for name, _ in rows]
    first = max(history.started_at, now - HOUR_SECONDS)
    series: list[Options] = []
    for name, intervals in rows:
        data: list[list[Any]] = []
        for one in intervals:
            begin, end = max(one.begin, first), one.end or now
            data += [[round(begin * 1000), name], [round(end * 1000), name], [None, None]]
        is_outage = name.endswith(" down")
        series.append(
            {
                "type": "line",
                "name": name,
                "data": data,
                "symbol": "rect",
                "symbolSize": [3, 12],
                "showSymbol": True,
                "connectNulls": False,
                "lineStyle": {"width": 12, "cap": "butt"},
                "color": "#c83c3c" if is_outage else theme.colors[1],
            }
        )
    frame = _frame(theme, history, now)
    frame["grid"] = {"left": 12, "right": 18, "top": 12, "bottom": 24, "containLabel": True}
    return frame | {
        "tooltip": {"trigger": "item", "confine": True, "renderMode": "richText"},
        "yAxis": {
            "type": "category",
            "data": names,
            "inverse": True,
            "axisLabel": {"color": theme.text, "width": 150, "overflow": "truncate"},
            "splitLine": {"show": True, "lineStyle": {"color": theme.line}},
        },
        "series": series,
    }


def timeline_height(rows: int) -> int:
    """In pixels."""
    return 60 + 30 * min(max(rows, _FEW_ROWS), TIMELINE_ROWS_MAX)
