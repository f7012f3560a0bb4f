"""A paired client with an outbox that sends until it is killed.

A process that has loaded everything forks a child for each line on stdin, so that a round takes
little time: `send ROUND` sends until it is killed, with the asyncio client in every second round;
`drain` ends when the outbox is empty. It prints the child's process id. The child
reports what it knows to a file, in single writes.

    python -m tests.chaos.outbox_victim PRIMARY SECONDARY CA_FILE OUTBOX REPORTS
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from datetime import timedelta

from azure.servicebus import ServiceBusMessage

from pairbus import Outbox
from pairbus.client import pairing
from pairbus.client.route import drains
from pairbus.events import Event, LeftOutbox, OutboxOpened, StoredInOutbox
from tests.pairing.shells import AsyncioShell, Shell, SyncShell, bare

QUEUES = ("plain", "exact")


def main(primary: str, secondary: str, ca_file: str, outbox: str, reports: str) -> None:
    # Shorter rests, for more turns in a round.
    pairing.QUEUE_REST_SECONDS = drains.REST_SECONDS = 0.2  # type: ignore[misc]
    child = None
    for line in sys.stdin:
        if child is not None:
            os.waitpid(child, 0)  # it was killed: now it has ended, and the file is free
        child = os.fork()
        if child == 0:
            log = os.open(reports, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                run(line.split(), primary, secondary, ca_file, outbox, log)
                os._exit(0)
            except BaseException as error:
                os.write(log, f"failed {error!r}\n".encode())
                os._exit(1)
        print(child, flush=True)


def run(
    words: list[str], primary: str, secondary: str, ca_file: str, outbox: str, log: int
) -> None:
    def report(*said: object) -> None:
        os.write(log, f"{' '.join(map(str, said))}\n".encode())

    def observe(event: Event) -> None:
        if isinstance(event, StoredInOutbox | LeftOutbox | OutboxOpened):
            report(type(event).__name__)

    is_asyncio = words[0] == "send" and int(words[1]) % 2 == 1
    shell: Shell = AsyncioShell() if is_asyncio else SyncShell()
    client = shell.client(primary, retry_total=0)
    options = shell.options(
        shell.manager(secondary, connection_verify=ca_file, retry_total=0),
        shell.client(secondary, retry_total=0),
        backlog_queue_count=2,
        failover_interval=timedelta(0),
        primary_namespace_name="east",
        outbox=Outbox(outbox),
        observers=[observe],
    )
    bare(options).ping_primary_interval = timedelta(seconds=0.2)
    client.pair_namespace(options)
    report("paired")
    if words[0] == "drain":
        while client.pairing.status().outbox.waiting:
            time.sleep(0.05)
        client.close()
        report("empty")
        return
    senders = {queue: client.get_queue_sender(queue) for queue in QUEUES}
    for number in itertools.count():
        for queue, sender in senders.items():
            id_ = f"{words[1]}-{number}"
            sender.send_messages(ServiceBusMessage("x", message_id=id_), timeout=5)
            report("sent", queue, id_)
        time.sleep(0.002)


if __name__ == "__main__":
    main(*sys.argv[1:])
