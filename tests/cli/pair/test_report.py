"""`pairbus report`: what it prints of a ledger."""

import json

import pytest

from pairbus.syphon.ledger import ParquetLedger
from tests.cli.process import finished_after
from tests.syphon.test_report import RECEIPTS


@pytest.fixture
def folder(tmp_path):
    ledger = ParquetLedger(tmp_path)
    ledger.append(RECEIPTS)
    ledger.close()
    return tmp_path


def test_programs_get_json(pairbus, folder):
    shown = json.loads(pairbus("report", "--ledger", str(folder), "--json").out)

    assert shown["broughtHome"] == 106
    assert shown["operations"]["total"] == 445
    assert shown["hours"][0] == {
        "path": "Orders",
        "hour": "2026-03-01T10:00:00.000Z",
        "messages": 100,
        "bytes": 10000,
    }
    assert shown["outages"][0]["begin"] == "2026-03-01T09:51:00.000Z"
    assert shown["cost"]["operations"] > 445  # settlements and idle polls as well
    assert shown["cost"]["moneyBeyondFreeTier"] > shown["cost"]["money"] == 0


def test_people_get_tables(pairbus, folder):
    shown = pairbus("report", "--ledger", str(folder)).out

    assert shown.startswith("106 messages brought home (9.8 KiB), 3 dead-lettered, 4 expired")
    assert "3 of them may have arrived twice" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["2026-03-01", "10:00", "Orders", "100", "10,000"] in lines
    assert ["Odd", "(unknown)", "1"] in lines
    assert ["total", "445"] in lines
    assert "Cost by" in shown


def test_a_gap_is_a_duration(pairbus, folder):
    done = pairbus("report", "--ledger", str(folder), "--gap", "10")

    assert done.code == 2
    assert "--gap '10' has no unit" in done.err


def test_it_needs_no_java(pairbus, folder, tmp_path_factory, monkeypatch):
    nowhere = str(tmp_path_factory.mktemp("empty"))
    monkeypatch.setenv("JAVA_HOME", nowhere)
    monkeypatch.setenv("PATH", nowhere)

    done = pairbus("report", "--ledger", str(folder))

    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("106 messages brought home")


def test_without_pyarrow_a_line_says_what_to_install(folder):
    done = finished_after("sys.modules['pyarrow'] = None", "report", "--ledger", str(folder))

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "pairbus: the syphon's ledger needs pyarrow, which is not installed: "
        "pip install 'pairbus[spark]'\n"
    )
