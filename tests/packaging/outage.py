"""A paired application that sends through an outage. Runs where only the wheel is installed.

Arguments: `blocking` or `asyncio`, two connection strings and the CA file of the secondary. It
sends, prints `sent`, waits for a line on stdin (the test kills the primary meanwhile), sends again,
and prints the state of the entity and the number of diverted messages.
"""

import asyncio
import inspect
import sys
from datetime import timedelta
from importlib import import_module

from azure.servicebus import ServiceBusMessage


async def done(result):
    """What a call of either client returns."""
    return await result if inspect.isawaitable(result) else result


async def main(shell, primary, secondary, ca_file):
    aio = "" if shell == "blocking" else ".aio"
    management = import_module(f"azure.servicebus{aio}.management")
    pairbus = import_module(f"pairbus{aio}")
    connect = pairbus.ServiceBusClient.from_connection_string
    client, backup = connect(primary, retry_total=0), connect(secondary)
    manager = management.ServiceBusAdministrationClient.from_connection_string(
        secondary, connection_verify=ca_file
    )
    options = pairbus.SendAvailabilityPairedNamespaceOptions(
        manager, backup, failover_interval=timedelta(0), backlog_queue_count=1
    )
    await done(client.pair_namespace(options))
    sender = client.get_queue_sender("orders")
    await done(sender.send_messages(ServiceBusMessage("before the outage")))
    print("sent", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await done(sender.send_messages(ServiceBusMessage("in the outage")))
    orders = client.pairing.status().entity("orders")
    for each in (sender, client, backup, manager):
        await done(each.close())
    print(f"{orders.state}, {orders.diverted} diverted")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
