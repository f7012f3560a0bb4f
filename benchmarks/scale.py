"""What many paired clients do to two namespaces, by simulation: `make scale`.

Writes the tables and plots of docs/scale.md. The same seed gives the same figures.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from pairbus.client.route.router import Router
from scale_drain import ROUND_SECONDS, drain
from scale_fleet import Outcome, Scenario, simulate

DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN, END = "<!-- figures: make scale -->\n", "<!-- end of figures -->\n"

OUTAGE = (60.0, 390.0)
DEFAULT = Scenario(name="default options", outages=(OUTAGE,), ends_at=600.0)
WEB_SERVICE = replace(
    DEFAULT,
    name="web service",
    failover_seconds=0.0,
    retry_seconds=1.6,
    is_namespace_scope=True,
)
# Up for a minute in every three, for half an hour, and then for good. The fleet is smaller, because
# this takes long.
FLAPS = replace(
    WEB_SERVICE,
    name="flapping",
    outages=tuple((start, start + 120.0) for start in range(60, 1800, 180)),
    ends_at=3600.0,
    clients=2_000,
)
RATES = (2_000, 5_000, 20_000)
SLOTS = 10
QUICK = 50


@dataclass(frozen=True)
class Figures:
    """What the tables show of one outage."""

    outcome: Outcome

    @property
    def pings_peak(self) -> int:
        return max(self.outcome.pings.values())

    @property
    def pings_mean(self) -> float:
        """Over the last whole ping intervals of the outage, when all have failed over."""
        scenario = self.outcome.scenario
        end, seconds = int(scenario.outages[-1][1]), int(2 * scenario.ping_seconds)
        return sum(self.outcome.pings[s] for s in range(end - seconds, end)) / seconds

    @property
    def home_seconds(self) -> int:
        """From the end of the outage until the last sender has failed back."""
        return max(self.outcome.failbacks) + 1 - int(self.outcome.scenario.outages[-1][1])

    @property
    def diverted(self) -> int:
        return sum(self.outcome.diverted.values())

    @property
    def deepest(self) -> float:
        """Messages in the fullest backlog queue, compared with the mean."""
        depths = self.outcome.diverted
        return max(depths.values()) * self.outcome.scenario.backlog_queues / self.diverted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help=f"1/{QUICK} of the fleet; writes nothing"
    )
    parser.add_argument("--write", action="store_true", help="write docs/scale.md and its plots")
    arguments = parser.parse_args()
    size = QUICK if arguments.quick else 1

    def run(scenario: Scenario) -> Outcome:
        print(f"simulating {scenario.name} ...", file=sys.stderr)
        return simulate(replace(scenario, clients=scenario.clients // size))

    outages = {
        each.name: (run(replace(each, has_random_phase=False)), run(each))
        for each in (DEFAULT, WEB_SERVICE)
    }
    flaps = {pings: run(replace(FLAPS, fail_back_pings=pings)) for pings in (1, 2, 4)}
    drains = {rate: drained(outages[DEFAULT.name][1], rate / size) for rate in RATES}
    text = "\n".join(
        [storm_table(outages), flap_table(flaps), drain_table(drains, size), spread_table()]
    )
    print(text)
    if arguments.write and not arguments.quick:
        page = DOCS / "scale.md"
        before, _, rest = page.read_text("utf-8").partition(BEGIN)
        page.write_text(before + BEGIN + "\n" + text + "\n" + END + rest.partition(END)[2], "utf-8")
        plot_storm(outages[WEB_SERVICE.name], DOCS / "scale-pings.svg")
        plot_drain(drains, DOCS / "scale-drain.svg")


def drained(outcome: Outcome, rate: float) -> list[float]:
    scenario = outcome.scenario
    arrivals = {queue: [*outcome.arrivals(queue, scenario.ends_at)] for queue in outcome.rates}
    return drain(arrivals, is_down=scenario.is_down, slots=SLOTS, rate=rate)


# --- tables ---------------------------------------------------------------------------------------


def table(title: str, header: list[str], rows: list[list[str]]) -> str:
    lines = [f"### {title}", "", f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows), ""])


def storm_table(outages: dict[str, tuple[Outcome, Outcome]]) -> str:
    columns = [Figures(outcome) for pair in outages.values() for outcome in pair]
    header = [""]
    for name in outages:
        header += [f"{name}, all in step", f"{name}, random first ping"]
    shown = {
        "pings a second, mean": [f"{each.pings_mean:,.0f}" for each in columns],
        "pings a second, peak": [f"{each.pings_peak:,}" for each in columns],
        "peak compared with the mean": [
            f"{each.pings_peak / each.pings_mean:.1f}" for each in columns
        ],
        "failovers a second, peak": [
            f"{max(each.outcome.failovers.values()):,}" for each in columns
        ],
        "failbacks a second, peak": [
            f"{max(each.outcome.failbacks.values()):,}" for each in columns
        ],
        "until the last sender is back": [f"{each.home_seconds} s" for each in columns],
        "pings of one sender, most": [f"{each.outcome.pings_of_sender_max}" for each in columns],
        "diverted messages": [f"{each.diverted:,}" for each in columns],
        "operations for diverted messages (4 each)": [f"{4 * each.diverted:,}" for each in columns],
        "operations for pings (answered ones)": [
            f"{each.outcome.pings_answered:,}" for each in columns
        ],
        "fullest backlog queue compared with the mean": [f"{each.deepest:.2f}" for each in columns],
    }
    title = "An outage of five and a half minutes: 100,000 senders"
    return table(title, header, [[name, *row] for name, row in shown.items()])


def flap_table(flaps: dict[int, Outcome]) -> str:
    rows = []
    for pings, outcome in flaps.items():
        figures = Figures(outcome)
        rows.append(
            [
                f"{pings}",
                f"{sum(outcome.failovers.values()) / outcome.scenario.senders:.1f}",
                f"{max(outcome.failbacks.values()):,}",
                f"{figures.home_seconds / 60:.0f} min",
                f"{figures.diverted:,}",
            ]
        )
    header = [
        "`fail_back_pings`",
        "failovers of a sender",
        "failbacks a second, peak",
        "until the last sender is back",
        "diverted messages",
    ]
    return table("A primary that flaps for half an hour: 20,000 senders", header, rows)


def drain_table(drains: dict[int, list[float]], size: int) -> str:
    rows = [
        [
            f"{rate:,} messages a second",
            f"{size * max(history):,.0f}",
            f"{(len(history) * ROUND_SECONDS - OUTAGE[1]) / 60:.1f} min",
        ]
        for rate, history in drains.items()
    ]
    return table(
        "Until the backlog is home",
        ["syphon", "deepest backlog", "after the primary is back"],
        rows,
    )


def spread_table() -> str:
    """Each sender chooses one of ten queues, with the router's own rule."""
    rows = []
    queues = [f"contoso/x-servicebus-transfer/{number}" for number in range(10)]
    for clients in (1, 10, 100, 1_000, 10_000):
        dice, senders = random.Random(1), dict.fromkeys(queues, 0)
        for _ in range(clients):
            router = Router(
                "contoso",
                queues,
                failover_seconds=0,
                ping_seconds=60,
                rest_seconds=5,
                choose=dice.choice,
            )
            for number in range(10):
                queue = router.register(f"entity-{number}", now=0.0)
                assert queue is not None
                senders[queue] += 1
        mean = clients * 10 / len(queues)
        rows.append(
            [
                f"{clients * 10:,}",
                f"{max(senders.values()) / mean:.2f}",
                f"{min(senders.values()) / mean:.2f}",
            ]
        )
    header = ["senders", "fullest of 10 queues, compared with the mean", "emptiest"]
    return table("Spread over the backlog queues", header, rows)


