"""Options are checked when they are made, and the errors say what would be right."""

from __future__ import annotations

import copy
import pickle
import re
from datetime import timedelta
from typing import Any

import pytest

import pairbus
from pairbus.errors import OptionsError, PairbusError
from pairbus.events import Event
from pairbus.options import PairedNamespaceOptions, SendAvailabilityPairedNamespaceOptions


class Manager:
    """The part of an administration client that the options look at."""

    def get_queue(self, name: str) -> None: ...

    def create_queue(self, name: str) -> None: ...


class Factory:
    def get_queue_sender(self, name: str) -> None: ...

    def close(self) -> None: ...


class AsyncManager(Manager):
    async def get_queue(self, name: str) -> None: ...


class AsyncFactory(Factory):
    async def close(self) -> None: ...


def made(*more: Any, **settings: Any) -> SendAvailabilityPairedNamespaceOptions:
    return SendAvailabilityPairedNamespaceOptions(Manager(), Factory(), *more, **settings)


# --- defaults


@pytest.mark.req("A-02")
def test_the_base_pairs_nothing_itself_and_says_what_to_make() -> None:
    with pytest.raises(OptionsError, match="use SendAvailabilityPairedNamespaceOptions"):
        PairedNamespaceOptions()

    assert issubclass(SendAvailabilityPairedNamespaceOptions, PairedNamespaceOptions)
    assert isinstance(made(), PairedNamespaceOptions)


@pytest.mark.req("A-03")
def test_the_first_two_parameters_are_enough() -> None:
    options = made()

    assert options.backlog_queue_count == 10
    assert options.failover_interval == timedelta(minutes=1)
    assert options.enable_syphon is False
    assert options.ping_primary_interval == timedelta(minutes=1)
    assert options.primary_namespace_name is None
    assert options.failover_scope == "entity"
    assert options.ping_mode == "message"
    assert options.secondary_connections == "ready"
    assert options.send_timeout == timedelta(minutes=1)
    assert options.throttle_wait == timedelta(seconds=10)
    assert options.observers == ()
    assert options.syphon is None
    assert options.outbox is None
    assert options.fail_back_pings == 1
    assert (options.fail_back, options.fail_back_wait_max) == ("at_once", None)
    assert not options.is_paired
    assert not options.is_asyncio


@pytest.mark.req("A-03")
def test_the_parameters_of_the_documents_come_in_their_order() -> None:
    manager, factory = Manager(), Factory()

    options = SendAvailabilityPairedNamespaceOptions(
        manager, factory, 3, timedelta(minutes=2), True, timedelta(seconds=30)
    )

    assert options.secondary_namespace_manager is manager
    assert options.messaging_factory is factory
    assert options.backlog_queue_count == 3
    assert options.failover_interval == timedelta(minutes=2)
    assert options.enable_syphon is True
    assert options.ping_primary_interval == timedelta(seconds=30)


@pytest.mark.req("A-03")
def test_what_the_documents_do_not_know_is_given_by_name() -> None:
    with pytest.raises(TypeError, match="positional"):
        made(10, timedelta(0), False, timedelta(minutes=1), "contoso")


# --- ranges

MINUTE = timedelta(minutes=1)
TINY = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("name", "smallest", "largest"),
    [
        pytest.param(
            "failover_interval",
            timedelta(0),
            60 * MINUTE,
            marks=pytest.mark.req("A-05"),
            id="the failover interval, 0 to 60 minutes",
        ),
        pytest.param(
            "ping_primary_interval",
            timedelta(seconds=1),
            30 * MINUTE,
            marks=pytest.mark.req("A-09"),
            id="the interval of pings, 1 second to 30 minutes",
        ),
        pytest.param("send_timeout", timedelta(seconds=1), 60 * MINUTE, id="the bound of one send"),
        pytest.param(
            "throttle_wait",
            timedelta(seconds=10),
            10 * MINUTE,
            marks=pytest.mark.req("R-03"),
            id="the wait for a busy service, never less than 10 seconds",
        ),
    ],
)
def test_a_duration_has_a_range_that_the_refusal_names(
    name: str, smallest: timedelta, largest: timedelta
) -> None:
    for accepted in (smallest, largest):
        assert getattr(made(**{name: accepted}), name) == accepted

    for refused in (smallest - TINY, largest + TINY, -MINUTE, timedelta.max):
        with pytest.raises(OptionsError) as caught:
            made(**{name: refused})
        assert str(caught.value) == (
            f"{name} must be from {smallest} to {largest} (hours:minutes:seconds), not {refused}"
        )


