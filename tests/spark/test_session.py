"""What a Spark session needs is checked before anything is started."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pairbus.errors import MissingExtra, OptionsError, requires_extra
from pairbus.spark.session import require_spark


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Install a Java that prints this version, and point JAVA_HOME to it."""

    def install(version: str) -> None:
        program = tmp_path / "bin" / "java"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
        program.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    return install


@pytest.mark.parametrize(
    "version", ['openjdk version "17.0.15" 2025-04-15', 'java version "21" 2023']
)
def test_a_java_that_is_new_enough_is_fine(java: Callable[[str], None], version: str) -> None:
    java(version)

    require_spark("the syphon")


def test_without_java_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(
        OptionsError, match="Java 17 or newer, but there is none on the PATH: install"
    ):
        require_spark("the syphon")


@pytest.mark.parametrize(
    ("text", "version"), [('java version "1.8.0_392"', 8), ('openjdk version "11.0.2"', 11)]
)
def test_an_old_java_is_named(java: Callable[[str], None], text: str, version: int) -> None:
    java(text)

    with pytest.raises(OptionsError, match=f"but Java {version} is (in|on) .*: install openjdk-17"):
        require_spark("the syphon")


def test_without_pyspark_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "pyspark" else find(name)
    )

    with pytest.raises(MissingExtra, match=r"the syphon needs pyspark.*pip install 'pairbus\[spar"):
        require_spark("the syphon")


def test_a_spark_without_python_data_sources_is_called_too_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)

    with (
        pytest.raises(
            MissingExtra, match=r"needs a newer pyspark, .* pip install 'pairbus\[spark\]"
        ),
        requires_extra("pairbus.spark", "spark"),
    ):
        import pyspark.sql.datasource  # noqa: F401
