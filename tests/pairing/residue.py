"""A process of its own that pairs a client, uses it, closes it, and counts what is left.

    python -m tests.pairing.residue SHELL SCENARIO JSON

It prints a word for each step and waits for a line on its standard input before the next, so that
whoever started it can break things in between. Its last line is the count. What it says on its
standard error is a warning that nobody should see.
"""

from __future__ import annotations

import asyncio
import gc
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
from tests.pairing.namespaces import wait_until

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
    """But for the loop's own pool, in which asyncio looks up names."""
    names = [thread.name for thread in threading.enumerate()]
    return sorted(name for name in names if not name.startswith(("MainThread", "asyncio_")))


def tasks() -> list[str]:
    try:
        own = asyncio.current_task()
    except RuntimeError:
        return []
    return sorted(str(task) for task in asyncio.all_tasks() if task is not own)


def processes() -> list[str]:
    """Those that this one has started."""
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


# --- blocking -------------------------------------------------------------------------------------


def run_blocking(scenario: str, case: dict[str, str]) -> dict[str, Any]:
    before = residue()
    primary = pairbus.ServiceBusClient.from_connection_string(case["primary"], retry_total=0)
    secondary = pairbus.ServiceBusClient.from_connection_string(case["secondary"], retry_total=0)
    manager = ServiceBusAdministrationClient.from_connection_string(
        case["manager"], connection_verify=case["ca_file"], retry_total=0
    )
    options = pairbus.SendAvailabilityPairedNamespaceOptions(
        manager, secondary, **settings_of(case)
    )
    errors: list[str] = []
    try:
        primary.pair_namespace(options)
    except Exception as error:
        errors.append(type(error).__name__)
    manager.close()
    gc.collect()  # the SDK's administration client keeps the socket of a refusal until then
    if scenario == "refused":
        refused = residue()
        primary.close()
        secondary.close()
        return {"before": before, "after": refused, "end": residue(), "errors": errors}
    first, second = (primary.get_queue_sender(case["queue"]) for _ in range(2))
    first.send_messages(message(1))
    stuck: list[threading.Thread] = []
    for step in scenario.split():
        say(step)
        wait_for_go()
        wait_until(lambda step=step: is_reached(step, primary.pairing.status()), step)
        if step == "stuck":  # a send that nobody answers, while the client is closed
            stuck.append(threading.Thread(target=_try, args=(first, errors)))
            stuck[0].start()
            time.sleep(0.3)
        else:
            _try(first, errors)
            _try(second, errors)
    seconds = time.monotonic()
    primary.close()
    seconds = time.monotonic() - seconds
    for thread in stuck:
        thread.join(30)
    after = residue()  # the secondary's client is still open, but nobody uses it any more
    secondary.close()
    return {
        "before": before,
        "after": after,
        "end": residue(),
        "errors": errors,
        "close_seconds": seconds,
    }


def _try(sender: Any, errors: list[str]) -> None:
    try:
        sender.send_messages(message(2))
    except Exception as error:
        errors.append(type(error).__name__)


def run_hastily_blocking(case: dict[str, str]) -> dict[str, Any]:
    """Closed while the pairing is still making its connections ready."""
    before, seconds = residue(), []
    connect = pairbus.ServiceBusClient.from_connection_string
    for delay in DELAYS_SECONDS:
        manager = ServiceBusAdministrationClient.from_connection_string(
            case["manager"], connection_verify=case["ca_file"]
        )
        with manager, connect(case["secondary"]) as secondary:
            options = pairbus.SendAvailabilityPairedNamespaceOptions(
                manager, secondary, **settings_of(case)
            )
            primary = connect(case["primary"])
            primary.pair_namespace(options)
            sender = primary.get_queue_sender(case["queue"])
            time.sleep(delay)
            began = time.monotonic()
            primary.close()
            seconds.append(time.monotonic() - began)
            del sender
    gc.collect()  # as above; a socket of ours would be warned of
    after = residue()
    return {
        "before": before,
        "after": after,
        "end": after,
        "errors": [],
        "close_seconds": max(seconds),
    }


