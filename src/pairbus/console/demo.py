"""`pairbus demo`: a broker in a process of its own, and a message there and back again.

The message goes through Microsoft's own SDK, because that is what users have.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pairbus.errors import BrokerError, StartError

_QUEUE: Final = "demo"
_STOP_SECONDS: Final = 15


def run() -> None:
    from azure.servicebus import ServiceBusClient, ServiceBusMessage

    print("Starting a broker: a Service Bus in one process, for this machine alone.")
    with _broker_process() as connection_string:
        print(f"It is ready. Its connection string is\n  {connection_string}")
        with ServiceBusClient.from_connection_string(connection_string) as client:
            with client.get_queue_sender(_QUEUE) as sender:
                message = ServiceBusMessage("Hello, Service Bus!")
                sender.send_messages(message)
                print(f"Sent {str(message)!r} to the queue {_QUEUE!r} with azure-servicebus.")
            with client.get_queue_receiver(_QUEUE, max_wait_time=30) as receiver:
                for received in receiver:
                    receiver.complete_message(received)
                    print(f"Received {str(received)!r} from it, and completed it.")
                    break
                else:
                    raise BrokerError("the message that was sent did not arrive within 30 seconds")
    print("The broker has stopped. That is all: no Docker, no cloud, no account.")


@contextmanager
def _broker_process() -> Iterator[str]:
    """Yields the connection string; the process is gone afterwards."""
    command = [sys.executable, "-m", "pairbus", "broker", "--memory", "--queue", _QUEUE]
    process = subprocess.Popen(
        [*command, "--log-level", "warning"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        # Ends with the first line, or with the process, whose stderr is ours and says why.
        _, ready, connection_string = process.stdout.readline().strip().partition(" ready: ")
        if not ready:
            raise StartError("the broker did not start")
        yield connection_string
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
