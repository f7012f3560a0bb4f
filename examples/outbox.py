"""A sender that keeps orders on this machine's disk while neither namespace accepts them.

    python examples/outbox.py outbox.db --count 100 --pause 0.1

Take both namespaces down while it runs: `pairbus fault add unreachable --duration 15s` does that to
a local broker. If you stop the program before they are back, start it again afterwards: it first
sends what waits in the file.
"""

import argparse
import os
import time
from datetime import timedelta

from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus import Outbox, SendAvailabilityPairedNamespaceOptions, ServiceBusClient
from pairbus.events import Event, OutboxOpened, StoredInOutbox


def report(event: Event) -> None:
    """Runs in the sending thread or in the background one, so it must be quick."""
    if isinstance(event, OutboxOpened):
        print(f"{event.waiting} orders of an earlier run are sent first", flush=True)
    elif isinstance(event, StoredInOutbox) and event.waiting == 1:
        print(f"neither namespace answers: orders for {event.path} are kept here", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="file of the outbox")
    parser.add_argument("--queue", default="orders")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two orders")
    parser.add_argument("--wait", type=float, default=10.0, help="seconds to wait at the end")
    asked = parser.parse_args()

    primary_string, secondary_string = (
        os.environ["PAIRBUS_PRIMARY"],
        os.environ["PAIRBUS_SECONDARY"],
    )
    with (
        ServiceBusClient.from_connection_string(primary_string, retry_total=1) as primary,
        ServiceBusClient.from_connection_string(secondary_string, retry_total=1) as secondary,
        ServiceBusAdministrationClient.from_connection_string(secondary_string) as manager,
    ):
        options = SendAvailabilityPairedNamespaceOptions(
            manager,
            secondary,
            backlog_queue_count=2,
            failover_interval=timedelta(0),
            ping_primary_interval=timedelta(seconds=5),
            outbox=Outbox(asked.file, max_bytes=100_000_000, max_age=timedelta(days=3)),
            observers=[report],
        )
        primary.pair_namespace(options)
        with primary.get_queue_sender(asked.queue) as sender:
            for number in range(asked.count):
                # When this returns, the order is in a namespace or on this disk.
                sender.send_messages(ServiceBusMessage(f"order {number}"))
                time.sleep(asked.pause)
        until = time.monotonic() + asked.wait
        while primary.pairing.status().outbox.waiting and time.monotonic() < until:
            time.sleep(0.1)
        waiting = primary.pairing.status().outbox.waiting
        print(f"{asked.count} orders accepted, {waiting} of all still wait in the outbox")


if __name__ == "__main__":
    main()
