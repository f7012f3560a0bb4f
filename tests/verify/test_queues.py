"""The queues of a run, on two brokers."""

from pairbus.broker import Broker
from pairbus.cli.administration import EntityKind, administration
from pairbus.verify.queues import RunQueues
from pairbus.verify.worker import Pair


def test_a_queue_that_is_gone_does_not_keep_the_other_from_being_deleted():
    with Broker() as primary, Broker() as secondary:
        pair = Pair(
            primary=primary.connection_string,
            secondary=secondary.connection_string,
            primary_ca_file=None,
            secondary_ca_file=None,
            primary_name="east",
        )
        queues = RunQueues(pair, "1")
        queues.create(deletes_itself=True)
        with administration(pair.targets[0]) as admin:
            admin.delete(EntityKind.QUEUE, (queues.plain,))

            queues.delete()

            assert admin.names(EntityKind.QUEUE) == []
