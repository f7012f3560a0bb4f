"""Which names `pairbus` offers, and what importing it does not load."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import pairbus
import pairbus.aio

HEAVY = ("azure", "proton", "cproton", "cproton_ffi", "pyspark", "pandas", "opentelemetry")


def loaded_by(statement: str) -> set[str]:
    """The top-level packages that are loaded after a statement, in a Python of its own."""
    code = (
        f"import sys; {statement}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(ran.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import pairbus",
        "import pairbus; dir(pairbus); pairbus.__all__",
        "from pairbus import SendAvailabilityPairedNamespaceOptions, OptionsError",
        "import pairbus.events, pairbus.client.route.router, pairbus.client.route.entity",
    ],
)
def test_naming_things_loads_neither_the_sdk_nor_the_broker(statement: str) -> None:
    assert not loaded_by(statement) & set(HEAVY)


def test_the_package_itself_imports_nothing_so_that_a_ctrl_c_is_soon_handled() -> None:
    assert loaded_by("import pairbus") <= loaded_by("import __future__") | {"pairbus"}


def test_the_client_loads_the_sdk_and_nothing_of_the_broker() -> None:
    loaded = loaded_by("from pairbus import ServiceBusClient")

    assert "azure" in loaded
    assert not loaded & {"proton", "cproton", "cproton_ffi", "pyspark", "uvicorn", "starlette"}


@pytest.mark.parametrize("name", pairbus.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    value = getattr(pairbus, name)

    assert value.__name__ == name
    assert name in dir(pairbus)
    assert value.__doc__ or name == "PairbusError"


def test_the_version_is_that_of_the_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pairbus.__version__ == importlib.metadata.version("pairbus")
    assert "__version__" in dir(pairbus)

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert pairbus.__version__ == "0+unknown", "a copy without metadata can be used as well"


def test_asyncio_has_the_same_names() -> None:
    assert set(pairbus.aio.__all__) == set(pairbus.__all__)
    for name in pairbus.aio.__all__:
        same = getattr(pairbus.aio, name) is getattr(pairbus, name)
        assert same is (name != "ServiceBusClient")


def test_a_name_that_is_not_there_is_refused_as_in_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'pairbus' has no attribute 'Nothing'"):
        pairbus.Nothing  # noqa: B018
    assert not hasattr(pairbus, "__wrapped__")


def test_a_type_checker_sees_the_names_that_are_there_at_run_time() -> None:
    tree = ast.parse(Path(pairbus.__file__).read_text())
    declared: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pairbus."):
            for alias in node.names:
                assert alias.asname == alias.name, "`as` is what makes a name public"
                declared[alias.name] = str(node.module)

    assert sorted(declared) == sorted(pairbus.__all__)
    for name, module in declared.items():
        assert getattr(importlib.import_module(module), name) is getattr(pairbus, name)


def test_no_two_classes_have_one_name_except_the_twins_of_the_two_shells() -> None:
    folder = Path(pairbus.__file__).parent
    homes: dict[str, set[str]] = {}
    for file in sorted(folder.rglob("*.py")):
        path = str(file.relative_to(folder)).replace("client/aio/", "client/blocking/")
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, set()).add(path)
    assert len(homes) > 500
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
