"""Brings messages home in one of the ways to compare. syphon_movers.py runs it as a process.

It gets ready (a Java machine, connections), says so, and then carries out orders: a line of JSON
for each order and each answer. It does what an application would do. Nothing is tuned for the
benchmark.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from loop import LoadError

RECEIVED_AT_ONCE = 100
PATH = b"x-ms-path"
ANSWER_SECONDS_MAX = 60.0
# Until the syphon waits again after a message has come home: the round must end first.
REST_SECONDS = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=sorted(WAYS))
    parser.add_argument("--primary", required=True, help="connection string")
    parser.add_argument("--secondary", required=True, help="connection string")
    parser.add_argument("--queues", required=True, help="backlog queues, with commas")
    options = parser.parse_args()
    options.queues = options.queues.split(",")
    WAYS[options.way](options)
    # Closing takes half a second for each link of the SDK, and longer for Spark. Not measured.
    os._exit(0)


def _orders(**ready: Any) -> Iterator[dict[str, Any]]:
    """Until stdin is closed. The benchmark ends this process."""
    _tell(ready)
    for line in sys.stdin:
        yield json.loads(line)


def _tell(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


# --- the syphon -----------------------------------------------------------------------------------


def _job(options: argparse.Namespace, runner: Any, **settings: Any) -> Any:
    from pairbus.fast.address import Address
    from pairbus.syphon.job import Job
    from pairbus.syphon.options import SyphonOptions

    def address(name: str) -> Any:
        # With TLS, the port is not read from the text.
        tls = {key: getattr(options, f"{name}_{key}", None) for key in ("ca_file", "port")}
        return Address.from_connection_string(getattr(options, name), **tls)

    return Job(
        SyphonOptions(primaries={"contoso": address("primary")}, secondary=address("secondary")),
        runner,
        lambda: options.queues,
        **settings,
    )


def _spark_runner() -> Any:
    from pairbus.spark.session import local_session
    from pairbus.syphon.runner import SparkRunner

    spark, _ = local_session()
    spark.sparkContext.setLogLevel("OFF")
    return SparkRunner(spark)


def on_spark(options: argparse.Namespace) -> None:
    _serve(options, _spark_runner())


def in_one_process(options: argparse.Namespace) -> None:
    from pairbus.syphon.runner import InProcessRunner

    _serve(options, InProcessRunner())


def _serve(options: argparse.Namespace, runner: Any) -> None:
    """The first round has no messages: in it, Spark's workers start and import what they need. A
    syphon that has been running for a while has done that, too."""
    began = time.time()
    _job(options, runner).run(once=True)
    for order in _orders(first_seconds=time.time() - began):
        if order["do"] == "wakes":
            _tell(_wakes(options, runner, order["count"], order["target"]))
        else:
            # An order may name another way to the same namespaces: over a distance, or with TLS.
            there = argparse.Namespace(**vars(options) | order.get("ends", {}))
            _tell(_drained(there, runner, order["count"]))


def _drained(options: argparse.Namespace, runner: Any, count: int) -> dict[str, Any]:
    """Until the primary has acknowledged the last message. The job ends a moment later: it waits to
    see that nothing is left.
    """
    job = _job(options, runner)
    began = time.time()
    receipts = [each for each in job.run(once=True) if each.outcome.value == "brought_home"]
    if sum(each.count for each in receipts) != count:
        raise LoadError(f"not all of {count} messages came home: {job.left} {receipts}")
    return {"seconds": max(each.at_ms for each in receipts) / 1000 - began}


def _wakes(options: argparse.Namespace, runner: Any, count: int, target: str) -> dict[str, Any]:
    """The time from a send to the backlog to the arrival, while the syphon waits."""
    from pairbus.fast.address import Address
    from syphon_stage import backlog_message

    first = threading.Event()
    job = _job(options, runner, progress=lambda ended: first.set())
    thread = threading.Thread(target=job.run, daemon=True)
    thread.start()
    if not first.wait(ANSWER_SECONDS_MAX):
        raise LoadError("the first round of the syphon does not end")
    found: list[float] = []
    with (
        Address.from_connection_string(options.primary).client() as home,
        Address.from_connection_string(options.secondary).client() as backlog,
    ):
        receiver = home.receiver(target, credit=10, mode="receiveAndDelete")
        receiver.receive(1, max_wait_seconds=0.1)
        for number in range(count):
            time.sleep(REST_SECONDS)
            queue = options.queues[number % len(options.queues)]
            message = backlog_message(f"wake-{number}", target)
            began = time.perf_counter()
            backlog.sender(queue).send([message])
            if not receiver.receive(1, max_wait_seconds=ANSWER_SECONDS_MAX):
                raise LoadError(f"message {number} did not come home")
            found.append(time.perf_counter() - began)
    job.stop()
    thread.join(ANSWER_SECONDS_MAX)
    return {"seconds": found}


# --- the obvious loop -----------------------------------------------------------------------------


def with_the_sdk(options: argparse.Namespace) -> None:
    """Receive up to a hundred messages, send them, complete them."""
    from azure.servicebus import ServiceBusClient, ServiceBusMessage

    from syphon_stage import TARGETS

    home = ServiceBusClient.from_connection_string(options.primary)
    backlog = ServiceBusClient.from_connection_string(options.secondary)
    receivers = [backlog.get_queue_receiver(queue) for queue in options.queues]
    senders = {target: home.get_queue_sender(target) for target in TARGETS}
    with ThreadPoolExecutor() as pool:  # opening a link takes half a second and eight round trips
        list(pool.map(lambda link: link.__enter__(), [*receivers, *senders.values()]))
    for order in _orders():
        began = time.time()
        left = order["count"]
        while left:
            for receiver in receivers:
                received = receiver.receive_messages(RECEIVED_AT_ONCE, max_wait_time=0.1)
                for path, messages in _originals(received, ServiceBusMessage).items():
                    senders[path].send_messages(messages)
                for message in received:
                    receiver.complete_message(message)
                left -= len(received)
        _tell({"seconds": time.time() - began})


def _originals(received: list[Any], make: Callable[..., Any]) -> dict[str, list[Any]]:
    """The messages to send, by destination."""
    groups: dict[str, list[Any]] = {}
    for message in received:
        properties = dict(message.application_properties)
        path = properties.pop(PATH).decode()
        original = make(
            b"".join(message.body),
            message_id=message.message_id,
            application_properties=properties,
        )
        groups.setdefault(path, []).append(original)
    return groups


# --- the data source, and the obvious loops for reading and writing -------------------------------


def data_source(options: argparse.Namespace) -> None:
    """An order has a connection string: write to the queue, read it, stream it away."""
    from pairbus.spark import register
    from pairbus.spark.session import local_session

    spark, _ = local_session()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    [queue] = options.queues
    _source_rates(spark, options.secondary, queue, 10)  # so that workers have imported everything
    for order in _orders():
        found = _source_rates(spark, order["text"], queue, order["count"])
        found |= _sdk_rates(order["text"], queue, order["sdk_count"])
        _tell(found)


def _source_rates(spark: Any, text: str, queue: str, count: int) -> dict[str, float]:
    from pyspark.sql import functions as F

    where = {"connectionString": text, "queue": queue}
    rows = spark.range(count).select(F.lit(bytes(500)).alias("body"))

    def stream() -> None:
        frame = spark.readStream.format("servicebus").options(**where, receiveMode="peekLock")
        with tempfile.TemporaryDirectory() as folder:
            sink = frame.load().writeStream.format("noop").option("checkpointLocation", folder)
            sink.trigger(availableNow=True).start().awaitTermination()

    def read() -> None:
        frame = spark.read.format("servicebus").options(**where, partitions=2).load()
        frame.write.format("noop").mode("overwrite").save()

    def write() -> None:
        rows.write.format("servicebus").options(**where).mode("append").save()

    return {step.__name__: count / _seconds(step) for step in (write, read, stream)}


def _sdk_rates(text: str, queue: str, count: int) -> dict[str, float]:
    from azure.servicebus import ServiceBusClient, ServiceBusMessage

    client = ServiceBusClient.from_connection_string(text)
    sender, receiver = client.get_queue_sender(queue), client.get_queue_receiver(queue)

    def sdk_send() -> None:
        for at in range(0, count, RECEIVED_AT_ONCE):
            some = range(at, min(at + RECEIVED_AT_ONCE, count))
            sender.send_messages([ServiceBusMessage(bytes(500)) for _ in some])

    def sdk_receive() -> None:
        left = count
        while left:
            for message in receiver.receive_messages(RECEIVED_AT_ONCE, max_wait_time=0.1):
                receiver.complete_message(message)
                left -= 1

    with client, sender, receiver:
        return {step.__name__: count / _seconds(step) for step in (sdk_send, sdk_receive)}


def _seconds(step: Callable[[], None]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


WAYS: dict[str, Callable[[argparse.Namespace], None]] = {
    "source": data_source,
    "spark": on_spark,
    "here": in_one_process,
    "sdk": with_the_sdk,
}

if __name__ == "__main__":
    main()
