"""One broker uses a data file at a time, and the next one notices if messages have disappeared."""

import gc
import os
import shutil

import pytest

from pairbus.broker.storage.store import Store
from pairbus.errors import DataFileError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "local.db"


def killed(path):
    """The folder as a broker leaves it that is killed."""
    store = Store(path)
    store.create_entity("queue", "queue", {}, 3, now_ms=0)
    store.save()
    copy = path.parent / "copy"
    shutil.copytree(path.parent, copy)
    store.close()
    return copy / path.name


def test_a_second_broker_is_refused_and_the_error_names_the_first(path):
    first = Store(path)

    with pytest.raises(DataFileError) as caught:
        Store(path)

    assert f"process {os.getpid()}" in str(caught.value)
    assert "another folder" in str(caught.value)
    first.close()
    Store(path).close()


def test_it_is_refused_even_if_the_lock_file_was_deleted(path):
    first = Store(path)
    path.with_suffix(".lock").unlink()

    with pytest.raises(DataFileError, match="in use by another broker"):
        Store(path)

    first.close()


def test_a_lock_whose_owner_is_unknown_is_a_lock(path):
    first = Store(path)
    os.truncate(path.with_suffix(".lock"), 0)

    with pytest.raises(DataFileError, match="process unknown"):
        Store(path)

    first.close()


def test_a_file_says_whether_it_was_closed(path):
    new = Store(path)
    assert new.was_closed
    new.close()
    closed = Store(path)
    assert closed.was_closed
    closed.close()

    left = Store(killed(path))

    assert not left.was_closed
    assert [entity.name for entity in left.entities()] == ["queue"]
    left.close()


@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("is_there", [False, True], ids=["missing", "emptied"])
def test_a_file_that_lost_its_content_is_no_new_file(path, is_killed, is_there):
    if is_killed:
        path = killed(path)
    else:
        Store(path).close()
    path.unlink()
    if is_there:
        path.touch()

    for _ in range(2):  # a refused start changes nothing
        with pytest.raises(DataFileError, match="restore it from a backup") as caught:
            Store(path)
        assert str(path) in str(caught.value)
    path.with_suffix(".lock").unlink()  # as the error says
    Store(path).close()


def test_a_file_that_lost_its_log_is_refused(path):
    path = killed(path)
    path.with_name("local.db-wal").unlink()

    with pytest.raises(DataFileError, match=r"local\.db-wal is missing"):
        Store(path)

    path.with_suffix(".lock").unlink()  # as the error says
    Store(path).close()


def test_a_start_that_is_refused_does_not_make_the_log_seem_lost(path, monkeypatch):
    path = killed(path)
    with monkeypatch.context() as patched:
        patched.setattr("pairbus.broker.storage.schema.VERSION", 0)  # as an older pairbus
        with pytest.raises(DataFileError, match="newer pairbus"):
            Store(path)
        gc.collect()

    store = Store(path)

    assert [entity.name for entity in store.entities()] == ["queue"]
    store.close()


def test_a_broker_that_is_killed_while_it_closes_the_file_needs_no_log(path):
    Store(path).close()
    path.with_suffix(".lock").write_text("1 closing")

    store = Store(path)

    assert not store.was_closed
    store.close()


def test_only_the_owner_can_read_what_a_broker_writes(path):
    path.touch(mode=0o644)

    store = Store(path)
    store.create_entity("queue", "queue", {}, 3, now_ms=0)
    store.save()

    modes = {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()}
    store.close()
    names = ["local.db", "local.db-wal", "local.db-shm", "local.lock"]
    assert modes == dict.fromkeys(names, 0o600)
