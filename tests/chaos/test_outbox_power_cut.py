"""Power cuts at random moments while an outbox stores and deletes messages: what `put` returned is
there, and what was deleted does not come back. The disk is that of `test_power_cut.py`."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pairbus.client.outbox_file import OutboxFile
from tests.chaos.disk import Disk, read_log, recorder
from tests.chaos.outbox_writer import body_of
from tests.pairing.namespaces import environment

CUTS = int(os.environ.get("PAIRBUS_POWER_CUTS", "60"))
SEED = int(os.environ.get("PAIRBUS_POWER_SEED", "1"))


@pytest.mark.req("X-04")
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.timeout(60 + 2 * CUTS)
def test_what_was_stored_survives_a_power_cut_and_what_was_deleted_stays_away(tmp_path: Path):
    folder, log, notes = tmp_path / "data", tmp_path / "disk.log", tmp_path / "notes"
    folder.mkdir()
    log.touch()
    variables = recorder(folder, log, tmp_path / "recorder.so")
    words = [str(folder / "outbox.db"), str(log), str(notes)]
    subprocess.run(
        [sys.executable, "-m", "tests.chaos.outbox_writer", *words],
        env={**environment(), **variables},
        cwd=Path(__file__).parents[2],
        check=True,
        timeout=60,
    )
    history = [
        (int(at), what, ids)
        for at, what, *ids in (line.split() for line in notes.read_text().splitlines())
    ]
    records = list(read_log(log))
    choice = random.Random(SEED)
    # Most cuts right after an answer, when it matters most; the others anywhere.
    answers = [at for at, what, _ in history if what in ("stored", "deleted")]
    moments = {choice.choice(answers) for _ in range(CUTS // 2)}
    moments |= {choice.choice(records).end for _ in range(CUTS - len(moments))}

    disk, played = Disk(folder), 0
    for number, moment in enumerate(sorted(moments)):
        while played < len(records) and records[played].end <= moment:
            disk.play(records[played])
            played += 1
        after = tmp_path / f"after-{number}"
        disk.restore(after, choice, choice.choice((0.0, 0.5, 1.0)))
        check(after / "outbox.db", [each for each in history if each[0] <= moment])
        shutil.rmtree(after)
    assert len(moments) > CUTS / 2


def check(path: Path, history: list[tuple[int, str, list[str]]]) -> None:
    said: dict[str, set[str]] = {
        what: {id_ for _, each, ids in history if each == what for id_ in ids}
        for what in ("storing", "stored", "deleting", "deleted")
    }
    found: list[str] = []
    if path.exists():
        file = OutboxFile(path, namespace="contoso")
        file.open()
        messages = list(file.messages())
        file.close()
        assert all(each.amqp == body_of(each.message_id) for each in messages)
        found = [each.message_id for each in messages]
    assert found == sorted(found, key=int), "in their order"
    assert said["stored"] - said["deleting"] <= set(found), "acknowledged and gone"
    assert not said["deleted"] & set(found), "deleted and back"
    assert set(found) <= said["storing"]
