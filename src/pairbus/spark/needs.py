"""What the syphon needs besides Python, and what to install where it is missing."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from pairbus.errors import OptionsError

JAVA_MIN: Final = 17


def require_spark(who: str = "the demo's syphon runs") -> None:
    """Raises OptionsError, before anything is started."""
    if importlib.util.find_spec("pyspark") is None:
        raise OptionsError(f"{who} on Spark, which is not installed: pip install 'pairbus[spark]'")
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return  # started by spark-submit: its Java runs already
    version = _java_version()
    if version is None or version < JAVA_MIN:
        found = "there is none" if version is None else f"this one is {version}"
        raise OptionsError(
            f"{who} on Spark, which needs Java {JAVA_MIN} or newer, and {found}: "
            f"install openjdk-{JAVA_MIN}-jre-headless (Debian), or name another with JAVA_HOME"
        )


def _java_version() -> int | None:
    """Of the one that Spark would take."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return None
    try:
        told = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    return int(found[1]) if found else None
