"""What must be true before two clients are paired, and before a paired sender makes a call."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from pairbus.client.sdk import private
from pairbus.client.sdk.pairing_errors import (
    PairingError,
    SequenceNumberUnknown,
    UnknownSequenceNumber,
)
from pairbus.client.state import state_of
from pairbus.options import PairedNamespaceOptions, SendAvailabilityPairedNamespaceOptions

# --- before a pairing -----------------------------------------------------------------------------


def checked(
    client: Any, options: PairedNamespaceOptions, *, is_asyncio: bool
) -> SendAvailabilityPairedNamespaceOptions:
    """Claims the options for this client. Raises if the client cannot be paired with them."""
    if not isinstance(options, SendAvailabilityPairedNamespaceOptions):
        raise TypeError(
            "pair_namespace takes SendAvailabilityPairedNamespaceOptions, "
            f"not {type(options).__name__}"
        )
    primary = client.fully_qualified_namespace
    if options.is_asyncio != is_asyncio:
        ours, theirs = ("asyncio", "blocking") if is_asyncio else ("blocking", "asyncio")
        module = f"azure.servicebus{'.aio' if is_asyncio else ''} and its .management"
        raise PairingError(
            f"this client is {ours}, and the secondary's clients in the options are {theirs}; "
            f"import them from {module}",
            namespace=primary,
        )
    _check_hosts(client, options)
    _check_secondary(options)
    if not options.claim():
        raise PairingError(
            "these options have already paired a client; make new options for each client",
            namespace=primary,
        )
    return options


def _check_secondary(options: SendAvailabilityPairedNamespaceOptions) -> None:
    state = state_of(options.messaging_factory)
    host = options.messaging_factory.fully_qualified_namespace
    if state is None and options.enable_syphon:
        raise PairingError(
            "with enable_syphon=True, messaging_factory must be pairbus's ServiceBusClient: the "
            "SDK's own does not report when it is closed",
            namespace=host,
        )
    if state is not None and state.is_closed:
        raise PairingError("the secondary's client has been closed", namespace=host)


def _check_hosts(client: Any, options: SendAvailabilityPairedNamespaceOptions) -> None:
    primary = client.fully_qualified_namespace
    secondary = options.messaging_factory.fully_qualified_namespace
    if private.address_of(client) == private.address_of(options.messaging_factory):
        raise PairingError(
            f"the primary and the secondary must be two namespaces, and both are {primary!r}",
            namespace=primary,
        )
    entity = private.entity_of(options.messaging_factory)
    if entity:
        raise PairingError(
            f"the secondary's client is bound to the entity {entity!r} (EntityPath in its "
            "connection string), so it cannot send to backlog queues; use a connection string of "
            "the namespace",
            namespace=secondary,
        )
    manager = options.secondary_namespace_manager.fully_qualified_namespace
    if not _is_same_host(manager, secondary):
        raise PairingError(
            "secondary_namespace_manager and messaging_factory must be for the same namespace: the "
            f"former is for {manager!r}, the latter for {secondary!r}",
            namespace=secondary,
        )


def _is_same_host(manager: str, client: str) -> bool:
    """Ports are compared only if both addresses have one, as with local brokers."""
    one, other = _split(manager), _split(client)
    is_same_port = None in (one.port, other.port) or one.port == other.port
    return is_same_port and one.hostname == other.hostname


def _split(host: str) -> SplitResult:
    """The two client classes store different parts of the address."""
    return urlsplit(host if "//" in host else f"//{host}")


def namespace_name(client: Any, options: SendAvailabilityPairedNamespaceOptions) -> str:
    """The primary's name in the paths of backlog queues: the option, or the first label of its host
    name.
    """
    host = _split(client.fully_qualified_namespace).hostname or ""
    return options.primary_namespace_name or host.split(".")[0]


# --- before a call --------------------------------------------------------------------------------


def check_live(sender: Any) -> None:
    """Raise if the client of a paired sender has faulted, or if the sender is closed. That is the
    SDK's own error, wherever the message would have gone.
    """
    sender.client_state.check()
    if sender.is_closed:
        raise ValueError(
            "The handler has already been shutdown. Please use ServiceBusClient to create a new "
            "instance."
        )


def check_arguments(sender: Any, timeout: float | None, kwargs: Mapping[str, Any]) -> None:
    """Raises the SDK's own errors for wrong arguments, on either namespace."""
    if kwargs:
        warnings.warn(f"Unsupported keyword args: {kwargs}", stacklevel=6)
    check_live(sender)
    if timeout is not None and timeout <= 0:
        raise ValueError("The timeout must be greater than 0.")


def check_cancellable(entity: str, sequence_numbers: Any) -> None:
    """Raise if one of the numbers stands for a message that was diverted."""
    is_list = isinstance(sequence_numbers, (list, tuple))
    for number in sequence_numbers if is_list else [sequence_numbers]:
        if isinstance(number, UnknownSequenceNumber):
            raise SequenceNumberUnknown(entity=entity, number=number)
