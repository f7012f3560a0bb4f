"""A short `make chaos`: real processes, all groups of faults, the verdict of `pairbus verify`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from pairbus.verify.report import to_text
from tests.chaos.machine import POWER_LOSS
from tests.chaos.nemesis import run_nemesis

SECONDS = float(os.environ.get("PAIRBUS_CHAOS_SECONDS", "25"))
SEED = int(os.environ.get("PAIRBUS_CHAOS_SEED", "7"))

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
    pytest.mark.timeout(SECONDS + 400),
]


@pytest.mark.spark
@pytest.mark.req("X-15")
def test_nothing_is_lost_when_everything_goes_wrong(tmp_path: Path) -> None:
    result = run_nemesis(tmp_path, seconds=SECONDS, seed=SEED)

    assert result.verdict.is_valid, f"seed {SEED}\n{to_text(result)}"
    assert not result.note
    assert result.verdict.acknowledged > 10 * SECONDS
    assert len(result.faults) > SECONDS / 5


@pytest.mark.req("X-15")
@pytest.mark.parametrize("level", ["FULL", "OFF"])
def test_a_power_loss_shows_whether_the_broker_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    """The same run with the same faults: only a broker that does not sync loses messages."""
    monkeypatch.setenv("SYNCHRONOUS", level)

    result = run_nemesis(
        tmp_path,
        seconds=11,
        seed=1,
        senders=2,
        drain_seconds=3,
        has_syphon=False,
        module="tests.chaos.unsynced_broker",
        make_table=lambda workers: [POWER_LOSS],
    )

    assert len(result.faults) >= 2
    assert bool(result.verdict.lost) == (level == "OFF"), to_text(result)
