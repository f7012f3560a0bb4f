"""A process of its own that pairs a client, uses it, closes it, and counts what is left.

    python -m tests.pairing.residue SHELL SCENARIO JSON

It prints a word for each step and waits for a line on its standard input before the next, so that
the test can break things in between. Its last line is the count. On its standard error it prints
warnings that nobody should see.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import logging
import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio.management import (
    ServiceBusAdministrationClient as AsyncAdministrationClient,
)
from azure.servicebus.management import ServiceBusAdministrationClient

import pairbus
import pairbus.aio

SETTLE_SECONDS_MAX = 20.0
DELAYS_SECONDS = (0.0, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4)
"""From the pairing to its end, for a client that is closed in haste: opening a link takes half a
second."""


def sockets() -> int:
    count = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
        except FileNotFoundError:  # the listing's own
            continue
    return count


def threads() -> list[str]:
    """Without the event loop's own pool, in which asyncio looks up names."""
    names = [thread.name for thread in threading.enumerate()]
    return sorted(name for name in names if not name.startswith(("MainThread", "asyncio_")))


def tasks() -> list[str]:
    own = asyncio.current_task()
    return sorted(str(task) for task in asyncio.all_tasks() if task is not own)


def processes() -> list[str]:
    """Those that this process has started."""
    lists = Path("/proc/self/task").glob("*/children")
    return sorted(pid for children in lists for pid in children.read_text().split())


def pipeline() -> list[str]:
    """The parts of the pipeline that are loaded."""
    return sorted({"pyspark", "pairbus.spark", "pairbus.syphon"} & set(sys.modules))


def residue() -> dict[str, Any]:
    return {
        "threads": threads(),
        "tasks": tasks(),
        "sockets": sockets(),
        "processes": processes(),
        "pipeline": pipeline(),
    }


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


def wait_for_go() -> None:
    sys.stdin.readline()


def settings_of(case: dict[str, str]) -> dict[str, Any]:
    return {
        "backlog_queue_count": 2,
        "failover_interval": timedelta(0),
        "ping_primary_interval": timedelta(seconds=1),
        "send_timeout": timedelta(seconds=3),
        "primary_namespace_name": case["name"],
    }


def message(number: int) -> ServiceBusMessage:
    return ServiceBusMessage(f"{number}", message_id=f"{number}")


def is_reached(step: str, status: Any) -> bool:
    """What a step waits for before it sends."""
    if step == "back":
        return not status.failed_over
    if step == "pinging":
        return bool(status.pings_sent >= 2)
    return True


class Shell:
    """The clients of one shell. What they return is awaited in either: see `done`."""

    def __init__(self, name: str, case: dict[str, str]) -> None:
        module: Any = pairbus if name == "sync" else pairbus.aio
        manager: Any = (
            ServiceBusAdministrationClient if name == "sync" else AsyncAdministrationClient
        )
        connect = module.ServiceBusClient.from_connection_string
        self.is_sync = name == "sync"
        self.queue = case["queue"]
        self.primary = connect(case["primary"], retry_total=0)
        self.secondary = connect(case["secondary"], retry_total=0)
        self.manager = manager.from_connection_string(
            case["manager"], connection_verify=case["ca_file"], retry_total=0
        )
        self.options = module.SendAvailabilityPairedNamespaceOptions(
            self.manager, self.secondary, **settings_of(case)
        )

    async def pair(self, errors: list[str]) -> None:
        try:
            await done(self.primary.pair_namespace(self.options))
        except Exception as error:
            errors.append(type(error).__name__)
        await done(self.manager.close())
        gc.collect()  # the SDK's administration client keeps the socket of a refusal until then

    async def close_primary(self) -> float:
        """Returns how long it took."""
        began = time.monotonic()
        await done(self.primary.close())
        return time.monotonic() - began

    async def left(self, before: dict[str, Any]) -> dict[str, Any]:
        """What is left now. A transport of asyncio closes its socket in the loop's next rounds."""
        deadline = time.monotonic() + (0.0 if self.is_sync else SETTLE_SECONDS_MAX)
        while residue() != before and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        return residue()

    async def try_to_send(self, sender: Any, errors: list[str]) -> None:
        try:
            if self.is_sync:  # on a thread: it may wait for as long as the test likes
                await asyncio.to_thread(sender.send_messages, message(2))
            else:
                await sender.send_messages(message(2))
        except Exception as error:
            errors.append(type(error).__name__)


async def done(result: Any) -> Any:
    """What a call of either shell returns."""
    return await result if inspect.isawaitable(result) else result


async def run(name: str, scenario: str, case: dict[str, str]) -> dict[str, Any]:
    before = residue()
    errors: list[str] = []
    shell = Shell(name, case)
    await shell.pair(errors)
    if scenario == "refused":
        refused = await shell.left(before)
        await shell.close_primary()
        await done(shell.secondary.close())
        return {"before": before, "after": refused, "end": residue(), "errors": errors}
    first, second = (shell.primary.get_queue_sender(shell.queue) for _ in range(2))
    await done(first.send_messages(message(1)))
    stuck: list[asyncio.Task[None]] = []
    for step in scenario.split():
        say(step)
        await asyncio.to_thread(wait_for_go)
        while not is_reached(step, shell.primary.pairing.status()):
            await asyncio.sleep(0.05)
        if step == "stuck":  # a send that nobody answers, while the client is closed
            stuck.append(asyncio.create_task(shell.try_to_send(first, errors)))
            await asyncio.sleep(0.3)
        else:
            await shell.try_to_send(first, errors)
            await shell.try_to_send(second, errors)
    seconds = await shell.close_primary()
    await asyncio.gather(*stuck)
    after = await shell.left(before)  # the secondary's client is open, but nobody uses it any more
    await done(shell.secondary.close())
    return {
        "before": before,
        "after": after,
        "end": await shell.left(before),
        "errors": errors,
        "close_seconds": seconds,
    }


async def run_hastily(name: str, case: dict[str, str]) -> dict[str, Any]:
    """Closes while the pairing still opens its connections."""
    before, seconds, errors = residue(), [], list[str]()
    for delay in DELAYS_SECONDS:
        shell = Shell(name, case)
        await shell.pair(errors)
        sender = shell.primary.get_queue_sender(shell.queue)
        await asyncio.sleep(delay)
        seconds.append(await shell.close_primary())
        await done(shell.secondary.close())
        del sender
    gc.collect()  # as above; a socket of ours would be warned of
    after = await shell.left(before)
    return {
        "before": before,
        "after": after,
        "end": after,
        "errors": errors,
        "close_seconds": max(seconds),
    }


def main() -> None:
    # What is logged is no warning; Python would print it for want of another place.
    logging.getLogger().addHandler(logging.NullHandler())
    name, scenario, case = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    work = run_hastily(name, case) if scenario == "hasty" else run(name, scenario, case)
    counted = asyncio.run(work)
    say(counted)


if __name__ == "__main__":
    main()
