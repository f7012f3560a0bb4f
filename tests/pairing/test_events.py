"""What a paired client reports: events to observers, lines in the log, and its status."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta

from prometheus_client import CollectorRegistry

from pairbus.events import (
    BacklogReadmitted,
    BacklogWithdrawn,
    Closed,
    Diverted,
    FailedBack,
    FailedOver,
    Paired,
    PingSent,
)
from pairbus.telemetry.prometheus import PrometheusObserver
from tests.pairing.world import SECOND


def test_an_outage_is_reported_in_order(world):
    queue = world.queue()
    client = world.client()
    world.pair(client, backlog_queue_count=2, ping_primary_interval=SECOND)
    sender = client.get_queue_sender(queue)
    world.send(sender, "1")
    broken = world.queue_in_use(client, queue)
    fault = world.secondary.fault("cannot_send", broken)
    with world.primary.fault("cannot_send", queue):
        world.send(sender, "2")
        world.wait_for(PingSent)
    world.wait_for(FailedBack)
    client.close()
    fault.clear()
    kinds = [type(event) for event in world.events]
    assert kinds.index(PingSent) > kinds.index(FailedOver)
    answered = [kind for kind in kinds if kind is not BacklogReadmitted][-3:]
    assert answered == [PingSent, FailedBack, Closed]
    seen = [Paired, FailedOver, BacklogWithdrawn, Diverted, FailedBack, Closed]
    # The withdrawn queue comes back after a rest, which a slow send can outlast.
    assert [kind for kind in kinds if kind not in (PingSent, BacklogReadmitted)] == seen
    assert {event.namespace for event in world.events} == {world.name}
    failed_over, diverted = world.events_of(FailedOver)[0], world.events_of(Diverted)[0]
    assert failed_over.backlog_queue == broken
    assert diverted.backlog_queue != broken
    assert (diverted.path, diverted.count) == (queue, 1)
    assert 0 < diverted.seconds < 60
    world.check(queue, primary=["1"], backlog=["2"])


def test_an_outage_is_logged_under_pairbus(world, caplog):
    caplog.set_level(logging.INFO, logger="pairbus")
    queue = world.queue()
    client = world.pair()
    sender = world.sender(client, queue)
    with world.primary.fault("cannot_send", queue):
        world.send(sender, "1")
    client.pairing.mark_path_healthy(queue)
    lines = [record for record in caplog.records if record.name.startswith("pairbus")]
    assert any(
        record.levelno >= logging.WARNING and queue in record.getMessage() for record in lines
    )
    key = world.primary.connection_string().split("SharedAccessKey=")[1].split(";")[0]
    assert not any(key in record.getMessage() for record in lines), "no secret is logged"


def test_the_status_is_a_snapshot_of_everything(world):
    failed, healthy = world.queue("failed"), world.queue("healthy")
    client = world.pair(ping_primary_interval=SECOND)
    began = datetime.now(UTC)
    to_failed, to_healthy = world.senders(client, failed, healthy)
    world.primary.fault("cannot_send", failed)
    world.send(to_failed, "1", "2")
    world.send(to_healthy, "3")
    world.wait_for(PingSent)
    status = client.pairing.status()
    by_path = {entity.path: entity for entity in status.entities}
    assert set(by_path) == {failed, healthy}
    one, other = by_path[failed], by_path[healthy]
    assert (one.state, other.state) == ("failed over", "healthy")
    assert began - timedelta(seconds=2) < one.since <= datetime.now(UTC)
    assert one.last_error.startswith("ServiceBusError: ")
    assert one.backlog_queue in status.backlog_queues
    assert (one.sent, one.diverted, one.failures, one.refused) == (0, 2, 1, 0)
    assert (other.sent, other.diverted, other.last_error) == (1, 0, None)
    assert one.pings_sent >= 1
    assert one.pings_answered == 0
    assert one.next_ping > began
    assert other.next_ping is None
    assert len(status.backlog_queues) == 3
    assert status.withdrawn == ()
    assert status.pings_sent == one.pings_sent
    shown = json.loads(json.dumps(status.as_dict()))
    assert failed in json.dumps(shown)
    world.send(to_healthy, "4")
    assert other.sent == 1, "it is a snapshot"
    assert world.entity(client, healthy).sent == 2


def test_prometheus_reads_how_much_was_sent_to_the_primary(world):
    def sent():
        labels = {"namespace": world.name, "entity": queue}
        return [one.get_sample_value("pairbus_sent_messages_total", labels) for one in registries]

    queue = world.queue()
    registries = [CollectorRegistry(), CollectorRegistry()]
    client = world.client()
    world.pair(client, observers=[PrometheusObserver(registries[0])])
    stop = client.pairing.observe(PrometheusObserver(registries[1]))
    assert sent() == [None, None]
    sender = client.get_queue_sender(queue)
    world.send(sender, "1")
    with world.primary.fault("cannot_send", queue):
        world.send(sender, "2")
    client.pairing.mark_path_healthy(queue)
    assert sent() == [1, 1]
    world.send(sender, "3", "4")
    stop()
    world.send(sender, "5")
    client.close()
    assert sent() == [4, 3]
    other = world.pair(observers=[PrometheusObserver(registries[0])])
    world.send(world.sender(other, queue), "6")
    assert sent() == [5, 3], "clients of one registry add up, also closed ones"
