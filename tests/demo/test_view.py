"""What the demo shows, from facts by hand: on terminals of several widths, in lines, as JSON."""

import io
import json
import re
from xml.etree import ElementTree

import pytest
from rich.console import Console

from pairbus.demo.delivery_check import Line
from pairbus.demo.picture import Moment, Report, Row, bars, picture, remarks, svg
from pairbus.demo.script import Action, Cue, Scene
from pairbus.demo.view import JsonShow, LiveShow, PlainShow

KILL = Cue(scene=Scene.FAILING_OVER, text="The primary is killed.", action=Action.KILL)
ROWS = (
    Row(entity="orders", state="failed over", on_primary=100, diverted=40, delivered=98),
    Row(entity="events", state="healthy", on_primary=90, diverted=30, delivered=88),
)
MOMENT = Moment(
    at=21.4,
    scene="outage",
    primary="down",
    secondary="up",
    syphon="ready",
    moved=12,
    rows=ROWS,
    backlog=70,
    history=(0, 0, 5, 20, 70),
)
GOOD = Report(
    lines={"orders": Line(sent=140, delivered=140), "events": Line(sent=120, delivered=120)},
    rows=ROWS,
    down_seconds=12.3,
    slowest_seconds=0.51,
    pings=40,
    moved=70,
    missing={},
    failure="",
)
BAD = Report(
    lines={"orders": Line(sent=140, delivered=132), "events": Line(sent=1, delivered=1)},
    rows=ROWS,
    down_seconds=12.3,
    slowest_seconds=0.51,
    pings=40,
    moved=70,
    missing={"orders": [f"orders-{n}" for n in range(8)]},
    failure="the queues are not empty",
)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_picture_fits_and_has_the_state_of_all(width):
    page = io.StringIO()
    Console(file=page, width=width).print(picture(MOMENT))

    lines = page.getvalue().splitlines()

    assert max(map(len, lines)) <= width
    text = page.getvalue()
    for word in ("primary", "down", "failed over", "orders", "70", "█"):
        assert word in text
    assert len(lines) <= 14


def test_a_curve_shows_the_highest_of_each_stretch():
    assert bars([0, 4, 8], 6) == " ▄█   "
    assert bars([], 3) == "   "
    assert bars([0, 0], 2) == "  "
    assert bars([*[0] * 99, 8], 4) == "   █"
    assert len(bars(range(1000), 32)) == 32


def test_lines_end_with_the_ledger(capsys):
    show = PlainShow()
    show.tell(3.21, KILL)
    show.look(MOMENT)
    show.look(MOMENT)  # not again so soon
    show.end(GOOD)

    lines = capsys.readouterr().out.splitlines()

    assert lines[0] == "   3.2 s  The primary is killed."
    assert lines[1] == "  21.4 s  . 260 sent, 70 in the backlog, 186 delivered"
    assert lines[2] == ""
    assert lines[-1] == "LEDGER sent=260 delivered=260 lost=0 duplicated=0"


def test_json_is_one_object_in_a_line_and_the_last_is_the_ledger(capsys):
    show = JsonShow()
    show.tell(3.21, KILL)
    show.look(MOMENT)
    show.end(BAD)

    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert [each["event"] for each in told] == ["scene", "moment", "ledger"]
    assert told[0]["action"] == "kill"
    assert told[1]["backlog"] == 70
    assert {name: told[2][name] for name in ("sent", "delivered", "lost", "duplicated")} == {
        "sent": 141,
        "delivered": 133,
        "lost": 8,
        "duplicated": 0,
    }
    assert told[2]["missing"]["orders"][0] == "orders-0"


def test_a_terminal_has_the_sentences_above_the_picture_and_the_ledger_last(capsys):
    page = io.StringIO()
    show = LiveShow(Console(file=page, force_terminal=True, width=100))
    show.look(MOMENT)
    show.tell(3.21, KILL)
    show.look(MOMENT)
    show.end(GOOD)
    show.close()

    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", page.getvalue())

    assert text.index("The primary is killed.") < text.rindex("pairbus demo: outage")
    assert "to primary" in text
    assert capsys.readouterr().out.splitlines()[-1].startswith("LEDGER sent=260")


def test_what_went_wrong_is_said():
    said = "\n".join(remarks(BAD))

    assert "Never arrived in orders: orders-0, orders-1, orders-2, orders-3, orders-4 and 3" in said
    assert "the queues are not empty" in said
    assert not BAD.is_good
    assert GOOD.is_good


def test_the_drawing_is_one_file_that_needs_nothing_from_elsewhere():
    text = svg([(3.2, KILL)], MOMENT, GOOD)

    root = ElementTree.fromstring(text)
    words = " ".join(root.itertext()).replace("\xa0", " ")
    assert "The primary is killed." in words
    assert "LEDGER sent=260" in words
    assert set(re.findall(r"https?://[^\"' )]*", text)) == {"http://www.w3.org/2000/svg"}
