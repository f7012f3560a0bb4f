"""What a ledger of the syphon adds up to, for its price."""

from dataclasses import replace
from pathlib import Path

import pytest

from pairbus.cli.pair.cost_ledger import ledger_totals
from pairbus.cost.estimate import LedgerTotals
from pairbus.errors import OptionsError
from pairbus.syphon.ledger import ParquetLedger
from pairbus.syphon.receipts import Outcome, Receipt

DAY_MS = 86_400_000
FIRST = Receipt(
    run="r",
    round=1,
    queue="east/x-servicebus-transfer/0",
    path="orders",
    outcome=Outcome.BROUGHT_HOME,
    count=10,
    bytes=1000,
    at_ms=DAY_MS,
)


def written(folder, *receipts):
    ledger = ParquetLedger(folder)
    for receipt in receipts:
        ledger.append([receipt])
    return folder


@pytest.mark.req("M-03")
def test_a_ledger_is_added_up_by_outcome(tmp_path):
    folder = written(
        tmp_path,
        FIRST,
        replace(FIRST, round=2, outcome=Outcome.WAITING, count=30, bytes=3000),
        replace(FIRST, round=3, outcome=Outcome.DEAD_LETTERED, count=2, bytes=200, reason="x"),
        replace(FIRST, round=4, outcome=Outcome.EXPIRED, count=1, bytes=100),
        replace(FIRST, round=5, queue="east/x-servicebus-transfer/1", at_ms=2 * DAY_MS),
    )

    assert ledger_totals(folder) == LedgerTotals(
        brought_home=20,
        brought_home_bytes=2000,
        other=3,
        other_bytes=300,
        waiting=30,
        waiting_bytes=3000,
        queues=2,
        days=1.0,
    )


def test_rows_that_are_there_twice_count_once(tmp_path):
    folder = written(tmp_path, FIRST)
    [file] = folder.glob("day=*/*.parquet")
    (file.parent / "again.parquet").write_bytes(file.read_bytes())

    assert ledger_totals(folder).brought_home == 10


def test_a_file_that_was_merged_away_meanwhile_is_found_where_it_is_now(tmp_path, monkeypatch):
    folder = written(tmp_path, FIRST)
    [file] = folder.glob("day=*/*.parquet")
    gone = [file.parent / "merged.parquet"]
    monkeypatch.setattr(
        "pairbus.cli.pair.cost_ledger.files_of", lambda _: [gone.pop()] if gone else [file]
    )

    assert ledger_totals(folder).brought_home == 10


def test_a_folder_without_a_ledger_is_named():
    with pytest.raises(OptionsError, match="there is no ledger: nowhere is not a folder"):
        ledger_totals(Path("nowhere"))
