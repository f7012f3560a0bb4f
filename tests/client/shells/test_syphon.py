"""The supervisor of a pair with a syphon: it restarts a syphon that fails, and its clients end
together. With clients of both shells, in `tests/pairing/test_partners.py`."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pairbus.client import syphon as syphon_module
from pairbus.client.route.status import SyphonStatus
from pairbus.client.sdk.pairing_errors import ClientFaulted
from pairbus.client.state import ClientState, state_of
from pairbus.client.syphon import (
    PARTNER_SECONDS_MAX,
    RESTART_SECONDS,
    RESTART_SECONDS_MAX,
    STOP_SECONDS_MAX,
    SyphonSupervisor,
)
from pairbus.events import Event, SyphonFailed, SyphonRestarted
from tests.client.fakes import RecordedSyphon
from tests.client.lines import run_and_interrupt
from tests.client.shells.both import Others
from tests.waiting import wait_until

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
        self._state.is_closed = True
        while (listener := self._state.take_listener()) is not None:
            listener(reason)


class Pair:
    """Two clients and a syphon."""

    def __init__(self) -> None:
        self.primary: Any = Client("contoso")
        self.secondary: Any = Client("backup")
        self.syphon = RecordedSyphon()
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
        self.supervisor = SyphonSupervisor(
            self.syphon, pairing, self.primary, fault=lambda client, reason: client.fault(reason)
        )

    def _changed(self, status: SyphonStatus, *events: Event) -> None:
        self.status = status
        self.events += events

    def fail(self, error: Exception) -> None:
        assert self.syphon.context is not None
        self.syphon.context.failed(error)

    def start(self) -> None:
        self.supervisor.start()
        for state, listener in self.supervisor.listeners():
            state.listen(self.supervisor, listener)

    def of(self, first: str) -> tuple[Any, Any]:
        """The client that ends first, and its partner."""
        both = self.primary, self.secondary
        return both if first == "primary" else both[::-1]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are five seconds and one; a test below says so."""
    monkeypatch.setattr("pairbus.client.syphon.PARTNER_SECONDS_MAX", SHORT_SECONDS)
    monkeypatch.setattr("pairbus.client.syphon.RESTART_SECONDS", 0.01)


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.supervisor.abandon()


def threads_left() -> list[str]:
    return [
        t.name
        for t in threading.enumerate()
        if t.name.startswith(("pairbus-partner", "pairbus-syphon"))
    ]


# --- ending


@pytest.mark.req("C-02")
def test_a_signal_handler_may_close_one_client_before_any_line_of_the_end_of_the_other() -> None:
    def close_before_each_line() -> None:
        for line in itertools.count(1):
            pair = Pair()
            pair.start()
            first, other = pair.primary.close, pair.secondary.close
            if not run_and_interrupt(first, syphon_module, other, before_line=line):
                other()
                lines.append(line)
                return
            assert pair.primary.faults == pair.secondary.faults == []
            assert not pair.syphon.is_running

    lines: list[int] = []
    thread = threading.Thread(target=close_before_each_line, daemon=True)
    thread.start()
    thread.join(30)

    assert not thread.is_alive(), "it waits for a lock that it has itself"
    assert lines[0] > 20
    wait_until(lambda: threads_left() == [], "no partner is waited for")


