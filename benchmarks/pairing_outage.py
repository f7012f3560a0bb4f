"""How long an outage takes: pairing, failing over, failing back. Prints nothing.

Each time is taken by a process of its own, this file as a program, with a primary that is killed
where that is part of it. An application's sender sends in a loop meanwhile, as fast as it can; what
is timed is what that application notices.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

import ours
import pairing_ends
from loop import LoadError
from pairbus.events import Diverted, Event, FailedBack, FailedOver
from pairing_ends import QUEUE, Ends, Shell, done

BEFORE_KILL_SECONDS = 0.2
PAUSE_SECONDS = 0.001  # while a queue is failed over for a second, which is many messages
OVER_SECONDS_MAX = 60.0
SIZE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    what: str
    titles: dict[str, str]
    """Of each time that it answers."""
    arguments: tuple[str, ...] = ()
    kills: bool = False
    is_slow: bool = False
    """Not with --quick."""


NO_RETRIES = ("--retries", "0")
MEASURES = (
    Measure(
        what="pair",
        titles={
            "made": "pairing makes 10 backlog queues",
            "found": "... finds them",
            "lazy": "... and keeps no connection ready (secondary_connections='lazy')",
        },
    ),
    Measure(
        what="kill-paired",
        titles={"noticed": "kill -9 of the primary to the first diverted message, retry_total=0"},
        arguments=NO_RETRIES,
        kills=True,
    ),
    Measure(
        what="kill-plain",
        titles={"noticed": "... to the error of a plain sender"},
        arguments=NO_RETRIES,
        kills=True,
        is_slow=True,
    ),
    Measure(
        what="kill-paired",
        titles={"noticed": "kill -9 to the first diverted message, the SDK's default retries"},
        kills=True,
        is_slow=True,
    ),
    Measure(
        what="kill-plain",
        titles={"noticed": "... to the error of a plain sender"},
        kills=True,
        is_slow=True,
    ),
    Measure(
        what="failback", titles={"home": "an answered ping to the first message on the primary"}
    ),
)


def run(
    folder: Path,
    ends: Ends,
    secondary: ours.Ours,
    turns: Sequence[Sequence[str]],
    *,
    rounds: int,
    is_quick: bool,
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Each once in a round. `turns`: the shells that are asked at once, one after the other."""
    measures = [each for each in MEASURES if not (is_quick and each.is_slow)]
    lines: list[dict[str, Any]] = [
        {"title": title, "shells": {}} for each in measures for title in each.titles.values()
    ]
    for number in range(rounds):
        for shells in turns:
            found: list[dict[str, float]] = []
            for measure in measures:
                title = next(iter(measure.titles.values()))
                progress(f"round {number + 1} of {rounds}: {title}, {', '.join(shells)}")
                with ExitStack() as stack:
                    those = dict.fromkeys(shells, ends)
                    if measure.kills:
                        those = {s: _victim(stack, folder / s, secondary) for s in shells}
                    options = ("--what", measure.what, "--name", number, *measure.arguments)
                    taken = pairing_ends.ask("pairing_outage.py", those, options)
                found += ({s: taken[s][key] for s in shells} for key in measure.titles)
            for line, times in zip(lines, found, strict=True):
                for shell, seconds in times.items():
                    line["shells"].setdefault(shell, []).append(seconds)
    return lines


def _victim(stack: ExitStack, folder: Path, secondary: ours.Ours) -> Ends:
    """The ends of a pair whose primary may be killed."""
    stack.callback(shutil.rmtree, folder)
    return Ends.of(stack.enter_context(ours.broker(folder, [QUEUE])), secondary)


# --- the process: pairing -------------------------------------------------------------------------


# The first finds no backlog queues and makes them.
PAIRINGS = {"made": "ready", "found": "ready", "lazy": "lazy"}


async def _pair(options: argparse.Namespace, ends: Ends, shell: Shell) -> None:
    found, name = {}, f"bench-{options.name}-{options.shell}"
    for key, connections in PAIRINGS.items():
        names = {"primary_namespace_name": name, "secondary_connections": connections}
        client, settings = shell.unpaired(), shell.options(**names)
        begun = time.monotonic()
        await done(client.pair_namespace(settings))
        found[key] = time.monotonic() - begun
    pairing_ends.answer(found)


# --- from `kill -9` of the primary to the first diverted message, or to the plain sender's error --


