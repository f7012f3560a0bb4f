"""The ledger: what was written is on the disk, whole, under its final name, and counts once."""

import os
import random
import shutil
import subprocess
import sys
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from pairbus.cost.estimate import LedgerTotals
from pairbus.errors import OptionsError
from pairbus.syphon import ledger as ledger_module
from pairbus.syphon import parquet_files
from pairbus.syphon.ledger import (
    FOLDER,
    SCHEMA,
    ParquetLedger,
    read_ledger,
    totals_of,
    write_lines,
)
from pairbus.syphon.receipts import MessageLine, Receipt, ReceiptOutcome
from tests.chaos.disk import Disk, read_log, recorder

DAY_MS = 24 * 3600 * 1000
NOON_MS = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)


def receipt(round=1, *, at_ms=NOON_MS, **more):
    settings = {
        "run": "r",
        "queue": "contoso/x-servicebus-transfer/0",
        "path": "orders",
        "outcome": ReceiptOutcome.BROUGHT_HOME,
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
        receipt(path="", outcome=ReceiptOutcome.DEAD_LETTERED, reason="EnvelopeUnreadable"),
    ]

    ledger.append(receipts)

    assert read_ledger(tmp_path / "made" / "here") == receipts
    assert names(tmp_path / "made" / "here") == ["day=2026-03-01/round-r-00000001.parquet"]


# So many that files are merged.
ROUNDS = parquet_files.FILES_MAX + 5
APPEND = f"""
import os, sys
from pathlib import Path
from pairbus.syphon.ledger import ParquetLedger
from tests.syphon.test_ledger import receipt

ledger = ParquetLedger(Path(sys.argv[1]) / "made" / "here")
for number in range({ROUNDS}):
    ledger.append([receipt(number)])
    print(os.stat(os.environ["DISK_LOG"]).st_size)
"""


@pytest.mark.req("X-10")
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_round_outlives_a_power_cut(tmp_path):
    disk, log = tmp_path / "disk", tmp_path / "log"
    disk.mkdir()
    variables = recorder(disk, log, tmp_path / "disk_log.so")
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", APPEND, str(disk)],
        env={**os.environ, **variables, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        check=True,
    )
    written = [int(position) for position in done.stdout.split()]
    assert len(written) == ROUNDS
    records = list(read_log(log))
    choice = random.Random(1)
    cuts = {record.end for record in choice.sample(records, 16)} | {*choice.sample(written, 6)}
    rebuilt = Disk(disk)

    for record in records:
        rebuilt.play(record)
        rounds = sum(position <= record.end for position in written)
        if rounds and record.end in cuts:
            rebuilt.restore(tmp_path / "left", choice, choice.choice((0.0, 0.0, 0.5, 1.0)))
            found = read_ledger(tmp_path / "left" / "made" / "here")
            assert {each.round for each in found} >= set(range(rounds))
            shutil.rmtree(tmp_path / "left")


def test_closing_merges_the_files_of_a_day(tmp_path):
    ledger = ParquetLedger(tmp_path)
    for number in range(1, 6):
        ledger.append([receipt(number)])

    ledger.close()

    assert names(tmp_path) == ["day=2026-03-01/rounds-r-0001.parquet"]
    assert [row["round"] for row in rows(tmp_path)] == [1, 2, 3, 4, 5]


def test_a_long_run_does_not_leave_thousands_of_files(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_files, "FILES_MAX", 3)
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
def test_rows_that_an_interrupted_merge_left_twice_count_once(tmp_path):
    ledger = ParquetLedger(tmp_path)
    ledger.append([receipt(1)])
    ledger.append([receipt(2)])
    first = tmp_path / "day=2026-03-01" / "round-r-00000001.parquet"
    shutil.copy(first, tmp_path / "kept")
    ledger.close()
    shutil.copy(tmp_path / "kept", first)  # as if the process had died before it deleted this

    assert len(list(rows(tmp_path))) == 3
    assert [each.round for each in read_ledger(tmp_path)] == [1, 2]


