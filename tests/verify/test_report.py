"""The page of a run: curves with gaps where nothing is known, and the faults that have happened."""

import re

import pytest

from pairbus.verify.journal import judge
from pairbus.verify.nemesis import PlannedFault
from pairbus.verify.queues import Sample
from pairbus.verify.report import faults_by_kind, to_html, to_json, to_text
from pairbus.verify.run import RunResult


def result(*backlog, faults=()):
    samples = tuple(Sample(at=float(at), backlog=count) for at, count in enumerate(backlog))
    return RunResult(
        verdict=judge([], late_seconds=5),
        started_at=1_800_000_000.0,
        samples=samples,
        faults=tuple(faults),
        note="",
    )


def fault(kind, target, begins=1.0):
    return PlannedFault(
        kind=kind, target=target, begins=begins, seconds=2.0, settings={"how": "drop"}
    )


@pytest.mark.req("X-15")
def test_the_curve_of_the_backlog_has_a_gap_while_the_secondary_is_down(tmp_path):
    page = to_html(result(0, 5, None, None, 7, 3), tmp_path, title="a run")

    path = re.findall(r'<path d="([^"]*)"', page)[-1]
    assert [step[0] for step in path.split() if step[0].isalpha()] == ["M", "L", "M", "L"]


def test_the_page_and_the_json_list_the_faults(tmp_path):
    found = result(0, faults=[fault("cut", "sender to primary"), fault("kill", "sender 3", 4.0)])

    page, data = to_html(found, tmp_path, title="a <run>"), to_json(found, seed=1)

    assert "<li>1.0s: cut sender to primary for 2.0s, how=drop</li>" in page
    assert "a &lt;run&gt;" in page
    assert data["faultsByKind"] == {"cut sender to primary": 1, "kill sender": 1}
    assert [each["begins"] for each in data["faults"]] == [1.0, 4.0]


def test_senders_are_counted_together():
    names = faults_by_kind([fault("kill", "sender 1"), fault("kill", "sender 12")])

    assert names == {"kill sender": 2}


def test_the_text_ends_with_the_verdict():
    assert to_text(result()).endswith("VALID: all 0 acknowledged messages are accounted for.")
