"""Many tasks that send through one paired asyncio client.

python examples/orders_asyncio.py --tasks 20 --count 50
"""

import argparse
import asyncio
import os
from datetime import timedelta

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from pairbus.aio import SendAvailabilityPairedNamespaceOptions, ServiceBusClient


async def send_some(client: ServiceBusClient, queue: str, task: int, count: int) -> None:
    async with client.get_queue_sender(queue) as sender:
        batch = await sender.create_message_batch()
        for number in range(count):
            batch.add_message(ServiceBusMessage(f"order {number} of task {task}"))
        await sender.send_messages(batch)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queue", default="orders")
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--count", type=int, default=10, help="orders of each task")
    asked = parser.parse_args()

    primary_string, secondary_string = (
        os.environ["PAIRBUS_PRIMARY"],
        os.environ["PAIRBUS_SECONDARY"],
    )
    async with (
        ServiceBusClient.from_connection_string(primary_string, retry_total=1) as primary,
        ServiceBusClient.from_connection_string(secondary_string) as secondary,
        ServiceBusAdministrationClient.from_connection_string(secondary_string) as manager,
    ):
        await primary.pair_namespace(
            SendAvailabilityPairedNamespaceOptions(
                manager, secondary, failover_interval=timedelta(0)
            )
        )
        async with asyncio.TaskGroup() as group:
            for task in range(asked.tasks):
                group.create_task(send_some(primary, asked.queue, task, asked.count))
        state = primary.pairing.status().entity(asked.queue)
        print(f"{state.sent} to the primary, {state.diverted} diverted")


if __name__ == "__main__":
    asyncio.run(main())
