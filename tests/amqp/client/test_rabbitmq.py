"""Our client against RabbitMQ's AMQP 1.0 plugin, which is neither our code nor Azure's.

`scripts/setup --tests` installs Debian's rabbitmq-server if it runs as root. Without it, these
tests are skipped. The node is private to them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pairbus.amqp.client.blocking import (
    ClientReceiverLink,
    Connection,
    ConnectionLost,
    LinkLost,
)
from pairbus.amqp.codec.types import Described, ULong
from pairbus.amqp.codec.values import encode
from pairbus.amqp.outcomes import ACCEPTED, RELEASED, AmqpError, Outcome, OutcomeKind
from pairbus.amqp.sasl import SaslClient
from tests.amqp.client.clientpair import as_tuple

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
pytestmark = [
    pytest.mark.skipif(not SCRIPT.exists(), reason="rabbitmq-server is not installed"),
    pytest.mark.alone,
]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import rabbitmq

        try:
            with rabbitmq.node(tmp_path_factory.mktemp("rabbitmq")) as node:
                yield node.port
        finally:
            for name in ("rabbitmq", "loop"):
                sys.modules.pop(name, None)


def soon() -> float:
    return time.monotonic() + 60


def settle(
    connection: Connection, link: ClientReceiverLink, ids: list[int], outcome: Outcome
) -> dict[int, AmqpError]:
    return connection.settled(link, connection.begin_settling(link, ids, outcome), until=soon())


@pytest.fixture
def connection(port: int) -> Iterator[Connection]:
    connection = Connection("127.0.0.1", port, sasl=SaslClient("PLAIN", "guest", "guest"))
    connection.open(60)
    yield connection
    connection.close()
    assert connection.is_over


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """An address of which RabbitMQ makes a queue when it is first attached to."""
    return f"/queue/{request.node.name}"


def data(body: bytes) -> bytes:
    return encode(Described(ULong(0x75), body))


def send(connection: Connection, queue: str, *bodies: bytes) -> None:
    link = connection.attach_sender(queue, until=soon())
    sent = []
    for body in bodies:
        connection.wait(lambda: link.credit, soon(), "credit")
        sent.append(link.send(data(body)))
    connection.wait(lambda: all(one.outcome for one in sent), soon(), "the answers")
    assert {one.outcome.kind for one in sent if one.outcome} == {OutcomeKind.ACCEPTED}
    connection.detach(link, soon())


def receive(connection: Connection, queue: str, count: int):
    link = connection.attach_receiver(queue, as_tuple, until=soon())
    link.grant(count)
    connection.wait(lambda: len(link.inbox) >= count, soon(), "messages")
    return link, link.inbox


@pytest.mark.parametrize("size", [0, 1, 300, 70_000, 900_000])
def test_a_message_of_any_size_comes_back(connection: Connection, queue: str, size: int) -> None:
    body = bytes(index % 251 for index in range(size))
    send(connection, queue, body)
    link, [(number, _, came)] = receive(connection, queue, 1)
    assert came.endswith(data(body))
    assert settle(connection, link, [number], ACCEPTED) == {}
    connection.detach(link, soon())
    assert link.is_detached


def test_what_is_accepted_is_gone_and_what_is_not_comes_again(
    connection: Connection, queue: str
) -> None:
    send(connection, queue, *(b"%d" % number for number in range(300)))
    link, inbox = receive(connection, queue, 300)
    assert all(came.endswith(data(b"%d" % index)) for index, (_, _, came) in enumerate(inbox))
    numbers = [number for number, _, _ in inbox]
    settle(connection, link, numbers[:100], ACCEPTED)
    settle(connection, link, numbers[100:200], RELEASED)
    connection.detach(link, soon())  # the last hundred are not settled at all

    link, inbox = receive(connection, queue, 200)
    assert sorted(int(came[came.rindex(b"\xa0") + 2 :]) for _, _, came in inbox) == [
        *range(100, 300)
    ]
    settle(connection, link, [one[0] for one in inbox], ACCEPTED)
    link.inbox = []
    link.grant(10)
    assert not connection.wait_quietly(lambda: link.inbox, time.monotonic() + 0.3)


def test_credit_is_taken_back(connection: Connection, queue: str) -> None:
    send(connection, queue, b"only")
    link, _ = receive(connection, queue, 1)
    link.grant(5)
    link.drain()
    connection.wait(lambda: not link.credit, soon(), "the credit")


def test_several_links_share_a_connection(connection: Connection, queue: str) -> None:
    names = [f"{queue}-{number}" for number in range(5)]
    for name in names:
        send(connection, name, name.encode())
    for name in reversed(names):
        link, [(number, _, came)] = receive(connection, name, 1)
        assert came.endswith(data(name.encode()))
        settle(connection, link, [number], ACCEPTED)


def test_an_address_that_rabbitmq_refuses_is_told(connection: Connection) -> None:
    with pytest.raises((LinkLost, ConnectionLost)) as caught:
        connection.attach_sender("/nonsense/a/b", until=soon())
    assert caught.value.error is not None


def test_a_wrong_password_is_told(port: int) -> None:
    connection = Connection("127.0.0.1", port, sasl=SaslClient("PLAIN", "guest", "wrong"))
    with pytest.raises(ConnectionLost):
        connection.open(60)
    assert connection.is_over