class Kill:
    """Takes the time from it to what the application notices."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._killed_at = 0.0
        self._noticed_at: float | None = None
        self._until = time.monotonic() + OVER_SECONDS_MAX

    def begin(self) -> None:
        threading.Timer(BEFORE_KILL_SECONDS, self._kill).start()

    def _kill(self) -> None:
        self._killed_at = time.monotonic()
        os.kill(self._pid, signal.SIGKILL)

    def notice(self) -> None:
        if self._noticed_at is None:
            self._noticed_at = time.monotonic()

    def observe(self, event: Event) -> None:
        if isinstance(event, Diverted):
            self.notice()

    @property
    def goes_on(self) -> bool:
        if time.monotonic() > self._until:
            raise LoadError("the primary was killed, and the sender did not notice")
        return self._noticed_at is None

    def answer(self) -> None:
        assert self._noticed_at is not None
        pairing_ends.answer({"noticed": self._noticed_at - self._killed_at})


def _retries(options: argparse.Namespace) -> dict[str, int]:
    return {} if options.retries is None else {"retry_total": options.retries}


async def _kill_paired(options: argparse.Namespace, ends: Ends, shell: Shell) -> None:
    kill, client = Kill(ends.primary_pid), shell.unpaired(**_retries(options))
    await done(client.pair_namespace(shell.options(observers=[kill.observe])))
    sender = client.get_queue_sender(QUEUE)
    await done(sender.send_messages(_message()))
    kill.begin()
    while kill.goes_on:
        await done(sender.send_messages(_message()))
    kill.answer()


async def _kill_plain(options: argparse.Namespace, ends: Ends, shell: Shell) -> None:
    kill, client = Kill(ends.primary_pid), shell.plain(ends.primary, **_retries(options))
    sender = client.get_queue_sender(QUEUE)
    await done(sender.send_messages(_message()))
    kill.begin()
    while kill.goes_on:
        try:
            await done(sender.send_messages(_message()))
        except ServiceBusError:
            kill.notice()
    kill.answer()


# --- from the answered ping to the first message on the primary -----------------------------------


class Failback:
    """Disables a queue, enables it when it has failed over, and sees when it is back. Each shell
    has a queue of its name."""

    SETTINGS = pairing_ends.AT_ONCE | {"ping_primary_interval": timedelta(seconds=1)}

    def __init__(self, ends: Ends, queue: str) -> None:
        self._administration = ends.administration()
        self._queue = self._administration.get_queue(queue)
        self._back_at: float | None = None
        self._diverted = 0
        self._diverted_before = 0
        self._until = time.monotonic() + OVER_SECONDS_MAX
        self._enabling = threading.Thread(target=self._set, args=("Active",))

    def begin(self) -> None:
        self._set("Disabled")

    def observe(self, event: Event) -> None:
        if isinstance(event, FailedOver):
            self._enabling.start()  # not here: the send that was diverted waits for us
        elif isinstance(event, FailedBack):
            self._back_at = time.monotonic()
        elif isinstance(event, Diverted):
            self._diverted += 1

    def _set(self, status: str) -> None:
        self._queue.status = status
        self._administration.update_queue(self._queue)

    def is_over(self) -> bool:
        """Asked after every send: whether that one went to the primary."""
        if time.monotonic() > self._until:
            raise LoadError("the queue was enabled again, and no message reached the primary")
        before, self._diverted_before = self._diverted_before, self._diverted
        return self._back_at is not None and self._diverted == before

    def answer(self) -> None:
        assert self._back_at is not None
        pairing_ends.answer({"home": time.monotonic() - self._back_at})


async def _failback(options: argparse.Namespace, ends: Ends, shell: Shell) -> None:
    failback, client = Failback(ends, options.shell), shell.unpaired(retry_total=0)
    settings = shell.options(**Failback.SETTINGS, observers=[failback.observe])
    await done(client.pair_namespace(settings))
    sender = client.get_queue_sender(options.shell)
    await done(sender.send_messages(_message()))
    failback.begin()
    while not failback.is_over():
        await asyncio.sleep(PAUSE_SECONDS)
        await done(sender.send_messages(_message()))
    failback.answer()


def _message() -> ServiceBusMessage:
    return ServiceBusMessage(bytes(SIZE))


WORK: dict[str, Callable[[argparse.Namespace, Ends, Shell], Awaitable[None]]] = {
    "pair": _pair,
    "kill-paired": _kill_paired,
    "kill-plain": _kill_plain,
    "failback": _failback,
}


def main() -> None:
    parser = pairing_ends.parser(__doc__)
    parser.add_argument("--what", choices=list(WORK), required=True)
    parser.add_argument("--retries", type=int, help="retry_total of the SDK; its own if not given")
    parser.add_argument("--name", help="for backlog paths: one that is new")
    options = parser.parse_args()
    ends = Ends.given(options)
    asyncio.run(WORK[options.what](options, ends, ends.shell(options.shell)))


if __name__ == "__main__":
    main()
