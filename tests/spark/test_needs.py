"""What the demo needs is looked at before anything is started, and said in one line."""

import importlib.util
from pathlib import Path

import pytest

from pairbus.cli.main import load_command
from pairbus.spark.needs import require_spark


@pytest.fixture
def java(monkeypatch, tmp_path):
    """A Java of some version, found by its home."""

    def install(says):
        program = tmp_path / "bin" / "java"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
        program.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    return install


@pytest.mark.parametrize("says", ['openjdk version "17.0.15" 2025-04-15', 'java version "21" 2023'])
def test_a_java_that_is_new_enough_is_fine(java, says):
    java(says)

    require_spark()


def test_without_java_a_line_says_what_to_install(pairbus, monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    done = pairbus("demo")

    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert "needs Java 17 or newer, and there is none: install openjdk-17" in done.err


@pytest.mark.parametrize(
    ("says", "version"), [('java version "1.8.0_392"', 8), ('openjdk version "11.0.2"', 11)]
)
def test_an_old_java_is_named(pairbus, java, says, version):
    java(says)

    done = pairbus("demo")

    assert done.code == 2
    assert f"and this one is {version}: install openjdk-17" in done.err


def test_without_spark_a_line_says_what_to_install(pairbus, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "pyspark" else find(name)
    )

    done = pairbus("demo")

    assert done.code == 2
    assert "pip install 'pairbus[spark]'" in done.err


@pytest.mark.parametrize("words", [("--rate", "1000"), ("--phase", "1s"), ("--seed", "x")])
def test_what_cannot_be_is_refused_in_one_line(pairbus, words):
    done = pairbus("demo", *words)

    assert done.code == 2
    assert words[0] in done.err
    assert done.err.count("\n") == 1


def test_every_option_is_on_the_page():
    page = (Path(__file__).parents[2] / "docs" / "demo.md").read_text("utf-8")
    command = load_command("demo")
    shown = [parameter for parameter in command.params if not parameter.hidden]

    assert len(shown) == 5
    assert not [each.opts[0] for each in shown if f"| `{each.opts[0]}" not in page]
