"""The options of a namespace, and the limits that protect it from its clients."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pairbus.broker.entities.descriptions import EntityDescription, QueueDescription
from pairbus.broker.entities.policies import Policy, default_policy
from pairbus.errors import ConfigError

SKUS: Final = ("Standard", "Premium")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits that protect the broker from its clients. They apply to each connection."""

    connections_max: int = 2000
    """The number of connections with a valid token to one namespace. Another one is closed."""
    unauthenticated_max: int = 1000
    """The number of connections without a valid token, in addition. HTTP counts here. At the limit,
    a new connection replaces the oldest one of the address that has the most.
    """
    unauthenticated_per_address_max: int = 500
    """The same for each client address; for IPv6, for each network of 64 bits."""
    links_max: int = 256
    unsettled_max: int = 10_000
    """Unsettled deliveries in each direction. A receiver gets no more until it settles some."""
    write_buffer_bytes_max: int = 4 * 1024 * 1024
    """Output that may wait for a slow client. Beyond it, nothing more is delivered to it."""
    handshake_seconds: float = 30.0
    """The time from accepting a connection to a complete AMQP open, including TLS."""
    token_seconds: float = 60.0
    """The time from accepting a connection to the client's first valid token."""
    idle_timeout_seconds: float = 240.0
    frame_size_max: int = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceOptions:
    """The options of one namespace of a broker."""

    name: str = "local"
    port: int = 0
    """With 0, the system chooses a free port."""
    administration_port: int | None = None
    """A second port with the same endpoints. The official emulator has one for administration and
    health. None: the namespace has one port.
    """
    queues: Sequence[QueueDescription] = ()
    topics: Sequence[EntityDescription] = ()
    """Topics first, then their subscriptions."""
    policies: Sequence[Policy] = field(default_factory=lambda: (default_policy(),))
    data: Path | None = None
    """The folder of the data file. With None, messages do not survive the process."""
    limits: Limits = field(default_factory=Limits)
    accepts_bearer: bool = False
    """Accept any bearer token (JWT) unchecked, for applications that use azure-identity."""
    allows_faults: bool = True
    """Accept faults over HTTP from every client with the Manage right. Otherwise the well-known key
    and unchecked bearer tokens are not enough. Faults in Python are always possible.
    """
    sku: str = "Standard"
    """The service's tier: Standard accepts messages up to 256 KB, Premium up to 100 MB."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,48}[A-Za-z0-9]|[A-Za-z]", self.name):
            raise ConfigError(
                f"namespace name {self.name!r} is not valid: up to 50 letters, digits and '-', "
                "starting with a letter and ending with a letter or digit"
            )
        for port in (self.port, self.administration_port or 0):
            if not 0 <= port <= 65_535:
                raise ConfigError(
                    f"namespace {self.name!r}: port {port} is not between 0 and 65535"
                )
        seen: set[str] = set()
        for entity in self.entities:
            if entity.name.lower() in seen:
                raise ConfigError(
                    f"namespace {self.name!r}: {entity.noun} {entity.name!r} is defined twice"
                )
            seen.add(entity.name.lower())
        if self.sku not in SKUS:
            raise ConfigError(
                f"namespace {self.name!r}: sku {self.sku!r} is not one of {', '.join(SKUS)}"
            )
        if not self.policies:
            raise ConfigError(f"namespace {self.name!r} needs at least one policy")

    @property
    def entities(self) -> list[EntityDescription]:
        return [*self.queues, *self.topics]