def test_a_folder_that_cannot_be_created_is_named_in_the_error(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(OptionsError, match=r"cannot create the ledger's folder .*file/ledger"):
        ParquetLedger(tmp_path / "file" / "ledger")


def test_a_round_without_receipts_writes_nothing(tmp_path):
    ledger = ParquetLedger(tmp_path)
    ledger.append([])
    ledger.close()

    assert not names(tmp_path)


def test_a_folder_that_was_deleted_is_created_again(tmp_path, caplog):
    ledger = ParquetLedger(tmp_path / "ledger")
    ledger.append([receipt(1)])
    shutil.rmtree(tmp_path / "ledger")
    ledger.append([receipt(2)])

    ledger.close()

    assert [row["round"] for row in rows(tmp_path / "ledger")] == [2]
    assert "cannot merge" in caplog.text


def test_the_columns_are_the_fields_of_a_receipt():
    times = {"at", "first_enqueued", "last_enqueued"}
    named = [f"{name}_ms" if name in times else name for name in SCHEMA.names]
    assert named == [field.name for field in fields(Receipt)]


def test_a_time_is_utc_to_the_millisecond(tmp_path):
    ParquetLedger(tmp_path).append([receipt(at_ms=NOON_MS + 123, last_enqueued_ms=None)])

    [row] = rows(tmp_path)

    assert row["at"] == datetime(2026, 3, 1, 12, 0, 0, 123000, tzinfo=UTC)
    assert row["last_enqueued"] is None
    [read] = read_ledger(tmp_path)
    assert (read.at_ms, read.last_enqueued_ms) == (NOON_MS + 123, None)


@pytest.mark.req("X-10")
def test_rows_that_cannot_be_written_come_with_the_next_round(tmp_path, caplog):
    folder = tmp_path / "ledger"
    ledger = ParquetLedger(folder)
    folder.rmdir()
    folder.write_text("in the way")
    ledger.append([receipt(1)])
    ledger.append([receipt(2)])
    assert "File exists" in ledger.error or "Not a directory" in ledger.error
    assert caplog.text.count("cannot write to the ledger") == 1

    folder.unlink()
    ledger.append([receipt(3)])

    assert ledger.error == ""
    assert [each.round for each in read_ledger(folder)] == [1, 2, 3]


# --- what is no ledger ----------------------------------------------------------------------------


def test_a_folder_that_does_not_exist_is_named_in_the_error(tmp_path):
    with pytest.raises(OptionsError, match=r"there is no ledger: .*/nowhere is not a folder"):
        read_ledger(tmp_path / "nowhere")


def test_the_error_for_a_folder_without_a_ledger_says_how_to_get_one(tmp_path):
    (tmp_path / "notes.txt").write_text("")

    with pytest.raises(OptionsError, match=r"no file matches day=.*`pairbus syphon --ledger DIR`"):
        read_ledger(tmp_path)


def put(folder: Path, text: bytes = b"", table=None) -> None:
    (folder / "day=2026-03-01").mkdir()
    file = folder / "day=2026-03-01" / "some.parquet"
    if table is None:
        file.write_bytes(text)
    else:
        parquet.write_table(table, file)


def test_a_file_that_is_not_parquet_is_named_in_the_error(tmp_path):
    put(tmp_path, b"hello")

    with pytest.raises(OptionsError, match=r"some\.parquet is not a readable Parquet file"):
        read_ledger(tmp_path)


def test_a_parquet_file_that_is_no_ledger_is_named_with_what_it_lacks(tmp_path):
    put(tmp_path, table=pyarrow.table({"run": ["a"], "count": [1]}))

    with pytest.raises(OptionsError, match="of a syphon's ledger: it has no column at, bytes"):
        read_ledger(tmp_path)


def test_a_file_that_is_merged_while_the_ledger_is_read_is_found_again(tmp_path, monkeypatch):
    ParquetLedger(tmp_path).append([receipt(1)])
    list_files, merged = ledger_module.ledger_files, [tmp_path / "day=2026-03-01" / "merged"]
    monkeypatch.setattr(
        ledger_module, "ledger_files", lambda at: [merged.pop()] if merged else list_files(at)
    )

    assert [each.round for each in read_ledger(tmp_path)] == [1]


# --- totals ---------------------------------------------------------------------------------------


@pytest.mark.req("M-03")
def test_a_ledger_adds_up_by_outcome():
    receipts = [
        receipt(1, count=10, bytes=1000),
        receipt(2, outcome=ReceiptOutcome.WAITING, count=30, bytes=3000),
        receipt(3, outcome=ReceiptOutcome.DEAD_LETTERED, count=2, bytes=200, reason="x"),
        receipt(4, outcome=ReceiptOutcome.EXPIRED, count=1, bytes=100),
        receipt(5, queue="east/0", at_ms=NOON_MS + DAY_MS, count=10, bytes=1000),
    ]

    assert totals_of(receipts) == LedgerTotals(
        brought_home=20,
        brought_home_bytes=2000,
        other=3,
        other_bytes=300,
        waiting=30,
        waiting_bytes=3000,
        queues=2,
        days=1.0,
    )


# --- a line for each message ----------------------------------------------------------------------


def line(number, *, round=1, at_ms=NOON_MS):
    path, outcome = "orders", ReceiptOutcome.BROUGHT_HOME.value
    return MessageLine("r", round, "backlog/0", number, f"m{number}", path, outcome, "", 9, at_ms)


def messages(folder):
    found = [row for file in (folder / FOLDER).glob("day=*/*") for row in parquet_rows(file)]
    return sorted(row["message_id"] for row in found)


def parquet_rows(file):
    return parquet.read_table(file, partitioning=None).to_pylist()


@pytest.mark.req("X-10")
def test_lines_of_messages_are_merged_after_a_round_and_the_large_files_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_files, "FILES_MAX", 3)
    ledger = ParquetLedger(tmp_path, messages=True)

    for number in range(29):
        assert write_lines(tmp_path / FOLDER, [line(number, round=number)]) == []
        ledger.append([receipt(number)])

    files = names(tmp_path / FOLDER)
    assert len([name for name in files if "/messages-r-" in name]) == 3
    assert len([name for name in files if "/message-r-" in name]) == 2
    ledger.close()
    assert len(names(tmp_path / FOLDER)) == 3 + 1
    assert messages(tmp_path) == sorted(f"m{number}" for number in range(29))
    assert len(read_ledger(tmp_path)) == 29


@pytest.mark.req("X-10")
def test_lines_that_a_task_could_not_write_are_written_later(tmp_path):
    ledger = ParquetLedger(tmp_path, messages=True)
    shutil.rmtree(tmp_path / FOLDER)
    (tmp_path / FOLDER).touch()  # no folder can be made here

    left = write_lines(tmp_path / FOLDER, [line(1), line(2)])
    ledger.append([receipt()], left)

    assert left == [line(1), line(2)]
    assert "2 lines" in ledger.error
    (tmp_path / FOLDER).unlink()
    ledger.append([])
    assert messages(tmp_path) == ["m1", "m2"]
    assert ledger.error == ""


def test_lines_of_two_days_go_into_the_folders_of_both(tmp_path):
    write_lines(tmp_path / FOLDER, [line(1), line(2, at_ms=NOON_MS + DAY_MS)])

    assert messages(tmp_path) == ["m1", "m2"]
    days = {name.split("/")[0] for name in names(tmp_path / FOLDER)}
    assert days == {"day=2026-03-01", "day=2026-03-02"}
