"""The package as one archive that Spark hands to its Python processes.

All of it goes in but the local broker, because a driver that is started with the archive on its
path finds the command line there, too. What it needs besides is pure: azure-servicebus.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Final

import pairbus

PACKAGE: Final = Path(pairbus.__file__).resolve().parent
_LEFT_OUT: Final = ("broker", "testing.py", "__pycache__")
# The same code is the same archive, byte for byte, whenever it is made.
_TIME: Final = (1980, 1, 1, 0, 0, 0)


def write_archive(path: Path) -> int:
    """Answers how many modules are in it. What is there already is replaced at once or not."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    count = 0
    try:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(PACKAGE.rglob("*.py")):
                inside = file.relative_to(PACKAGE.parent)
                if not set(inside.parts[1:]).isdisjoint(_LEFT_OUT):
                    continue
                entry = zipfile.ZipInfo(inside.as_posix(), _TIME)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, file.read_bytes())
                count += 1
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count
