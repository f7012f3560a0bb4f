"""The report: what Spark SQL makes of a ledger, and how it is shown."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from pairbus.cli.pair.report_work import duration_text, run, size_text
from pairbus.errors import OptionsError
from pairbus.syphon.ledger import ParquetLedger
from pairbus.syphon.receipts import Outcome, Receipt
from pairbus.syphon.report import files_of, read
from pairbus.syphon.waits import count_waits

TEN = datetime(2026, 3, 1, 10, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def ms(time):
    return int(time.timestamp() * 1000)


def receipt(round, at, first=None, last=None, *, run="a", path="orders", **more):
    waits = [ms(at) - ms(first)] * more.get("count", 0) if first else []
    settings = {"queue": "contoso/x-servicebus-transfer/0", "outcome": Outcome.BROUGHT_HOME}
    return Receipt(
        **settings
        | {
            "run": run,
            "round": round,
            "path": path,
            "at_ms": ms(at),
            "first_enqueued_ms": None if first is None else ms(first),
            "last_enqueued_ms": None if last is None else ms(last),
            "longest_wait_ms": max(waits, default=0),
            "waits": count_waits(waits),
        }
        | more
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs, three outages of two destinations, and a merge that was interrupted."""
    folder = tmp_path_factory.mktemp("a [ledger] of {ours}")
    first = ParquetLedger(folder)
    first.append(
        [
            receipt(1, TEN, TEN - 9 * MINUTE, TEN - 2 * MINUTE, count=90, bytes=9000),
            receipt(1, TEN, TEN - MINUTE, TEN - MINUTE, path="events", count=1, bytes=10),
            receipt(
                1, TEN, TEN, TEN, path="gone", count=2, outcome=Outcome.DEAD_LETTERED, reason="None"
            ),
            receipt(
                1, TEN, None, None, path="", count=1, outcome=Outcome.DEAD_LETTERED, reason="Odd"
            ),
        ]
    )
    [written] = folder.glob("day=*/*.parquet")
    shutil.copy(written, folder / "kept")
    first.append(
        [
            receipt(2, TEN + 5 * MINUTE, TEN, TEN + MINUTE, path="Orders", count=10, bytes=1000),
            receipt(2, TEN + 5 * MINUTE, TEN, TEN, path="events", count=4, outcome=Outcome.EXPIRED),
            receipt(2, TEN, path="", duplicates_possible=3),
        ]
    )
    first.close()
    shutil.move(folder / "kept", written)
    second = ParquetLedger(folder)
    later = TEN + 20 * HOUR
    second.append(
        [
            receipt(1, later, later - SECOND, later, run="b", count=5, bytes=50),
            receipt(
                1,
                later,
                later,
                later,
                run="b",
                path="late",
                count=7,
                outcome=Outcome.WAITING,
                reason="down",
            ),
        ]
    )
    second.close()
    return folder


@pytest.fixture(scope="module")
def report(spark, folder):
    return read(spark, folder)


@pytest.mark.spark
@pytest.mark.req("X-10")
def test_each_message_counts_once(report):
    assert (report.brought_home, report.bytes, report.dead_lettered, report.expired) == (
        106,
        10060,
        3,
        4,
    )
    assert report.duplicates_possible == 3
    assert report.runs == 2
    assert (report.first, report.last) == (TEN, TEN + 20 * HOUR)


@pytest.mark.spark
def test_messages_and_bytes_are_told_by_destination_and_hour(report):
    assert [(h.path, h.hour, h.messages, h.bytes) for h in report.hours] == [
        ("Orders", TEN, 100, 10000),
        ("events", TEN, 1, 10),
        ("Orders", TEN + 20 * HOUR, 5, 50),
    ]


@pytest.mark.spark
def test_waits_are_told_by_destination(report):
    waits = {each.path: each for each in report.waits}

    assert waits["Orders"].messages == 105
    assert waits["Orders"].median_seconds == pytest.approx(540, rel=0.13)
    assert waits["Orders"].p99_seconds == pytest.approx(540, rel=0.13)
    assert waits["Orders"].longest_seconds == 540
    assert waits["events"].median_seconds == pytest.approx(60, rel=0.13)


