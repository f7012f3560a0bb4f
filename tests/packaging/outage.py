"""A paired application that sends through an outage. Runs where only the wheel is installed.

Arguments: `blocking` or `asyncio`, two connection strings and the CA file of the secondary. It
sends, prints `sent`, waits for a line on stdin (the test kills the primary meanwhile), sends again,
and prints the state of the entity and the number of diverted messages.
"""

import asyncio
import sys
from datetime import timedelta

from azure.servicebus import ServiceBusMessage


def blocking(primary: str, secondary: str, ca_file: str) -> str:
    from azure.servicebus.management import ServiceBusAdministrationClient

    from pairbus import SendAvailabilityPairedNamespaceOptions, ServiceBusClient

    with (
        ServiceBusClient.from_connection_string(primary, retry_total=0) as client,
        ServiceBusClient.from_connection_string(secondary) as backup,
        ServiceBusAdministrationClient.from_connection_string(
            secondary, connection_verify=ca_file
        ) as manager,
    ):
        options = SendAvailabilityPairedNamespaceOptions(
            manager, backup, failover_interval=timedelta(0), backlog_queue_count=1
        )
        client.pair_namespace(options)
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("before the outage"))
            print("sent", flush=True)
            sys.stdin.readline()
            sender.send_messages(ServiceBusMessage("in the outage"))
        orders = client.pairing.status().entity("orders")
        return f"{orders.state}, {orders.diverted} diverted"


async def asynchronous(primary: str, secondary: str, ca_file: str) -> str:
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

    from pairbus.aio import SendAvailabilityPairedNamespaceOptions, ServiceBusClient

    async with (
        ServiceBusClient.from_connection_string(primary, retry_total=0) as client,
        ServiceBusClient.from_connection_string(secondary) as backup,
        ServiceBusAdministrationClient.from_connection_string(
            secondary, connection_verify=ca_file
        ) as manager,
    ):
        options = SendAvailabilityPairedNamespaceOptions(
            manager, backup, failover_interval=timedelta(0), backlog_queue_count=1
        )
        await client.pair_namespace(options)
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("before the outage"))
            print("sent", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            await sender.send_messages(ServiceBusMessage("in the outage"))
        orders = client.pairing.status().entity("orders")
        return f"{orders.state}, {orders.diverted} diverted"


if __name__ == "__main__":
    shell, *arguments = sys.argv[1:]
    print(blocking(*arguments) if shell == "blocking" else asyncio.run(asynchronous(*arguments)))
