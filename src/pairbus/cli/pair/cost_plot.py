"""Plots what a pair costs, by the length of an outage and by the number of backlog queues."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pairbus.cost.estimate import estimate_usage
from pairbus.cost.prices import PriceList
from pairbus.cost.usage import Usage
from pairbus.errors import OutputError, UsageError, requires_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES: Final = (".svg", ".png")
_POINTS: Final = 25
_QUEUES: Final = (1, 2, 5, 10, 20, 50, 100)
_CURVES: Final = (1, 10, 50)


def draw(usage: Usage, prices: PriceList, path: Path) -> None:
    """Raises UsageError, MissingExtra or OutputError."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot {path}: the file name must end in {' or '.join(SUFFIXES)}")
    # It logs many lines about the fonts that it searches for.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with requires_extra("--plot", "plot"):
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    # Keep text as text, and make the file reproducible: equal numbers, equal bytes.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "pairbus", "font.size": 9}):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        _by_outage(left, usage, prices)
        _by_queues(right, usage, prices)
        figure.suptitle(
            f"{usage.days} days, {usage.messages_per_day:,} messages per day; {prices.name}, "
            f"as of {prices.as_of.isoformat()}",
            fontsize=9,
        )
        try:
            is_vector = path.suffix.lower() == ".svg"
            figure.savefig(path, metadata={"Date": None} if is_vector else None)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror}") from None


def _by_outage(axes: Axes, usage: Usage, prices: PriceList) -> None:
    most = min(max(usage.outage_hours * 2, 8.0), usage.hours)
    hours = [most * point / (_POINTS - 1) for point in range(_POINTS)]
    for queues in sorted({*_CURVES, usage.backlog_queues}):
        points = [replace(usage, outage_hours=at, backlog_queues=queues) for at in hours]
        axes.plot(
            hours,
            _operations(points, prices),
            label=f"{queues} backlog queue{'' if queues == 1 else 's'}",
        )
    axes.set_xlabel("hours of outage")
    _finish(axes, usage.outage_hours, prices)
    axes.legend(loc="lower right", fontsize="small", framealpha=0.6)


def _by_queues(axes: Axes, usage: Usage, prices: PriceList) -> None:
    queues = sorted({*_QUEUES, usage.backlog_queues})
    for hours in sorted({0.0, usage.outage_hours}):
        points = [replace(usage, outage_hours=hours, backlog_queues=count) for count in queues]
        axes.plot(queues, _operations(points, prices), marker=".", label=f"{hours:g} h of outage")
    axes.set_xlabel("backlog queues")
    _finish(axes, usage.backlog_queues, prices)
    axes.legend(loc="lower right", fontsize="small", framealpha=0.6)


def _operations(points: Sequence[Usage], prices: PriceList) -> list[int]:
    return [estimate_usage(point, prices).pairing_operations for point in points]


def _finish(axes: Any, mark: float, prices: PriceList) -> None:
    """Adds the axes: operations on the left, and on the right their price beyond the free ones."""
    if all(y > 0 for line in axes.get_lines() for y in line.get_ydata()):
        axes.set_yscale("log")  # an outage has far more than an idle month
    else:
        axes.set_ylim(bottom=0)
    axes.set_ylabel("operations for pairing")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.axvline(mark, color="grey", linewidth=0.8, linestyle=":")
    axes.grid(alpha=0.3)
    each = prices.first_price or 1.0
    money = axes.secondary_yaxis("right", functions=(lambda n: n * each, lambda m: m / each))
    money.set_ylabel(f"{prices.currency} at {each * 1e6:.2f} per million, beyond the free ones")
