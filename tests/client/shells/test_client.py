"""A client that is paired, closed and faulted, from any thread, at any moment: in both shells."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
import weakref
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

from pairbus.client.sdk import backlog_queues
from pairbus.client.sdk.pairing_errors import (
    ClientFaulted,
    PairingError,
)
from pairbus.client.syphon import STOP_SECONDS_MAX
from tests.client.fakes import RecordedSyphon
from tests.client.shells.both import Others, is_waiting
from tests.client.shells.stage import Stage
from tests.pairing.shells import AsyncioShell, bare
from tests.waiting import wait_until

MINUTES = timedelta(minutes=10)


def outcomes(*calls: Any) -> list[str]:
    """The outcome of each call: `ok`, or the name of its error."""
    errors = [call.exception(30) for call in calls]
    return sorted("ok" if error is None else type(error).__name__ for error in errors)


def is_faulted(client: Any) -> bool:
    try:
        client.get_queue_receiver("orders")
    except ClientFaulted:
        return True
    return False


# --- pairing


@pytest.mark.req("A-01")
@pytest.mark.req("A-11")
def test_two_that_pair_one_client_at_once_pair_it_once(stage: Stage, others: Others) -> None:
    client = stage.client()

    calls = [others.begin(client.pair_namespace, stage.options()) for _ in range(3)]

    assert outcomes(*calls) == ["PairingError", "PairingError", "ok"]
    assert client.pairing is not None


@pytest.mark.req("A-11")
def test_two_clients_that_pair_with_the_same_options_at_once_pair_once(
    stage: Stage, others: Others
) -> None:
    clients = [stage.client() for _ in range(3)]
    options = stage.options()

    calls = [others.begin(client.pair_namespace, options) for client in clients]

    assert outcomes(*calls) == ["PairingError", "PairingError", "ok"]
    assert [client.pairing is None for client in clients].count(True) == 2


def test_an_observer_that_is_notified_of_the_pairing_finds_it(stage: Stage) -> None:
    client = stage.client()
    found: list[Any] = []

    def look(event: Any) -> None:
        if type(event).__name__ == "Paired":
            found.append(bare(client).pairing.status().backlog_queues)
            found.append(options_of(client).is_paired)

    client.pair_namespace(stage.options(observers=[look]))

    assert found == [client.pairing.backlog_queues, True]


def options_of(client: Any) -> Any:
    return bare(client).pairing.options


# --- closing


def close_soon(stage: Stage, client: Any) -> None:
    """Like an observer of the application."""
    if isinstance(stage.shell, AsyncioShell):
        closing = asyncio.get_running_loop().create_task(bare(client).close())
        closing.add_done_callback(lambda task: task.result())
    else:
        client.close()


@pytest.mark.req("C-02")
def test_a_client_that_is_closed_when_it_is_notified_of_its_pairing_is_closed(stage: Stage) -> None:
    client = stage.client()
    before = stage.background()
    options = stage.options(observers=[lambda event: close_soon(stage, client)])

    client.pair_namespace(options)

    wait_until(lambda: not stage.has_left(before), "nothing of it runs")
    with pytest.raises(ValueError, match="has been closed"):
        stage.sender(client)


@pytest.mark.req("C-02")
def test_a_client_that_is_closed_while_it_is_paired_stays_unpaired(
    stage: Stage, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = stage.client()
    options = stage.options()
    before = stage.background()
    steps_for = backlog_queues.steps_for

    def prepare_and_close(namespace: Any, options: Any) -> Any:
        found = yield from steps_for(namespace, options)
        yield bare(client).close
        return found

    monkeypatch.setattr(backlog_queues, "steps_for", prepare_and_close)

    with pytest.raises(PairingError, match="has been closed"):
        client.pair_namespace(options)

    assert client.pairing is None
    assert not options.is_paired
    wait_until(lambda: not stage.has_left(before), "nothing of it runs")


@pytest.mark.req("C-02")
@pytest.mark.parametrize("is_paired", [True, False])
def test_a_client_can_be_closed_while_another_thread_makes_a_receiver(
    stage: Stage, is_paired: bool
) -> None:
    client = stage.pair() if is_paired else stage.client()
    sender = bare(client.get_queue_sender("orders"))
    close = sender.close

    def make_a_receiver_and_close() -> Any:
        bare(client).get_queue_receiver("orders")
        return close()

    sender.close = make_a_receiver_and_close

    client.close()

    with pytest.raises(ValueError, match="already been shutdown"):
        stage.run(sender.send_messages, ServiceBusMessage("a"))


@pytest.mark.req("C-02")
def test_a_client_may_be_closed_twice_and_by_many_at_once(stage: Stage, others: Others) -> None:
    before = stage.background()
    client = stage.pair()
    with client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("a"))

    calls = [others.begin(client.close) for _ in range(3)]

    assert outcomes(*calls) == ["ok", "ok", "ok"]
    client.close()
    wait_until(lambda: not stage.has_left(before), "nothing of it runs")
    assert stage.kinds().count("Closed") == 1


@pytest.mark.req("C-02")
@pytest.mark.parametrize("moment", ["FailedOver", "Diverted"])
def test_a_client_may_be_closed_by_an_observer_of(stage: Stage, moment: str) -> None:
    before = stage.background()
    client = stage.pair(secondary_connections="lazy")
    sender = stage.sender(client)

    def close(event: Any) -> None:
        if type(event).__name__ == moment:
            close_soon(stage, client)

    client.pairing.observe(close)
    errors: list[Exception] = []
    with stage.outage:
        try:
            sender.send_messages(ServiceBusMessage("a"))
        except Exception as error:
            errors.append(error)

    assert not errors or "closed" in str(errors[0]), "safe, or refused because it is closed"
    assert client.pairing.status().entity("orders").diverted == (not errors)
    wait_until(lambda: not stage.has_left(before), "nothing of it runs")


@pytest.mark.req("C-02")
@pytest.mark.req("G-03")
def test_a_client_may_be_closed_by_an_observer_of_a_ping(stage: Stage) -> None:
    before = stage.background()
    client = stage.pair(ping_primary_interval=timedelta(seconds=1))
    pings: list[Any] = []

    def close(event: Any) -> None:
        if type(event).__name__ == "PingSent":
            close_soon(stage, client)
            pings.append(event)

    with stage.outage:
        stage.sender(client).send_messages(ServiceBusMessage("a"))
        # Only now: on a busy machine, a ping may be sent before the call has returned.
        client.pairing.observe(close)
        wait_until(lambda: pings, "a ping was sent")

    wait_until(lambda: not stage.has_left(before), "nothing of it runs")
    assert len(pings) == 1


@pytest.mark.req("C-02")
@pytest.mark.parametrize(
    ("fault", "interval", "count", "error"),
    [
        # The error says that the client was closed, not that the primary did not answer.
        pytest.param("hang", timedelta(0), 1, ValueError, id="a silent primary"),
        pytest.param("hang", MINUTES, 10, Exception, id="a silent primary, all share a sender"),
        pytest.param("throttle", MINUTES, 1, ServiceBusServerBusyError, id="a busy primary"),
    ],
)
def test_closing_ends_sends_that_wait_for(
    stage: Stage,
    others: Others,
    fault: str,
    interval: timedelta,
    count: int,
    error: type[Exception],
) -> None:
    before = stage.background()
    client = stage.pair(send_timeout=MINUTES, failover_interval=interval)
    sender = stage.sender(client)
    with getattr(stage.primary.faults, fault)():
        calls = [others.begin(sender.send_messages, ServiceBusMessage("a")) for _ in range(count)]
        if fault == "throttle":
            wait_until(lambda: "Throttled" in stage.kinds(), "it is throttled")
        assert is_waiting(calls[0], 0.5)
        began = time.monotonic()

        client.close()

        assert time.monotonic() - began < 30
        assert all(isinstance(call.exception(30), error) for call in calls)
    wait_until(lambda: not stage.has_left(before), "nothing of it runs")


@pytest.mark.req("C-02")
@pytest.mark.parametrize("seconds", [0.005, 0.02, 0.05, 0.2])
def test_closing_leaves_nothing_of_a_link_that_is_just_being_opened(
    stage: Stage, others: Others, seconds: float
) -> None:
    before = stage.background()
    client = stage.pair(secondary_connections="lazy")
    sender = stage.sender(client)
    call = others.begin(sender.send_messages, ServiceBusMessage("a"))
    time.sleep(seconds)  # opening takes the SDK half a second

    client.close()

    error = call.exception(30)
    assert error is None or (isinstance(error, ValueError) and "closed" in str(error))
    wait_until(lambda: not stage.has_left(before), "nothing of it runs")


@pytest.mark.req("C-02")
def test_closing_with_sends_under_way_loses_no_send_that_was_acknowledged(
    stage: Stage, others: Others
) -> None:
    client = stage.pair()
    sender = stage.sender(client)
    counts = {"sent": 0, "diverted": 0}

    def send_until_closed() -> BaseException:
        for _ in range(100_000):
            try:
                sender.send_messages(ServiceBusMessage("a"))
            except Exception as error:
                return error
            counts["sent"] += 1
        raise AssertionError("it was never closed")

    calls = [others.begin(send_until_closed) for _ in range(8)]
    wait_until(lambda: counts["sent"] > 50, "some are sent")
    with stage.outage:
        wait_until(lambda: stage.kinds().count("Diverted") > 20, "some are diverted")
        status = client.pairing.status
        client.close()
        errors = [call.result(30) for call in calls]

    assert {type(error) for error in errors} == {ValueError}
    entity = status().entity("orders")
    # What was counted as sent or diverted is at least what the callers know of.
    assert entity.sent + entity.diverted >= counts["sent"]


# --- faulting


@pytest.mark.req("C-01")
@pytest.mark.parametrize("is_paired", [True, False])
def test_a_faulted_client_reports_the_reason_for_every_call(stage: Stage, is_paired: bool) -> None:
    client = stage.pair() if is_paired else stage.client()
    sender = stage.sender(client)
    sender.send_messages(ServiceBusMessage("a"))
    later = datetime.now(UTC) + timedelta(hours=1)

    client.fault("its partner is gone")

    for ask in (
        lambda: sender.send_messages(ServiceBusMessage("a")),
        lambda: sender.schedule_messages(ServiceBusMessage("a"), later),
        lambda: sender.cancel_scheduled_messages(1),
        sender.create_message_batch,
        sender.__enter__,
        lambda: stage.sender(client),
        lambda: client.get_topic_sender("orders"),
        lambda: client.get_queue_receiver("orders"),
        lambda: client.get_subscription_receiver("orders", "all"),
        lambda: client.pair_namespace(stage.options()),
    ):
        with pytest.raises(ClientFaulted, match="its partner is gone") as caught:
            ask()
        assert caught.value.which == ("primary" if is_paired else "secondary")


@pytest.mark.req("C-01")
@pytest.mark.parametrize("is_paired", [True, False])
def test_a_call_under_way_while_its_client_faults_reports_only_that(
    stage: Stage, others: Others, is_paired: bool
) -> None:
    client = stage.pair() if is_paired else stage.client()
    senders = [stage.sender(client) for _ in range(4)]

    def send_until_it_fails(sender: Any) -> BaseException:
        for _ in range(100_000):
            try:
                sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
            except Exception as error:
                return error
        raise AssertionError("it never failed")

    for sender in senders:
        sender.send_messages(ServiceBusMessage("a"))
    with stage.primary.faults.hang():
        calls = [others.begin(send_until_it_fails, sender) for sender in senders]
        assert all(is_waiting(call) for call in calls)
        ends = [others.begin(client.fault, "its partner is gone")]
        wait_until(lambda: is_faulted(client), "it has faulted")
        ends += [others.begin(client.close) for _ in range(3)]
        errors = [call.result(30) for call in calls]

    assert {type(error) for error in errors} == {ClientFaulted}
    assert all(error.__cause__ is not None for error in errors), "what the call ran into"
    assert outcomes(*ends) == ["ok"] * 4


# --- the syphon


@pytest.mark.req("A-06")
@pytest.mark.req("A-07")
def test_a_syphon_that_does_not_start_leaves_the_client_unpaired(stage: Stage) -> None:
    client = stage.client()
    syphon = RecordedSyphon(RuntimeError("no Java"))
    options = stage.options(enable_syphon=True, syphon=syphon)
    before = stage.background()

    with pytest.raises(RuntimeError, match="no Java"):
        client.pair_namespace(options)

    assert client.pairing is None
    assert not options.is_paired
    assert stage.events == []
    wait_until(lambda: not stage.has_left(before), "nothing of it runs")
    assert syphon.stops == [STOP_SECONDS_MAX]
    client.pair_namespace(stage.options())


@pytest.mark.req("C-01")
@pytest.mark.parametrize("first", ["primary", "secondary"])
def test_a_client_that_is_closed_while_its_syphon_starts_is_noticed(
    stage: Stage, others: Others, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.client.syphon.PARTNER_SECONDS_MAX", 0.1)
    syphon = RecordedSyphon()
    syphon.gate.clear()
    clients = {"primary": stage.client(), "secondary": stage.client(stage.secondary_text)}
    options = stage.options(enable_syphon=True, syphon=syphon, factory=clients["secondary"])
    pairing = others.begin(clients["primary"].pair_namespace, options)
    assert syphon.started.wait(30)

    clients[first].close()
    syphon.gate.set()
    pairing.exception(30)

    wait_until(lambda: syphon.stops, "it is stopped")
    assert not syphon.is_running


# --- what asyncio may do


def test_a_pairing_that_is_cancelled_while_the_syphon_starts_stops_it(
    asyncio_stage: Stage,
) -> None:
    syphon = RecordedSyphon()
    syphon.gate.clear()
    client = asyncio_stage.client()
    options = asyncio_stage.options(enable_syphon=True, syphon=syphon)

    async def cancelled() -> None:
        pairing = asyncio.create_task(bare(client).pair_namespace(bare(options)))
        await asyncio.to_thread(syphon.started.wait, 30)
        pairing.cancel()
        asyncio.get_running_loop().call_later(0.2, syphon.gate.set)
        with pytest.raises(asyncio.CancelledError):
            await pairing

    asyncio_stage.shell.call(cancelled)

    assert syphon.context is not None, "it had started"
    assert syphon.stops == [STOP_SECONDS_MAX]


def test_a_pairing_that_is_cancelled_leaves_nothing_and_can_be_tried_again(
    asyncio_stage: Stage,
) -> None:
    client, options = asyncio_stage.client(), asyncio_stage.options()
    before = asyncio_stage.background()

    async def cancelled(turns: int) -> bool:
        pairing = asyncio.create_task(bare(client).pair_namespace(bare(options)))
        for _ in range(turns):
            await asyncio.sleep(0.01)
        is_cancelled = pairing.cancel()
        try:
            await pairing
        except asyncio.CancelledError:
            return is_cancelled
        raise AssertionError("it was paired before it could be cancelled")

    for turns in (1, 3, 8):
        with asyncio_stage.secondary.faults.slow(latency_seconds=0.2):
            assert asyncio_stage.shell.call(cancelled, turns)
        assert client.pairing is None
        wait_until(lambda: not asyncio_stage.has_left(before), "nothing of it runs")
    client.pair_namespace(options)


@pytest.mark.req("C-02")
def test_closing_that_is_cancelled_can_be_repeated(asyncio_stage: Stage) -> None:
    before = asyncio_stage.background()
    client = asyncio_stage.pair()

    async def interrupted(turns: int) -> None:
        closing = asyncio.create_task(bare(client).close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])

    for turns in (1, 2, 4):
        asyncio_stage.shell.call(interrupted, turns)
    client.close()

    wait_until(lambda: not asyncio_stage.has_left(before), "nothing of it runs")


class Interrupted(BaseException):
    """Like a KeyboardInterrupt, or the cancellation of a task."""


@pytest.mark.req("C-02")
def test_closing_that_is_interrupted_can_be_repeated_for_all_pairings_of_a_secondary(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    secondary = stage.client(stage.secondary_text)
    clients = [stage.client(), stage.client()]
    for client in clients:
        client.pair_namespace(stage.options(factory=secondary))

    def interrupted() -> Any:
        raise Interrupted

    with monkeypatch.context() as patched:
        patched.setattr(bare(clients[0]).pairing.pool, "drop", interrupted)
        with pytest.raises(Interrupted):
            secondary.close()
    secondary.close()

    pairing = bare(clients[1]).pairing
    assert not any(pairing.pool.has_ready(queue) for queue in pairing.backlog_queues)


FORGOTTEN = """
import asyncio, sys
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from pairbus.aio import SendAvailabilityPairedNamespaceOptions, ServiceBusClient

