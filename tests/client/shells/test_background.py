"""The background worker of a paired client in both shells, and deadlines of sockets."""

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

from pairbus.client.aio import background as aio_background
from pairbus.client.blocking import background as blocking_background
from pairbus.client.blocking.background import BackgroundWorker
from pairbus.client.blocking.pool import PromptSender
from pairbus.client.route.plans import BackgroundTask, Probe
from pairbus.client.sdk import private
from tests.client.fakes import StandIn
from tests.client.lines import ctrl_c
from tests.client.shells.both import AsyncioSide, Others, Side, Work, is_waiting
from tests.client.silent import SilentPeer
from tests.waiting import wait_until


class Agenda:
    """The tasks that are due, set by the test."""

    def __init__(self) -> None:
        self.tasks: list[BackgroundTask] = []
        self.next_due: float | None = None
        self.errors: list[Exception] = []
        self.asked = 0

    def __call__(self) -> tuple[list[BackgroundTask], float | None]:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        tasks, self.tasks = self.tasks, []
        return tasks, self.next_due


@pytest.fixture
def agenda() -> Agenda:
    return Agenda()


@pytest.fixture
def work() -> Iterator[Work]:
    work = Work()
    yield work
    work.gate.set()


@pytest.fixture
def worker(side: Side, agenda: Agenda, work: Work) -> Iterator[Any]:
    worker = side.worker(agenda, work)
    worker.start()
    yield worker
    work.gate.set()
    worker.stop()


def numbered(count: int) -> list[BackgroundTask]:
    return [Probe(str(number)) for number in range(count)]


def threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name in ("pairbus-test", "pairbus-task")]


# --- tasks, in both shells


def test_what_is_due_is_done_when_it_is_woken(worker: Any, agenda: Agenda, work: Work) -> None:
    wait_until(lambda: agenda.asked, "it has looked")
    agenda.tasks = numbered(3)

    worker.wake()

    wait_until(lambda: len(work.ended) == 3, "all are done")
    assert sorted(task.queue for task in work.ended) == ["0", "1", "2"]


def test_it_looks_by_itself_when_something_is_due(worker: Any, agenda: Agenda, work: Work) -> None:
    wait_until(lambda: agenda.asked, "it has looked")
    agenda.next_due = time.monotonic() + 0.1
    worker.wake()
    wait_until(lambda: agenda.asked >= 2, "it has looked again")
    agenda.tasks, agenda.next_due = numbered(1), None

    wait_until(lambda: work.ended, "it is done")


def test_it_sleeps_when_nothing_is_due(worker: Any, agenda: Agenda) -> None:
    wait_until(lambda: agenda.asked, "it has looked")
    before = agenda.asked

    time.sleep(0.2)

    assert agenda.asked <= before + 1


