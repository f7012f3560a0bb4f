"""Runs the tasks of a round on Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pairbus.syphon.drain import Drained, DrainTask, drain


class SparkRunner:
    """With a SparkSession, local or of a cluster. Tasks travel as data that no plan shows."""

    def __init__(self, spark: Any) -> None:
        self._context = spark.sparkContext

    @property
    def slots(self) -> int:
        return int(self._context.defaultParallelism)

    def run(self, tasks: Sequence[DrainTask]) -> list[Drained]:
        self._context.setJobDescription(f"syphon: a round of {len(tasks)} tasks")
        rdd = self._context.parallelize(list(tasks), len(tasks))
        results: list[Drained] = rdd.mapPartitions(_drain_each).collect()
        return results


class HereRunner:
    """In this process, one task after the other: for tests, and to measure what Spark costs."""

    slots = 1

    def run(self, tasks: Sequence[DrainTask]) -> list[Drained]:
        return [drain(task) for task in tasks]


def _drain_each(tasks: Iterable[DrainTask]) -> Iterator[Drained]:
    return map(drain, tasks)
