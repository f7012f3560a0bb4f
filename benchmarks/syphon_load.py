"""Brings messages home in one of the ways that are compared. Run by syphon.py as a process.

It gets ready (a Java machine, connections), says so, and begins when it is told; then it answers
one line of JSON. What it does is what an application would do; nothing is tuned for the benchmark.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from loop import LoadError

RECEIVED_AT_ONCE = 100
PATH = b"x-ms-path"
ANSWER_SECONDS_MAX = 60.0
# After a message has come home, until the syphon waits again: the round must end first.
REST_SECONDS = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=sorted(WAYS))
    parser.add_argument("--primary", required=True, help="connection string")
    parser.add_argument("--secondary", required=True, help="connection string")
    parser.add_argument("--queues", required=True, help="backlog queues, with commas")
    parser.add_argument("--count", type=int, required=True, help="messages in those queues")
    parser.add_argument("--target", default="", help="a queue of the primary")
    options = parser.parse_args()
    options.queues = options.queues.split(",")
    found = WAYS[options.way](options)
    print(json.dumps(found), flush=True)
    # Closing takes the SDK half a second a link and Spark longer; nobody measures that.
    os._exit(0)


def _go() -> None:
    print("ready", flush=True)
    if sys.stdin.readline().strip() != "go":
        os._exit(1)


# --- the syphon -----------------------------------------------------------------------------------


def _job(options: argparse.Namespace, runner: Any, **settings: Any) -> Any:
    from pairbus.spark.settings import Address
    from pairbus.syphon.discovery import Named
    from pairbus.syphon.job import Job, SyphonOptions

    return Job(
        SyphonOptions(
            primary=Address.from_connection_string(options.primary),
            secondary=Address.from_connection_string(options.secondary),
        ),
        runner,
        Named(options.queues),
        **settings,
    )


def _spark_runner() -> Any:
    from pairbus.spark.session import local_session
    from pairbus.syphon.runner import SparkRunner

    spark, _ = local_session()
    spark.sparkContext.setLogLevel("OFF")
    return SparkRunner(spark)


def on_spark(options: argparse.Namespace) -> dict[str, Any]:
    return _drained(options, _spark_runner())


def in_one_process(options: argparse.Namespace) -> dict[str, Any]:
    from pairbus.syphon.runner import HereRunner

    return _drained(options, HereRunner())


def _drained(options: argparse.Namespace, runner: Any) -> dict[str, Any]:
    """Until the last round is over, which has waited a moment to see that nothing is left.

    A round without messages went before, as in a syphon that has been running for a while: in the
    first one Spark's workers start, and import what they need.
    """
    began = time.time()
    _job(options, runner).run(once=True)
    first_seconds = time.time() - began
    job = _job(options, runner)
    _go()
    began = time.time()
    receipts = job.run(once=True)
    ended = time.time()
    moved = sum(each.count for each in receipts if each.outcome.value == "moved")
    if moved != options.count:
        raise LoadError(f"{moved} of {options.count} messages came home: {receipts}")
    return {"seconds": ended - began, "first_seconds": first_seconds}


def wakes(options: argparse.Namespace) -> dict[str, Any]:
    """From a send to the backlog to the arrival at home, of a syphon that waits."""
    import syphon
    from pairbus.servicebus.fast import FastClient

    first = threading.Event()
    job = _job(options, _spark_runner(), progress=lambda ended: first.set())
    thread = threading.Thread(target=job.run, daemon=True)
    _go()
    thread.start()
    if not first.wait(ANSWER_SECONDS_MAX):
        raise LoadError("the syphon's first round does not end")
    found: list[float] = []
    with (
        FastClient.from_connection_string(options.primary) as home,
        FastClient.from_connection_string(options.secondary) as backlog,
    ):
        receiver = home.receiver(options.target, credit=10, mode="receiveAndDelete")
        receiver.receive(1, max_wait_seconds=0.1)
        for number in range(options.count):
            time.sleep(REST_SECONDS)
            queue = options.queues[number % len(options.queues)]
            message = syphon.backlog_message(f"wake-{number}", options.target)
            began = time.perf_counter()
            backlog.sender(queue).send_one(message)
            if not receiver.receive(1, max_wait_seconds=ANSWER_SECONDS_MAX):
                raise LoadError(f"message {number} did not come home")
            found.append(time.perf_counter() - began)
    return {"seconds": found}


# --- the obvious loop -----------------------------------------------------------------------------


def with_the_sdk(options: argparse.Namespace) -> dict[str, Any]:
    """Receive up to a hundred, send them, complete them; one of the processes, with its queues."""
    from azure.servicebus import ServiceBusClient, ServiceBusMessage

    home = ServiceBusClient.from_connection_string(options.primary)
    backlog = ServiceBusClient.from_connection_string(options.secondary)
    receivers = [backlog.get_queue_receiver(queue) for queue in options.queues]
    for receiver in receivers:
        receiver.__enter__()
    senders: dict[str, Any] = {}
    _go()
    began = time.time()
    left = options.count
    while left:
        for receiver in receivers:
            received = receiver.receive_messages(RECEIVED_AT_ONCE, max_wait_time=0.1)
            groups: dict[str, list[Any]] = {}
            for message in received:
                properties = dict(message.application_properties)
                path = properties.pop(PATH).decode()
                original = ServiceBusMessage(
                    b"".join(message.body),
                    message_id=message.message_id,
                    application_properties=properties,
                )
                groups.setdefault(path, []).append(original)
            for path, messages in groups.items():
                if path not in senders:
                    senders[path] = home.get_queue_sender(path).__enter__()
                senders[path].send_messages(messages)
            for message in received:
                receiver.complete_message(message)
            left -= len(received)
    return {"seconds": time.time() - began}


WAYS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "spark": on_spark,
    "here": in_one_process,
    "sdk": with_the_sdk,
    "wakes": wakes,
}

if __name__ == "__main__":
    main()