def test_only_a_few_run_at_once_and_none_is_forgotten(
    side: Side, agenda: Agenda, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (blocking_background, aio_background):
        monkeypatch.setattr(module, "TASKS_AT_ONCE_MAX", 3)
    work = Work(is_open=False)
    worker = side.worker(agenda, work)
    agenda.tasks = numbered(10)
    worker.start()
    wait_until(lambda: len(work.begun) == 3, "three have begun")
    worker.wake()
    time.sleep(0.05)
    assert len(work.begun) == 3

    work.gate.set()

    wait_until(lambda: len(work.ended) == 10, "all are done")
    assert work.most == 3
    worker.stop()


def test_a_task_that_fails_is_logged_and_the_others_are_done(
    worker: Any, agenda: Agenda, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    work.errors = [RuntimeError("no luck")]
    agenda.tasks = numbered(2)

    worker.wake()

    wait_until(lambda: len(work.ended) == 2, "both are over")
    [record] = wait_until(lambda: [r for r in caplog.records if r.name == "pairbus.client"])
    assert "Probe(queue=" in record.getMessage()
    assert "no luck" in str(record.exc_info)


def test_a_look_that_fails_is_logged_and_it_goes_on(
    worker: Any, agenda: Agenda, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    agenda.errors, agenda.tasks = [RuntimeError("no luck")], numbered(1)

    worker.wake()
    wait_until(lambda: not agenda.errors, "it has failed")
    worker.wake()

    wait_until(lambda: work.ended, "it is done")
    assert any("it continues" in record.getMessage() for record in caplog.records)


@pytest.mark.req("C-02")
@pytest.mark.req("G-03")
def test_when_it_has_stopped_nothing_of_it_runs(side: Side, agenda: Agenda, work: Work) -> None:
    worker = side.worker(agenda, work)
    agenda.tasks = numbered(3)
    worker.start()
    wait_until(lambda: len(work.ended) == 3, "all are done")

    worker.stop()

    assert threads() == []
    if isinstance(side, AsyncioSide):
        assert _tasks(side) == []
    asked = agenda.asked
    worker.wake()
    time.sleep(0.05)
    assert agenda.asked == asked
    worker.stop()


def test_one_that_never_started_can_be_stopped(side: Side, agenda: Agenda, work: Work) -> None:
    side.worker(agenda, work).stop()


# --- asyncio


def _tasks(side: AsyncioSide) -> list[str]:
    async def named() -> list[str]:
        names = [task.get_name() for task in asyncio.all_tasks()]
        return [name for name in names if name.startswith("pairbus-")]

    return list(side.call(named))


@pytest.mark.req("C-02")
def test_tasks_under_way_are_cancelled_when_it_stops(
    asyncio_side: AsyncioSide, agenda: Agenda
) -> None:
    work = Work(is_open=False)
    worker = asyncio_side.worker(agenda, work)
    agenda.tasks = numbered(5)
    worker.start()
    wait_until(lambda: len(work.begun) == 5, "all have begun")

    worker.stop()

    assert _tasks(asyncio_side) == []
    assert work.ended == []


def test_a_task_may_stop_the_worker_that_runs_it(asyncio_side: AsyncioSide, agenda: Agenda) -> None:
    stopped: Future[None] = Future()

    async def perform(task: BackgroundTask) -> None:
        await worker.stop()
        stopped.set_result(None)

    def start() -> aio_background.BackgroundWorker:
        worker = aio_background.BackgroundWorker(
            "test", clock=time.monotonic, take_due=agenda, perform=perform
        )
        worker.start()
        return worker

    worker = asyncio_side.call(start)
    agenda.tasks = numbered(1)
    asyncio_side.call(worker.wake)

    stopped.result(30)
    wait_until(lambda: _tasks(asyncio_side) == [], "nothing runs")


def test_the_background_is_no_part_of_what_the_application_does(
    asyncio_side: AsyncioSide, agenda: Agenda
) -> None:
    doing = contextvars.ContextVar("doing", default="nothing")
    seen: list[str] = []

    async def perform(task: BackgroundTask) -> None:
        seen.append(doing.get())

    async def start() -> aio_background.BackgroundWorker:
        doing.set("starting up")
        worker = aio_background.BackgroundWorker(
            "test", clock=time.monotonic, take_due=agenda, perform=perform
        )
        worker.start()
        return worker

    agenda.tasks = numbered(1)
    worker = asyncio_side.call(start)
    wait_until(lambda: seen, "it is done")
    asyncio_side.call(worker.stop)

    assert seen == ["nothing"]


# --- threads


class Workers:
    """Those of a test, which end with it, however it ends."""

    def __init__(self) -> None:
        self._made: list[BackgroundWorker] = []

    def __call__(self, due: Any, perform: Any = lambda task: None) -> BackgroundWorker:
        worker = BackgroundWorker("test", clock=time.monotonic, take_due=due, perform=perform)
        self._made.append(worker)
        worker.start()
        return worker

    def stop(self) -> None:
        for worker in self._made:
            worker.stop()


@pytest.fixture
def blocking() -> Iterator[Workers]:
    workers = Workers()
    yield workers
    workers.stop()


@pytest.mark.req("C-02")
def test_a_stuck_task_is_freed_when_it_stops(blocking: Workers, agenda: Agenda) -> None:
    errors: list[Exception] = []

    def perform(task: BackgroundTask) -> None:
        try:
            with worker.deadline(sender, 60.0):
                sender.__enter__()
        except Exception as error:
            errors.append(error)
        finally:
            sender.close()

    with SilentPeer() as peer:
        client, sender = silent_sender(peer)
        worker = blocking(agenda, perform)
        agenda.tasks = numbered(1)
        worker.wake()
        wait_until(lambda: private.socket_of(sender), "it has connected")

        worker.stop()

        assert threads() == []
        [error] = errors
        assert isinstance(error, ValueError), "it was closed, and not silent"
        client.close()


@pytest.mark.req("C-02")
def test_stopping_does_not_wait_for_ever_for_what_cannot_be_reached(
    blocking: Workers, agenda: Agenda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_background, "JOIN_SECONDS_MAX", 1.0)
    release = threading.Event()

    def perform(task: BackgroundTask) -> None:
        with worker.deadline(StandIn(), 60.0):  # without a socket, as in a TLS handshake
            release.wait(30)

    worker = blocking(agenda, perform)
    agenda.tasks = numbered(16)
    worker.wake()
    wait_until(lambda: threads().count("pairbus-task") == 16, "all are stuck")

    began = time.monotonic()
    worker.stop()
    took = time.monotonic() - began
    release.set()

    assert took < 12, "the bound is that of all of them"
    wait_until(lambda: threads() == [], "they end by themselves")


@pytest.mark.parametrize("who", ["a task", "the worker itself"])
def test_it_may_be_stopped_by(blocking: Workers, who: str, agenda: Agenda) -> None:
    stopped = threading.Event()

    def stop() -> None:
        worker.stop()
        stopped.set()

    def perform(task: BackgroundTask) -> None:
        if who == "a task":
            stop()

    def due() -> tuple[list[BackgroundTask], None]:
        if who == "the worker itself" and agenda.asked:
            stop()
        return agenda()[0], None

    worker = blocking(due, perform)
    wait_until(lambda: agenda.asked, "it has looked")
    agenda.tasks = numbered(1)
    worker.wake()

    assert stopped.wait(30)
    wait_until(lambda: threads() == [], "nothing runs")


def test_a_task_for_which_there_is_no_thread_is_done_when_there_is(
    blocking: Workers, agenda: Agenda, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[BackgroundTask] = []
    worker = blocking(agenda, done.append)
    wait_until(lambda: agenda.asked, "it has looked")
    start, refused = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "pairbus-task" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    agenda.tasks = numbered(2)
    worker.wake()

    wait_until(lambda: len(done) == 2, "both are done")
    assert len(refused) == 1


# --- deadlines of sockets


def silent_sender(peer: SilentPeer, **settings: Any) -> tuple[ServiceBusClient, PromptSender]:
    settings = {"retry_total": 0, **settings}
    client = ServiceBusClient.from_connection_string(peer.connection_string(), **settings)
    return client, private.adopt(client.get_queue_sender("orders"), PromptSender)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking_background, "GRACE_SECONDS", 0.05)


@pytest.mark.usefixtures("impatient")
def test_a_stuck_call_is_freed_when_its_time_is_over(blocking: Workers, agenda: Agenda) -> None:
    worker = blocking(agenda)
    with SilentPeer() as peer:
        client, sender = silent_sender(peer)
        began = time.monotonic()

        with (
            pytest.raises(
                OperationTimeoutError, match=r"'localhost:.*' did not answer within 0\.2 seconds"
            ),
            worker.deadline(sender, 0.2),
        ):
            sender.send_messages(ServiceBusMessage("a"))

        assert time.monotonic() - began < 30
        client.close()
    worker.stop()


@pytest.mark.usefixtures("impatient")
def test_a_call_that_retries_and_is_stuck_again_is_freed_again(
    blocking: Workers, agenda: Agenda
) -> None:
    worker = blocking(agenda)
    with SilentPeer() as peer:
        client, sender = silent_sender(peer, retry_total=2, retry_backoff_factor=0.01)

        with pytest.raises(OperationTimeoutError), worker.deadline(sender, 0.1):
            sender.send_messages(ServiceBusMessage("a"))

        assert peer.count == 3
        client.close()
    worker.stop()


@pytest.mark.usefixtures("impatient")
def test_a_call_that_gets_stuck_on_an_open_link_is_freed_in_time(
    blocking: Workers, agenda: Agenda, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its connection was reset, and the SDK opens another within the same call.
    freed = threading.Event()
    monkeypatch.setattr(private, "cut", lambda sender: freed.set())
    worker = blocking(agenda)
    wait_until(lambda: agenda.asked, "it has looked")
    sender = StandIn()
    sender.open()

    with worker.deadline(sender, 0.1):
        assert freed.wait(12)
    worker.stop()


@pytest.mark.usefixtures("impatient")
def test_a_deadline_that_an_interrupt_has_left_ends_with_the_next_call_on_the_sender(
    blocking: Workers, agenda: Agenda, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut: list[StandIn] = []
    monkeypatch.setattr(private, "cut", cut.append)
    worker, sender, later = blocking(agenda), StandIn(), StandIn()
    left = worker.deadline(sender, 1.0)
    left.__enter__()  # a Ctrl-C comes, and nothing leaves it

    with worker.deadline(sender, 60.0):
        pass
    with worker.deadline(later, 1.2):
        wait_until(lambda: later in cut, "the later one is cut")

    assert sender not in cut
    worker.stop()


def test_an_interrupt_while_the_worker_is_woken_leaves_no_deadline(
    blocking: Workers, agenda: Agenda, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = blocking(agenda)
    wait_until(lambda: agenda.asked, "it has looked")
    with monkeypatch.context() as patched:
        patched.setattr(worker, "wake", ctrl_c)
        with pytest.raises(KeyboardInterrupt), worker.deadline(StandIn(), 10.0):
            pass

    worker.stop()

    assert threads() == [], "it waits for no call"


def test_a_deadline_that_an_interrupt_has_left_does_not_keep_the_worker_for_ever(
    blocking: Workers, agenda: Agenda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_background, "JOIN_SECONDS_MAX", 0.2)
    monkeypatch.setattr(blocking_background, "GRACE_SECONDS", 0.05)
    worker = blocking(agenda)
    left = worker.deadline(StandIn(), 0.2)
    left.__enter__()  # a Ctrl-C comes, and nothing leaves it

    worker.stop()

    wait_until(lambda: threads() == [], "it ends by itself")


def test_a_call_that_fails_by_itself_gets_its_own_error(blocking: Workers, agenda: Agenda) -> None:
    worker = blocking(agenda)
    error = RuntimeError("my own")

    with pytest.raises(RuntimeError) as caught, worker.deadline(StandIn(), 60.0):
        raise error

    assert caught.value is error
    worker.stop()


@pytest.mark.parametrize(
    ("seconds", "is_woken"),
    [
        pytest.param(8.0, True, id="who must be freed before it looks again wakes it"),
        pytest.param(60.0, False, id="who has longer does not: most sends have"),
    ],
)
def test_the_worker_is_woken_only_by_an_early_deadline(
    blocking: Workers, agenda: Agenda, seconds: float, is_woken: bool
) -> None:
    worker = blocking(agenda)
    wait_until(lambda: agenda.asked, "it has looked")
    before = agenda.asked

    for _ in range(5):
        with worker.deadline(StandIn(), seconds):
            wait_until(lambda: agenda.asked >= before + is_woken)
            time.sleep(0.02)

    # Once more at the most, if the first entered while it was still looking; after that it knows.
    assert agenda.asked <= before + is_woken + 1


def test_a_deadline_that_is_entered_while_the_worker_looks_is_not_overlooked(
    blocking: Workers,
) -> None:
    """It enters after the worker has read the deadlines, while it decides how long to sleep."""
    looks: list[float] = []
    entered: list[Any] = []

    class Later(float):
        def __gt__(self, other: float) -> bool:  # the worker looks for the earliest time
            if not entered:
                entered.append(worker.deadline(StandIn(), 1.0))
                entered[0].__enter__()
            return float(self) > float(other)

    def take_due() -> tuple[list[BackgroundTask], float]:
        looks.append(time.monotonic())
        # The first time it sleeps until it wakes by itself.
        return [], looks[-1] + 0.1 if len(looks) == 1 else Later(looks[-1] + 3600)

    worker = blocking(take_due)
    wait_until(lambda: entered, "it has entered")
    try:
        wait_until(lambda: len(looks) >= 3, "it looks again at once", seconds=10)
    finally:
        entered[0].__exit__(None, None, None)


@pytest.mark.req("C-02")
def test_a_stuck_call_is_freed_when_the_worker_stops(
    blocking: Workers, agenda: Agenda, others: Others
) -> None:
    worker = blocking(agenda)
    with SilentPeer() as peer:
        client, sender = silent_sender(peer)

        def send() -> None:
            with worker.deadline(sender, 60.0):
                sender.send_messages(ServiceBusMessage("a"))

        call = others.begin(send)
        wait_until(lambda: private.socket_of(sender), "it has connected")
        assert is_waiting(call)

        worker.stop()

        with pytest.raises(ValueError, match="the paired client has been closed"):
            call.result(30)
        client.close()
    assert threads() == []


def test_a_call_after_the_end_is_refused(blocking: Workers, agenda: Agenda) -> None:
    worker = blocking(agenda)
    worker.stop()

    with pytest.raises(ValueError, match="has been closed; make a new one"):
        worker.deadline(StandIn(), 60.0).__enter__()


def test_nothing_is_logged_that_nobody_did_wrong(
    blocking: Workers, agenda: Agenda, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pairbus"):
        worker = blocking(agenda)
        wait_until(lambda: agenda.asked, "it has looked")
        worker.stop()

    assert caplog.records == []
