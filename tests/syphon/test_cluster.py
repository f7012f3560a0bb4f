"""On a real cluster, with a master, a worker and executors: the code is sent there, and an executor
may die."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import pairbus.__main__ as program
from pairbus.syphon.ledger import ledger_files
from tests.fast import credentials
from tests.fast.credentials import LOG
from tests.fast.world import bearer_broker
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
)
from tests.syphon.stage import Stage, numbered
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

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

        check(stage, tmp_path / "ledger", tasks_killed=2)


@pytest.mark.req("S-01", "S-07")
def test_spark_submit_runs_the_syphon_with_the_archive_and_without_keys(cluster, tmp_path):
    """pairbus is not installed on the workers. Each of them logs in by itself, once."""
    archive, ledger = tmp_path / "pairbus-spark.zip", tmp_path / "ledger"
    logins = tmp_path / "logins"
    packed = subprocess.run(
        [sys.executable, "-m", "pairbus", "package-for-spark", "--output", str(archive)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"--py-files {archive}" in packed.stdout
    with bearer_broker("orders") as primary, bearer_broker(*BACKLOGS) as secondary:
        stage = Stage(primary, secondary, BACKLOGS)
        ids = numbered(50)
        stage.divert(ids)
        command = [str(Path(sys.executable).with_name("spark-submit")), "--master", cluster.url]
        command += ["--conf", f"spark.executorEnv.{LOG}={logins}"]
        command += ["--py-files", f"{archive},{credentials.__file__}"]
        command += [str(program.__file__), "syphon", "--once", "--json"]
        command += ["--primary-ca-file", str(primary.ca_file)]
        command += ["--secondary-ca-file", str(secondary.ca_file)]
        done = subprocess.run(
            [*command, "--primary-name", "contoso", "--ledger", str(ledger)],
            capture_output=True,
            text=True,
            timeout=400,
            cwd=tmp_path,
            env={
                **os.environ,
                **cluster.variables,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
                "PAIRBUS_PRIMARY": f"localhost:{primary.port}",
                "PAIRBUS_SECONDARY": f"localhost:{secondary.port}",
                "PAIRBUS_CREDENTIAL": "credentials:Issuer",
            },
        )

        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["broughtHome"] == 50
        assert "Traceback" not in done.stderr
        assert stage.home() == ids
        assert ledger_files(ledger)
    counts = Counter(logins.read_text().split())
    assert set(counts.values()) == {1}
