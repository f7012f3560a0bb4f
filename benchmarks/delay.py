"""A distance: a TCP proxy that passes every byte on after half a round trip (delay.c).

It is compiled when it is first used. A line of 0 ms goes through it as well, so that the figures
with and without a distance differ by the distance alone.
"""

from __future__ import annotations

import contextlib
import functools
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from loop import LoadError

SOURCE = Path(__file__).with_name("delay.c")


@contextlib.contextmanager
def line(port: int, round_trip_ms: float) -> Iterator[int]:
    """Another port for the server at `port`, which is a round trip away."""
    command = [_program(), str(port), str(int(round_trip_ms * 1000))]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True, text=True
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


@functools.cache
def _program() -> str:
    program = Path(_folder().name) / "delay"
    try:
        compiled = subprocess.run(
            ["cc", "-O2", "-o", str(program), str(SOURCE)],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise LoadError("a distance needs a C compiler: there is no program cc") from None
    if compiled.returncode:
        raise LoadError(f"{SOURCE.name} cannot be compiled: {compiled.stderr.strip()[-600:]}")
    return str(program)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Deleted when the benchmark ends."""
    return tempfile.TemporaryDirectory(prefix="pairbus-bench-delay-")
