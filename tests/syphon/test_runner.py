"""What a worker of Spark does around a task."""

import gc

import pytest

from pairbus.syphon import runner


@pytest.mark.parametrize("fails", [False, True])
def test_collections_are_rare_during_a_task_and_as_before_after_it(monkeypatch, fails):
    before, during = gc.get_threshold(), []

    def drain(task, *, cache):
        during.append(gc.get_threshold()[0])
        if fails:
            raise OSError("the task failed")
        return task

    monkeypatch.setattr(runner, "drain", drain)
    results = runner._drain_each(["task"])

    if fails:
        with pytest.raises(OSError, match="failed"):
            list(results)
    else:
        assert list(results) == ["task"]
    assert during[0] > 10 * before[0]
    assert gc.get_threshold() == before
