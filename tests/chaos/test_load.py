"""The verdict of `make chaos-load` must be able to say no."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.chaos.load import grown, quarters
from tests.chaos.process import usage_of

LEAK = """
import os, sys, threading
kept = []
for line in sys.stdin:
    {statement}
    print(flush=True)
"""


def test_a_value_has_a_median_for_each_quarter_of_the_run() -> None:
    values = [(float(at), float(at // 10)) for at in range(40)]

    assert quarters(values, 40) == [0, 1, 2, 3]
    assert quarters([(1, 5.0)], 40) == [5, 0, 0, 0]


def test_what_is_much_higher_in_the_last_quarter_has_grown() -> None:
    rows = {
        "primary MiB": [50.0, 100.0, 100.0, 130.0],
        "secondary MiB": [50.0, 100.0, 100.0, 105.0],
        "clients 1 files": [10.0, 300.0, 300.0, 250.0],
        "a send, median, ms": [5.0, 10.0, 100.0, 300.0],
    }

    assert grown(rows) == ["primary MiB", "a send, median, ms"]


def units_that_grow(statement: str) -> set[str]:
    """What the verdict says of a process that runs the statement again and again."""
    process = subprocess.Popen(
        [sys.executable, "-c", LEAK.format(statement=statement)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    usages = []
    for at in range(40):
        process.stdin.write("\n")
        process.stdout.readline()
        usages.append((float(at), usage_of(process.pid)))
    process.kill()
    process.communicate()
    rows = {
        unit: quarters([(at, getattr(usage, unit)) for at, usage in usages], 40)
        for unit in ("MiB", "files", "threads")
    }
    return set(grown(rows))


@pytest.mark.parametrize(
    ("statement", "units"),
    [
        ("kept.append(b'x' * 2**22)", {"MiB"}),
        ("kept += [os.open('/dev/null', os.O_RDONLY) for _ in range(10)]", {"files"}),
        (
            "[threading.Thread(target=threading.Event().wait, daemon=True).start()"
            " for _ in range(3)]",
            {"threads"},
        ),
        ("b'x' * 2**22", set()),
    ],
    ids=["memory", "files", "threads", "nothing"],
)
def test_a_leak_in_a_process_is_found(statement: str, units: set[str]) -> None:
    assert units_that_grow(statement) == units
