"""What a worker of Spark does around a task. `test_full_circle.py` runs tasks on Spark."""

import gc

import pytest

from pairbus.syphon import runner


class FakeSpark:
    """A session, its context, and its data: it runs everything here."""

    defaultParallelism = 1

    def __init__(self):
        self.sparkContext = self

    def setJobDescription(self, text):
        pass

    def parallelize(self, rows, parts):
        self.rows = rows
        return self

    def mapPartitions(self, function):
        self.rows = function(iter(self.rows))
        return self

    def collect(self):
        return list(self.rows)


@pytest.mark.parametrize("fails", [False, True])
def test_collections_are_rare_during_a_task_and_as_before_after_it(monkeypatch, fails):
    before, during = gc.get_threshold(), []

    def drain(task, *, cache):
        during.append(gc.get_threshold()[0])
        if fails:
            raise OSError("the task failed")
        return task

    monkeypatch.setattr(runner, "drain", drain)
    spark = runner.SparkRunner(FakeSpark())

    if fails:
        with pytest.raises(OSError, match="failed"):
            spark.run(["task"])
    else:
        assert spark.run(["task"]) == ["task"]
    assert during[0] > 10 * before[0]
    assert gc.get_threshold() == before