async def main(primary, secondary, ca_file):
    client = ServiceBusClient.from_connection_string(primary)
    manager = ServiceBusAdministrationClient.from_connection_string(
        secondary, connection_verify=ca_file)
    await client.pair_namespace(SendAvailabilityPairedNamespaceOptions(
        manager, ServiceBusClient.from_connection_string(secondary), 1,
        primary_namespace_name="forgotten"))
    await client.get_queue_sender("orders").send_messages(ServiceBusMessage("a"))
    print("sent")

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_program_that_ends_without_closing_its_client_ends(stage: Stage) -> None:
    code = FORGOTTEN
    if stage.shell.name == "sync":
        code = code.replace("async def", "def").replace("await ", "").replace(".aio", "")
        code = code.replace("asyncio.run(main(*sys.argv[1:]))", "main(*sys.argv[1:])")
    given = (stage.primary_text, stage.secondary_text, str(stage.broker.ca_file))

    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *given],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert (ran.stdout, ran.returncode) == ("sent\n", 0)
    if stage.shell.name == "sync":
        assert ran.stderr == ""
    assert "pending" not in ran.stderr
    assert "Traceback" not in ran.stderr


# --- senders


def test_a_sender_that_nobody_has_any_more_is_gone(stage: Stage) -> None:
    client = stage.pair()
    gone = weakref.ref(bare(client.get_queue_sender("orders")))
    gc.collect()

    assert gone() is None
    assert [entity.path for entity in client.pairing.status().entities] == ["orders"]
