"""`pairbus broker` with another `PRAGMA synchronous`, from the variable SYNCHRONOUS.

Its commits are not synced, so a power cut loses messages.
"""

from __future__ import annotations

import os
from pathlib import Path
from sqlite3 import Connection

from pairbus.__main__ import main
from pairbus.broker.storage import store
from pairbus.broker.storage.schema import open_writer


def open_unsynced(path: Path, *, durable: bool) -> Connection:
    db = open_writer(path, durable=durable)
    db.execute(f"PRAGMA synchronous = {os.environ['SYNCHRONOUS']}")
    return db


if __name__ == "__main__":
    store.open_writer = open_unsynced
    main()
