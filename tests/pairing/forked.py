"""A process that pairs a client, forks, and uses the client on both sides.

    python -m tests.pairing.forked SHELL JSON

Prints what each side got for a send: the name of an error and its text, or `sent`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from datetime import timedelta
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio.management import (
    ServiceBusAdministrationClient as AsyncAdministrationClient,
)
from azure.servicebus.management import ServiceBusAdministrationClient

import pairbus
import pairbus.aio


def in_a_child(work: Any) -> str:
    """Returns what the work returns in a forked process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, work().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


def attempt(sender: Any, body: str) -> str:
    try:
        sender.send_messages(ServiceBusMessage(body, message_id=body))
    except Exception as error:
        return f"{type(error).__mro__[0].__name__}: {error}"
    return "sent"


def closed(client: Any) -> str:
    client.close()
    return ", and closed"


async def attempt_later(sender: Any, body: str) -> str:
    try:
        await sender.send_messages(ServiceBusMessage(body, message_id=body))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "sent"


def run_blocking(case: dict[str, str], settings: dict[str, Any]) -> dict[str, str]:
    connect = pairbus.ServiceBusClient.from_connection_string
    manager = ServiceBusAdministrationClient.from_connection_string(
        case["secondary"], connection_verify=case["ca_file"]
    )
    with connect(case["primary"]) as primary, connect(case["secondary"]) as secondary, manager:
        options = pairbus.SendAvailabilityPairedNamespaceOptions(manager, secondary, **settings)
        primary.pair_namespace(options)
        with primary.get_queue_sender(case["queue"]) as sender:
            before = attempt(sender, "before")
            child = in_a_child(lambda: attempt(sender, "child") + closed(primary))
            new = in_a_child(
                lambda: attempt(primary.get_queue_sender(case["queue"]), "new in child")
            )
            return {
                "before": before,
                "child": child,
                "new": new,
                "parent": attempt(sender, "parent"),
            }


def run_asyncio(case: dict[str, str], settings: dict[str, Any]) -> dict[str, str]:
    """Forks between two calls of the loop; the child has a loop of its own."""
    connect = pairbus.aio.ServiceBusClient.from_connection_string

    async def start() -> tuple[Any, ...]:
        manager = AsyncAdministrationClient.from_connection_string(
            case["secondary"], connection_verify=case["ca_file"]
        )
        primary, secondary = connect(case["primary"]), connect(case["secondary"])
        options = pairbus.aio.SendAvailabilityPairedNamespaceOptions(manager, secondary, **settings)
        await primary.pair_namespace(options)
        sender = primary.get_queue_sender(case["queue"])
        return sender, await attempt_later(sender, "before"), (primary, secondary, manager)

    async def new_sender(primary: Any) -> str:
        try:
            sender = primary.get_queue_sender(case["queue"])
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return await attempt_later(sender, "new in child")

    async def attempt_and_close(sender: Any, client: Any) -> str:
        answer = await attempt_later(sender, "child")
        await client.close()
        return f"{answer}, and closed"

    async def end(clients: tuple[Any, ...]) -> None:
        for client in clients:
            await client.close()

    with asyncio.Runner() as runner:
        sender, before, clients = runner.run(start())
        child = in_a_child(lambda: _on_a_loop_of_its_own(attempt_and_close(sender, clients[0])))
        new = in_a_child(lambda: _on_a_loop_of_its_own(new_sender(clients[0])))
        parent = runner.run(attempt_later(sender, "parent"))
        runner.run(end(clients))
    return {"before": before, "child": child, "new": new, "parent": parent}


def _on_a_loop_of_its_own(work: Any) -> str:
    loop = asyncio.new_event_loop()
    try:
        answer: str = loop.run_until_complete(work)
        return answer
    finally:
        loop.close()


def main() -> None:
    logging.getLogger().addHandler(logging.NullHandler())
    shell, case = sys.argv[1], json.loads(sys.argv[2])
    settings = {
        "backlog_queue_count": 1,
        "failover_interval": timedelta(0),
        "primary_namespace_name": case["name"],
    }
    run = run_blocking if shell == "sync" else run_asyncio
    print(json.dumps(run(case, settings)), flush=True)


if __name__ == "__main__":
    main()
