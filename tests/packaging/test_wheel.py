"""What `pip install pairbus` gives a user: the wheel, alone, in an empty environment."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

from tests.pairing.namespaces import Backstage, NamespaceProcess

ROOT = Path(__file__).parents[2]
OLDEST_MINOR = 11


def pythons() -> list[str]:
    """Every Python on this machine that pairbus supports: one path for each version.

    Looks in PATH, and next to the running one, where version managers keep the others. Starts none
    of them, because every process that collects tests runs this.
    """
    folders = [Path(folder) for folder in os.get_exec_path()]
    candidates = [path for folder in folders for path in sorted(folder.glob("python3.*"))]
    candidates += sorted(Path(sys._base_executable).parents[2].glob("3.*/bin/python3"))
    found = {}
    for path in map(Path.resolve, candidates):
        version = re.fullmatch(r"python3\.(\d+)", path.name)
        # A version manager's stand-in is a script, which may fail.
        if version and int(version[1]) >= OLDEST_MINOR and path.read_bytes()[:2] != b"#!":
            found[int(version[1])] = str(path)
    return [found[minor] for minor in sorted(found)]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    [path] = dist.glob("*.whl")
    return path


@pytest.fixture
def namespaces(tmp_path: Path) -> Iterator[tuple[NamespaceProcess, NamespaceProcess]]:
    backstage = Backstage()
    primary = NamespaceProcess("primary", tmp_path, backstage)
    secondary = NamespaceProcess("secondary", tmp_path, backstage)
    for namespace in (primary, secondary):
        namespace.start()
    yield primary, secondary
    for namespace in (primary, secondary):
        namespace.stop()
    backstage.close()


class Environment:
    """A virtual environment with the wheel in it. No compiler, and no other program, is in PATH."""

    def __init__(self, folder: Path, python: str) -> None:
        subprocess.run([python, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        self.python = folder / "venv" / "bin" / "python"
        self._folder = folder
        (folder / "empty").mkdir()

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return self._run(self.python, *command)

    def pip(self, *command: str | Path) -> str:
        """The pip of this environment: installing one into each would take as long as the rest."""
        pip = [sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check"]
        done = self._run(*pip, *command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self._folder,
            env=self.variables(),
            capture_output=True,
            text=True,
            check=False,
        )

    def variables(self) -> dict[str, str]:
        return {"PATH": str(self._folder / "empty"), "HOME": str(Path.home())}

    def install(self, *what: str | Path) -> None:
        self.pip("install", "--quiet", "--no-compile", *what)

    def start(self, *command: str | Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.python, *command],
            cwd=self._folder,
            env=self.variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def send_through_an_outage(
    environment: Environment,
    shell: str,
    primary: NamespaceProcess,
    secondary: NamespaceProcess,
) -> str:
    program = Path(__file__).with_name("outage.py")
    strings = [primary.connection_string(), secondary.connection_string()]
    with environment.start(program, shell, *strings, secondary.ca_file) as application:
        assert application.stdout is not None
        assert application.stderr is not None
        if application.stdout.readline() != "sent\n":
            pytest.fail(application.stderr.read())
        primary.kill()
        output, errors = application.communicate("\n", timeout=60)
    assert application.returncode == 0, errors
    return output.strip()


@pytest.fixture(scope="module")
def environment_of(wheel: Path, tmp_path_factory: pytest.TempPathFactory):
    @functools.cache
    def make(python: str) -> Environment:
        environment = Environment(tmp_path_factory.mktemp("environment"), python)
        environment.install(wheel)
        return environment

    return make


@pytest.mark.req("X-13")
@pytest.mark.timeout(900)  # pip, twice
@pytest.mark.parametrize("python", pythons())
def test_the_wheel_alone_keeps_an_application_sending(python, environment_of, namespaces):
    primary, secondary = namespaces
    primary.admin.create_queue("orders")
    environment = environment_of(python)

    assert send_through_an_outage(environment, "blocking", primary, secondary) == (
        "failed over, 1 diverted"
    )

    # What the error texts say works before a release, too: pip finds pairbus installed, and adds
    # what the extra needs.
    primary.heal()
    environment.install("pairbus[aio]")
    assert send_through_an_outage(environment, "asyncio", primary, secondary) == (
        "failed over, 1 diverted"
    )


@pytest.mark.req("X-13")
def test_what_is_not_installed_says_what_to_install(environment_of):
    environment = environment_of(str(Path(sys._base_executable).resolve()))

    packages = environment.pip("list", "--format=freeze")
    broker = environment.run("-c", "from pairbus.broker import Broker; Broker().start()")
    source = environment.run("-c", "from pairbus.spark import ServiceBusDataSource")
    command = environment.run("-m", "pairbus", "status")
    login = environment.run(
        "-c",
        "from pairbus.fast.address import Address; "
        "Address.from_connection_string('ns.example').source.identity.check_installed()",
    )

    assert not re.search("^(uvloop|pyspark|typer|lark|cryptography)==", packages, re.MULTILINE)
    assert broker.stderr.splitlines()[-1].endswith("pip install 'pairbus[broker]'")
    assert source.stderr.splitlines()[-1].endswith("pip install 'pairbus[spark]'")
    assert login.stderr.splitlines()[-1].endswith("pip install 'pairbus[identity]'")
    assert command.returncode == 1
    assert command.stderr.splitlines() == [
        "pairbus: the command line needs typer, which is not installed: pip install 'pairbus[cli]'"
    ]


def test_the_extras_that_are_named_exist(wheel):
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
    extras = set(metadata.get_all("Provides-Extra", []))
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("src/pairbus/**/*.py")]
    named = {
        extra
        for page in pages
        for some in re.findall(r"(?:pairbus|'\.)\[([a-z,]+)\]", page.read_text("utf-8"))
        for extra in some.split(",")
    }

    assert {"spark", "prometheus"} <= named <= {*extras, "extra"}


def test_the_source_archive_has_what_the_wheel_is_built_from(dist, wheel):
    [source] = dist.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as built:
        modules = {name for name in built.namelist() if name.startswith("pairbus/")}

    assert {f"src/{name}" for name in modules} <= inside
    assert {"pyproject.toml", "README.md", "LICENSE"} <= inside
