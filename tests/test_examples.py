"""The programs of examples/, run as their first lines say. Those for Spark are in tests/spark."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

pytestmark = pytest.mark.servicebus(queues=["orders"])


def run(pair, *arguments):
    ran = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ
        | {
            "PAIRBUS_PRIMARY": pair.primary.connection_string,
            "PAIRBUS_SECONDARY": pair.secondary.connection_string,
            "REQUESTS_CA_BUNDLE": str(pair.secondary.ca_file),
            "SSL_CERT_FILE": str(pair.secondary.ca_file),
        },
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("example", ["orders.py", "orders_asyncio.py"])
def test_orders_reach_the_primary(servicebus_pair, example):
    printed = run(servicebus_pair, EXAMPLES / example, "--count", "4")

    count = 4 if example == "orders.py" else 4 * 5
    assert printed == f"{count} to the primary, 0 diverted\n"


@pytest.mark.parametrize("example", ["orders.py", "orders_asyncio.py"])
def test_orders_are_taken_in_an_outage(servicebus_pair, example):
    with servicebus_pair.primary.faults.cannot_send("orders"):
        printed = run(servicebus_pair, EXAMPLES / example, "--count", "2")

    count = 2 if example == "orders.py" else 2 * 5
    assert printed.endswith(f"0 to the primary, {count} diverted\n")
    assert len(servicebus_pair.backlog()) == count


@pytest.mark.req("X-04")
def test_orders_wait_on_the_disk_while_both_namespaces_fail(servicebus_pair, tmp_path):
    file = tmp_path / "outbox.db"
    with (
        servicebus_pair.primary.faults.cannot_send(),
        servicebus_pair.secondary.faults.cannot_send(),
    ):
        first = run(servicebus_pair, EXAMPLES / "outbox.py", file, "--count", "3", "--wait", "0")
    second = run(servicebus_pair, EXAMPLES / "outbox.py", file, "--count", "1")

    assert first.splitlines() == [
        "neither namespace answers: orders for orders are kept here",
        "3 orders accepted, 3 of all still wait in the outbox",
    ]
    assert second.splitlines() == [
        "3 orders of an earlier run are sent first",
        "1 orders accepted, 0 of all still wait in the outbox",
    ]
    with (
        servicebus_pair.client() as client,
        client.get_queue_receiver("orders") as receiver,
    ):
        bodies = [str(each) for each in receiver.peek_messages(10)]
    assert bodies == ["order 0", "order 1", "order 2", "order 0"]


def test_the_example_of_tests_passes():
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", EXAMPLES / "order_tests.py"],
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert ran.returncode == 0, ran.stdout
    assert "2 passed" in ran.stdout


def test_a_web_service_takes_requests_in_an_outage(servicebus_pair):
    example = (EXAMPLES / "web_service.py", "--requests", "4")
    assert run(servicebus_pair, *example) == "4 to the primary, 0 diverted; healthy\n"

    with servicebus_pair.primary.faults.unreachable():
        printed = run(servicebus_pair, *example)

    assert printed == "0 to the primary, 4 diverted; failed over\n"


def test_a_batch_job_ends_with_every_message_stored(servicebus_pair, tmp_path):
    outbox = ("--outbox", str(tmp_path / "job.outbox"))
    example = EXAMPLES / "batch_job.py"

    assert run(servicebus_pair, example, "--count", "3", *outbox) == (
        "3 to the primary, 0 diverted, 0 in the outbox\n"
    )
    with servicebus_pair.primary.faults.cannot_send("orders"):
        printed = run(servicebus_pair, example, "--count", "2", *outbox)

    assert printed == "0 to the primary, 2 diverted, 0 in the outbox\n"


@pytest.mark.req("X-03")
def test_ordered_sessions_are_diverted_in_an_outage(servicebus_pair):
    example = (EXAMPLES / "ordered_sessions.py", "--queue", "orders", "--count", "3")
    assert run(servicebus_pair, *example) == "3 to the primary, 0 diverted; healthy\n"

    with servicebus_pair.primary.faults.cannot_send("orders"):
        printed = run(servicebus_pair, *example)

    assert printed.startswith("orders fails: its messages wait in ")
    assert printed.endswith("0 to the primary, 3 diverted; failed over\n")
    assert [str(message) for message in servicebus_pair.backlog()] == [
        f"entry {number}" for number in range(3)
    ]
