"""The driver's loop on real brokers: in this process, and once on a real Spark."""

import threading
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

import pairbus
from pairbus.broker import Broker, QueueDescription
from pairbus.servicebus.messages import diverted
from pairbus.spark.settings import Address
from pairbus.syphon.discovery import Listed, Named
from pairbus.syphon.job import Job, SyphonError, SyphonOptions
from pairbus.syphon.ledger import ParquetLedger
from pairbus.syphon.receipts import Outcome
from pairbus.syphon.runner import HereRunner, SparkRunner

QUEUES = [f"contoso/x-servicebus-transfer/{n}" for n in range(3)]


@pytest.fixture
def brokers():
    described = ["orders", "invoices", QueueDescription(name="sessions", requires_session=True)]
    with Broker(queues=described) as primary, Broker(queues=QUEUES) as secondary:
        yield primary, secondary


def options(brokers, **settings):
    primary, secondary = brokers
    return SyphonOptions(
        primary=Address.from_connection_string(primary.connection_string),
        secondary=Address.from_connection_string(secondary.connection_string),
        **settings,
    )


def divert(brokers, queue, *pairs):
    with (
        ServiceBusClient.from_connection_string(brokers[1].connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        for message, path in pairs:
            sender.send_messages(diverted(message, path))


def received(broker, queue, **settings):
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver(queue, **settings) as receiver,
    ):
        messages = receiver.receive_messages(max_message_count=100, max_wait_time=1)
        for message in messages:
            receiver.complete_message(message)
    return messages


def moved(receipts):
    return sum(each.count for each in receipts if each.outcome is Outcome.MOVED)


@pytest.mark.req("S-01")
def test_once_drains_all_backlog_queues_and_ends(brokers, tmp_path):
    for number, queue in enumerate(QUEUES):
        divert(brokers, queue, *((ServiceBusMessage(f"{number}{n}"), "orders") for n in range(5)))
    rounds = []
    job = Job(
        options(brokers),
        HereRunner(),
        Named(QUEUES),
        ledger=ParquetLedger(tmp_path),
        progress=rounds.append,
    )

    receipts = job.run(once=True)

    assert moved(receipts) == 15
    assert len(received(brokers[0], "orders")) == 15
    assert rounds[-1].pending == ()
    [file] = tmp_path.glob("day=*/*.parquet")
    from pyarrow import parquet

    rows = parquet.read_table(file, partitioning=None).to_pylist()
    assert sum(row["count"] for row in rows if row["outcome"] == "moved") == 15
    assert {row["run"] for row in rows} == {job.run_id}


@pytest.mark.req("S-02")
def test_between_rounds_it_waits_and_a_message_that_arrives_wakes_it(brokers):
    arrived = threading.Event()
    job = Job(options(brokers), HereRunner(), Named(QUEUES), progress=lambda ended: arrived.set())
    thread = threading.Thread(target=job.run)
    thread.start()
    try:
        assert arrived.wait(20)  # the first round, which finds nothing
        arrived.clear()
        divert(brokers, QUEUES[1], (ServiceBusMessage("late"), "orders"))
        assert arrived.wait(20)
    finally:
        job.stop()
        thread.join(20)

    assert not thread.is_alive()
    assert [str(message) for message in received(brokers[0], "orders")] == ["late"]


@pytest.mark.req("S-04")
def test_what_waits_for_a_destination_goes_home_when_that_is_back(brokers):
    divert(
        brokers, QUEUES[0], (ServiceBusMessage("a"), "orders"), (ServiceBusMessage("b"), "invoices")
    )
    fault = brokers[0].faults.cannot_send(entity="orders")
    fault.__enter__()
    rounds = []

    def progress(ended):
        rounds.append(ended)
        if len(rounds) == 1:
            fault.__exit__(None, None, None)

    job = Job(options(brokers), HereRunner(), Named(QUEUES), progress=progress)
    receipts = job.run(once=True)

    assert moved(receipts) == 2
    assert any(each.outcome is Outcome.WAITING for each in rounds[0].receipts)


def test_once_says_what_is_left_where_a_destination_stays_down(brokers, monkeypatch):
    monkeypatch.setattr("pairbus.syphon.job.FRUITLESS_ROUNDS_MAX", 2)
    divert(brokers, QUEUES[0], (ServiceBusMessage("a"), "orders"))
    job = Job(options(brokers), HereRunner(), Named(QUEUES))

    with brokers[0].faults.throttle(entity="orders"):
        assert moved(job.run(once=True)) == 0

    assert "orders is throttled" in job.left
    assert len(received(brokers[1], QUEUES[0])) == 1


def test_queues_that_appear_later_are_found(brokers):
    with ServiceBusAdministrationClient.from_connection_string(
        brokers[1].connection_string, connection_verify=str(brokers[1].ca_file)
    ) as manager:
        listed = Listed(manager, "contoso")
        assert listed.queues() == QUEUES
        manager.create_queue("contoso/x-servicebus-transfer/3")
        manager.create_queue("other/x-servicebus-transfer/0")

        assert listed.queues() == [*QUEUES, "contoso/x-servicebus-transfer/3"]


def test_wrong_credentials_for_the_primary_end_the_run_and_lose_nothing(brokers):
    divert(brokers, QUEUES[0], (ServiceBusMessage("a"), "orders"))
    wrong = brokers[0].connection_string.replace("SharedAccessKey=", "SharedAccessKey=A")
    settings = SyphonOptions(
        primary=Address.from_connection_string(wrong),
        secondary=Address.from_connection_string(brokers[1].connection_string),
    )

    with pytest.raises(SyphonError, match="Send claim; nothing was lost"):
        Job(settings, HereRunner(), Named(QUEUES)).run(once=True)

    assert len(received(brokers[1], QUEUES[0])) == 1


@pytest.mark.spark
@pytest.mark.req("S-07", "S-01", "S-03", "E-04", "M-02")
def test_a_full_circle_on_spark(brokers):
    """Paired, an outage, diverted, back again, and brought home by Spark."""
    from pairbus.spark.session import local_session

    primary_broker, secondary_broker = brokers
    primary = pairbus.ServiceBusClient.from_connection_string(
        primary_broker.connection_string, retry_total=0
    )
    secondary = pairbus.ServiceBusClient.from_connection_string(secondary_broker.connection_string)
    manager = ServiceBusAdministrationClient.from_connection_string(
        secondary_broker.connection_string, connection_verify=str(secondary_broker.ca_file)
    )
    with primary, secondary, manager:
        primary.pair_namespace(
            pairbus.SendAvailabilityPairedNamespaceOptions(
                manager,
                secondary,
                backlog_queue_count=3,
                failover_interval=timedelta(0),
                primary_namespace_name="contoso",
            )
        )
        with primary_broker.faults.unreachable():
            for queue in ("orders", "invoices", "sessions"):
                with primary.get_queue_sender(queue) as sender:
                    sender.send_messages(
                        [
                            ServiceBusMessage(
                                f"{queue} {n}",
                                message_id=f"{queue}-{n}",
                                session_id="s" if queue == "sessions" else None,
                                application_properties={"n": n},
                                time_to_live=timedelta(hours=1),
                            )
                            for n in range(40)
                        ]
                    )
    spark, is_own = local_session()
    try:
        receipts = Job(options(brokers), SparkRunner(spark), Named(QUEUES)).run(once=True)
    finally:
        if is_own:
            spark.stop()

    assert moved(receipts) == 120
    for queue in ("orders", "invoices", "sessions"):
        settings = {"session_id": "s"} if queue == "sessions" else {}
        home = received(primary_broker, queue, **settings)
        assert [message.message_id for message in home] == [f"{queue}-{n}" for n in range(40)]
        assert all(set(message.application_properties) == {b"n"} for message in home)
        assert {message.time_to_live for message in home} == {timedelta(hours=1)}
