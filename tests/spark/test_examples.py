"""The three documented examples, run as they are."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fast.world import message
from tests.spark.world import Bus, names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, str(folder)])
    runpy.run_path(str(ROOT / "examples" / "spark" / name))


@pytest.mark.spark
def test_the_examples_do_what_they_say(
    spark: SparkSession, spark_bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Dead letters of two kinds.
    spark_bus.send("orders", [message("dead-1", application={"customer": "a"}), message("dead-2")])
    spark_bus.dead_letter("orders", "PriceServiceDown", count=2)
    spark_bus.send("orders", [message("dead-3")])
    spark_bus.dead_letter("orders", "BadAddress", count=1)
    run("replay_dead_letters.py", tmp_path, monkeypatch)
    assert names(spark_bus.peek("orders")) == ["dead-1", "dead-2"]
    (first, _) = spark_bus.peek("orders")
    assert first["applicationProperties"] == [("customer", ("string", "a"))]
    assert len(spark_bus.peek("orders/$DeadLetterQueue")) == 3
    # A second run sends none of them again.
    run("replay_dead_letters.py", tmp_path, monkeypatch)
    assert len(spark_bus.peek("orders")) == 2

    run("lake.py", tmp_path, monkeypatch)
    spark_bus.send("orders", [message("new")])
    run("lake.py", tmp_path, monkeypatch)
    lake = spark.read.parquet(str(tmp_path / "orders"))
    assert sorted(names(lake.collect())) == ["dead-1", "dead-2", "new"]
    assert len(spark_bus.peek("orders")) == 3

    spark_bus.send("returns", [message("back", properties={3: "own"})])
    run("fan_in.py", tmp_path, monkeypatch)
    events = {
        row["messageId"]: row["subject"] for row in spark_bus.peek("events/Subscriptions/all")
    }
    assert events == {"dead-1": "orders", "dead-2": "orders", "new": "orders", "back": "own"}
    assert spark_bus.peek("orders") == spark_bus.peek("returns") == []