# --- plots ----------------------------------------------------------------------------------------


def plot_storm(pair: tuple[Outcome, Outcome], path: Path) -> None:
    figure = _figure(rows=2)
    pings, back = figure.subplots(2, 1, sharex=True)
    for outcome, label in zip(pair, ("all in step", "random first ping"), strict=True):
        seconds = range(int(outcome.scenario.ends_at))
        width = 0.8 if label == "all in step" else 1.4
        for axes, counts in ((pings, outcome.pings), (back, outcome.failbacks)):
            axes.plot(seconds, [counts[s] for s in seconds], label=label, linewidth=width)
    pings.set_ylabel("pings a second")
    back.set_ylabel("failbacks a second")
    back.set_xlabel("seconds")
    for axes in (pings, back):
        axes.axvspan(*OUTAGE, color="grey", alpha=0.15, label="outage")
        axes.set_yscale("symlog", linthresh=1000)
        axes.legend(fontsize="small")
    _save(figure, path)


def plot_drain(drains: dict[int, list[float]], path: Path) -> None:
    figure = _figure(rows=1)
    axes = figure.subplots()
    for rate, history in drains.items():
        minutes = [n * ROUND_SECONDS / 60 for n in range(len(history))]
        axes.plot(minutes[::5], history[::5], label=f"{rate:,} messages a second")
    axes.axvspan(OUTAGE[0] / 60, OUTAGE[1] / 60, color="grey", alpha=0.15, label="outage")
    axes.set_xlabel("minutes")
    axes.set_ylabel("messages in the backlog")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(fontsize="small")
    _save(figure, path)


def _figure(*, rows: int) -> Figure:
    return Figure(figsize=(8, 2.6 * rows), layout="constrained")


def _save(figure: Figure, path: Path) -> None:
    # Text as text, and equal numbers give equal bytes.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "pairbus", "font.size": 9}):
        figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
