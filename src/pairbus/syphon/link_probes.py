"""Asks primaries that are down whether they are back: by a connection, and a link to each entity.

Nothing is sent, so nothing is billed, and the end of an outage is noticed within a few seconds.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from azure.core.exceptions import AzureError

from pairbus.fast.client import FastClient
from pairbus.fast.connection import attach_each
from pairbus.syphon.window import open_seconds

logger = logging.getLogger("pairbus.syphon")

PROBE_SECONDS = 2.0
# A primary that has been down for this long is asked less often.
LONG_SECONDS = 600.0
LONG_PROBE_SECONDS = 10.0
# Links to attach at once. The other entities have their turn next time.
LINKS_MAX = 20


@dataclass(slots=True, eq=False)
class _Probe:
    """What is asked of one primary."""

    since: float
    due: float
    count: int = 0
    thread: threading.Thread | None = None
    answer: tuple[str, ...] | None = None


class LinkProbes:
    """Use it in one thread. Each probe has its own: a primary that does not answer must not hold
    up the rounds. A thread that waits for it is a daemon, and ends within seconds."""

    def __init__(
        self, connects: Mapping[str, Callable[..., FastClient]], *, clock: Callable[[], float]
    ) -> None:
        """`connects`: for each primary, what makes a client of it, as `Address.client` does."""
        self._connects = connects
        self._clock = clock
        self._probes: dict[str, _Probe] = {}

    def poll(self, wanted: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
        """Starts the probes that are due. Returns the primaries that have answered since the last
        call, each with those of its entities that accepted a link."""
        now = self._clock()
        answers: dict[str, tuple[str, ...]] = {}
        for name in [*self._probes]:
            probe = self._probes[name]
            if probe.thread is not None:
                if probe.thread.is_alive():
                    continue
                is_long = now - probe.since > LONG_SECONDS
                pause = LONG_PROBE_SECONDS if is_long else PROBE_SECONDS
                probe.thread, probe.due = None, now + pause * random.uniform(0.9, 1.1)
                if probe.answer is not None:
                    answers[name], probe.answer = probe.answer, None
            if name not in wanted:
                del self._probes[name]
        for name, paths in wanted.items():
            probe = self._probes.setdefault(name, _Probe(since=now, due=now))
            if probe.thread is None and now >= probe.due and name not in answers:
                self._start(name, probe, paths)
        return answers

    def next_try(self, primary: str) -> float | None:
        """When a primary is asked next; None if nothing is asked of it."""
        probe = self._probes.get(primary)
        return None if probe is None else probe.due

    def _start(self, name: str, probe: _Probe, paths: Sequence[str]) -> None:
        # Entities take turns if there are many.
        first = probe.count * LINKS_MAX % max(len(paths), 1)
        chosen = [*paths[first:], *paths[:first]][:LINKS_MAX]
        seconds = open_seconds(probe.count)
        probe.count += 1
        probe.thread = threading.Thread(
            target=self._ask,
            args=(name, probe, chosen, seconds),
            name="pairbus-syphon-probe",
            daemon=True,
        )
        probe.thread.start()

    def _ask(self, name: str, probe: _Probe, paths: Sequence[str], seconds: float) -> None:
        try:
            with self._connects[name](timeout_seconds=seconds) as client:
                errors = attach_each([client.sender(path) for path in paths]) if paths else []
            probe.answer = tuple(
                path for path, error in zip(paths, errors, strict=True) if error is None
            )
        except AzureError as error:
            logger.debug("the primary %s does not answer: %s", name, error)
        except Exception:
            logger.exception("cannot probe the primary %s", name)
