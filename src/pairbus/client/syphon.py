"""The plug for the syphon, which brings diverted messages home in the background of a paired
client.

The pairing starts it, tells it to stop, and watches over what it was started with: when one of the
two clients has ended and the other has not within five seconds, the other is faulted, so that no
half of a pair lives on.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from pairbus.client.sdk.errors import PairingError, SyphonNotInstalled
from pairbus.options import SendAvailabilityPairedNamespaceOptions

# What a syphon has to stop in.
STOP_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonContext:
    """What a syphon works with."""

    namespace: str
    primary: Any
    """The client of the primary namespace, blocking or asyncio as the application's own."""
    secondary: Any
    manager: Any
    backlog_queues: tuple[str, ...]
    fault: Callable[[str], None]
    """To be called, with the reason, when the syphon itself cannot go on: it faults both
    clients."""


@runtime_checkable
class Syphon(Protocol):
    """Blocking in both shells: it runs threads or processes of its own."""

    def start(self, context: SyphonContext) -> None:
        """Returns when it runs; what it raises surfaces from `pair_namespace`."""

    def stop(self, *, timeout_seconds: float) -> None:
        """Returns when nothing of it runs or is locked by it any more. Called once, also after a
        fault."""


def syphon_for(options: SendAvailabilityPairedNamespaceOptions, namespace: str) -> Syphon | None:
    """The syphon that the options ask for, not started; None if they ask for none."""
    if not options.enable_syphon:
        return None
    if options.syphon is not None:
        if not isinstance(options.syphon, Syphon):
            raise PairingError(
                "the syphon of the options needs the methods start and stop; "
                f"{type(options.syphon).__name__} has not both",
                namespace=namespace,
            )
        return options.syphon
    if importlib.util.find_spec("pyspark") is None:
        raise SyphonNotInstalled(namespace=namespace)
    made = importlib.import_module("pairbus.syphon").background()
    assert isinstance(made, Syphon)
    return made
