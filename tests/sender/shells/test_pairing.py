"""What a pairing does in the background, with real connections: in both shells."""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.events import PingSent
from pairbus.route.router import Ping
from pairbus.servicebus.errors import PairingError
from tests.pairing.shells import bare
from tests.sender.shells.both import until
from tests.sender.shells.stage import Stage


def fail_over(stage: Stage, client: Any) -> Ping:
    """And the first ping that is due then."""
    with stage.outage:
        stage.sender(client).send_messages(ServiceBusMessage("a"))
    with bare(client).pairing.deciding() as router:
        [ping] = router.due(now=bare(client).pairing.clock() + 3600)
    assert isinstance(ping, Ping)
    return ping


def do(stage: Stage, client: Any, ping: Ping) -> None:
    """As the keeper would."""
    stage.run(bare(client).pairing._ping, ping)


def count(stage: Stage) -> int:
    """How many messages the primary's queue has."""
    with ServiceBusAdministrationClient.from_connection_string(
        stage.primary_text, connection_verify=str(stage.broker.ca_file)
    ) as admin:
        return admin.get_queue_runtime_properties("orders").total_message_count or 0


# --- pings


@pytest.mark.req("G-02")
@pytest.mark.req("F-08")
@pytest.mark.parametrize("mode", ["message", "link"])
def test_a_ping_that_is_answered_brings_the_entity_back_and_leaves_no_message(
    stage: Stage, mode: str
) -> None:
    client = stage.pair(ping_mode=mode)
    ping = fail_over(stage, client)
    before = count(stage)

    do(stage, client, ping)

    assert client.pairing.status().failed_over == ()
    assert stage.kinds()[-2:] == ["PingSent", "FailedBack"]
    assert count(stage) == before


@pytest.mark.req("G-02")
@pytest.mark.parametrize("mode", ["message", "link"])
def test_a_ping_that_is_not_answered_leaves_it_failed_over_with_the_reason(
    stage: Stage, mode: str
) -> None:
    client = stage.pair(ping_mode=mode)
    ping = fail_over(stage, client)

    with stage.outage:
        do(stage, client, ping)

    [told] = [event for event in stage.told if isinstance(event, PingSent)]
    assert not told.answered
    assert told.error is not None
    entity = client.pairing.status().entity("orders")
    assert (entity.state, entity.pings_sent, entity.pings_answered) == ("failed over", 1, 0)


@pytest.mark.req("G-03")
def test_a_ping_that_is_not_wanted_any_more_is_not_sent(stage: Stage) -> None:
    client = stage.pair()
    ping = fail_over(stage, client)
    client.pairing.mark_path_healthy("orders")

    do(stage, client, ping)

    assert "PingSent" not in stage.kinds()


@pytest.mark.req("C-02")
def test_pinging_leaves_nothing_behind(stage: Stage) -> None:
    client = stage.pair(secondary_connections="lazy")
    ping = fail_over(stage, client)
    until(lambda: not _links(stage), "what the outage broke has ended")
    before = stage.background()

    do(stage, client, ping)

    until(lambda: not stage.has_left(before), "nothing of it runs")


def _links(stage: Stage) -> list[str]:
    return [name for name in stage.background() if "_close" in name]


@pytest.mark.req("G-02")
def test_a_silent_primary_does_not_hold_a_ping_for_ever(stage: Stage) -> None:
    client = stage.pair(send_timeout=timedelta(seconds=1))
    ping = fail_over(stage, client)

    with stage.primary.faults.hang():
        do(stage, client, ping)

    [told] = [event for event in stage.told if isinstance(event, PingSent)]
    assert not told.answered


# --- connections that are kept ready


def lanes_of(client: Any) -> Any:
    return bare(client).pairing.lanes


def test_what_a_new_sender_would_divert_to_is_made_ready(stage: Stage) -> None:
    client = stage.pair()

    stage.sender(client)

    queue = client.pairing.status().entity("orders").backlog_queue
    until(lambda: lanes_of(client).has_ready(queue), "a connection is ready")


def test_where_connections_are_made_lazily_none_is_made_until_it_is_needed(stage: Stage) -> None:
    client = stage.pair(secondary_connections="lazy")
    stage.sender(client)

    assert not any(lanes_of(client).has_ready(queue) for queue in client.pairing.backlog_queues)


def test_a_connection_that_was_lost_is_made_ready_again(stage: Stage) -> None:
    client = stage.pair(backlog_queue_count=1)
    [queue] = client.pairing.backlog_queues
    stage.sender(client)
    until(lambda: lanes_of(client).has_ready(queue), "a connection is ready")
    stage.run(lanes_of(client).drop)
    assert not lanes_of(client).has_ready(queue)

    stage.sender(client)

    until(lambda: lanes_of(client).has_ready(queue), "another is ready")


# --- the secondary


def test_what_is_dangerous_about_a_queue_that_was_there_is_logged(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"{stage.name}/x-servicebus-transfer/0"
    with ServiceBusAdministrationClient.from_connection_string(
        stage.secondary_text, connection_verify=str(stage.broker.ca_file)
    ) as admin:
        admin.create_queue(name, requires_duplicate_detection=True)

    with caplog.at_level(logging.WARNING, "pairbus.pairing"):
        client = stage.pair()

    assert client.pairing is not None
    assert any(
        name in record.getMessage() and "duplicate" in record.getMessage()
        for record in caplog.records
    )


# --- another process


def test_a_child_process_cannot_send_and_its_close_leaves_the_parents_connections_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = stage.pair()
    sender = stage.sender(client)
    sender.send_messages(ServiceBusMessage("a"))
    own = os.getpid()

    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: own + 1)
        with pytest.raises(PairingError, match="make and pair a client in the child process"):
            sender.send_messages(ServiceBusMessage("b"))
        client.close()

    assert bare(sender)._running
    assert not client.pairing.status().is_closed
    # In the parent it would not be closed; here one object stands for both.
    bare(client)._state.is_closed = False
    sender.send_messages(ServiceBusMessage("c"))
