"""On a real cluster, with a master, a worker and executors: the code is sent there, and an executor
may die."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pairbus.__main__ as program
from pairbus.broker import Broker
from pairbus.syphon.ledger import ledger_files
from tests.syphon.cluster import Cluster, standalone
from tests.syphon.processes import (
    BACKLOGS,
    await_arrivals,
    await_empty_backlog,
    check,
    driver,
    filled_stage,
    kill,
    slow_primary,
    wait_until,
)
from tests.syphon.stage import Stage, numbered

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

# An executor for each core, so that one dies and another does not.
EXECUTORS = "--conf spark.executor.cores=1 --conf spark.executor.memory=512m pyspark-shell"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.mark.req("S-03", "S-07", "X-02")
def test_killed_executors_are_replaced_and_no_message_is_lost(cluster, tmp_path):
    variables = {**cluster.variables, "PYSPARK_SUBMIT_ARGS": EXECUTORS}
    with filled_stage(tmp_path) as stage:
        faults = slow_primary(stage)
        with driver(stage, tmp_path, master=cluster.url, variables=variables) as syphon:
            killed = []
            for number in (200, 500):
                await_arrivals(stage, number)
                killed.append(wait_until(cluster.executors, "an executor")[0])
                kill(killed[-1])
            assert any(stage.left(queue) for queue in BACKLOGS), "they died too late"
            faults.clear_all()
            await_empty_backlog(stage)
            assert set(cluster.executors()).isdisjoint(killed)
            syphon.end()

        check(stage, tasks_killed=2)


@pytest.mark.req("S-01", "S-07")
def test_spark_submit_runs_the_syphon_with_the_archive_and_nothing_installed(cluster, tmp_path):
    archive, ledger = tmp_path / "pairbus-spark.zip", tmp_path / "ledger"
    packed = subprocess.run(
        [sys.executable, "-m", "pairbus", "package-for-spark", "--output", str(archive)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"--py-files {archive}" in packed.stdout
    with Broker(queues=["orders"]) as primary, Broker(queues=BACKLOGS) as secondary:
        stage = Stage(primary, secondary, BACKLOGS)
        ids = numbered(50)
        stage.divert(ids)
        command = [str(Path(sys.executable).with_name("spark-submit")), "--master", cluster.url]
        command += ["--py-files", str(archive), str(program.__file__), "syphon", "--once", "--json"]
        done = subprocess.run(
            [*command, "--primary-name", "contoso", "--ledger", str(ledger)],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
            env={
                **os.environ,
                **cluster.variables,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
                "PAIRBUS_PRIMARY": primary.connection_string,
                "PAIRBUS_SECONDARY": secondary.connection_string,
            },
        )

        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["broughtHome"] == 50
        assert "Traceback" not in done.stderr
        assert stage.home() == ids
        assert ledger_files(ledger)
