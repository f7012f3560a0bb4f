"""The dashboard behind its pages: the sources, the last hour, and the picture of this moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from pairbus.cli.target import Target
from pairbus.cost.prices import PriceList
from pairbus.dashboard.collect import Collector
from pairbus.dashboard.costs import billed_count
from pairbus.dashboard.history import History
from pairbus.dashboard.messages import Changes
from pairbus.dashboard.model import Picture, describe
from pairbus.dashboard.readings import Readings
from pairbus.dashboard.security import LoginSessions

TICK_SECONDS: Final = 0.5


class Live:
    """All pages share it. Only the event loop's thread uses it."""

    def __init__(
        self,
        collector: Collector,
        targets: Mapping[str, Target],
        changes: Changes,
        prices: PriceList,
        sessions: LoginSessions | None,
    ) -> None:
        now = time.time()
        self._collector = collector
        self._prices = prices
        self.targets = targets
        self.changes = changes
        self.sessions = sessions
        """None: no token is needed."""
        self.history = History(now=now)
        self.readings: Readings = collector.readings()
        self.picture: Picture = describe(self.readings, self.history, prices, now=now)

    def tick(self, *, now: float) -> None:
        self.readings = readings = self._collector.readings()
        operations = billed_count(readings, self._prices)
        self.history.add(readings, now=now, operations=operations)
        self.picture = describe(readings, self.history, self._prices, now=now)

    async def run(self) -> None:
        """Until it is cancelled."""
        self._collector.start()
        try:
            while True:
                self.tick(now=time.time())
                await asyncio.sleep(TICK_SECONDS)
        finally:
            self._collector.stop()
