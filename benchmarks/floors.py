"""What the two foundations cost alone: SQLite's commits and Proton's engine.

No broker can be cheaper than the sum of what it stands on, so these say how much of a message's
cost is ours. SQLite writes as the broker does (WAL, synchronous=FULL, one row per message, groups
in one commit); Proton runs as two engines that hand bytes to each other in memory. Neither part
uses any code of pairbus, so a change there cannot move the floor.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cproton_ffi import ffi, lib

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


class _Side:
    """One bare Proton connection with a session and a link."""

    def __init__(self, *, server: bool) -> None:
        self.connection = lib.pn_connection()
        self.transport = lib.pn_transport()
        self.collector = lib.pn_collector()
        lib.pn_connection_collect(self.connection, self.collector)
        if server:
            lib.pn_transport_set_server(self.transport)
        lib.pn_transport_bind(self.transport, self.connection)
        lib.pn_connection_set_container(self.connection, b"floor")
        lib.pn_connection_open(self.connection)
        self._buffer = ffi.new("char[]", 1 << 20)

    def take(self) -> bytes:
        chunks = []
        while (pending := lib.pn_transport_pending(self.transport)) > 0:
            lib.pn_transport_peek(self.transport, self._buffer, pending)
            chunks.append(ffi.unpack(self._buffer, pending))
            lib.pn_transport_pop(self.transport, pending)
        return b"".join(chunks)

    def give(self, data: bytes) -> None:
        view, at = ffi.from_buffer(data), 0
        while at < len(data):
            at += lib.pn_transport_push(self.transport, view + at, len(data) - at)

    def events(self) -> Iterator[tuple[int, Any]]:
        while (event := lib.pn_collector_peek(self.collector)) != ffi.NULL:
            yield lib.pn_event_type(event), event
            lib.pn_collector_pop(self.collector)

    def free(self) -> None:
        lib.pn_transport_unbind(self.transport)
        lib.pn_decref(self.transport)
        lib.pn_connection_release(self.connection)
        lib.pn_decref(self.connection)
        lib.pn_collector_free(self.collector)


def proton_floor(*, messages: int, size: int, flight: int = 64) -> list[Floor]:
    """Transfer, accept and settle, both ends, in one thread; `flight` messages per exchange."""
    client, server = _Side(server=False), _Side(server=True)
    try:
        session = lib.pn_session(client.connection)
        lib.pn_session_open(session)
        sender = lib.pn_sender(session, b"floor")
        lib.pn_link_open(sender)
        server.give(client.take())
        receiver = ffi.NULL
        for kind, event in server.events():
            if kind == lib.PN_SESSION_REMOTE_OPEN:
                lib.pn_session_open(lib.pn_event_session(event))
            elif kind == lib.PN_LINK_REMOTE_OPEN:
                receiver = lib.pn_event_link(event)
                lib.pn_link_open(receiver)
        begun = time.perf_counter()
        for start in range(0, messages, flight):
            _exchange(client, server, sender, receiver, start, min(flight, messages - start), size)
        seconds = time.perf_counter() - begun
    finally:
        client.free()
        server.free()
    return [Floor("Proton: transfer, accept, settle; both ends", seconds / messages * 1e6)]


def _exchange(
    client: _Side, server: _Side, sender: Any, receiver: Any, start: int, count: int, size: int
) -> None:
    lib.pn_link_flow(receiver, count)
    client.give(server.take())
    body, room = bytes(size), ffi.new("char[]", size)
    tag = ffi.new("pn_delivery_tag_t *")
    for number in range(start, start + count):
        name = number.to_bytes(8, "big")
        tag.size, tag.start = 8, (held := ffi.from_buffer(name))
        lib.pn_delivery(sender, tag[0])
        del held
        lib.pn_link_send(sender, body, size)
        lib.pn_link_advance(sender)
    server.give(client.take())
    taken = 0
    for kind, event in server.events():
        if kind == lib.PN_DELIVERY:
            delivery = lib.pn_event_delivery(event)
            lib.pn_link_recv(receiver, room, size)
            lib.pn_link_advance(receiver)
            lib.pn_delivery_update(delivery, lib.PN_ACCEPTED)
            lib.pn_delivery_settle(delivery)
            taken += 1
    client.give(server.take())
    settled = 0
    for kind, event in client.events():
        if kind == lib.PN_DELIVERY:
            delivery = lib.pn_event_delivery(event)
            settled += lib.pn_delivery_settled(delivery)
            lib.pn_delivery_settle(delivery)
    if not taken == settled == count:
        raise RuntimeError(f"Proton passed {taken} and settled {settled} messages of {count}")
