"""A data file is checked before it is used, and errors say what to do."""

import shutil
import sqlite3
from contextlib import closing

import pytest

from pairbus.broker.storage.schema import (
    APPLICATION_ID,
    VERSION,
    examine,
    find_damage,
    open_reader,
    open_writer,
)
from pairbus.broker.storage.store import Store
from pairbus.errors import DataFileError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "local.db"


def pragma(path, name, value=None):
    with closing(sqlite3.connect(path)) as db:
        if value is not None:
            db.execute(f"PRAGMA {name} = {value}")
        return db.execute(f"PRAGMA {name}").fetchone()[0]


def test_a_new_file_gets_its_tables_and_says_whose_it_is(path):
    open_writer(path, durable=True).close()

    assert pragma(path, "application_id") == APPLICATION_ID
    assert pragma(path, "user_version") == VERSION
    assert pragma(path, "journal_mode") == "wal"


def test_a_file_opens_again(path):
    Store(path).close()
    Store(path).close()


def test_an_empty_file_is_a_new_one(path):
    path.touch()

    Store(path).close()

    assert pragma(path, "application_id") == APPLICATION_ID


@pytest.mark.req("B-12")
@pytest.mark.parametrize(("durable", "level"), [(True, 2), (False, 0)], ids=["kept", "thrown away"])
def test_only_a_file_that_is_kept_waits_for_the_disk(path, durable, level):
    with closing(open_writer(path, durable=durable)) as db:
        assert db.execute("PRAGMA synchronous").fetchone() == (level,)


def test_a_reader_cannot_write(path):
    open_writer(path, durable=False).close()

    with (
        closing(open_reader(path)) as db,
        pytest.raises(sqlite3.OperationalError, match="readonly"),
    ):
        db.execute("DELETE FROM message")


def test_a_file_of_a_newer_version_is_refused(path):
    Store(path).close()
    pragma(path, "user_version", VERSION + 1)

    with pytest.raises(DataFileError) as caught:
        Store(path)

    assert f"format {VERSION + 1}" in str(caught.value)
    assert "newer pairbus" in str(caught.value)
    assert str(path) in str(caught.value)


def test_somebody_elses_database_is_refused_and_left_alone(path):
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE theirs (a)")
    before = path.read_bytes()

    with pytest.raises(DataFileError, match="not one of a pairbus broker"):
        Store(path)

    assert path.read_bytes() == before


def whole(path):
    """A file with some pages, everything in it and nothing in the log."""
    store = Store(path)
    for number in range(300):
        store.create_entity(f"queue-{number}", "queue", {"user_metadata": "x" * 200}, 3, now_ms=0)
    store.close()
    return path.read_bytes()


DAMAGE = {
    "no database at all": lambda data: b"not a database, but long enough to be looked at" * 99,
    "a text": lambda data: b"hello",
    "cut off after a page": lambda data: data[:4096],
    "cut off in the middle": lambda data: data[: len(data) // 2],
    "zeros inside": lambda data: data[:4096] + bytes(len(data) - 4096),
    "the schema overwritten": lambda data: data[:100] + b"\xff" * 3996 + data[4096:],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_refused_with_its_name(path, damage):
    data = whole(path)
    path.write_bytes(damage(data))

    with pytest.raises(DataFileError) as caught:
        Store(path).entities()

    assert str(path) in str(caught.value)


def test_a_refused_file_is_not_kept_locked(path):
    path.write_bytes(b"hello")
    with pytest.raises(DataFileError):
        Store(path)
    path.unlink()

    Store(path).close()


def test_damage_is_found_by_reading_the_whole_file(path):
    data = whole(path)
    assert find_damage(path) == []
    path.write_bytes(data[:-4096] + b"\xff" * 4096)

    assert find_damage(path)
    assert find_damage(path, should_stop=lambda: True) == []


def test_an_examination_changes_nothing(path):
    store = Store(path)
    store.create_entity("queue", "queue", {}, 3, now_ms=0)
    store.save()
    assert examine(path) == []  # in use
    copy = path.parent / "copy"
    shutil.copytree(path.parent, copy)
    store.close()
    before = {each.name: each.read_bytes() for each in copy.iterdir()}

    assert examine(copy / path.name) == []

    after = {each.name: each.read_bytes() for each in copy.iterdir()}
    assert after | {"local.db-shm": b""} == before | {"local.db-shm": b""}
    Store(copy / path.name).close()


def test_an_examination_says_what_is_wrong(path):
    data = whole(path)
    path.write_bytes(data[:-4096] + b"\xff" * 4096)
    assert examine(path)
    path.write_bytes(b"")
    [finding] = examine(path)
    assert "restore it from a backup" in finding
    path.with_suffix(".lock").unlink()
    assert examine(path) == ["it is empty"]
    path.write_bytes(b"hello")
    [finding] = examine(path)
    assert "not a database" in finding
