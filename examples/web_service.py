"""A web service: each request sends a message, and must not wait long for a namespace that is down.

    python examples/web_service.py --requests 50

In an outage of the primary, the messages are diverted, and no request fails.
"""

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus import SendAvailabilityPairedNamespaceOptions, ServiceBusClient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queue", default="orders")
    parser.add_argument("--requests", type=int, default=20)
    asked = parser.parse_args()

    primary_string, secondary_string = (
        os.environ["PAIRBUS_PRIMARY"],
        os.environ["PAIRBUS_SECONDARY"],
    )
    with (
        # One retry: it opens a new link if the service has closed an idle one.
        ServiceBusClient.from_connection_string(primary_string, retry_total=1) as primary,
        ServiceBusClient.from_connection_string(secondary_string) as secondary,
        ServiceBusAdministrationClient.from_connection_string(secondary_string) as manager,
    ):
        options = SendAvailabilityPairedNamespaceOptions(
            manager,
            secondary,
            failover_interval=timedelta(0),  # no request gets an error of the primary
            failover_scope="namespace",
            send_timeout=timedelta(seconds=5),
            fail_back_pings=2,  # do not go back to a primary that is up for a moment only
        )
        primary.pair_namespace(options)

        # All requests share one sender: to open another one takes half a second.
        with primary.get_queue_sender(asked.queue) as sender, ThreadPoolExecutor(4) as workers:

            def handle(request: int) -> None:
                sender.send_messages(ServiceBusMessage(f"request {request}"))

            list(workers.map(handle, range(asked.requests)))
        state = primary.pairing.status().entity(asked.queue)
        print(f"{state.sent} to the primary, {state.diverted} diverted; {state.state}")


if __name__ == "__main__":
    main()
