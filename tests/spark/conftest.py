"""A broker for each test; and for those with Spark one session, and one broker that it knows.

A Java machine reads its environment once, so the broker is there before it, and its connection
string is in the variable that the examples name.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pairbus.broker import Broker, QueueDescription
from pairbus.broker.entities.policies import Policy, Right
from tests.spark.world import KEY, VARIABLE, Bus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def make_bus() -> Iterator[Callable[..., Bus]]:
    """Make a broker with these queues: names, or names with settings."""
    brokers: list[Broker] = []

    def make(*queues: str | QueueDescription, topics: tuple[str, ...] = (), **more: Any) -> Bus:
        brokers.append(Broker(queues, topics=topics, **more).start())
        return Bus(brokers[-1])

    yield make
    for broker in brokers:
        broker.stop()


@pytest.fixture
def bus(make_bus: Callable[..., Bus]) -> Bus:
    """A broker with the queue q."""
    return make_bus("q")


SPARK_QUEUES = (
    "everything",
    "everything.copy",
    "paged",
    "locked",
    QueueDescription(name="once", requires_duplicate_detection=True),
    "plain",
    QueueDescription(name="failing", lock_duration=timedelta(seconds=5)),
    "orders",
    "returns",
    "archive",
    "replayed",
    "secret",
    "chosen.a",
    "chosen.b",
    QueueDescription(name="killed", lock_duration=timedelta(seconds=5)),
    QueueDescription(name="killed.once", requires_duplicate_detection=True),
    "killed.plain",
)
SPARK_TOPICS = ("events", "events/Subscriptions/all")


@pytest.fixture(scope="session")
def spark_bus() -> Iterator[Bus]:
    policy = Policy(name="Root", key=KEY, rights=frozenset(Right))
    with Broker(SPARK_QUEUES, topics=SPARK_TOPICS, policies=[policy]) as broker:
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = broker.connection_string
        yield Bus(broker)
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


@pytest.fixture(scope="session")
def spark(spark_bus: Bus, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    from pairbus.spark import register

    logging.getLogger("py4j").setLevel(logging.WARNING)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder: Path = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("pairbus tests")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", folder.as_uri())
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.rolling.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.warehouse.dir", (folder / "warehouse").as_uri())
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    yield session
    session.stop()
