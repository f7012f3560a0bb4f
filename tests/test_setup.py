"""scripts/setup, with stand-ins for the programs that it calls. Each of them logs its calls.

That it works with the real ones is shown by `make test`, which starts this suite.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
USED = ["bash", "cat", "cp", "dirname", "env", "mkdir", "rm", "sed", "sha256sum"]
INPUTS = [
    "pyproject.toml",
    "requirements.lock",
    "requirements-proton.lock",
    "requirements-oldest-spark.lock",
    "tests/interop/node/package-lock.json",
    "tests/browser/package-lock.json",
]

# Answers what the script asks, makes a .venv with itself in it, and installs nothing.
PYTHON = """case "$*" in
    *'print("python'*) echo python3.11 ;;
    *print*) echo {itself} ;;
    *'-m venv'*) mkdir -p .venv/bin; cp {itself} .venv/bin/python ;;
esac"""


class Machine:
    """A folder with the script in it, and a PATH of exactly the programs that it was given."""

    def __init__(self, folder):
        self.folder = folder
        self.bin = folder / "bin"
        self.log = folder / "calls.log"
        for path in ["scripts/setup", *INPUTS]:
            copy = folder / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, copy)
        self.bin.mkdir()
        for name in USED:
            (self.bin / name).symlink_to(shutil.which(name))
        self.give("cc", "make", "node", "chromium")
        self.give("npm", does="mkdir -p tests/interop/node/node_modules tests/browser/node_modules")
        self.give("java", does="""echo 'openjdk version "17.0.1"' >&2""")
        self.give("id", does="echo 0")
        self.give("apt-get")
        self.give("python3", does=PYTHON.format(itself=self.bin / "python3"))

    def give(self, *names, does=""):
        for name in names:
            program = self.bin / name
            program.write_text(f'#!/usr/bin/env bash\necho "{name} $*" >>"{self.log}"\n{does}\n')
            program.chmod(0o755)

    def take(self, *names):
        for name in names:
            (self.bin / name).unlink()

    def setup(self, *options):
        """The exit status, what it printed, and which of the installers it called."""
        self.log.unlink(missing_ok=True)
        done = subprocess.run(
            [self.folder / "scripts/setup", *options],
            env={"PATH": str(self.bin), "HOME": str(self.folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        calls = self.log.read_text().splitlines() if self.log.exists() else []
        installs = [call for call in calls if " install " in call or "npm ci" in call]
        return done.returncode, done.stdout + done.stderr, installs


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_a_second_run_does_and_says_nothing(machine):
    status, said, installs = machine.setup("--tests")

    assert status == 0, said
    assert [call.split()[0] for call in installs] == [*["python3"] * 4, "npm", "npm"]
    assert machine.setup("--tests") == (0, "", [])
    assert machine.setup() == (0, "", [])


def test_the_demo_needs_no_node(machine):
    machine.take("node", "npm")

    status, said, installs = machine.setup()

    assert status == 0, said
    assert [call.split()[0] for call in installs] == ["python3", "python3"]


def test_without_a_compiler_everything_but_proton_is_installed(machine):
    machine.take("cc")

    status, said, installs = machine.setup("--tests")

    assert status == 0, said
    assert not [call for call in installs if "proton" in call]
    assert [call.split()[0] for call in installs] == [*["python3"] * 3, "npm", "npm"]


def test_an_unknown_option_is_a_usage_error(machine):
    status, said, _ = machine.setup("--test")

    assert status == 2
    assert said.splitlines()[-1] == "usage: scripts/setup [--tests]"


@pytest.mark.parametrize("changed", INPUTS)
def test_a_changed_lock_is_installed_and_nothing_else(machine, changed):
    machine.setup("--tests")
    path = machine.folder / changed
    path.write_text(path.read_text() + "\n")

    status, said, installs = machine.setup("--tests")

    assert status == 0, said
    assert {call.split()[0] for call in installs} == {
        "npm" if "package-lock" in changed else "python3"
    }


def test_root_gets_the_missing_debian_packages(machine):
    machine.take("java", "npm", "chromium")
    machine.give("apt-get", does=f"[[ $* != *npm* ]] || cp {machine.bin}/node {machine.bin}/npm")

    status, said, installs = machine.setup("--tests")

    assert status == 0, said
    debian = [call for call in installs if call.startswith("apt-get install ")]
    packages = [word for call in debian for word in call.split()[2:] if not word.startswith("-")]
    assert packages == ["openjdk-17-jre-headless", "npm", "chromium"]


def test_others_are_told_which_packages_to_install(machine):
    machine.give("id", does="echo 1000")
    machine.give("java", does="""echo 'openjdk version "11.0.2"' >&2""")
    machine.take("make")

    status, said, installs = machine.setup("--tests")

    assert status != 0
    assert said.splitlines()[-1].split() == [
        *("apt-get", "install", "make", "openjdk-17-jre-headless")
    ]
    assert not installs
    assert not (machine.folder / ".venv").exists()


def test_others_are_told_when_there_is_no_python(machine):
    machine.give("id", does="echo 1000")
    machine.give("python3", does="exit 1")

    status, said, _ = machine.setup()

    assert status != 0
    assert said.splitlines()[-1].strip() == "apt-get install python3 python3-venv"


def test_it_is_what_ci_runs():
    assert "make check test" in (ROOT / ".ci/run").read_text()
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_make_test_leaves_no_test_out():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    alone, java = (
        re.search(rf"^{name} := (.*)$", makefile, re.MULTILINE)[1].split()
        for name in ("ALONE", "JAVA")
    )
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    files = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in tests}
    with_java = {path for path, text in files.items() if "mark.spark" in text}
    marked = {path for path, text in files.items() if "mark.alone" in text}

    assert not [path for path in with_java if not path.startswith((*java, *alone, "tests/spark/"))]
    assert {path.replace("/conftest.py", "") for path in marked} == set(alone)
