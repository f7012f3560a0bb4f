"""A batch job has no caller that repeats a send: an outbox stores what neither namespace accepts.

    python examples/batch_job.py --count 1000 --outbox batch-job.outbox

If messages are left in the outbox at the end, the next run sends them first.
"""

import argparse
import os
from datetime import timedelta
from pathlib import Path

from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus import Outbox, SendAvailabilityPairedNamespaceOptions, ServiceBusClient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queue", default="orders")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--outbox", type=Path, default=Path("batch-job.outbox"))
    asked = parser.parse_args()

    primary_string, secondary_string = (
        os.environ["PAIRBUS_PRIMARY"],
        os.environ["PAIRBUS_SECONDARY"],
    )
    with (
        ServiceBusClient.from_connection_string(primary_string) as primary,
        ServiceBusClient.from_connection_string(secondary_string) as secondary,
        ServiceBusAdministrationClient.from_connection_string(secondary_string) as manager,
    ):
        options = SendAvailabilityPairedNamespaceOptions(
            manager,
            secondary,
            failover_interval=timedelta(0),
            failover_scope="namespace",
            send_timeout=timedelta(seconds=30),
            outbox=Outbox(asked.outbox),
        )
        primary.pair_namespace(options)
        with primary.get_queue_sender(asked.queue) as sender:
            for number in range(asked.count):
                # The row's own id: with duplicate detection, a job that runs again stores it once.
                sender.send_messages(ServiceBusMessage(f"row {number}", message_id=f"{number}"))
        status = primary.pairing.status()
        state = status.entity(asked.queue)
        waiting = status.outbox.waiting if status.outbox else 0
        print(f"{state.sent} to the primary, {state.diverted} diverted, {waiting} in the outbox")


if __name__ == "__main__":
    main()
