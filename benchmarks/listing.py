"""Lists a namespace's entities through the official administration client, once, and times it.

A generator like load.py: ready before the clock starts, with a connection that has been used (the
handshake of TLS is not what is measured). Run by topics.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

from azure.servicebus.management import ServiceBusAdministrationClient

import loop

TOPIC = "topic-0"
KINDS: dict[str, Callable[[ServiceBusAdministrationClient], Iterable[object]]] = {
    "queues": lambda admin: admin.list_queues(),
    "queues' runtime properties": lambda admin: admin.list_queues_runtime_properties(),
    "topics": lambda admin: admin.list_topics(),
    "subscriptions of a topic": lambda admin: admin.list_subscriptions(TOPIC),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connection-string", required=True)
    parser.add_argument("--ca-file", required=True)
    parser.add_argument("--kind", choices=list(KINDS), required=True)
    parser.add_argument("--count", type=int, required=True, help="how many there must be")
    options = parser.parse_args()
    with ServiceBusAdministrationClient.from_connection_string(
        options.connection_string, connection_verify=options.ca_file
    ) as admin:
        admin.get_namespace_properties()

        def work() -> None:
            found = sum(1 for _ in KINDS[options.kind](admin))
            if found != options.count:
                raise loop.LoadError(f"listed {found} {options.kind} instead of {options.count}")

        loop.measure(work, options.count)


if __name__ == "__main__":
    main()
