"""The archive for Spark's `--py-files`: a task needs only this, and no installed pairbus."""

import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pairbus.broker import Broker
from pairbus.cli.pair.package import package_for_spark
from pairbus.errors import OutputError, UsageError
from pairbus.spark.session import write_archive
from tests.syphon.stage import Stage, backlog_names, numbered

# Only the archive has `pairbus`; what is compiled for the broker, and Spark itself, is not there.
WORKER = """
import sys

class Absent:
    names = {names!r}

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None

sys.meta_path.insert(0, Absent())
sys.path[:] = [{archive!r}, *(each for each in sys.path if each != {source!r})]
"""
TASK = """
import pickle
import pairbus
from pairbus.syphon.drain import drain
assert pairbus.__file__.startswith({archive!r}), pairbus.__file__
task = pickle.loads(bytes.fromhex({task!r}))
print([(each.path, each.outcome.value, each.count) for each in drain(task).receipts])
"""
COMMAND = """
from pairbus.cli.main import main
sys.argv = ["pairbus", "syphon", "--help"]
main()
"""
ABSENT = {
    "cffi",
    "cproton_ffi",
    "cryptography",
    "httptools",
    "lark",
    "pandas",
    "proton",
    "pyarrow",
    "pyspark",
    "starlette",
    "uvicorn",
    "uvloop",
    "websockets",
}
SOURCE = str(Path(__file__).parents[2] / "src")


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("package") / "pairbus.zip"
    write_archive(path)
    return path


def run_with_archive_only(archive, program, tmp_path, **values):
    text = (WORKER + program).format(names=ABSENT, archive=str(archive), source=SOURCE, **values)
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env=environment,
    )


def test_the_archive_has_all_but_the_broker_and_nothing_compiled(archive):
    names = zipfile.ZipFile(archive).namelist()

    assert "pairbus/syphon/drain.py" in names
    assert "pairbus/spark/source.py" in names
    assert all(name.startswith("pairbus/") and name.endswith(".py") for name in names)
    assert not [name for name in names if "broker/" in name or "testing" in name]


def test_the_same_code_gives_the_same_archive(archive, tmp_path):
    write_archive(tmp_path / "again.zip")

    assert (tmp_path / "again.zip").read_bytes() == archive.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["again.zip"]


@pytest.mark.req("S-07")
def test_a_task_needs_only_the_archive(archive, tmp_path):
    queues = backlog_names(1)
    with Broker(queues=["orders"]) as primary, Broker(queues=queues) as secondary:
        stage = Stage(primary, secondary, queues)
        stage.divert(numbered(3))
        task = stage.task(run="r", seconds=3.0, chunk=1000)
        done = run_with_archive_only(archive, TASK, tmp_path, task=pickle.dumps(task).hex())

    assert done.stderr == ""
    assert done.stdout == "[('orders', 'brought_home', 3)]\n"


def test_a_driver_that_has_only_the_archive_finds_the_command(archive, tmp_path):
    done = run_with_archive_only(archive, COMMAND, tmp_path)

    assert done.returncode == 0, done.stderr
    assert "Bring diverted messages home" in done.stdout


def test_the_command_says_what_it_wrote_and_how_to_use_it(tmp_path, capsys):
    package_for_spark(tmp_path / "it.zip")

    output = capsys.readouterr().out

    assert "it.zip: " in output
    assert "spark-submit" in output
    assert zipfile.is_zipfile(tmp_path / "it.zip")
    [driver] = [word for word in output.split() if word.endswith("__main__.py")]
    assert Path(driver).is_file()


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("it.egg", UsageError, r"ends in \.zip"),
        ("no/such/folder.zip", OutputError, "cannot write .*: No such file"),
    ],
)
def test_a_file_that_cannot_be_written_is_an_error(tmp_path, name, error, text):
    with pytest.raises(error, match=text):
        package_for_spark(tmp_path / name)
