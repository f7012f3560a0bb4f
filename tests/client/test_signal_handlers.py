"""A signal handler may send, or close the client, while its thread is anywhere in a call."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pairbus.client import outbox, state
from pairbus.client.blocking.background import BackgroundWorker
from pairbus.client.blocking.pool import ConnectionPool
from pairbus.client.blocking.sender import SenderLock
from pairbus.client.outbox import ClientOutbox
from pairbus.client.reentrant_event import ReentrantEvent
from pairbus.client.state import ClientState
from pairbus.options import Outbox
from pairbus.telemetry import gauges, log
from tests.client.fakes import StandIn, plain_client
from tests.client.lines import ctrl_c, run_and_interrupt
from tests.telemetry import sample_events as sample
from tests.waiting import wait_until

Work = Callable[[], Any]


def client_state() -> tuple[Work, Work]:
    made: ClientState[Any] = ClientState(plain_client())
    return made.paths, made.take_listener


def event_log() -> tuple[Work, Work]:
    observer = log.EventLog()
    return lambda: observer(sample.throttled), lambda: observer(sample.closed)


def gauge_tracker() -> tuple[Work, Work]:
    tracker = gauges.GaugeTracker()
    return lambda: tracker.changes(sample.failed_over), lambda: tracker.changes(sample.closed)


def worker() -> tuple[Work, Work]:
    made = BackgroundWorker(
        "test", clock=time.monotonic, take_due=lambda: ([], None), perform=lambda task: None
    )
    return made.wake, made.wake


def waiting_call() -> tuple[Work, Work]:
    closing = ReentrantEvent()
    return lambda: closing.wait(0.01), closing.set


@pytest.fixture
def outbox_file(tmp_path: Path) -> Iterator[Callable[[], tuple[Work, Work]]]:
    made: list[ClientOutbox] = []

    def client_outbox() -> tuple[Work, Work]:
        one = ClientOutbox(
            Outbox(path=str(tmp_path / "outbox")),
            namespace="contoso",
            clock=time.monotonic,
            notify=lambda event: None,
        )
        made.append(one)
        one.open_existing()
        return one.close, one.close

    yield client_outbox
    for each in made:
        each.close()


@pytest.mark.req("C-02")
@pytest.mark.parametrize(
    ("module", "make"),
    [
        (state, client_state),
        (log, event_log),
        (gauges, gauge_tracker),
        (threading, worker),
        (threading, waiting_call),
    ],
)
def test_a_client_may_be_closed_before_any_line_of(
    module: ModuleType, make: Callable[[], tuple[Work, Work]]
) -> None:
    close_before_any_line(module, make)


def set_event() -> tuple[Work, Work]:
    event = ReentrantEvent()
    return event.set, event.set


def lend() -> tuple[Work, Work]:
    pool = ConnectionPool(lambda queue: StandIn(queue), client=None, clock=time.monotonic)  # type: ignore[arg-type, return-value]

    def borrow_and_give_back() -> None:
        pool.give_back(pool.borrow("a", 1.0), is_usable=True)

    return borrow_and_give_back, borrow_and_give_back


def release() -> tuple[Work, Work]:
    lock, holder = SenderLock("orders"), object()
    assert lock.try_acquire(holder)
    waiter = threading.Thread(target=lock.acquire, args=(60.0,), daemon=True)
    waiter.start()
    wait_until(lambda: lock.waiting, "it waits")
    return lambda: lock.release(holder), waiter.join


@pytest.mark.req("C-02")
@pytest.mark.parametrize("make", [set_event, lend, release])
def test_a_ctrl_c_at_any_line_of_the_standard_library_leaves_no_lock_held(
    make: Callable[[], tuple[Work, Work]],
) -> None:
    for line in itertools.count(1):
        work, work_of_another = make()
        with suppress(KeyboardInterrupt):
            if not run_and_interrupt(work, threading, ctrl_c, before_line=line):
                break
        another = threading.Thread(target=work_of_another, daemon=True)
        another.start()
        another.join(30)
        assert not another.is_alive(), f"it waits for ever after line {line}"

    assert line > 2


@pytest.mark.req("C-02")
def test_a_client_may_be_closed_before_any_line_of_the_end_of_its_outbox(
    outbox_file: Callable[[], tuple[Work, Work]],
) -> None:
    close_before_any_line(outbox, outbox_file)


def close_before_any_line(module: ModuleType, make: Callable[[], tuple[Work, Work]]) -> None:
    def close_before_each_line() -> None:
        for line in itertools.count(1):
            send, close = make()
            if not run_and_interrupt(send, module, close, before_line=line):
                lines.append(line)
                return

    lines: list[int] = []
    thread = threading.Thread(target=close_before_each_line, daemon=True)
    thread.start()
    thread.join(30)

    assert not thread.is_alive(), "it waits for a lock that it has itself"
    assert lines[0] > 2