# --- asyncio --------------------------------------------------------------------------------------


async def run_asyncio(scenario: str, case: dict[str, str]) -> dict[str, Any]:
    before = residue()
    primary = pairbus.aio.ServiceBusClient.from_connection_string(case["primary"], retry_total=0)
    secondary = pairbus.aio.ServiceBusClient.from_connection_string(
        case["secondary"], retry_total=0
    )
    manager = AsyncAdministrationClient.from_connection_string(
        case["manager"], connection_verify=case["ca_file"], retry_total=0
    )
    options = pairbus.aio.SendAvailabilityPairedNamespaceOptions(
        manager, secondary, **settings_of(case)
    )
    errors: list[str] = []
    try:
        await primary.pair_namespace(options)
    except Exception as error:
        errors.append(type(error).__name__)
    await manager.close()
    gc.collect()
    if scenario == "refused":
        refused = await settled(before)
        await primary.close()
        await secondary.close()
        return {"before": before, "after": refused, "end": residue(), "errors": errors}
    first, second = (primary.get_queue_sender(case["queue"]) for _ in range(2))
    await first.send_messages(message(1))
    stuck: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()
    for step in scenario.split():
        say(step)
        await loop.run_in_executor(None, wait_for_go)
        while not is_reached(step, primary.pairing.status()):
            await asyncio.sleep(0.05)
        if step == "stuck":
            stuck.append(asyncio.create_task(_try_later(first, errors)))
            await asyncio.sleep(0.3)
        else:
            await _try_later(first, errors)
            await _try_later(second, errors)
    seconds = time.monotonic()
    await primary.close()
    seconds = time.monotonic() - seconds
    await asyncio.gather(*stuck)
    after = await settled(before)
    await secondary.close()
    return {
        "before": before,
        "after": after,
        "end": await settled(before),
        "errors": errors,
        "close_seconds": seconds,
    }


async def run_hastily_asyncio(case: dict[str, str]) -> dict[str, Any]:
    before, seconds = residue(), []
    connect = pairbus.aio.ServiceBusClient.from_connection_string
    for delay in DELAYS_SECONDS:
        manager = AsyncAdministrationClient.from_connection_string(
            case["manager"], connection_verify=case["ca_file"]
        )
        async with manager, connect(case["secondary"]) as secondary:
            options = pairbus.aio.SendAvailabilityPairedNamespaceOptions(
                manager, secondary, **settings_of(case)
            )
            primary = connect(case["primary"])
            await primary.pair_namespace(options)
            sender = primary.get_queue_sender(case["queue"])
            await asyncio.sleep(delay)
            began = time.monotonic()
            await primary.close()
            seconds.append(time.monotonic() - began)
            del sender
    gc.collect()
    after = await settled(before)
    return {
        "before": before,
        "after": after,
        "end": after,
        "errors": [],
        "close_seconds": max(seconds),
    }


async def settled(before: dict[str, Any]) -> dict[str, Any]:
    """A transport of asyncio closes its socket in the loop's next rounds."""
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while residue() != before and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return residue()


async def _try_later(sender: Any, errors: list[str]) -> None:
    try:
        await sender.send_messages(message(2))
    except Exception as error:
        errors.append(type(error).__name__)


def main() -> None:
    # What is logged is no warning; Python would print it for want of another place.
    logging.getLogger().addHandler(logging.NullHandler())
    shell, scenario, case = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    if shell == "sync":
        hasty = scenario == "hasty"
        counted = run_hastily_blocking(case) if hasty else run_blocking(scenario, case)
    else:
        with asyncio.Runner() as runner:
            hasty = scenario == "hasty"
            run = run_hastily_asyncio(case) if hasty else run_asyncio(scenario, case)
            counted = runner.run(run)
    say(counted)


if __name__ == "__main__":
    main()
