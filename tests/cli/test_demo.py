"""What `pairbus demo` checks before it starts anything."""

import pytest


def test_without_java_one_line_says_what_to_install(pairbus, monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    done = pairbus("demo")

    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert "the demo runs on Spark, which needs Java 17 or newer" in done.err


@pytest.mark.parametrize("words", [("--rate", "1000"), ("--phase", "1s"), ("--seed", "x")])
def test_a_wrong_option_is_refused_in_one_line(pairbus, words):
    done = pairbus("demo", *words)

    assert done.code == 2
    assert words[0] in done.err
    assert done.err.count("\n") == 1
