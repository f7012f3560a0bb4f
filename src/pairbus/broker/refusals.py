"""The log of refusals: which client was refused what, and why.

Anybody who can connect can be refused as often as they like, so only the first refusals of each
period are logged, and then their number. Strangers, who have shown no valid token, have a budget of
their own: they cannot hide what happens to known clients.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 10.0
_LINES_MAX: Final = {True: 100, False: 20}
"""Lines in a period, for known clients and for strangers."""
_SHOWN_MAX: Final = 200


def peer_name(address: object) -> str:
    """`host:port` of a socket's address."""
    if not isinstance(address, tuple):
        return "a client"
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


class RefusalLog:
    def __init__(self, namespace: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._namespace = namespace
        self._clock = clock
        self._period_ends = 0.0
        self._counts = {True: 0, False: 0}

    def add(
        self,
        peer: str,
        reason: str,
        *,
        entity: str | None = None,
        policy: str | None = None,
        is_known: bool = False,
    ) -> None:
        """`entity` and `policy` as the client names them. `is_known`: it has a valid token."""
        now = self._clock()
        if now >= self._period_ends:
            self.end_period()
            self._period_ends = now + _PERIOD_SECONDS
        self._counts[is_known] += 1
        if self._counts[is_known] <= _LINES_MAX[is_known]:
            details = "".join(
                f", {noun} {value[:_SHOWN_MAX]!r}"
                for noun, value in (("entity", entity), ("policy", policy))
                if value
            )
            # The text may quote the client: it must not forge lines.
            text = " ".join(reason.splitlines())
            logger.info("namespace %s refused %s%s: %s", self._namespace, peer, details, text)

    def end_period(self) -> None:
        """Log how many refusals of the last period had no line."""
        for is_known, count in self._counts.items():
            if (hidden := count - _LINES_MAX[is_known]) > 0:
                who = "clients with a valid token" if is_known else "clients without a valid token"
                logger.info(
                    "namespace %s refused %s %d more times in %g s",
                    self._namespace, who, hidden, _PERIOD_SECONDS,
                )  # fmt: skip
            self._counts[is_known] = 0
