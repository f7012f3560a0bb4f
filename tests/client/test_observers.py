"""Observers are notified of everything, and can do no harm."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pairbus.client.observers import Observers
from pairbus.errors import OptionsError
from pairbus.events import Closed, Event, Recovered
from tests.client.fakes import run_in_threads

ONE = Recovered(namespace="contoso", path="orders")
TWO = Closed(namespace="contoso")


def observers_of(*observers: Callable[[Event], None]) -> Observers:
    return Observers("contoso", primary="p", secondary="s", observers=observers)


def test_all_are_notified_in_order() -> None:
    seen: list[tuple[str, Event]] = []
    watched = observers_of(
        lambda e: seen.append(("first", e)), lambda e: seen.append(("second", e))
    )
    watched.add(lambda e: seen.append(("third", e)))

    watched.notify([ONE, TWO])

    assert seen == [(who, event) for event in (ONE, TWO) for who in ("first", "second", "third")]


def test_an_observer_that_raises_harms_nobody_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(event: Event) -> None:
        raise RuntimeError("out of ink")

    seen: list[Event] = []
    watched = observers_of(broken, seen.append)

    watched.notify([ONE, TWO])

    assert seen == [ONE, TWO]
    failures = [record for record in caplog.records if record.name == "pairbus.observers"]
    assert len(failures) == 2
    assert "out of ink" in str(failures[0].exc_info)
    assert "broken" in failures[0].getMessage()


def test_an_observer_added_twice_is_notified_twice_and_removed_once() -> None:
    seen: list[Event] = []
    watched = observers_of()
    remove = watched.add(seen.append)
    watched.add(seen.append)
    watched.notify([ONE])
    assert seen == [ONE, ONE]

    remove()
    remove()
    watched.notify([TWO])

    assert seen == [ONE, ONE, TWO]


def test_an_observer_may_remove_itself_while_it_is_notified() -> None:
    seen: list[Event] = []
    after: list[Event] = []
    watched = observers_of()

    def once(event: Event) -> None:
        seen.append(event)
        remove()

    remove = watched.add(once)
    watched.add(after.append)
    watched.notify([ONE, TWO])

    assert seen == [ONE]
    assert after == [ONE, TWO]


def test_an_observer_may_add_another_while_it_is_notified() -> None:
    seen: list[Event] = []
    watched = observers_of()
    watched.add(lambda event: watched.add(seen.append) and None)

    watched.notify([ONE])
    assert seen == [], "it is not notified of the past"
    watched.notify([TWO])

    assert seen == [TWO]


def test_nobody_is_notified_after_the_end() -> None:
    seen: list[Event] = []
    watched = observers_of(seen.append)
    watched.notify([ONE])

    watched.end()
    watched.notify([TWO])

    assert seen == [ONE]


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(OptionsError, match="must be callable with one event, not 'log'"):
        observers_of().add("log")  # type: ignore[arg-type]


def test_what_would_have_to_be_awaited_is_refused() -> None:
    async def watch(event: Event) -> None: ...

    class Watching:
        async def __call__(self, event: Event) -> None: ...

    for observer in (watch, Watching()):
        with pytest.raises(
            OptionsError, match="must be a plain function, because it is not awaited"
        ):
            observers_of().add(observer)  # type: ignore[arg-type]


def test_observers_added_by_many_threads_are_all_notified() -> None:
    seen: list[int] = []
    watched = observers_of()

    def register() -> None:
        for number in range(50):
            ended = watched.add(lambda event: seen.append(-1))
            watched.add(lambda event, number=number: seen.append(number))
            ended()

    run_in_threads(register)
    watched.notify([ONE])

    assert len(seen) == 8 * 50


def test_an_observer_that_cannot_watch_sends_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        def __call__(self, event: Event) -> None: ...

        def watch_sends(self, namespace: str, read: object) -> Callable[[], None]:
            raise RuntimeError("out of ink")

    watched = observers_of(Broken())
    watched.watch_sends(lambda: {"orders": 1})
    watched.end()

    assert "cannot watch sends" in caplog.text