@pytest.mark.spark
def test_outages_have_a_begin_and_an_end(report, spark, folder):
    later = TEN + 20 * HOUR
    of_orders = [(o.begin, o.end, o.messages) for o in report.outages if o.path == "Orders"]

    assert of_orders == [
        (TEN - 9 * MINUTE, TEN + MINUTE, 100),
        (later - SECOND, later, 5),
    ]
    [late] = [outage for outage in report.outages if outage.path == "late"]
    assert (late.begin, late.messages) == (later, 0), "it lasts: what waits has not come home"

    finer = read(spark, folder, gap=MINUTE)
    assert len([o for o in finer.outages if o.path == "Orders"]) == 3


@pytest.mark.spark
@pytest.mark.req("S-05")
def test_dead_letters_are_told_by_reason(report):
    assert [(d.path, d.reason, d.messages) for d in report.dead_letters] == [
        ("gone", "None", 2),
        ("", "Odd", 1),
    ]


@pytest.mark.spark
@pytest.mark.req("M-02")
def test_a_message_that_comes_home_costs_four_operations(report):
    operations = report.operations

    assert operations.to_primary == operations.out_of_primary == 106
    assert operations.into_backlog == operations.out_of_backlog == 106 + 3 + 4
    assert operations.looked_at_again == 7
    assert operations.total == 4 * 106 + 2 * (3 + 4) + 7


@pytest.mark.spark
def test_the_time_zone_of_the_session_changes_nothing(report, spark, folder):
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        assert read(spark, folder) == report
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.spark
def test_destinations_of_several_primaries_are_told_apart(spark, tmp_path):
    ledger = ParquetLedger(tmp_path)
    for number, primary in enumerate(("contoso", "Contoso", "fabrikam")):
        queue = f"{primary}/x-servicebus-transfer/0"
        ledger.append([receipt(number, TEN, TEN, TEN, queue=queue, count=2, bytes=20)])
    ledger.close()

    told = read(spark, tmp_path)

    assert [(h.path, h.messages) for h in told.hours] == [
        ("Contoso: orders", 4),
        ("fabrikam: orders", 2),
    ]
    assert len(told.outages) == 2


@pytest.mark.spark
def test_programs_get_json(spark, folder, capsys):
    run(folder, gap_minutes=10, as_json=True)

    told = json.loads(capsys.readouterr().out)

    assert told["brought_home"] == 106
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


@pytest.mark.spark
def test_people_get_tables(spark, folder, capsys):
    run(folder, gap_minutes=10, as_json=False)

    told = capsys.readouterr().out

    assert told.startswith("106 messages brought home (10.1 KB), 3 dead-lettered, 4 expired")
    assert "3 of them may have arrived twice" in told
    lines = [line.split() for line in told.splitlines()]
    assert ["2026-03-01", "10:00", "Orders", "100", "10,000"] in lines
    assert ["Odd", "(unknown)", "1"] in lines
    assert ["all", "445"] in lines
    assert "Cost, by" in told


# --- what is no ledger ----------------------------------------------------------------------------


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(OptionsError, match=r"there is no ledger: .*/nowhere is not a folder"):
        files_of(tmp_path / "nowhere")


def test_a_folder_without_a_ledger_is_told_and_how_to_get_one(tmp_path):
    (tmp_path / "notes.txt").write_text("")

    with pytest.raises(OptionsError, match=r"no file day=.*`pairbus syphon --ledger DIR` writes"):
        files_of(tmp_path)


def put(folder: Path, text: bytes = b"", table=None) -> None:
    (folder / "day=2026-03-01").mkdir()
    file = folder / "day=2026-03-01" / "some.parquet"
    if table is None:
        file.write_bytes(text)
    else:
        parquet.write_table(table, file)


def test_a_file_that_is_no_parquet_is_told_by_name(tmp_path):
    put(tmp_path, b"hello")

    with pytest.raises(OptionsError, match=r"some\.parquet is not a readable Parquet file"):
        files_of(tmp_path)


def test_a_file_of_something_else_is_told_by_what_it_lacks(tmp_path):
    put(tmp_path, table=pyarrow.table({"run": ["a"], "count": [1]}))

    with pytest.raises(OptionsError, match="not of a ledger of the syphon: it lacks at, bytes"):
        files_of(tmp_path)


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
