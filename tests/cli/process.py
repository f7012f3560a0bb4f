"""Commands in processes of their own: for signals and pipes, and before anything is imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-m", "pairbus"]
SECONDS = 60


@contextmanager
def started(*words: str, **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """One that is killed in the end, with its stdout and stderr."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*COMMAND, *words], **pipes | settings) as process:
        try:
            yield process
        finally:
            process.kill()


def finished(*words: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    return _run([*COMMAND, *words], **settings)


def finished_after(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """This code has run before anything of the command was imported."""
    lines = [
        f"import sys; sys.argv = ['pairbus', *{words!r}]",
        code,
        "from pairbus.__main__ import main; main()",
    ]
    return _run([sys.executable, "-c", "\n".join(lines)])


def shell(line: str) -> list[str]:
    """A line of bash, with `pairbus` in it."""
    function = f'pairbus() {{ {" ".join(COMMAND)} "$@"; }}'
    return ["bash", "-c", f"{function}; set -o pipefail; {line}"]


def in_shell(line: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    return _run(shell(line), **settings)


def leftovers(folder: Path) -> tuple[list[bytes], list[Path]]:
    """What still runs with that folder for temporary files, and what is in there."""
    mark = f"TMPDIR={folder}".encode()
    running = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes():
                running.append((process / "cmdline").read_bytes().replace(b"\0", b" "))
        except OSError:  # it has ended, or is somebody else's
            continue
    return running, list(folder.iterdir())


def _run(words: list[str], **settings: Any) -> subprocess.CompletedProcess[str]:
    usual: dict[str, Any] = {"capture_output": True, "text": True, "timeout": SECONDS}
    return subprocess.run(words, **usual | settings)