@pytest.mark.parametrize("first", ["primary", "secondary"])
def test_when_one_closes_and_its_partner_does_not_the_partner_is_faulted(
    pair: Pair, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    pair.start()
    closing, partner = pair.of(first)

    with caplog.at_level(logging.WARNING, "pairbus"):
        closing.close()
        assert partner.faults == [], "it has a moment to follow"
        wait_until(lambda: partner.faults, "it is faulted")

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


@pytest.mark.req("C-02")
@pytest.mark.parametrize("first", ["primary", "secondary"])
def test_partners_that_close_one_after_the_other_are_not_faulted_and_nothing_is_left(
    pair: Pair, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.client.syphon.PARTNER_SECONDS_MAX", 60.0)
    pair.start()

    for client in pair.of(first):
        client.close()

    assert threads_left() == []
    for client in pair.of(first):
        assert client.faults == []
        assert not state_of(client).has_other_listeners(), "nobody keeps the pair alive"


def test_a_client_that_faults_takes_its_partner_along(pair: Pair) -> None:
    pair.start()

    pair.primary.fault("out of memory")

    wait_until(lambda: pair.secondary.faults, "the secondary is faulted")
    assert "ended (faulted: out of memory)" in pair.secondary.faults[0]


def test_a_syphon_that_fails_to_stop_is_logged_and_the_client_closes(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    pair.start()
    pair.syphon.stop_error = RuntimeError("stuck")

    pair.primary.close()

    assert any("failed to stop" in record.getMessage() for record in caplog.records)
    wait_until(lambda: pair.secondary.faults, "the secondary is faulted all the same")


# --- a syphon that fails


@pytest.mark.req("X-16")
def test_a_syphon_that_fails_is_started_again_and_no_client_ends(pair: Pair) -> None:
    pair.start()
    assert pair.status is not None
    assert (pair.status.state, pair.status.failures) == ("running", 0)

    pair.fail(RuntimeError("no Java"))
    wait_until(lambda: pair.syphon.starts == 2, "it is started again")
    wait_until(lambda: len(pair.events) == 2, "and reported")

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
    wait_until(lambda: "pairbus-partner" not in threads_left(), "nobody waits for a partner")
    assert pair.primary.faults == pair.secondary.faults == []
    pair.primary.close()
    pair.secondary.close()
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
    wait_until(lambda: len(pair.events) >= 4, "it fails to start again")
    assert pair.status is not None
    assert pair.status.state == "restarting"
    assert pair.status.restart_at is not None
    pair.syphon.start_error = None
    wait_until(lambda: isinstance(pair.events[-1], SyphonRestarted), "it runs again")

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
        wait_until(lambda count=count: len(pair.events) == count, "it runs again")

    failures = [event for event in pair.events if isinstance(event, SyphonFailed)]
    assert [event.restart_in_seconds for event in failures] == [0.01] * 3


@pytest.mark.req("X-16")
def test_late_and_repeated_reports_of_a_run_restart_it_once(pair: Pair) -> None:
    pair.start()
    assert pair.syphon.context is not None
    failed = pair.syphon.context.failed

    failed(RuntimeError("no Java"))
    failed(RuntimeError("no Java either"))
    wait_until(lambda: len(pair.events) == 2, "it runs again")
    failed(RuntimeError("late"))
    pair.fail(RuntimeError("the second run"))
    wait_until(lambda: len(pair.events) == 4, "it runs again")

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
        wait_until(lambda: pair.events, "it waits")
    else:
        wait_until(lambda: pair.syphon.starts == 2, "it starts")
        threading.Timer(0.1, pair.syphon.gate.set).start()

    pair.primary.close()
    pair.secondary.close()

    assert not pair.syphon.is_running
    assert threads_left() == []


def test_it_is_stopped_by_another_thread_than_its_own(pair: Pair, others: Others) -> None:
    pair.start()
    asked: list[str] = []

    def fail() -> None:
        asked.append(threading.current_thread().name)
        pair.fail(RuntimeError("no Java"))

    others.begin(fail).result(30)

    wait_until(lambda: pair.syphon.stopped_in, "it is stopped")
    assert pair.syphon.stopped_in != asked


# --- ending while it starts


def test_a_pairing_that_failed_faults_nobody(pair: Pair) -> None:
    pair.primary.close()
    pair.start()

    pair.supervisor.abandon()
    wait_until(lambda: "pairbus-partner" not in threads_left(), "nobody waits for a partner")

    assert pair.secondary.faults == []
    assert not state_of(pair.secondary).has_other_listeners()
    assert len(pair.syphon.stops) == 1
