"""What runs in the background of a paired client, in both shells, and who frees the stuck."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.client.aio import keeper as aio_keeper
from pairbus.client.blocking import keeper as blocking_keeper
from pairbus.client.blocking.failing import QuickToFail
from pairbus.client.blocking.keeper import Keeper
from pairbus.client.route.router import Chore, Probe
from pairbus.client.sdk import private as internals
from tests.client.fakes import StandIn
from tests.client.shells.both import AsyncioSide, Others, Side, Work, is_waiting, until
from tests.client.silent import SilentPeer


class Agenda:
    """What is due, handed in by the test."""

    def __init__(self) -> None:
        self.chores: list[Chore] = []
        self.next_due: float | None = None
        self.errors: list[Exception] = []
        self.asked = 0

    def __call__(self) -> tuple[list[Chore], float | None]:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        chores, self.chores = self.chores, []
        return chores, self.next_due


@pytest.fixture
def agenda() -> Agenda:
    return Agenda()


@pytest.fixture
def work() -> Iterator[Work]:
    work = Work()
    yield work
    work.gate.set()


@pytest.fixture
def keeper(side: Side, agenda: Agenda, work: Work) -> Iterator[Any]:
    keeper = side.keeper(agenda, work)
    keeper.start()
    yield keeper
    work.gate.set()
    keeper.stop()


def numbered(count: int) -> list[Chore]:
    return [Probe(str(number)) for number in range(count)]


def threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name in ("pairbus-test", "pairbus-chore")]


# --- chores, in both shells


def test_what_is_due_is_done_when_it_is_woken(keeper: Any, agenda: Agenda, work: Work) -> None:
    until(lambda: agenda.asked, "it has looked")
    agenda.chores = numbered(3)

    keeper.wake()

    until(lambda: len(work.ended) == 3, "all are done")
    assert sorted(chore.queue for chore in work.ended) == ["0", "1", "2"]


def test_it_looks_by_itself_when_something_is_due(keeper: Any, agenda: Agenda, work: Work) -> None:
    until(lambda: agenda.asked, "it has looked")
    agenda.next_due = time.monotonic() + 0.1
    keeper.wake()
    until(lambda: agenda.asked >= 2, "it has looked again")
    agenda.chores, agenda.next_due = numbered(1), None

    until(lambda: work.ended, "it is done")


def test_it_does_not_run_in_circles_when_nothing_is_due(keeper: Any, agenda: Agenda) -> None:
    until(lambda: agenda.asked, "it has looked")
    before = agenda.asked

    time.sleep(0.2)

    assert agenda.asked <= before + 1


def test_only_so_many_are_done_at_once_and_none_is_forgotten(
    side: Side, agenda: Agenda, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (blocking_keeper, aio_keeper):
        monkeypatch.setattr(module, "CHORES_AT_ONCE_MAX", 3)
    work = Work(is_open=False)
    keeper = side.keeper(agenda, work)
    agenda.chores = numbered(10)
    keeper.start()
    until(lambda: len(work.begun) == 3, "three have begun")
    keeper.wake()
    time.sleep(0.05)
    assert len(work.begun) == 3

    work.gate.set()

    until(lambda: len(work.ended) == 10, "all are done")
    assert work.most == 3
    keeper.stop()


def test_a_chore_that_fails_is_logged_and_the_others_are_done(
    keeper: Any, agenda: Agenda, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    work.errors = [RuntimeError("no luck")]
    agenda.chores = numbered(2)

    keeper.wake()

    until(lambda: len(work.ended) == 2, "both are over")
    [record] = until(lambda: [r for r in caplog.records if r.name == "pairbus.client"])
    assert "Probe(queue=" in record.getMessage()
    assert "no luck" in str(record.exc_info)


def test_a_look_that_fails_is_logged_and_it_goes_on(
    keeper: Any, agenda: Agenda, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    agenda.errors, agenda.chores = [RuntimeError("no luck")], numbered(1)

    keeper.wake()
    until(lambda: not agenda.errors, "it has failed")
    keeper.wake()

    until(lambda: work.ended, "it is done")
    assert any("it goes on" in record.getMessage() for record in caplog.records)


@pytest.mark.req("C-02")
@pytest.mark.req("G-03")
def test_when_it_has_stopped_nothing_of_it_runs(side: Side, agenda: Agenda, work: Work) -> None:
    keeper = side.keeper(agenda, work)
    agenda.chores = numbered(3)
    keeper.start()
    until(lambda: len(work.ended) == 3, "all are done")

    keeper.stop()

    assert threads() == []
    if isinstance(side, AsyncioSide):
        assert _tasks(side) == []
    asked = agenda.asked
    keeper.wake()
    time.sleep(0.05)
    assert agenda.asked == asked
    keeper.stop()


def test_one_that_never_started_can_be_stopped(side: Side, agenda: Agenda, work: Work) -> None:
    side.keeper(agenda, work).stop()


# --- asyncio


def _tasks(side: AsyncioSide) -> list[str]:
    async def named() -> list[str]:
        names = [task.get_name() for task in asyncio.all_tasks()]
        return [name for name in names if name.startswith("pairbus-")]

    return list(side.call(named))


@pytest.mark.req("C-02")
def test_chores_under_way_are_cancelled_when_it_stops(
    asyncio_side: AsyncioSide, agenda: Agenda
) -> None:
    work = Work(is_open=False)
    keeper = asyncio_side.keeper(agenda, work)
    agenda.chores = numbered(5)
    keeper.start()
    until(lambda: len(work.begun) == 5, "all have begun")

    keeper.stop()

    assert _tasks(asyncio_side) == []
    assert work.ended == []


def test_a_chore_may_stop_the_keeper_that_runs_it(
    asyncio_side: AsyncioSide, agenda: Agenda
) -> None:
    stopped: Future[None] = Future()

    async def do(chore: Chore) -> None:
        await keeper.stop()
        stopped.set_result(None)

    def start() -> aio_keeper.Keeper:
        keeper = aio_keeper.Keeper("test", clock=time.monotonic, due=agenda, do=do)
        keeper.start()
        return keeper

    keeper = asyncio_side.call(start)
    agenda.chores = numbered(1)
    asyncio_side.call(keeper.wake)

    stopped.result(5)
    until(lambda: _tasks(asyncio_side) == [], "nothing runs")


def test_the_background_is_no_part_of_what_the_application_does(
    asyncio_side: AsyncioSide, agenda: Agenda
) -> None:
    doing = contextvars.ContextVar("doing", default="nothing")
    seen: list[str] = []

    async def do(chore: Chore) -> None:
        seen.append(doing.get())

    async def start() -> aio_keeper.Keeper:
        doing.set("starting up")
        keeper = aio_keeper.Keeper("test", clock=time.monotonic, due=agenda, do=do)
        keeper.start()
        return keeper

    agenda.chores = numbered(1)
    keeper = asyncio_side.call(start)
    until(lambda: seen, "it is done")
    asyncio_side.call(keeper.stop)

    assert seen == ["nothing"]


# --- threads


class Keepers:
    """Those of a test, which end with it, however it ends."""

    def __init__(self) -> None:
        self._made: list[Keeper] = []

    def __call__(self, due: Any, do: Any = lambda chore: None) -> Keeper:
        keeper = Keeper("test", clock=time.monotonic, due=due, do=do)
        self._made.append(keeper)
        keeper.start()
        return keeper

    def stop(self) -> None:
        for keeper in self._made:
            keeper.stop()


@pytest.fixture
def blocking() -> Iterator[Keepers]:
    keepers = Keepers()
    yield keepers
    keepers.stop()


@pytest.mark.req("C-02")
def test_a_stuck_chore_is_freed_when_it_stops(blocking: Keepers, agenda: Agenda) -> None:
    errors: list[Exception] = []

    def do(chore: Chore) -> None:
        try:
            with keeper.guard(sender, 60.0):
                sender.__enter__()
        except Exception as error:
            errors.append(error)
        finally:
            sender.close()

    with SilentPeer() as peer:
        client, sender = silent_sender(peer)
        keeper = blocking(agenda, do)
        agenda.chores = numbered(1)
        keeper.wake()
        until(lambda: internals.socket_of(sender), "it has connected")

        keeper.stop()

        assert threads() == []
        [error] = errors
        assert isinstance(error, ValueError), "it was closed, and not silent"
        client.close()


@pytest.mark.req("C-02")
def test_stopping_does_not_wait_for_ever_for_what_cannot_be_reached(
    blocking: Keepers, agenda: Agenda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_keeper, "JOIN_SECONDS_MAX", 0.3)
    release = threading.Event()

    def do(chore: Chore) -> None:
        with keeper.guard(StandIn(), 60.0):  # without a socket, as in a TLS handshake
            release.wait(30)

    keeper = blocking(agenda, do)
    agenda.chores = numbered(5)
    keeper.wake()
    until(lambda: threads().count("pairbus-chore") == 5, "all are stuck")

    began = time.monotonic()
    keeper.stop()
    took = time.monotonic() - began
    release.set()

    assert took < 1.5, "the bound is that of all of them"
    until(lambda: threads() == [], "they end by themselves")


@pytest.mark.parametrize("who", ["a chore", "the keeper itself"])
def test_it_may_be_stopped_by(blocking: Keepers, who: str, agenda: Agenda) -> None:
    stopped = threading.Event()

    def stop() -> None:
        keeper.stop()
        stopped.set()

    def do(chore: Chore) -> None:
        if who == "a chore":
            stop()

    def due() -> tuple[list[Chore], None]:
        if who == "the keeper itself" and agenda.asked:
            stop()
        return agenda()[0], None

    keeper = blocking(due, do)
    until(lambda: agenda.asked, "it has looked")
    agenda.chores = numbered(1)
    keeper.wake()

    assert stopped.wait(5)
    until(lambda: threads() == [], "nothing runs")


def test_a_chore_for_which_there_is_no_thread_is_done_when_there_is(
    blocking: Keepers, agenda: Agenda, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Chore] = []
    keeper = blocking(agenda, done.append)
    until(lambda: agenda.asked, "it has looked")
    start, refused = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "pairbus-chore" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    agenda.chores = numbered(2)
    keeper.wake()

    until(lambda: len(done) == 2, "both are done")
    assert len(refused) == 1


# --- guards


def silent_sender(peer: SilentPeer, **settings: Any) -> tuple[ServiceBusClient, QuickToFail]:
    settings = {"retry_total": 0, **settings}
    client = ServiceBusClient.from_connection_string(peer.connection_string(), **settings)
    return client, internals.adopt(client.get_queue_sender("orders"), QuickToFail)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking_keeper, "GRACE_SECONDS", 0.05)


@pytest.mark.usefixtures("impatient")
def test_who_is_stuck_is_freed_when_its_time_is_over(blocking: Keepers, agenda: Agenda) -> None:
    keeper = blocking(agenda)
    with SilentPeer() as peer:
        client, sender = silent_sender(peer)
        began = time.monotonic()

        with (
            pytest.raises(
                OperationTimeoutError, match=r"'localhost:.*' was silent for 0\.2 seconds"
            ),
            keeper.guard(sender, 0.2),
        ):
            sender.send_messages(ServiceBusMessage("a"))

        assert time.monotonic() - began < 5
        client.close()
    keeper.stop()


@pytest.mark.usefixtures("impatient")
def test_who_tries_again_and_is_stuck_again_is_freed_again(
    blocking: Keepers, agenda: Agenda
) -> None:
    keeper = blocking(agenda)
    with SilentPeer() as peer:
        client, sender = silent_sender(peer, retry_total=2, retry_backoff_factor=0.01)

        with pytest.raises(OperationTimeoutError), keeper.guard(sender, 0.1):
            sender.send_messages(ServiceBusMessage("a"))

        assert peer.count == 3
        client.close()
    keeper.stop()


@pytest.mark.usefixtures("impatient")
def test_who_gets_stuck_after_its_link_was_open_is_freed_in_time(
    blocking: Keepers, agenda: Agenda, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its connection was reset, and the SDK opens another within the same call.
    freed = threading.Event()
    monkeypatch.setattr(internals, "cut", lambda sender: freed.set())
    keeper = blocking(agenda)
    until(lambda: agenda.asked, "it has looked, and sleeps")
    time.sleep(0.05)
    sender = StandIn()
    sender.open()

    with keeper.guard(sender, 0.1):
        assert freed.wait(3)
    keeper.stop()


def test_who_fails_by_itself_gets_its_own_error(blocking: Keepers, agenda: Agenda) -> None:
    keeper = blocking(agenda)
    error = RuntimeError("my own")

    with pytest.raises(RuntimeError) as caught, keeper.guard(StandIn(), 60.0):
        raise error

    assert caught.value is error
    assert keeper._guards == {}
    keeper.stop()


@pytest.mark.parametrize(
    ("seconds", "is_woken"),
    [
        pytest.param(2.0, True, id="who must be freed before it looks again wakes it"),
        pytest.param(60.0, False, id="who has longer does not: most sends have"),
    ],
)
def test_the_keeper_is_woken_only_by_who_needs_it(
    blocking: Keepers, agenda: Agenda, seconds: float, is_woken: bool
) -> None:
    keeper = blocking(agenda)
    until(lambda: agenda.asked, "it has looked")
    time.sleep(0.05)
    before = agenda.asked

    for _ in range(3):
        with keeper.guard(StandIn(), seconds):
            time.sleep(0.05)

    # And once only: after that it knows of the earlier time.
    assert agenda.asked == before + is_woken


def test_who_is_guarded_while_the_keeper_looks_around_is_not_overlooked(
    blocking: Keepers, agenda: Agenda
) -> None:
    """It enters in the very moment in which the keeper decides how long to sleep."""
    keeper = blocking(agenda)
    until(lambda: agenda.asked, "it has looked")
    time.sleep(0.05)
    entered: list[Any] = []

    class Watched(dict[int, Any]):
        looks = 0

        def values(self) -> Any:
            seen = list(super().values())
            self.looks += 1
            if self.looks == 2:  # at those whose time is over, and at when the next one's is
                entered.append(keeper.guard(StandIn(), 1.0))
                entered[0].__enter__()
            return seen

    keeper._guards = Watched()
    before = agenda.asked
    keeper._looks_at = time.monotonic()  # so it would wake by itself now
    keeper.wake()

    until(lambda: entered, "it has entered")
    try:
        until(lambda: agenda.asked >= before + 2, "it looks again at once", seconds=1.5)
    finally:
        entered[0].__exit__(None, None, None)


@pytest.mark.req("C-02")
def test_who_is_stuck_when_it_stops_is_freed_and_told_that_it_was_closed(
    blocking: Keepers, agenda: Agenda, others: Others
) -> None:
    keeper = blocking(agenda)
    with SilentPeer() as peer:
        client, sender = silent_sender(peer)

        def send() -> None:
            with keeper.guard(sender, 60.0):
                sender.send_messages(ServiceBusMessage("a"))

        call = others.begin(send)
        until(lambda: internals.socket_of(sender), "it has connected")
        assert is_waiting(call)

        keeper.stop()

        with pytest.raises(ValueError, match="the paired client has been closed"):
            call.result(5)
        client.close()
    assert threads() == []


def test_who_comes_after_the_end_is_refused(blocking: Keepers, agenda: Agenda) -> None:
    keeper = blocking(agenda)
    keeper.stop()

    with pytest.raises(ValueError, match="has been closed; make a new one"):
        keeper.guard(StandIn(), 60.0).__enter__()
    assert keeper._guards == {}


def test_nothing_is_logged_that_nobody_did_wrong(
    blocking: Keepers, agenda: Agenda, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pairbus"):
        keeper = blocking(agenda)
        until(lambda: agenda.asked, "it has looked")
        keeper.stop()

    assert caplog.records == []
