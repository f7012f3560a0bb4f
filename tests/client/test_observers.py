"""Whoever watches is told everything, and can do no harm."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable

import pytest

from pairbus.client.observers import Audience
from pairbus.errors import OptionsError
from pairbus.events import Closed, Event, Recovered

ONE = Recovered(namespace="contoso", path="orders")
TWO = Closed(namespace="contoso")


def audience(*observers: Callable[[Event], None]) -> Audience:
    return Audience("contoso", primary="p", secondary="s", observers=observers)


def test_all_are_told_in_order() -> None:
    told: list[tuple[str, Event]] = []
    watched = audience(lambda e: told.append(("first", e)), lambda e: told.append(("second", e)))
    watched.observe(lambda e: told.append(("third", e)))

    watched.tell([ONE, TWO])

    assert told == [(who, event) for event in (ONE, TWO) for who in ("first", "second", "third")]


def test_events_are_logged_by_themselves(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "pairbus"):
        audience().tell([ONE])

    assert any("orders" in record.getMessage() for record in caplog.records)


def test_an_observer_that_raises_harms_nobody_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(event: Event) -> None:
        raise RuntimeError("out of ink")

    told: list[Event] = []
    watched = audience(broken, told.append)

    watched.tell([ONE, TWO])

    assert told == [ONE, TWO]
    failures = [record for record in caplog.records if record.name == "pairbus.observers"]
    assert len(failures) == 2
    assert "out of ink" in str(failures[0].exc_info)
    assert "broken" in failures[0].getMessage()


def test_what_is_registered_later_is_not_told_of_the_past() -> None:
    told: list[Event] = []
    watched = audience()
    watched.tell([ONE])

    watched.observe(told.append)

    assert told == []


def test_watching_ends_when_asked_and_again_without_harm() -> None:
    told: list[Event] = []
    watched = audience()
    end = watched.observe(told.append)
    watched.tell([ONE])

    end()
    end()
    watched.tell([TWO])

    assert told == [ONE]


def test_an_observer_registered_twice_is_told_twice_and_ended_once() -> None:
    told: list[Event] = []
    watched = audience()
    end = watched.observe(told.append)
    watched.observe(told.append)
    watched.tell([ONE])
    assert told == [ONE, ONE]

    end()
    watched.tell([TWO])

    assert told == [ONE, ONE, TWO]


def test_an_observer_may_end_itself_while_it_is_told() -> None:
    told: list[Event] = []
    after: list[Event] = []
    watched = audience()

    def once(event: Event) -> None:
        told.append(event)
        end()

    end = watched.observe(once)
    watched.observe(after.append)
    watched.tell([ONE, TWO])

    assert told == [ONE]
    assert after == [ONE, TWO]


def test_an_observer_may_bring_another_while_it_is_told() -> None:
    told: list[Event] = []
    watched = audience()
    watched.observe(lambda event: watched.observe(told.append) and None)

    watched.tell([ONE])
    assert told == []
    watched.tell([TWO])

    assert told == [TWO]


def test_nothing_is_told_after_the_end() -> None:
    told: list[Event] = []
    watched = audience(told.append)
    watched.tell([ONE])

    watched.end()
    watched.tell([TWO])

    assert told == [ONE]


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(OptionsError, match="must be callable with one event, not 'log'"):
        audience().observe("log")  # type: ignore[arg-type]


def test_what_would_have_to_be_awaited_is_refused() -> None:
    async def watch(event: Event) -> None: ...

    class Watching:
        async def __call__(self, event: Event) -> None: ...

    for observer in (watch, Watching()):
        with pytest.raises(OptionsError, match="must be a plain function, which is called and not"):
            audience().observe(observer)  # type: ignore[arg-type]


def test_threads_that_register_at_once_are_all_told() -> None:
    told: list[int] = []
    watched = audience()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=_register, args=(watched, told)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)

    watched.tell([ONE])

    assert len(told) == 8 * 50


def _register(watched: Audience, told: list[int]) -> None:
    for number in range(50):
        ended = watched.observe(lambda event: told.append(-1))
        watched.observe(lambda event, number=number: told.append(number))
        ended()
