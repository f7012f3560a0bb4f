"""A distance: a TCP proxy that passes every byte on after half a round trip, in both directions.

netem would be the usual way, but many kernels do not have it. The proxy is a process of its own and
handles whole reads, not messages, so it costs little: some tens of microseconds for each read.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# More than a line of 300 ms holds at the rates measured here.
IN_FLIGHT_BYTES_MAX = 64 * 1024 * 1024


class Half(asyncio.Protocol):
    """One direction: what is received here is written to the other half, later."""

    def __init__(self, delay_seconds: float) -> None:
        self._delay = delay_seconds
        self._loop = asyncio.get_running_loop()
        self._late: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self.transport: Any = None
        self.other: Half | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=IN_FLIGHT_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        self._late.append((self._loop.time() + self._delay, data))
        self._bytes += len(data)
        if self._bytes > IN_FLIGHT_BYTES_MAX:
            self.transport.pause_reading()
        self._schedule()

    def connection_lost(self, exc: Exception | None) -> None:
        self._late.append((self._loop.time() + self._delay, b""))  # the end is late as well
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is None and self._late and self.other is not None:
            self._timer = self._loop.call_at(self._late[0][0], self._pass_on)

    def start(self, other: Half) -> None:
        self.other = other
        self._schedule()

    def _pass_on(self) -> None:
        self._timer = None
        assert self.other is not None
        now = self._loop.time()
        while self._late and self._late[0][0] <= now:
            _, data = self._late.popleft()
            if not data:
                self.other.transport.close()
                return
            self._bytes -= len(data)
            self.other.transport.write(data)
        if self._bytes <= IN_FLIGHT_BYTES_MAX and not self.transport.is_closing():
            self.transport.resume_reading()
        self._schedule()


async def serve(port: int, delay_seconds: float) -> None:
    loop = asyncio.get_running_loop()
    tasks = set()

    def accepted() -> Half:
        near = Half(delay_seconds)
        task = loop.create_task(connect(near))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return near

    async def connect(near: Half) -> None:
        # Connecting takes no time here, and in fact a round trip: it is waited for.
        await asyncio.sleep(2 * delay_seconds)
        _, far = await loop.create_connection(lambda: Half(delay_seconds), "127.0.0.1", port)
        near.start(far)
        far.start(near)

    server = await loop.create_server(accepted, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def line(port: int, round_trip_ms: float) -> Iterator[int]:
    """Another port for the server at `port`, which is a round trip away. 0 ms: the port itself."""
    if not round_trip_ms:
        yield port
        return
    command = [sys.executable, str(Path(__file__)), str(port), str(round_trip_ms)]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True, text=True
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("round_trip_ms", type=float)
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(options.port, options.round_trip_ms / 2000))


if __name__ == "__main__":
    main()
