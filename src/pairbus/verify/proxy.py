"""The network of a local run: each kind of client has a link to each broker, which can be cut."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final

_CHUNK: Final = 65_536
_SECONDS_MAX: Final = 10.0


class LinkCut(StrEnum):
    DROP = "drop"
    """Nothing gets through, in neither direction, until the link is whole again."""
    DROP_ANSWERS = "drop answers"
    """Requests get through, answers do not."""
    RESET = "reset"
    """Connections are reset, and new ones, too."""


class CuttableLink:
    """Forwards TCP connections to a port of this machine."""

    def __init__(self, network: Network, target_port: int) -> None:
        self._network = network
        self._target_port = target_port
        self._cut: LinkCut | None = None
        self._is_whole = asyncio.Event()
        self._is_whole.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    @property
    def is_cut(self) -> bool:
        return self._cut is not None

    def cut(self, how: LinkCut) -> None:
        self._network.call(self._set(how))

    def mend(self) -> None:
        self._network.call(self._set(None))

    async def _set(self, cut: LinkCut | None) -> None:
        self._cut = cut
        if cut is None:
            self._is_whole.set()
            return
        self._is_whole.clear()
        if cut is LinkCut.RESET:
            for writer in self._writers:
                writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if self._cut is LinkCut.RESET:
                return
            await self._is_whole.wait()
            there = await asyncio.open_connection("127.0.0.1", self._target_port)
            self._writers.add(there[1])
            try:
                await asyncio.gather(
                    self._forward(reader, there[1], is_answer=False),
                    self._forward(there[0], writer, is_answer=True),
                )
            finally:
                self._writers.discard(there[1])
                there[1].transport.abort()
        except OSError:
            pass  # one side has gone, and so the other goes
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        while data := await reader.read(_CHUNK):
            if self._cut is not LinkCut.DROP_ANSWERS or is_answer:
                await self._is_whole.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError


class Network:
    """Runs all links, on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._servers: list[asyncio.Server] = []

    def link_to(self, port: int) -> CuttableLink:
        link = CuttableLink(self, port)
        self._servers.append(self.call(link.listen()))
        return link

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_SECONDS_MAX)

    def close(self) -> None:
        with suppress(TimeoutError):
            self.call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_SECONDS_MAX)
        self._loop.close()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        own = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not own]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
