"""`pairbus report`: what is shown of a ledger."""

import json

import pytest

from pairbus.cli.pair.report_work import duration_text, run, size_text
from pairbus.syphon.ledger import ParquetLedger
from tests.syphon.test_report import RECEIPTS


@pytest.fixture
def folder(tmp_path):
    ledger = ParquetLedger(tmp_path)
    ledger.append(RECEIPTS)
    ledger.close()
    return tmp_path


def test_programs_get_json(folder, capsys):
    run(folder, gap_minutes=10, as_json=True)

    told = json.loads(capsys.readouterr().out)

    assert told["broughtHome"] == 106
    assert told["operations"]["total"] == 445
    assert told["hours"][0] == {
        "path": "Orders",
        "hour": "2026-03-01T10:00:00.000+00:00",
        "messages": 100,
        "bytes": 10000,
    }
    assert told["outages"][0]["begin"] == "2026-03-01T09:51:00.000+00:00"
    assert told["cost"]["operations"] > 445  # settlements and idle polls as well
    assert told["cost"]["beyond_the_included"] > told["cost"]["money"] == 0


def test_people_get_tables(folder, capsys):
    run(folder, gap_minutes=10, as_json=False)

    told = capsys.readouterr().out

    assert told.startswith("106 messages brought home (10.1 KB), 3 dead-lettered, 4 expired")
    assert "3 of them may have arrived twice" in told
    lines = [line.split() for line in told.splitlines()]
    assert ["2026-03-01", "10:00", "Orders", "100", "10,000"] in lines
    assert ["Odd", "(unknown)", "1"] in lines
    assert ["all", "445"] in lines
    assert "Cost, by" in told


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "250 ms"),
        (12.34, "12.3 s"),
        (75, "1 min 15 s"),
        (3725, "1 h 02 min"),
        (260_000, "3.0 days"),
    ],
)
def test_durations_are_told_in_their_own_units(seconds, text):
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(999, "999 bytes"), (1500, "1.5 KB"), (5e15, "5,000.0 TB")]
)
def test_sizes_are_told_in_their_own_units(count, text):
    assert size_text(count) == text
