"""What a pairing does in the background, with real connections: in both shells."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Any

import azure.servicebus
import azure.servicebus.aio
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusConnectionError

from pairbus.client.route.plans import Ping
from pairbus.client.sdk import private
from tests.client.shells.stage import Stage, link_of
from tests.pairing.shells import bare
from tests.waiting import wait_until


def fail_over(stage: Stage, client: Any, sender: Any = None) -> Ping:
    """Also sends the first ping that is due then."""
    with stage.outage:
        (sender or stage.sender(client)).send_messages(ServiceBusMessage("a"))
    with bare(client).pairing.decide() as router:
        [ping] = router.take_due_tasks(now=bare(client).pairing.clock() + 3600)
    assert isinstance(ping, Ping)
    return ping


def do(stage: Stage, client: Any, ping: Ping) -> None:
    """Like the background worker."""
    stage.run(bare(client).pairing.perform, ping)


# --- pings


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
    sender = stage.sender(client)
    ping = fail_over(stage, client, sender)
    sender.close()
    wait_until(lambda: not _links(stage), "what the outage broke has ended")
    before = stage.background()

    do(stage, client, ping)

    wait_until(lambda: not stage.has_left(before), "nothing of it runs")


def _links(stage: Stage) -> list[str]:
    return [name for name in stage.background() if "_close" in name]


# --- links for the way back


def is_open(sender: Any) -> bool:
    return private.is_attached(bare(sender))


@pytest.mark.req("F-08")
def test_the_links_of_an_entity_are_open_before_it_comes_back(stage: Stage) -> None:
    client = stage.pair()
    sender, another = stage.sender(client), stage.sender(client, "ORDERS")
    another.send_messages(ServiceBusMessage("before"))
    ping = fail_over(stage, client, sender)
    opened: list[tuple[str, bool, bool]] = []
    client.pairing.observe(
        lambda event: opened.append((type(event).__name__, is_open(sender), is_open(another)))
    )

    do(stage, client, ping)

    assert opened == [("PingSent", True, True), ("FailedBack", True, True)]
    links = [link_of(sender), link_of(another)]
    for each in (sender, another):
        each.send_messages(ServiceBusMessage("after"))
    assert [link_of(sender), link_of(another)] == links, "and are what is used"
    assert client.pairing.status().entity("orders").sent == 3


def test_a_sender_that_nobody_has_used_gets_no_link(stage: Stage) -> None:
    client = stage.pair()
    unused, closed = stage.sender(client), stage.sender(client)
    closed.send_messages(ServiceBusMessage("a"))
    closed.close()
    elsewhere = stage.sender(client, "others")

    do(stage, client, fail_over(stage, client))

    assert client.pairing.status().failed_over == ()
    for each in (unused, closed, elsewhere):
        assert not link_of(each)


def test_a_sender_that_was_made_in_the_outage_gets_one(stage: Stage) -> None:
    client = stage.pair()
    ping = fail_over(stage, client)
    late, entered = stage.sender(client), stage.sender(client)
    late.send_messages(ServiceBusMessage("b"))
    entered.__enter__()

    do(stage, client, ping)

    assert is_open(late)
    assert is_open(entered)


@pytest.mark.req("F-08")
def test_a_link_that_cannot_be_opened_keeps_nobody_from_the_primary(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = stage.pair()
    sender, another = stage.sender(client), stage.sender(client)
    another.send_messages(ServiceBusMessage("before"))
    ping = fail_over(stage, client, sender)

    open_link = private.open_link

    def refuse_one(each: Any, seconds: float) -> Any:
        if each is bare(sender):
            raise ServiceBusConnectionError(message="refused")
        return open_link(each, seconds)

    with monkeypatch.context() as refusing:
        refusing.setattr(private, "open_link", refuse_one)
        do(stage, client, ping)

    assert client.pairing.status().failed_over == ()
    assert is_open(another)
    assert not is_open(sender)
    sender.send_messages(ServiceBusMessage("after"))
    assert client.pairing.status().entity("orders").sent == 2


def test_a_sender_that_is_being_used_is_left_alone(stage: Stage) -> None:
    client = stage.pair()
    sender = stage.sender(client)
    ping = fail_over(stage, client, sender)
    lock = bare(sender).lock
    assert stage.run(lock.try_acquire)

    do(stage, client, ping)

    assert not link_of(sender)
    assert client.pairing.status().failed_over == ()
    stage.run(lock.release)


@pytest.mark.req("C-02")
@pytest.mark.parametrize("what", ["client", "sender"])
def test_closing_does_not_wait_for_a_link_that_is_being_opened(
    stage: Stage, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = stage.pair(secondary_connections="lazy")
    sender = stage.sender(client)
    ping = fail_over(stage, client, sender)
    pairing = bare(client).pairing
    is_hanging, senders_to_open = threading.Event(), pairing.senders_to_open
    with ExitStack() as hanging:

        def hang(ping: Ping) -> Any:
            hanging.enter_context(stage.primary.faults.hang())
            is_hanging.set()
            return senders_to_open(ping)

        monkeypatch.setattr(pairing, "senders_to_open", hang)
        pinging = threading.Thread(target=do, args=(stage, client, ping))
        pinging.start()
        assert is_hanging.wait(30)
        wait_until(lambda: link_of(sender), "it is being opened")
        began = time.monotonic()
        (client if what == "client" else sender).close()

        assert time.monotonic() - began < 30
        pinging.join(30)
        assert not pinging.is_alive()
        assert not link_of(sender)


# --- connections that are kept ready


def pool_of(client: Any) -> Any:
    return bare(client).pairing.pool


def test_what_a_new_sender_would_divert_to_is_made_ready(stage: Stage) -> None:
    client = stage.pair()

    stage.sender(client)

    queue = client.pairing.status().entity("orders").backlog_queue
    wait_until(lambda: pool_of(client).has_ready(queue), "a connection is ready")


def test_where_connections_are_made_lazily_none_is_made_until_it_is_needed(stage: Stage) -> None:
    client = stage.pair(secondary_connections="lazy")
    stage.sender(client)

    assert not any(pool_of(client).has_ready(queue) for queue in client.pairing.backlog_queues)


def test_a_connection_that_was_lost_is_made_ready_again(stage: Stage) -> None:
    client = stage.pair(backlog_queue_count=1)
    [queue] = client.pairing.backlog_queues
    stage.sender(client)
    wait_until(lambda: pool_of(client).has_ready(queue), "a connection is ready")
    stage.run(pool_of(client).drop)
    assert not pool_of(client).has_ready(queue)

    stage.sender(client)

    wait_until(lambda: pool_of(client).has_ready(queue), "another is ready")


# --- the secondary


@pytest.mark.req("X-03")
def test_a_peek_asks_for_no_message_that_the_service_would_lock(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = azure.servicebus if stage.shell.name == "sync" else azure.servicebus.aio
    create, credits = module.ServiceBusReceiver._create_handler, []

    def recorded(receiver: Any, auth: Any) -> None:
        create(receiver, auth)
        credits.append(receiver._handler._link_credit)

    monkeypatch.setattr(module.ServiceBusReceiver, "_create_handler", recorded)

    stage.pair(fail_back="ordered")  # it peeks at a backlog queue

    assert credits == [0]
