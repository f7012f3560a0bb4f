"""A pair with a syphon, in both shells: it is restarted if it fails; its clients end together."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pairbus.client.aio import client as aio_client
from pairbus.client.route.status import SyphonStatus
from pairbus.client.sdk.pairing_errors import ClientFaulted
from pairbus.client.state import ClientState, state_of
from pairbus.client.syphon import (
    PARTNER_SECONDS_MAX,
    RESTART_SECONDS,
    RESTART_SECONDS_MAX,
    STOP_SECONDS_MAX,
    SyphonContext,
    SyphonSupervisor,
)
from pairbus.events import Event, SyphonFailed, SyphonRestarted
from tests.client.shells.both import AsyncioSide, Others, Side, until

SHORT_SECONDS = 1.0

pytestmark = pytest.mark.req("C-01")


class Client:
    """As much of a client as the supervisor needs: it ends, and may be faulted."""

    def __init__(self, host: str) -> None:
        self.fully_qualified_namespace = host
        self._state: ClientState[Any] = ClientState(self)
        self.faults: list[str] = []

    def close(self) -> None:
        self._end("closed")

    def fault(self, reason: str) -> None:
        self.faults.append(reason)
        self._state.set_fault(reason)
        self._end(f"faulted: {reason}")

    def _end(self, reason: str) -> None:
        for listener in self._state.end():
            listener(reason)


class AsyncClient(Client):
    async def close(self) -> None:  # type: ignore[override]
        await self._end("closed")

    async def fault(self, reason: str) -> None:  # type: ignore[override]
        self.faults.append(reason)
        self._state.set_fault(reason)
        await self._end(f"faulted: {reason}")

    async def _end(self, reason: str) -> None:  # type: ignore[override]
        for listener in self._state.end():
            await listener(reason)


class Syphon:
    def __init__(self) -> None:
        self.context: SyphonContext | None = None
        self.stops: list[float] = []
        self.stopped_in: list[str] = []
        self.start_error: Exception | None = None
        self.stop_error: Exception | None = None
        self.starts = 0
        self.started = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    @property
    def is_running(self) -> bool:
        return self.starts > len(self.stops)

    def start(self, context: SyphonContext) -> None:
        self.starts += 1
        self.started.set()
        assert self.gate.wait(30)
        if self.start_error is not None:
            raise self.start_error
        self.context = context

    def stop(self, *, timeout_seconds: float) -> None:
        assert self.context is not None or self.start_error is not None, "it has not started"
        self.stops.append(timeout_seconds)
        self.stopped_in.append(threading.current_thread().name)
        if self.stop_error is not None:
            raise self.stop_error


class Pair:
    """Two clients and a syphon, in one shell."""

    def __init__(self, side: Side, secondary: Any = None) -> None:
        self.side = side
        kind = Client if side.name == "sync" else AsyncClient
        self.primary: Any = kind("contoso")
        self.secondary: Any = secondary or kind("backup")
        self.syphon = Syphon()
        self.status: SyphonStatus | None = None
        self.events: list[Any] = []
        pairing: Any = SimpleNamespace(
            namespace="contoso",
            clock=time.monotonic,
            syphon_changed=self._changed,
            backlog_queues=("a", "b"),
            options=SimpleNamespace(
                messaging_factory=self.secondary, secondary_namespace_manager="manager"
            ),
        )
        self.supervisor = SyphonSupervisor(self.syphon, pairing, self.primary, fault=self._fault)

    def _changed(self, status: SyphonStatus, *events: Event) -> None:
        self.status = status
        self.events += events

    def fail(self, error: Exception) -> None:
        assert self.syphon.context is not None
        self.syphon.context.failed(error)

    def _fault(self, client: Any, reason: str) -> None:
        if isinstance(self.side, AsyncioSide):
            aio_client.fault_from_thread(self.side.loop, client, reason)
        else:
            client.fault(reason)

    def start(self) -> None:
        if isinstance(self.side, AsyncioSide):
            self.side.call(aio_client.start_on_thread, self.supervisor)
            return
        self.supervisor.start()
        for state, listener in self.supervisor.listeners():
            state.listen(self.supervisor, listener)

    def abandon(self) -> None:
        self.supervisor.abandon()

    def close(self, client: Any) -> None:
        self.side.call(client.close)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are five seconds and one; a test below says so."""
    monkeypatch.setattr("pairbus.client.syphon.PARTNER_SECONDS_MAX", SHORT_SECONDS)
    monkeypatch.setattr("pairbus.client.syphon.RESTART_SECONDS", 0.01)


