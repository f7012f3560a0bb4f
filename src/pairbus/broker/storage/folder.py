"""Folders on the disk: made so that they survive a power cut, and checked before they are used."""

from __future__ import annotations

import os
from pathlib import Path

from pairbus.errors import StartError


def make_folder(folder: Path, *, probe: str) -> None:
    """Only its owner may read a new folder. `probe`: the name of a file to create for a moment.

    Raises StartError if nothing can be written there.
    """
    try:
        new = [one for one in (folder, *folder.parents) if not one.exists()]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for one in new:
            sync_folder(one.parent)
        file = folder / probe
        file.touch()
        file.unlink()
    except FileExistsError as error:
        raise StartError(f"the data folder {folder} is a file: choose another name") from error
    except OSError as error:
        raise StartError(f"the data folder {folder} cannot be written: {error.strerror}") from error


def sync_folder(folder: Path) -> None:
    """A name that was created in a folder survives a power cut only after this."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