# --- counts, words, flags, names

HOUR = timedelta(hours=1)


async def awaited(event: Event) -> None: ...


ACCEPTED = [
    *({"backlog_queue_count": count} for count in (1, 2, 1000)),
    *({"fail_back_pings": count} for count in (2, 100)),
    {"fail_back": "ordered", "fail_back_wait_max": HOUR},
    *({"primary_namespace_name": name} for name in ("contoso", "Contoso-2", "a_b.c", "7")),
]

# What was given, and what its refusal says. After "not " comes what was given.
REFUSED = [
    *(
        (
            {"failover_interval": value},
            "failover_interval must be a timedelta from 0:00:00 to 1:00:00 "
            "(hours:minutes:seconds), not ",
        )
        for value in (60, 1.5, "0:01:00", None)
    ),
    *(({"backlog_queue_count": count}, "must be at least 1, not ") for count in (0, -1)),
    *(
        ({"backlog_queue_count": count}, "must be a whole number of at least 1, not ")
        for count in (True, 2.0, "10", None)
    ),
    *(({"fail_back_pings": count}, "must be from 1 to 100, not ") for count in (0, -1, 101)),
    ({"fail_back_pings": 2.5}, "must be a whole number from 1 to 100, not "),
    ({"fail_back": "sorted"}, "fail_back must be one of 'at_once', 'ordered', not "),
    ({"fail_back_wait_max": HOUR}, 'fail_back is "at_once"; set it to "ordered"'),
    (
        {"fail_back": "ordered", "fail_back_wait_max": timedelta(days=8)},
        "fail_back_wait_max must be from 0:00:01 to 7 days",
    ),
    ({"ping_mode": "http"}, "ping_mode must be one of 'message', 'link', not "),
    ({"failover_scope": "client"}, "failover_scope must be one of 'entity', 'namespace', not "),
    ({"secondary_connections": ["ready"]}, "must be one of 'ready', 'lazy', not "),
    ({"enable_syphon": 1}, "enable_syphon must be True or False, not "),
    ({"syphon": object()}, "syphon is given, but enable_syphon is False; set it to True"),
    ({"observers": 3}, "observers must be a list of callables, not "),
    ({"observers": ["log"]}, "an observer must be callable with one event, not 'log'"),
    ({"observers": [awaited]}, "let it put the event into a queue"),
    *(
        (
            {"primary_namespace_name": name},
            "such as 'contoso' (letters, digits, '-', '_' and '.'), not ",
        )
        for name in ("", "a/b", "sb://contoso", "con toso", 7, b"contoso")
    ),
    ({"outbox": "outbox.db"}, "outbox must be an Outbox or None, not "),
]


@pytest.mark.req("A-04", "X-03", "X-11")
@pytest.mark.parametrize("settings", ACCEPTED, ids=" ".join)
def test_a_value_in_its_range_is_accepted(settings: dict[str, Any]) -> None:
    options = made(**settings)

    assert {name: getattr(options, name) for name in settings} == settings


