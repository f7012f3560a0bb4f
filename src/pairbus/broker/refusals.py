"""Refusals: the log of which client was refused what, and the addresses that send bad tokens.

Anybody who can connect can be refused as often as they like, so only the first refusals of each
period are logged, and then their number. Clients without a valid token have a budget of their own:
they cannot hide what happens to the others.
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 10.0
_LINES_MAX: Final = {True: 100, False: 20}
"""Log lines in a period, for clients with a valid token and for others."""
_SHOWN_MAX: Final = 200
_REASON_MAX: Final = 500
_MISSING_SECONDS: Final = 600.0
"""The time between two lines for an address that asks for the same missing entity."""
_MISSING_MAX: Final = 1000
_BAD_TOKENS_FREE: Final = 50
_DRAINED_PER_SECOND: Final = 1.0
_WAIT_SECONDS: Final = 1.0
_WAITS_MAX: Final = 30
"""An address is free of waits this many seconds after its last bad token, at the latest."""
_NETWORKS_MAX: Final = 10_000


def peer_name(address: object) -> str:
    """`host:port` of a socket's address."""
    if not isinstance(address, tuple):
        return "a client"
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def network_of(address: object) -> str:
    """What counts as one address: an IPv4 address, or the 64 bits of IPv6 that one customer has."""
    host = str(address[0]) if isinstance(address, tuple) and address else ""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(found, ipaddress.IPv4Address):
        return host
    return str(found.ipv4_mapped or found.packed[:8].hex(":", 2))


class RefusalLog:
    def __init__(self, namespace: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._namespace = namespace
        self._clock = clock
        self._period_ends = 0.0
        self._counts = {True: 0, False: 0}
        self._missing_until: dict[tuple[str, str], float] = {}
        """By address and missing entity: when it may be logged again. The oldest first."""

    def add(
        self,
        peer: str,
        reason: str,
        *,
        entity: str | None = None,
        policy: str | None = None,
        is_known: bool = False,
        is_missing: bool = False,
    ) -> None:
        """`entity` and `policy` as the client names them. `is_known`: it has a valid token.
        `is_missing`: the entity does not exist.
        """
        now = self._clock()
        if is_missing and self._has_line_already(peer, entity or "", now):
            return
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
            # The text may quote the client: it must neither forge lines nor fill the log.
            text = " ".join(reason[:_REASON_MAX].splitlines())
            logger.info("namespace %s refused %s%s: %s", self._namespace, peer, details, text)

    def _has_line_already(self, peer: str, entity: str, now: float) -> bool:
        """An idle syphon asks every five seconds for each backlog queue that does not exist."""
        key = peer.rpartition(":")[0], entity[:_SHOWN_MAX].lower()
        if now < self._missing_until.get(key, 0.0):
            return True
        self._missing_until.pop(key, None)
        self._missing_until[key] = now + _MISSING_SECONDS
        if len(self._missing_until) > _MISSING_MAX:
            del self._missing_until[next(iter(self._missing_until))]
        return False

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


class BadTokens:
    """Slows down addresses that send many bad tokens, and no others.

    A leaky bucket for each address: bad tokens fill it, and it drains with time. While it is over
    the brim, each attempt of the address costs a second.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}
        """The level and the time of the last bad token, the oldest first."""

    def add(self, network: str) -> None:
        level = min(self._level(network) + 1, _BAD_TOKENS_FREE + _WAITS_MAX)
        self._buckets.pop(network, None)
        self._buckets[network] = (level, self._clock())
        if len(self._buckets) > _NETWORKS_MAX:
            del self._buckets[next(iter(self._buckets))]

    def delay_seconds(self, network: str) -> float:
        """How long a client waits before its next token is checked."""
        return _WAIT_SECONDS if self._level(network) > _BAD_TOKENS_FREE else 0.0

    def _level(self, network: str) -> float:
        if network not in self._buckets:
            return 0.0
        level, since = self._buckets[network]
        return max(level - (self._clock() - since) * _DRAINED_PER_SECOND, 0.0)
