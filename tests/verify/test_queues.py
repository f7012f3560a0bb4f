"""The queues of a run, on two brokers."""

import threading

import pytest

from pairbus.broker import Broker
from pairbus.cli.administration import Administration, EntityKind, administration
from pairbus.errors import NamespaceError
from pairbus.verify.queues import RunQueues
from pairbus.verify.worker import Pair


def pair_of(primary, secondary):
    return Pair(
        primary=primary.connection_string,
        secondary=secondary.connection_string,
        primary_ca_file=None,
        secondary_ca_file=None,
        primary_name="east",
    )


def test_without_a_secondary_a_run_does_not_start():
    with Broker() as primary:
        with Broker() as secondary:
            pair = pair_of(primary, secondary)

        with pytest.raises(NamespaceError, match="the secondary: cannot reach localhost"):
            RunQueues(pair, "1").create(deletes_itself=True)

        with administration(pair.targets[0]) as admin:
            assert admin.names(EntityKind.QUEUE) == []


def test_a_queue_that_is_gone_does_not_keep_the_other_from_being_deleted():
    with Broker() as primary, Broker() as secondary:
        pair = pair_of(primary, secondary)
        queues = RunQueues(pair, "1")
        queues.create(deletes_itself=True)
        with administration(pair.targets[0]) as admin:
            admin.delete(EntityKind.QUEUE, (queues.plain,))

            assert queues.delete(seconds=60) == []

            assert admin.names(EntityKind.QUEUE) == []


def test_a_queue_that_is_still_being_created_is_deleted(monkeypatch):
    """The answer comes after the run has been interrupted."""
    is_asked, may_answer = threading.Event(), threading.Event()
    create = Administration.create

    def create_late(*arguments, **settings):
        is_asked.set()
        may_answer.wait(60)
        create(*arguments, **settings)

    monkeypatch.setattr(Administration, "create", create_late)
    with Broker() as primary, Broker() as secondary:
        pair = pair_of(primary, secondary)
        queues = RunQueues(pair, "1")
        creating = threading.Thread(target=queues.create, kwargs={"deletes_itself": True})
        creating.start()
        is_asked.wait(60)

        assert queues.delete(seconds=0) == [queues.plain]
        may_answer.set()
        assert queues.delete(seconds=60) == []

        creating.join()
        with administration(pair.targets[0]) as admin:
            assert admin.names(EntityKind.QUEUE) == []
