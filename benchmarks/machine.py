"""What the figures were measured on: a figure without its machine says nothing."""

from __future__ import annotations

import os
import platform
import sqlite3
from pathlib import Path


def describe(data: Path) -> dict[str, str]:
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
