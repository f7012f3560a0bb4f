"""What a connection needs of the port below it."""

from __future__ import annotations

import asyncio
from typing import Protocol


class ConnectionSlot(Protocol):
    """The connection's share of the namespace's limit, held until its socket is closed."""

    def occupy(self, owner: _Closable, transport: asyncio.BaseTransport | None = None) -> None: ...
    def free(self) -> None: ...
    def reset(self) -> None: ...


class _Closable(Protocol):
    def shutdown(self) -> None: ...
