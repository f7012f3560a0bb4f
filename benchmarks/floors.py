"""What the two foundations cost alone: SQLite's commits and the AMQP engine.

No broker can be cheaper than the sum of what it stands on, so these say how much of a message's
cost is left. SQLite writes as the broker does (WAL, synchronous=FULL, one row per message, groups
in one commit); of the AMQP engine, a client and a server hand bytes to each other in memory.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pairbus.amqp.engine import Attached, Engine

GROUP = 500
SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA wal_autocheckpoint = 4000;
CREATE TABLE message (
    id INTEGER PRIMARY KEY, state INTEGER, enqueued_ms INTEGER, expires_ms INTEGER,
    delivery_count INTEGER, session_id TEXT, size INTEGER, bare BLOB
);
"""
# Only what a plain message has is bound: Python's sqlite3 takes 0.4 us to bind a None.
INSERT = """
INSERT INTO message (id, state, enqueued_ms, delivery_count, size, bare) VALUES (?, ?, ?, ?, ?, ?)
"""


@dataclass(frozen=True, slots=True)
class Floor:
    """Microseconds of one step, and what the step is."""

    name: str
    microseconds: float


def sqlite_floor(folder: Path, *, messages: int, size: int) -> list[Floor]:
    folder.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(folder / "floor.db", isolation_level=None)
    try:
        db.executescript(SCHEMA)
        body = bytes(size)
        rows = [(n, 0, 1_700_000_000_000, 0, size, body) for n in range(messages)]
        inserting = _in_groups(db, INSERT, rows)
        keys = [(n,) for n in range(messages)]
        deleting = _in_groups(db, "DELETE FROM message WHERE id = ?", keys)
        alone = _in_groups(db, INSERT, rows[:200], group=1)
    finally:
        db.close()
    return [
        Floor(f"SQLite: insert a message, commits of {GROUP}", inserting),
        Floor(f"SQLite: delete a message, commits of {GROUP}", deleting),
        Floor("SQLite: a commit of one message", alone),
    ]


def _in_groups(
    db: sqlite3.Connection, statement: str, rows: list[tuple[Any, ...]], group: int = GROUP
) -> float:
    begun = time.perf_counter()
    for start in range(0, len(rows), group):
        db.execute("BEGIN IMMEDIATE")
        db.executemany(statement, rows[start : start + group])
        db.execute("COMMIT")
    return (time.perf_counter() - begun) / len(rows) * 1e6


def amqp_floor(*, messages: int, size: int, flight: int = 64) -> list[Floor]:
    """Transfer, accept and settle, both ends, in one thread; `flight` messages per exchange."""
    client = Engine(server=False, container_id="floor")
    server = Engine(server=True, container_id="floor")
    client.open()
    link = client.attach_sender(client.session(), "floor", "floor")
    for event in server.receive(client.data_to_send()):
        if type(event) is Attached:
            event.link.accept(credit=messages)
    client.receive(server.data_to_send())
    body = bytes(size)
    begun = time.perf_counter()
    for start in range(0, messages, flight):
        count = min(flight, messages - start)
        for number in range(start, start + count):
            link.send(number.to_bytes(8, "big"), body)
        for event in server.receive(client.data_to_send()):
            event.delivery.accept()
        answers = client.receive(server.data_to_send())
        settled = sum(len(event.deliveries) for event in answers)
        if settled != count:
            raise RuntimeError(f"{settled} messages of {count} were settled")
    seconds = time.perf_counter() - begun
    return [Floor("AMQP: transfer, accept, settle; both ends", seconds / messages * 1e6)]
