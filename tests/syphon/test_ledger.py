"""The ledger as files: what was written is there, under its final name, whole, and not twice."""

import shutil
from datetime import UTC, datetime

import pytest
from pyarrow import parquet

from pairbus.errors import OptionsError
from pairbus.syphon import ledger as ledger_module
from pairbus.syphon.ledger import KEY, ParquetLedger
from pairbus.syphon.receipts import Outcome, Receipt, from_row

DAY_MS = 24 * 3600 * 1000
NOON_MS = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)


def receipt(round=1, *, at_ms=NOON_MS, **more):
    settings = {
        "run": "r",
        "queue": "contoso/x-servicebus-transfer/0",
        "path": "orders",
        "outcome": Outcome.BROUGHT_HOME,
        "count": 3,
        "bytes": 300,
        "first_enqueued_ms": at_ms - 5000,
        "last_enqueued_ms": at_ms - 1000,
        "longest_wait_ms": 5000,
        "waits": (0, 2, 1),
    }
    return Receipt(**settings | {"round": round, "at_ms": at_ms} | more)


def rows(folder):
    for file in sorted(folder.glob("day=*/*.parquet")):
        yield from parquet.read_table(file, partitioning=None).to_pylist()


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))


@pytest.mark.req("X-10")
def test_a_round_is_on_the_disk_when_append_returns(tmp_path):
    ledger = ParquetLedger(tmp_path / "made" / "here")
    receipts = [
        receipt(),
        receipt(path="", outcome=Outcome.DEAD_LETTERED, reason="EnvelopeUnreadable"),
    ]

    ledger.append(receipts)

    assert [from_row(row) for row in rows(tmp_path / "made" / "here")] == receipts
    assert names(tmp_path / "made" / "here") == ["day=2026-03-01/round-r-00000001.parquet"]


def test_rounds_are_kept_by_the_day_they_were_settled_on(tmp_path):
    ledger = ParquetLedger(tmp_path)

    ledger.append([receipt(), receipt(at_ms=NOON_MS + DAY_MS, path="invoices")])

    assert sorted(folder.name for folder in tmp_path.iterdir()) == [
        "day=2026-03-01",
        "day=2026-03-02",
    ]


def test_the_end_makes_one_file_of_many(tmp_path):
    ledger = ParquetLedger(tmp_path)
    for number in range(1, 6):
        ledger.append([receipt(number)])

    ledger.close()

    assert names(tmp_path) == ["day=2026-03-01/rounds-r-0001.parquet"]
    assert [row["round"] for row in rows(tmp_path)] == [1, 2, 3, 4, 5]


def test_a_long_run_does_not_leave_thousands_of_files(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger_module, "FILES_MAX", 3)
    ledger = ParquetLedger(tmp_path)
    for number in range(1, 8):
        ledger.append([receipt(number)])

    assert len(names(tmp_path)) == 3  # two of three rounds each, and the seventh
    assert [row["round"] for row in rows(tmp_path)] == [7, 1, 2, 3, 4, 5, 6]
    for number in range(8, 82):
        ledger.append([receipt(number)])
    assert len(names(tmp_path)) == 1  # three to the power of four
    assert sorted(row["round"] for row in rows(tmp_path)) == list(range(1, 82))


def test_a_day_that_is_over_is_one_file(tmp_path):
    ledger = ParquetLedger(tmp_path)
    for number in range(1, 4):
        ledger.append([receipt(number)])
    ledger.append([receipt(4, at_ms=NOON_MS + DAY_MS)])

    assert names(tmp_path) == [
        "day=2026-03-01/rounds-r-0001.parquet",
        "day=2026-03-02/round-r-00000004.parquet",
    ]
    ledger.close()
    assert len(names(tmp_path)) == 2


@pytest.mark.req("X-10")
def test_an_interrupted_merge_leaves_rows_twice_and_never_none(tmp_path):
    ledger = ParquetLedger(tmp_path)
    ledger.append([receipt(1)])
    ledger.append([receipt(2)])
    first = tmp_path / "day=2026-03-01" / "round-r-00000001.parquet"
    shutil.copy(first, tmp_path / "kept")
    ledger.close()
    shutil.copy(tmp_path / "kept", first)  # as if it had not come to deleting it

    keys = [tuple(row[name] for name in KEY) for row in rows(tmp_path)]

    assert len(keys) == 3
    assert len(set(keys)) == 2


def test_a_folder_that_cannot_be_made_is_told_by_name(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(OptionsError, match=r"the ledger's folder .*file/ledger cannot be made"):
        ParquetLedger(tmp_path / "file" / "ledger")


def test_nothing_to_tell_writes_nothing(tmp_path):
    ledger = ParquetLedger(tmp_path)
    ledger.append([])
    ledger.close()

    assert not names(tmp_path)


def test_a_folder_that_somebody_removed_is_made_again_and_the_end_does_not_fail(tmp_path, caplog):
    ledger = ParquetLedger(tmp_path / "ledger")
    ledger.append([receipt(1)])
    shutil.rmtree(tmp_path / "ledger")
    ledger.append([receipt(2)])

    ledger.close()

    assert [row["round"] for row in rows(tmp_path / "ledger")] == [2]
    assert "stay many" in caplog.text