@pytest.mark.req("A-04", "X-03", "X-04", "X-11")
@pytest.mark.parametrize(
    ("settings", "text"), REFUSED, ids=[" ".join(settings) for settings, _ in REFUSED]
)
def test_a_wrong_value_is_named_with_what_would_be_right(
    settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(OptionsError) as caught:
        made(**settings)

    wrong = [*settings.values()][-1]
    assert (f"{text}{wrong!r}" if text.endswith("not ") else text) in str(caught.value)


def test_observers_may_come_from_any_iterable() -> None:
    def watch(event: Event) -> None: ...

    assert made(observers=iter([watch, print])).observers == (watch, print)


# --- the secondary's clients


@pytest.mark.req("A-03")
def test_what_is_no_client_is_refused_by_name() -> None:
    with pytest.raises(OptionsError) as caught:
        SendAvailabilityPairedNamespaceOptions("Endpoint=sb://contoso", Factory())
    assert str(caught.value) == (
        "secondary_namespace_manager must be the secondary's ServiceBusAdministrationClient, "
        "not str"
    )

    with pytest.raises(OptionsError) as caught:
        SendAvailabilityPairedNamespaceOptions(Manager(), Manager())
    assert str(caught.value) == (
        "messaging_factory must be the secondary's ServiceBusClient, not Manager"
    )


def test_the_two_clients_of_the_secondary_are_of_one_kind() -> None:
    assert SendAvailabilityPairedNamespaceOptions(AsyncManager(), AsyncFactory()).is_asyncio

    with pytest.raises(OptionsError, match=r"import .* from azure.servicebus.aio.management$"):
        SendAvailabilityPairedNamespaceOptions(Manager(), AsyncFactory())
    with pytest.raises(OptionsError, match=r"import .* from azure.servicebus.management$"):
        SendAvailabilityPairedNamespaceOptions(AsyncManager(), Factory())


# --- one process, one pairing


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_options_cannot_leave_their_process(copied: Any) -> None:
    with pytest.raises(TypeError, match="make the options in the process that pairs with them"):
        copied(made())


@pytest.mark.req("A-11")
def test_a_path_is_not_marked_healthy_before_a_client_is_paired() -> None:
    with pytest.raises(
        OptionsError, match=r"^cannot mark 'orders' as healthy: no client has been paired"
    ):
        made().mark_path_healthy("orders")


@pytest.mark.req("A-11")
def test_marking_a_path_healthy_is_handed_to_the_pairing() -> None:
    options = made()
    options.bind(lambda path: path == "orders", 10)

    assert options.is_paired
    assert options.mark_path_healthy("orders") is True
    assert options.mark_path_healthy("invoices") is False


@pytest.mark.req("A-08")
def test_the_number_of_backlog_queues_is_that_of_the_pairing() -> None:
    options = made(3)
    options.bind(lambda path: True, 7)

    assert options.backlog_queue_count == 7


def test_a_refusal_is_one_of_ours_and_a_value_error() -> None:
    for kind in (ValueError, PairbusError, pairbus.OptionsError):
        with pytest.raises(kind):
            made(0)


# --- the outbox


@pytest.mark.req("X-04")
def test_an_outbox_needs_only_a_path_which_does_not_change_with_the_working_directory(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outbox = pairbus.Outbox("outbox.db")

    assert outbox.path == tmp_path / "outbox.db"
    assert (outbox.max_bytes, outbox.max_age) == (2**30, None)
    assert made(outbox=outbox).outbox is outbox


@pytest.mark.req("X-04")
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"path": ""}, "the path of an outbox must name a file, not ''"),
        ({"path": 7}, "the path of an outbox must name a file, not 7"),
        ({"max_bytes": 0}, "max_bytes must be at least 1, not 0"),
        ({"max_bytes": 1.5}, "max_bytes must be a whole number of bytes, not 1.5"),
        ({"max_bytes": True}, "max_bytes must be a whole number of bytes, not True"),
        ({"max_age": 60}, "max_age must be a timedelta above 0, or None, not 60"),
        ({"max_age": timedelta(0)}, "max_age must be a timedelta above 0, or None"),
    ],
)
def test_impossible_settings_of_an_outbox_are_refused(settings, text) -> None:
    with pytest.raises(OptionsError, match=re.escape(text)):
        pairbus.Outbox(**{"path": "outbox.db", **settings})
