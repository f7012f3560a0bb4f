"""What the benchmark commands have in common: options, progress, a tidy end, the output.

A command says what it measures (`run`, plain data as in `--json`) and which tables that makes. The
folder for its data is made here and deleted here, whatever happens. Nothing is measured here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

import ours
import report
from loop import LoadError

Progress = Callable[[str], None]
Run = Callable[[argparse.Namespace, Path, Progress], dict[str, Any]]


def parser(description: str | None) -> argparse.ArgumentParser:
    """With the options that every command has; it may add its own."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--quick", action="store_true", help="a smoke test of some seconds")
    made.add_argument("--rounds", type=int, default=0, help="how often (3; with --quick 1)")
    made.add_argument(
        "--folder",
        default="/var/tmp",  # and not /tmp, which is memory on many machines
        help="a folder on the disk that is to be measured (default: %(default)s)",
    )
    form = made.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the result as JSON")
    form.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    form.add_argument("--save", metavar="FILE", help="write the result to this file, as JSON")
    return made


def main(options: argparse.ArgumentParser, run: Run, tables: report.Shape) -> int:
    given = options.parse_args()
    given.rounds = given.rounds or (1 if given.quick else 3)
    if not Path(given.folder).is_dir():
        options.error(f"--folder {given.folder!r} is not a folder")
    # Who stops us with SIGTERM wants the same tidy end as with Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    screen = Console(stderr=True)
    base = Path(tempfile.mkdtemp(prefix="pairbus-bench-", dir=given.folder))
    try:
        with screen.status("starting") as status:
            # A log file gets lines; a terminal one line that changes.
            lines = partial(screen.print, soft_wrap=True)
            result = run(given, base, status.update if screen.is_terminal else lines)
    except KeyboardInterrupt:
        screen.print("stopped; every process is ended and every file deleted")
        return 130
    except (LoadError, ours.BrokerFailed) as error:
        screen.print(f"benchmark failed: {error}", style="red", markup=False)
        return 1
    finally:
        shutil.rmtree(base, ignore_errors=True)
    if given.save:
        Path(given.save).write_text(json.dumps(result, indent=1) + "\n")
    elif given.json:
        print(json.dumps(result, indent=1))
    elif given.markdown:
        print(report.markdown(result, tables))
    else:
        report.show(result, Console(width=None if sys.stdout.isatty() else 160), tables)
    return 0


def blank(options: argparse.Namespace, base: Path, size: int) -> dict[str, Any]:
    """A result that says only what is measured with, and on what."""
    result: dict[str, Any] = {
        "size": size,
        "rounds": options.rounds,
        "machine": describe_machine(base),
        "notes": [],
    }
    if result["machine"]["data folder on"] in ("tmpfs", "ramfs"):
        result["notes"].append(
            f"{options.folder} is memory, not a disk: commits cost nothing there"
        )
    return result


# --- what the figures were measured on: a figure without its machine says nothing -----------------


def describe_machine(data: Path) -> dict[str, str]:
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{_memory_gb():.0f} GB",
        "system": f"{platform.system()} {platform.release()}, {_distribution()}",
        "data folder on": _filesystem(data),
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        "load before": f"{os.getloadavg()[0]:.1f}",
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return " ".join(line.partition(":")[2].split())
    return platform.machine()


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return "unknown distribution"


def _filesystem(folder: Path) -> str:
    """The type of the mount that `folder` is on: the longest mount point above it."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    above = [(point, kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(above, key=lambda mount: len(mount[0]), default=("", "unknown"))[1]
