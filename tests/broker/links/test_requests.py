"""Replies of `$cbs` and `$management` on a connection that is full of unsettled messages."""

from pairbus.broker import Broker, Limits
from pairbus.fast.address import Address
from tests.fast.world import messages


def test_answers_come_also_where_a_connection_may_be_given_no_more_messages():
    with (
        Broker(["a", "b"], limits=Limits(unsettled_max=20)) as broker,
        Address.from_connection_string(broker.connection_string).client(
            timeout_seconds=30
        ) as client,
    ):
        for queue in ("a", "b"):
            client.sender(queue).send(messages(30))
        receiver = client.receiver("a", credit=30)
        taken = receiver.receive(30, max_wait_seconds=30)
        while len(taken) < 20:
            taken += receiver.receive(30, max_wait_seconds=30)

        assert len(client.management("b").peek(1, 5)) == 5  # a token for b, and a request

        receiver.complete(taken)
        assert receiver.receive(30, max_wait_seconds=30)
