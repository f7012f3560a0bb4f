"""The options of a syphon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pairbus.errors import OptionsError
from pairbus.fast.address import Address
from pairbus.syphon.long_poll import LONG_POLL_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonOptions:
    primaries: Mapping[str, Address]
    """The primaries, by their name in the paths of their backlog queues. If there is only one, it
    owns all queues and its name does not matter.
    """
    secondary: Address
    round_seconds: float = 1.75
    """How long a task works. A stop waits for the current round and then for Spark, five seconds in
    total at most."""
    chunk: int = 6_000
    """The maximum number of messages of a task that are sent but not yet settled. At most this many
    arrive twice if the task dies.
    """
    shares: int = 1
    """How many tasks may receive from one queue at once. With more than one, order is not kept."""
    ttl_keeps_running: bool = False
    """Whether the time to live keeps running while a message waits in the backlog."""
    long_poll_seconds: float = LONG_POLL_SECONDS
    begins_with_a_round: bool = True
    """Run a round at the start, which also gets Spark ready. Otherwise the first round runs when a
    message arrives."""

    def __post_init__(self) -> None:
        for address in (*self.primaries.values(), self.secondary):
            if (path := address.entity_path) is not None:
                raise OptionsError(
                    f"the connection string of {address.host} is for EntityPath {path!r} only; the "
                    "syphon needs one for the whole namespace"
                )
