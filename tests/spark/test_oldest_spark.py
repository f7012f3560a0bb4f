"""A part of the tests again, on the oldest Spark that the extra `spark` allows.

A drain whose workers are killed, a stream that reads and writes and whose processes are killed, and
a batch of every type.

`scripts/setup --tests` puts that PySpark into a folder of its own. First in the path, it takes the
place of the newest in the tests and in all processes that they start.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv" / "oldest-spark"
# In this order, the first process gets those that share a session, and the second one the drain.
TESTS = [
    "tests/spark/test_kills.py",
    "tests/syphon/test_kills.py::test_killed_python_workers_are_replaced_and_no_message_is_lost",
    "tests/spark/test_spark.py::test_every_column_and_every_type_goes_through",
]
# Spark 4.0 leaves it to the garbage collector to close its sockets.
IGNORED = ["-Wignore::ResourceWarning", "-Wignore::pytest.PytestUnraisableExceptionWarning"]


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.req("S-07", "X-07")
@pytest.mark.skipif(
    not (FOLDER / "pyspark").is_dir(),
    reason="PySpark 4.0 is not installed: `scripts/setup --tests` fetches it from PyPI",
)
def test_what_matters_works_on_the_oldest_spark() -> None:
    def python(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{FOLDER}{os.pathsep}{ROOT / 'src'}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout.strip()

    assert python("-c", "import pyspark; print(pyspark.__version__)").startswith("4.0.")
    python("-m", "pytest", "-q", "-n2", "--dist=loadfile", "-pno:cacheprovider", *IGNORED, *TESTS)
