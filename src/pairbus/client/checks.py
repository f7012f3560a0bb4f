"""What must be true of two clients before they are paired, and what the pairing starts from."""

from __future__ import annotations

import random
from typing import Any

from pairbus.client.route.router import Router
from pairbus.client.sdk import private as internals
from pairbus.client.sdk.errors import PairingError
from pairbus.options import PairedNamespaceOptions, SendAvailabilityPairedNamespaceOptions

# How long a backlog queue that failed is left alone before a connection to it is tried, which
# costs nothing. Short, for when all of them failed at once.
REST_SECONDS = 5.0


def checked(
    client: Any, options: PairedNamespaceOptions, *, is_asyncio: bool
) -> SendAvailabilityPairedNamespaceOptions:
    """The options, claimed, if this client can be paired with them as things stand."""
    if not isinstance(options, SendAvailabilityPairedNamespaceOptions):
        raise TypeError(
            "pair_namespace takes SendAvailabilityPairedNamespaceOptions, "
            f"not {type(options).__name__}"
        )
    primary = internals.host_of(client)
    if options.is_asyncio != is_asyncio:
        ours, theirs = ("asyncio", "blocking") if is_asyncio else ("blocking", "asyncio")
        module = f"azure.servicebus{'.aio' if is_asyncio else ''} and its .management"
        raise PairingError(
            f"this client is {ours}, and the secondary's clients in the options are {theirs}; "
            f"take them from {module}",
            namespace=primary,
        )
    _check_hosts(client, options)
    _check_secondary(options)
    if not options.claim():
        raise PairingError(
            "these options have paired a client already; make new ones for each client",
            namespace=primary,
        )
    return options


def _check_secondary(options: SendAvailabilityPairedNamespaceOptions) -> None:
    secondary = options.messaging_factory
    state = getattr(secondary, "_state", None)
    host = internals.host_of(secondary)
    if state is None and options.enable_syphon:
        raise PairingError(
            "with enable_syphon=True, messaging_factory must be pairbus's ServiceBusClient and not "
            "the SDK's, which does not tell when it is closed",
            namespace=host,
        )
    if state is not None and state.is_closed:
        raise PairingError("the secondary's client has been closed", namespace=host)


def _check_hosts(client: Any, options: SendAvailabilityPairedNamespaceOptions) -> None:
    primary, secondary = internals.host_of(client), internals.host_of(options.messaging_factory)
    if internals.address_of(client) == internals.address_of(options.messaging_factory):
        raise PairingError(
            f"the secondary must be another namespace than the primary, and both are {primary!r}",
            namespace=primary,
        )
    entity = internals.entity_of(options.messaging_factory)
    if entity:
        raise PairingError(
            f"the secondary's client is bound to the entity {entity!r} (EntityPath in its "
            "connection string), so it cannot send to backlog queues; use a connection string of "
            "the namespace",
            namespace=secondary,
        )
    manager = internals.host_of(options.secondary_namespace_manager)
    if not _are_one(manager, secondary):
        raise PairingError(
            "secondary_namespace_manager and messaging_factory must be of one namespace: the "
            f"former is of {manager!r}, the latter of {secondary!r}",
            namespace=secondary,
        )


def _are_one(manager: str, client: str) -> bool:
    """Whether two hosts are one; their ports count if both have one, as local brokers do."""
    ports = [host.split("//")[-1].split("/")[0].rpartition(":")[2] for host in (manager, client)]
    if all(port.isdigit() for port in ports) and ports[0] != ports[1]:
        return False
    return _bare(manager) == _bare(client)


def _bare(host: str) -> str:
    """Without scheme, path and port: the two clients keep different parts of what they were
    given."""
    host = host.split("//")[-1].split("/")[0].lower()
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def namespace_name(client: Any, options: SendAvailabilityPairedNamespaceOptions) -> str:
    """The primary's name in the paths of backlog queues: as given, or the first label of its
    host."""
    return options.primary_namespace_name or _bare(internals.host_of(client)).split(".")[0]


def router_for(
    name: str, queues: tuple[str, ...], options: SendAvailabilityPairedNamespaceOptions
) -> Router:
    return Router(
        name,
        queues,
        failover_seconds=options.failover_interval.total_seconds(),
        ping_seconds=options.ping_primary_interval.total_seconds(),
        choose=random.choice,
        rest_seconds=REST_SECONDS,
    )
