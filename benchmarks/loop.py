"""The socket loop under every load generator, and the way a generator process is driven.

A `Peer` is one connection that turns bytes into bytes; the loop reads, hands over, writes, and
stops when every peer is done. One loop serves the AMQP 1.0 and the 0-9-1 generators alike, so that
no broker is measured through better sockets than another. It knows no protocol.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol

READ_SIZE = 128 * 1024
SILENCE_SECONDS_MAX = 30.0


class LoadError(Exception):
    """The broker under load did something that makes the figure worthless."""


class Peer(Protocol):
    sock: socket.socket
    done: bool

    def received(self, data: bytes) -> None: ...

    def output(self) -> bytes: ...


def connect(host: str, port: int) -> socket.socket:
    sock = socket.create_connection((host, port), 10.0)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def run(peers: Sequence[Peer]) -> None:
    """Serve all peers until each is done; a broker that falls silent is an error."""
    selector = selectors.EpollSelector()
    waiting: dict[int, bytes] = {}
    by_fd = {peer.sock.fileno(): peer for peer in peers}
    for fd, peer in by_fd.items():
        peer.sock.setblocking(False)
        selector.register(fd, selectors.EVENT_READ)
        _write(peer, peer.output(), waiting, selector)
    try:
        while not all(peer.done for peer in peers):
            ready = selector.select(SILENCE_SECONDS_MAX)
            if not ready:
                raise LoadError(f"the broker said nothing for {SILENCE_SECONDS_MAX:.0f} s")
            for key, mask in ready:
                peer = by_fd[key.fd]
                if mask & selectors.EVENT_READ:
                    data = peer.sock.recv(READ_SIZE)
                    if not data:
                        raise LoadError("the broker closed the connection")
                    peer.received(data)
                if mask & selectors.EVENT_WRITE or key.fd not in waiting:
                    pending = waiting.pop(key.fd, b"") + peer.output()
                    _write(peer, pending, waiting, selector)
    finally:
        selector.close()


def _write(
    peer: Peer, data: bytes, waiting: dict[int, bytes], selector: selectors.EpollSelector
) -> None:
    fd = peer.sock.fileno()
    if data:
        try:
            sent = peer.sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            waiting[fd] = data[sent:]
    wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if fd in waiting else 0)
    if selector.get_key(fd).events != wanted:
        selector.modify(fd, wanted)


def measure(work: Callable[[], None], messages: int) -> None:
    """As the generator process: say ready, wait for the word, work, print the result as JSON.

    Connecting and attaching are over by then, so that only messages are measured.
    """
    print("ready", flush=True)
    if sys.stdin.readline().strip() != "go":
        raise LoadError("stdin has no line with go")
    cpu, begun = time.process_time(), time.perf_counter()
    work()
    seconds = time.perf_counter() - begun
    result = {
        "messages": messages,
        "seconds": seconds,
        "cpu_seconds": time.process_time() - cpu,
    }
    print(json.dumps(result), flush=True)