@pytest.fixture
def pair(side: Side) -> Iterator[Pair]:
    pair = Pair(side)
    yield pair
    pair.abandon()


def threads_left() -> list[str]:
    return [
        t.name
        for t in threading.enumerate()
        if t.name.startswith(("pairbus-partner", "pairbus-syphon"))
    ]


# --- starting


@pytest.mark.req("A-06")
def test_what_it_raises_when_it_starts_is_raised(pair: Pair) -> None:
    pair.syphon.start_error = RuntimeError("no Java")

    with pytest.raises(RuntimeError, match="no Java"):
        pair.start()

    pair.abandon()
    assert pair.syphon.stops == [STOP_SECONDS_MAX]


# --- ending


@pytest.mark.parametrize("first", ["primary", "secondary"])
def test_when_one_closes_and_its_partner_does_not_the_partner_is_faulted(
    pair: Pair, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    pair.start()
    closing, partner = (
        (pair.primary, pair.secondary) if first == "primary" else (pair.secondary, pair.primary)
    )

    with caplog.at_level(logging.WARNING, "pairbus"):
        pair.close(closing)
        assert partner.faults == [], "it has a moment to follow"
        until(lambda: partner.faults, "it is faulted")

    [reason] = partner.faults
    assert reason == (
        f"the client of the {first} namespace ended (closed), and its partner did not end within "
        "1 seconds"
    )
    with pytest.raises(ClientFaulted, match="ended because its partner ended"):
        state_of(partner).check()
    assert closing.faults == []
    assert any("faulting the" in record.getMessage() for record in caplog.records)


def test_the_moment_is_five_seconds_and_the_first_restart_waits_for_one() -> None:
    assert PARTNER_SECONDS_MAX == 5.0
    assert (RESTART_SECONDS, RESTART_SECONDS_MAX) == (1.0, 60.0)


@pytest.mark.parametrize("first", ["primary", "secondary"])
def test_partners_that_close_one_after_the_other_are_not_faulted(
    pair: Pair, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.client.syphon.PARTNER_SECONDS_MAX", 60.0)
    pair.start()
    both = [pair.primary, pair.secondary]
    if first == "secondary":
        both.reverse()

    for client in both:
        pair.close(client)
    until(lambda: "pairbus-partner" not in threads_left(), "nobody waits for a partner")

    assert pair.primary.faults == pair.secondary.faults == []


def test_a_client_that_faults_takes_its_partner_along(pair: Pair) -> None:
    pair.start()

    pair.side.call(pair.primary.fault, "out of memory")

    until(lambda: pair.secondary.faults, "the secondary is faulted")
    assert "ended (faulted: out of memory)" in pair.secondary.faults[0]


@pytest.mark.req("C-02")
@pytest.mark.parametrize("first", ["primary", "secondary"])
def test_the_syphon_is_stopped_once_as_soon_as_one_of_them_ends(pair: Pair, first: str) -> None:
    pair.start()

    pair.close(getattr(pair, first))
    assert pair.syphon.stops == [STOP_SECONDS_MAX]

    pair.close(pair.primary)
    pair.close(pair.secondary)
    assert pair.syphon.stops == [STOP_SECONDS_MAX]


def test_a_syphon_that_fails_to_stop_is_logged_and_the_client_closes(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    pair.start()
    pair.syphon.stop_error = RuntimeError("stuck")

    pair.close(pair.primary)

    assert any("failed to stop" in record.getMessage() for record in caplog.records)
    until(lambda: pair.secondary.faults, "the secondary is faulted all the same")


@pytest.mark.req("C-02")
def test_nothing_is_left_when_both_have_ended(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pairbus.client.syphon.PARTNER_SECONDS_MAX", 60.0)
    pair = Pair(side)
    pair.start()

    pair.close(pair.primary)
    pair.close(pair.secondary)

    assert threads_left() == []
    for client in (pair.primary, pair.secondary):
        assert not state_of(client).has_other_listeners(), "and nobody keeps the pair alive"


# --- a syphon that fails


@pytest.mark.req("X-16")
def test_a_syphon_that_fails_is_started_again_and_no_client_ends(pair: Pair) -> None:
    pair.start()
    assert pair.status is not None
    assert (pair.status.state, pair.status.failures) == ("running", 0)

    pair.fail(RuntimeError("no Java"))
    until(lambda: pair.syphon.starts == 2, "it is started again")
    until(lambda: len(pair.events) == 2, "and reported")

    failed, restarted = pair.events
    assert isinstance(failed, SyphonFailed)
    assert (str(failed.error), failed.down_seconds, failed.restart_in_seconds) == (
        "no Java",
        0,
        0.01,
    )
    assert isinstance(restarted, SyphonRestarted)
    assert restarted.down_seconds >= 0.01
    assert (pair.status.state, pair.status.failures) == ("running", 1)
    assert pair.status.last_error == "RuntimeError: no Java"
    assert pair.status.restart_at is None
    assert pair.syphon.stops == [STOP_SECONDS_MAX], "what was left of it has been freed"
    until(lambda: "pairbus-partner" not in threads_left(), "nobody waits for a partner")
    assert pair.primary.faults == pair.secondary.faults == []
    pair.close(pair.primary)
    pair.close(pair.secondary)
    assert not pair.syphon.is_running
    assert pair.status.state == "stopped"


@pytest.mark.req("X-16")
def test_each_failure_in_a_row_doubles_the_wait_up_to_a_limit(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.client.syphon.RESTART_SECONDS_MAX", 0.04)
    pair.start()
    pair.syphon.start_error = OSError("no memory")

    pair.fail(RuntimeError("no Java"))
    until(lambda: len(pair.events) >= 4, "it fails to start again")
    assert pair.status is not None
    assert pair.status.state == "restarting"
    assert pair.status.restart_at is not None
    pair.syphon.start_error = None
    until(lambda: isinstance(pair.events[-1], SyphonRestarted), "it runs again")

    waits = [event.restart_in_seconds for event in pair.events[:4]]
    assert waits == [0.01, 0.02, 0.04, 0.04]
    assert [str(event.error) for event in pair.events[:2]] == ["no Java", "no memory"]
    downs = [event.down_seconds for event in pair.events]
    assert downs[0] == 0 < downs[1] < downs[-1]
    assert pair.status.failures == len(pair.events) - 1


@pytest.mark.req("X-16")
def test_after_a_long_run_the_wait_is_short_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.client.syphon.STEADY_SECONDS", 0.0)
    pair.start()

    for count in (2, 4, 6):
        pair.fail(RuntimeError("no Java"))
        until(lambda count=count: len(pair.events) == count, "it runs again")

    failures = [event for event in pair.events if isinstance(event, SyphonFailed)]
    assert [event.restart_in_seconds for event in failures] == [0.01] * 3


@pytest.mark.req("X-16")
def test_late_and_repeated_reports_of_a_run_restart_it_once(pair: Pair) -> None:
    pair.start()
    assert pair.syphon.context is not None
    failed = pair.syphon.context.failed

    failed(RuntimeError("no Java"))
    failed(RuntimeError("no Java either"))
    until(lambda: len(pair.events) == 2, "it runs again")
    failed(RuntimeError("late"))
    pair.fail(RuntimeError("the second run"))
    until(lambda: len(pair.events) == 4, "it runs again")

    assert [str(event.error) for event in pair.events[::2]] == ["no Java", "the second run"]
    assert pair.syphon.starts == 3


@pytest.mark.req("C-02", "X-16")
@pytest.mark.parametrize("moment", ["waits", "starts"])
def test_a_client_that_is_closed_while_its_syphon_restarts_leaves_nothing(
    pair: Pair, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.start()
    if moment == "waits":
        monkeypatch.setattr("pairbus.client.syphon.RESTART_SECONDS", 60.0)
    else:
        pair.syphon.gate.clear()
    pair.fail(RuntimeError("no Java"))
    if moment == "waits":
        until(lambda: pair.events, "it waits")
    else:
        until(lambda: pair.syphon.starts == 2, "it starts")
        threading.Timer(0.1, pair.syphon.gate.set).start()

    pair.close(pair.primary)
    pair.close(pair.secondary)

    assert not pair.syphon.is_running
    assert threads_left() == []


def test_it_is_stopped_by_another_thread_than_its_own(pair: Pair, others: Others) -> None:
    pair.start()
    asked: list[str] = []

    def fail() -> None:
        asked.append(threading.current_thread().name)
        pair.fail(RuntimeError("no Java"))

    others.begin(fail).result(30)

    until(lambda: pair.syphon.stopped_in, "it is stopped")
    assert pair.syphon.stopped_in != asked


# --- a secondary that several primaries share


@pytest.mark.req("C-01")
def test_a_primary_that_closes_does_not_end_the_secondary_of_another_pair(side: Side) -> None:
    first = Pair(side)
    second = Pair(side, first.secondary)
    first.start()
    second.start()

    first.close(first.primary)
    until(lambda: "pairbus-partner" not in threads_left(), "the first pair is over")
    assert second.primary.faults == second.secondary.faults == []
    assert second.syphon.is_running

    second.close(second.primary)
    until(lambda: second.secondary.faults, "nobody uses it any more")


# --- ending while it starts


@pytest.mark.parametrize("first", ["primary", "secondary"])
def test_a_client_that_ends_while_the_syphon_starts_is_noticed(
    pair: Pair, others: Others, first: str
) -> None:
    pair.syphon.gate.clear()
    starting = others.begin(pair.start)
    assert pair.syphon.started.wait(30)

    pair.close(getattr(pair, first))
    pair.syphon.gate.set()
    starting.result(30)

    until(lambda: pair.syphon.stops, "it is stopped")
    assert not pair.syphon.is_running


def test_a_pairing_that_failed_faults_nobody(pair: Pair) -> None:
    pair.close(pair.primary)
    pair.start()

    pair.abandon()
    until(lambda: "pairbus-partner" not in threads_left(), "nobody waits for a partner")

    assert pair.secondary.faults == []
    assert not state_of(pair.secondary).has_other_listeners()
    assert len(pair.syphon.stops) == 1


def test_a_task_that_is_cancelled_while_the_syphon_starts_can_stop_it(
    asyncio_side: AsyncioSide,
) -> None:
    pair = Pair(asyncio_side)
    pair.syphon.gate.clear()

    async def run() -> None:
        starting = asyncio.create_task(aio_client.start_on_thread(pair.supervisor))
        await asyncio.to_thread(pair.syphon.started.wait, 5)
        starting.cancel()
        asyncio.get_running_loop().call_later(0.2, pair.syphon.gate.set)
        with pytest.raises(asyncio.CancelledError):
            await starting
        await asyncio.to_thread(pair.abandon)

    asyncio_side.call(run)

    assert pair.syphon.context is not None, "it had started"
    assert pair.syphon.stops == [STOP_SECONDS_MAX]
