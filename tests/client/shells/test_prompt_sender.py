"""A sender of the SDK that reports a failure at once, and leaves nothing open: in both shells."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp.aio._client_async import AMQPClientAsync
from azure.servicebus._pyamqp.client import AMQPClient
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    ServiceBusConnectionError,
    ServiceBusServerBusyError,
)

from tests.client.shells.stage import Stage, link_of
from tests.waiting import wait_until

MESSAGE = ServiceBusMessage("a")


def keeping_alive(sender: Any) -> Any:
    return link_of(sender)._keep_alive_thread


def is_alive(keeping: Any) -> bool:
    return keeping.is_alive() if hasattr(keeping, "is_alive") else not keeping.done()


def sockets() -> int:
    links = []
    for number in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue  # it was that of the listing
    return sum(link.startswith("socket:") for link in links)


def opened(stage: Stage, **settings: Any) -> Any:
    """A sender with an open link, of a client that is not paired."""
    sender = stage.sender(stage.client(**settings))
    sender.send_messages(MESSAGE)
    return sender


@pytest.fixture
def keep_alive_may_end(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The SDK's own sleeps for a second at a time; here it sleeps until this is set."""
    is_over = threading.Event()

    def sleep(client: Any) -> None:
        is_over.wait(20)

    async def sleep_async(client: Any) -> None:
        await asyncio.to_thread(is_over.wait, 20)

    monkeypatch.setattr(AMQPClient, "_keep_alive", sleep)
    monkeypatch.setattr(AMQPClientAsync, "_keep_alive_async", sleep_async)
    return is_over


def test_a_lost_connection_is_reported_without_waiting_for_the_keep_alive(
    stage: Stage, keep_alive_may_end: threading.Event
) -> None:
    sender = opened(stage)
    with stage.outage:
        began = time.monotonic()

        with pytest.raises(ServiceBusConnectionError):
            sender.send_messages(MESSAGE)

        assert time.monotonic() - began < 15
    keep_alive_may_end.set()


def test_nothing_of_a_failed_link_is_left_when_the_sender_is_closed(stage: Stage) -> None:
    before = stage.background()
    sender = opened(stage)
    for _ in range(2):
        with stage.outage, pytest.raises(ServiceBusConnectionError):
            sender.send_messages(MESSAGE)
        sender.send_messages(MESSAGE)

    sender.close()

    assert not stage.has_left(before)


@pytest.mark.req("A-10")
@pytest.mark.parametrize("error", [MessageSizeExceededError, ServiceBusServerBusyError])
def test_a_link_that_survives_an_error_is_kept_alive_as_before(
    stage: Stage, error: type[Exception]
) -> None:
    sender = opened(stage)
    keeping, handler = keeping_alive(sender), link_of(sender)

    if error is MessageSizeExceededError:
        with pytest.raises(error):
            sender.send_messages(ServiceBusMessage("x" * 300_000))
    else:
        with stage.primary.faults.throttle(), pytest.raises(error):
            sender.send_messages(MESSAGE)

    assert link_of(sender) is handler
    assert keeping_alive(sender) is keeping
    assert is_alive(keeping)


@pytest.mark.req("C-02")
def test_the_socket_of_a_lost_connection_is_closed_and_not_left_to_the_collector(
    stage: Stage,
) -> None:
    sender = opened(stage)
    gc.collect()
    wait_until(lambda: sockets() > 0)
    before = sockets()
    gc.disable()
    try:
        with stage.outage, pytest.raises(ServiceBusConnectionError):
            sender.send_messages(MESSAGE)
        # Its own, and its peer's, which is in this process too.
        wait_until(lambda: sockets() <= before - 2, "both ends are closed")
    finally:
        gc.enable()


@pytest.mark.req("R-03")
def test_a_busy_service_is_reported_at_once_where_the_client_is_paired(stage: Stage) -> None:
    client = stage.client(retry_total=3)
    client.pair_namespace(stage.options())
    sender = stage.sender(client)
    sender.send_messages(MESSAGE)

    with stage.primary.faults.throttle() as busy, pytest.raises(ServiceBusServerBusyError):
        sender.send_messages(MESSAGE, timeout=5)

    assert busy.hits == 1, "no time to wait, so it is not asked again"


@pytest.mark.req("A-10")
def test_a_client_that_is_not_paired_retries_as_the_sdk_does(stage: Stage) -> None:
    sender = opened(stage, retry_total=1, retry_backoff_factor=0.01)

    with stage.primary.faults.throttle() as busy, pytest.raises(ServiceBusServerBusyError):
        sender.send_messages(MESSAGE)

    assert busy.hits == 2
