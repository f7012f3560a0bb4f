"""Sessions whose messages arrive in the order in which they were sent, even through an outage.

    python examples/ordered_sessions.py --count 600 --pause 0.1 --outbox accounts.outbox

The queue `accounts` requires sessions. Run a syphon beside it (`pairbus syphon`): without one,
diverted messages do not come home, and the sender keeps diverting. With an outbox, no send raises
while both namespaces are down, and order is kept in it as well.
"""

import argparse
import os
import time
from datetime import timedelta
from pathlib import Path

from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus import Outbox, SendAvailabilityPairedNamespaceOptions, ServiceBusClient
from pairbus.events import Event, FailBackDelayed, FailedBack, FailedOver, Returning


def report(event: Event) -> None:
    match event:
        case FailedOver():
            print(f"{event.path} fails: its messages wait in {event.backlog_queue}", flush=True)
        case Returning():
            print(f"{event.path} answers, and its messages come home first", flush=True)
        case FailBackDelayed():
            print(f"nothing came home for {event.seconds:.0f} s: is there a syphon?", flush=True)
        case FailedBack():
            print(f"{event.path} is back: {event.reason}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queue", default="accounts")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two entries")
    parser.add_argument("--outbox", type=Path, help="file of the outbox (default: none)")
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
            ping_primary_interval=timedelta(seconds=5),
            send_timeout=timedelta(seconds=30),
            fail_back="ordered",
            fail_back_pings=2,
            fail_back_wait_max=timedelta(hours=1),  # after that, give up order
            outbox=Outbox(asked.outbox) if asked.outbox else None,
            observers=[report],
        )
        primary.pair_namespace(options)
        with primary.get_queue_sender(asked.queue) as sender:
            for number in range(asked.count):
                account = f"account {number % 3}"
                # With your own id and duplicate detection, a second copy is dropped.
                message = ServiceBusMessage(
                    f"entry {number}", session_id=account, message_id=f"{number}"
                )
                sender.send_messages(message)
                time.sleep(asked.pause)
        state = primary.pairing.status().entity(asked.queue)
        print(f"{state.sent} to the primary, {state.diverted} diverted; {state.state}")


if __name__ == "__main__":
    main()
