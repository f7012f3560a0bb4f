"""What the demo shows: on terminals of several widths, as plain lines, as JSON, as SVG."""

import io
import json
import re
from xml.etree import ElementTree

import pytest
from rich.console import Console

from pairbus.demo.ledger import LedgerLine
from pairbus.demo.script import Action, Phase, Step
from pairbus.demo.view import (
    DemoResult,
    DemoRow,
    JsonView,
    LiveView,
    PlainView,
    Snapshot,
    bars,
    remarks,
    state_panel,
    to_svg,
)

KILL = Step(phase=Phase.FAILING_OVER, text="The primary is killed.", action=Action.KILL)
ROWS = (
    DemoRow(entity="orders", state="failed over", on_primary=100, diverted=40, delivered=98),
    DemoRow(entity="events", state="healthy", on_primary=90, diverted=30, delivered=88),
)
SNAPSHOT = Snapshot(
    at=21.4,
    phase="outage",
    primary="down",
    secondary="up",
    syphon="ready",
    brought_home=12,
    rows=ROWS,
    backlog=70,
    history=(0, 0, 5, 20, 70),
)
GOOD = DemoResult(
    lines={
        "orders": LedgerLine(sent=140, delivered=140),
        "events": LedgerLine(sent=120, delivered=120),
    },
    rows=ROWS,
    down_seconds=12.3,
    slowest_seconds=0.51,
    pings=40,
    brought_home=70,
    missing={},
    failure="",
)
BAD = DemoResult(
    lines={
        "orders": LedgerLine(sent=140, delivered=132),
        "events": LedgerLine(sent=1, delivered=1),
    },
    rows=ROWS,
    down_seconds=12.3,
    slowest_seconds=0.51,
    pings=40,
    brought_home=70,
    missing={"orders": [f"orders-{n}" for n in range(8)]},
    failure="the queues are not empty",
)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_panel_fits_and_shows_all_states(width):
    page = io.StringIO()
    Console(file=page, width=width).print(state_panel(SNAPSHOT))

    lines = page.getvalue().splitlines()

    assert max(map(len, lines)) <= width
    text = page.getvalue()
    for word in ("primary", "down", "failed over", "orders", "70", "█"):
        assert word in text
    assert len(lines) <= 14


def test_a_curve_shows_the_maximum_of_each_interval():
    assert bars([0, 4, 8], 6) == " ▄█   "
    assert bars([], 3) == "   "
    assert bars([0, 0], 2) == "  "
    assert bars([*[0] * 99, 8], 4) == "   █"
    assert len(bars(range(1000), 32)) == 32


def test_lines_end_with_the_ledger(capsys):
    view = PlainView()
    view.step(3.21, KILL)
    view.update(SNAPSHOT)
    view.update(SNAPSHOT)  # not again so soon
    view.end(GOOD)

    lines = capsys.readouterr().out.splitlines()

    assert lines[0] == "   3.2s  The primary is killed."
    assert lines[1] == "  21.4s  . 260 sent, 70 in the backlog, 186 delivered"
    assert lines[2] == ""
    assert lines[-1] == "LEDGER sent=260 delivered=260 lost=0 duplicated=0"


def test_json_is_one_object_per_line_and_the_last_is_the_ledger(capsys):
    view = JsonView()
    view.step(3.21, KILL)
    view.update(SNAPSHOT)
    view.end(BAD)

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert [each["event"] for each in lines] == ["phase", "snapshot", "ledger"]
    assert lines[0]["action"] == "kill"
    assert lines[0]["elapsedSeconds"] == 3.21
    assert lines[1]["backlog"] == 70
    assert lines[1]["entities"][0]["onPrimary"] == 100
    assert lines[2]["broughtHome"] == 70
    assert {name: lines[2][name] for name in ("sent", "delivered", "lost", "duplicated")} == {
        "sent": 141,
        "delivered": 133,
        "lost": 8,
        "duplicated": 0,
    }
    assert lines[2]["missing"]["orders"][0] == "orders-0"


def test_a_terminal_has_the_texts_above_the_panel_and_the_ledger_last(capsys):
    page = io.StringIO()
    view = LiveView(Console(file=page, force_terminal=True, width=100))
    view.update(SNAPSHOT)
    view.step(3.21, KILL)
    view.update(SNAPSHOT)
    view.end(GOOD)
    view.close()

    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", page.getvalue())

    assert text.index("The primary is killed.") < text.rindex("pairbus demo: outage")
    assert "to primary" in text
    assert capsys.readouterr().out.splitlines()[-1].startswith("LEDGER sent=260")


def test_a_terminal_does_not_break_a_connection_string():
    page = io.StringIO()
    view = LiveView(Console(file=page, force_terminal=True, width=40, highlight=False))
    text = f"Endpoint=sb://localhost:5672;SharedAccessKey={'k' * 60}"

    view.note(f'export PAIRBUS_PRIMARY="{text}"')

    assert text in page.getvalue()


def test_failures_are_explained():
    said = "\n".join(remarks(BAD))

    assert "Never arrived in orders: orders-0, orders-1, orders-2, orders-3, orders-4 and 3" in said
    assert "the queues are not empty" in said
    assert not BAD.is_ok
    assert GOOD.is_ok


def test_the_svg_file_refers_to_nothing_else():
    text = to_svg([(3.2, KILL)], SNAPSHOT, GOOD)

    root = ElementTree.fromstring(text)
    words = " ".join(root.itertext()).replace("\xa0", " ")
    assert "The primary is killed." in words
    assert "LEDGER sent=260" in words
    assert set(re.findall(r"https?://[^\"' )]*", text)) == {"http://www.w3.org/2000/svg"}
