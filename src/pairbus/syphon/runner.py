"""Runs the tasks of a round: on Spark, or in this process."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from pairbus.fast.connection_cache import OF_THIS_PROCESS
from pairbus.syphon.drain import DrainTask, drain
from pairbus.syphon.receipts import Drained


class Runner(Protocol):
    @property
    def slots(self) -> int:
        """How many tasks can run at the same time."""

    @property
    def folder(self) -> Path | None:
        """A folder for temporary files of this process and of the tasks; None if there is none."""

    def run(self, tasks: Sequence[DrainTask]) -> list[Drained]:
        """Returns the results in the order of the tasks."""


class SparkRunner:
    """Runs tasks on a SparkSession, local or of a cluster."""

    def __init__(self, spark: Any) -> None:
        self._context = spark.sparkContext

    @property
    def slots(self) -> int:
        return int(self._context.defaultParallelism)

    @property
    def folder(self) -> Path | None:
        """That of a local session which pairbus has made."""
        is_local = str(self._context.master).startswith("local")
        folder = self._context.getConf().get("spark.local.dir") if is_local else None
        return Path(folder) if folder and Path(folder).is_dir() else None

    def run(self, tasks: Sequence[DrainTask]) -> list[Drained]:
        self._context.setJobDescription(f"syphon: a round of {len(tasks)} tasks")
        # Tasks hold credentials. As data of an RDD they appear in no plan and on no page of Spark.
        rdd = self._context.parallelize(list(tasks), len(tasks))
        results: list[Drained] = rdd.mapPartitions(_drain_each).collect()
        return results


class InProcessRunner:
    """Runs tasks in this process, one after the other: for tests, and to measure Spark's share."""

    slots = 1

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def run(self, tasks: Sequence[DrainTask]) -> list[Drained]:
        return [drain(task) for task in tasks]


def _drain_each(tasks: Iterable[DrainTask]) -> Iterator[Drained]:
    """Runs in a Python worker of Spark. The worker does nothing else in the meantime."""
    for task in tasks:
        with _rare_collections():
            drained = drain(task, cache=OF_THIS_PROCESS)
        yield drained


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Run the garbage collector less often. Reference counts free messages, and looking for cycles
    among thousands of them as often as Python's default takes an eighth of a task's processor time.
    """
    before = gc.get_threshold()
    gc.set_threshold(20_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
