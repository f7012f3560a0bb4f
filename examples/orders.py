"""A sender that keeps sending through an outage, and reports what happens.

    python examples/orders.py --count 100 --pause 0.1

Take the primary down while it runs: `pairbus fault add unreachable --duration 15s` does that to a
local broker.
"""

import argparse
import os
import time
from datetime import timedelta

from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus import SendAvailabilityPairedNamespaceOptions, ServiceBusClient
from pairbus.events import Event, FailedBack, FailedOver


def report(event: Event) -> None:
    """Runs in the sending thread or in the background one, so it must be quick."""
    if isinstance(event, FailedOver):
        print(f"{event.path} fails: its messages go to {event.backlog_queue}", flush=True)
    elif isinstance(event, FailedBack):
        print(f"{event.path} is back after {event.after_seconds:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queue", default="orders")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two orders")
    asked = parser.parse_args()

    primary_string, secondary_string = (
        os.environ["PAIRBUS_PRIMARY"],
        os.environ["PAIRBUS_SECONDARY"],
    )
    with (
        # Only one retry: in an outage, the pair takes over.
        ServiceBusClient.from_connection_string(primary_string, retry_total=1) as primary,
        ServiceBusClient.from_connection_string(secondary_string) as secondary,
        ServiceBusAdministrationClient.from_connection_string(secondary_string) as manager,
    ):
        options = SendAvailabilityPairedNamespaceOptions(
            manager,
            secondary,
            failover_interval=timedelta(0),
            ping_primary_interval=timedelta(seconds=5),
            observers=[report],
        )
        primary.pair_namespace(options)
        with primary.get_queue_sender(asked.queue) as sender:
            for number in range(asked.count):
                # With your own id and duplicate detection, a message that is sent again is dropped.
                sender.send_messages(ServiceBusMessage(f"order {number}", message_id=f"{number}"))
                time.sleep(asked.pause)
        state = primary.pairing.status().entity(asked.queue)
        print(f"{state.sent} to the primary, {state.diverted} diverted")


if __name__ == "__main__":
    main()
