"""Backlog queues on a real broker, through both administration clients of the SDK."""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import azure.servicebus.aio.management as aio
import azure.servicebus.management as blocking
import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
)
from azure.servicebus.exceptions import ServiceBusError

from pairbus.broker import Broker
from pairbus.client.sdk.backlog_queues import (
    FOREVER,
    SETTINGS,
    BacklogQueues,
    names,
    prepare,
)
from pairbus.client.sdk.pairing_errors import PairingError
from pairbus.client.steps import run, run_async
from tests.interop.bus import POLICIES

LONGEST = timedelta(days=10675199, hours=2, minutes=48, seconds=5, microseconds=477581)
"""What is left of `FOREVER` in a timedelta."""
NAMES = names("contoso", 3)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(policies=POLICIES) as running:
        yield running


@contextmanager
def managing(broker: Broker, text: str | None = None) -> Iterator[Any]:
    options = {"connection_verify": str(broker.ca_file), "retry_total": 0}
    make = blocking.ServiceBusAdministrationClient.from_connection_string
    with make(text or broker.connection_string, **options) as manager:
        yield manager


@pytest.fixture
def manager(broker: Broker) -> Iterator[Any]:
    """Reads what is there, and leaves the namespace as it was."""
    with managing(broker) as manager:
        yield manager
        for queue in list(manager.list_queues()):
            manager.delete_queue(queue.name)
        for topic in list(manager.list_topics()):
            manager.delete_topic(topic.name)


def found_by(manager: Any, queues: Any, further: Any = ()) -> BacklogQueues:
    return run(prepare(manager, queues, further=further), lambda call: call())


Preparing = Callable[..., BacklogQueues]


@pytest.fixture(params=["sync", "asyncio"])
def preparing(request: pytest.FixtureRequest, broker: Broker) -> Preparing:
    """`prepare`, run by the driver of either shell, with a client of its own."""

    def run(queues: Any, text: str | None = None, further: Any = ()) -> BacklogQueues:
        if request.param == "sync":
            with managing(broker, text) as manager:
                return found_by(manager, queues, further)

        async def prepared() -> BacklogQueues:
            options = {"connection_verify": str(broker.ca_file), "retry_total": 0}
            make = aio.ServiceBusAdministrationClient.from_connection_string
            async with make(text or broker.connection_string, **options) as manager:
                steps = prepare(manager, queues, further=further)
                return await run_async(steps, lambda call: call())

        return asyncio.run(prepared())

    return run


def edited(broker: Broker, **edits: str) -> str:
    text = broker.connection_string
    for name, value in edits.items():
        text = re.sub(f"{name}=[^;]*", f"{name}={value}", text)
    return text


# --- names and settings ---------------------------------------------------------------------------


@pytest.mark.req("Q-01")
def test_they_are_named_after_the_primary_and_numbered_from_zero():
    assert names("contoso", 2) == (
        "contoso/x-servicebus-transfer/0",
        "contoso/x-servicebus-transfer/1",
    )
    assert len(names("contoso", 10)) == 10


@pytest.mark.req("Q-02")
def test_what_is_made_has_the_documented_settings(preparing, manager):
    found = preparing(NAMES)

    assert found == BacklogQueues(queues=NAMES, made=NAMES)
    for name in NAMES:
        queue = manager.get_queue(name)
        assert queue.max_size_in_megabytes == 5120
        assert queue.max_delivery_count == 2_147_483_647
        assert queue.default_message_time_to_live == LONGEST
        assert queue.auto_delete_on_idle == LONGEST
        assert queue.lock_duration == timedelta(minutes=1)
        assert queue.dead_lettering_on_message_expiration is True
        assert queue.enable_batched_operations is True


@pytest.mark.req("Q-02")
def test_all_else_is_as_the_service_has_it(preparing, manager):
    preparing(NAMES[:1])
    manager.create_queue("by-default")

    ours, plain = dict(manager.get_queue(NAMES[0])), dict(manager.get_queue("by-default"))
    differing = {key for key in plain if ours[key] != plain[key]}
    assert differing <= {"name", *SETTINGS}


@pytest.mark.req("Q-02")
def test_the_longest_duration_goes_out_to_its_last_digit():
    sent = []

    class Spy:
        fully_qualified_namespace = "spy"

        def get_queue(self, name: str) -> None:
            raise ResourceNotFoundError("missing")

        def create_queue(self, name: str, **settings: Any) -> None:
            sent.append(settings)

    found_by(Spy(), NAMES[:1])

    assert sent[0]["default_message_time_to_live"] == FOREVER == "P10675199DT2H48M5.4775807S"
    assert set(sent[0]) <= set(inspect.signature(blocking_create_queue).parameters)


blocking_create_queue = blocking.ServiceBusAdministrationClient.create_queue


# --- looked up first ------------------------------------------------------------------------------


# --- what is dangerous about those that exist -----------------------------------------------------

DANGERS = {
    "max_delivery_count": ({"max_delivery_count": 10}, "dead-letters a message after 10 deliv"),
    "default_message_time_to_live": ({"default_message_time_to_live": "P14D"}, "expire"),
    "auto_delete_on_idle": ({"auto_delete_on_idle": "P7D"}, "deletes itself"),
    "forward_to": ({"forward_to": "elsewhere"}, "forwards messages"),
    "requires_session": ({"requires_session": True}, "without a session"),
    "requires_duplicate_detection": (
        {"requires_duplicate_detection": True},
        "drops a message with a known message id",
    ),
}


@pytest.mark.req("Q-03")
@pytest.mark.parametrize("setting", DANGERS)
def test_a_setting_that_could_lose_messages_is_warned_about(preparing, manager, setting):
    wrong, text = DANGERS[setting]
    manager.create_queue("elsewhere")
    manager.create_queue(NAMES[1], **{**SETTINGS, **wrong})

    found = preparing(NAMES)

    assert found.queues == NAMES, "it is used all the same"
    [warning] = found.warnings
    assert f"backlog queue {NAMES[1]!r} already existed" in warning
    assert f"({setting})" in warning
    assert text in warning
    assert "delete the queue when it is empty" in warning.lower()


@pytest.mark.req("Q-03")
def test_a_queue_with_the_services_defaults_has_one_warning_for_all_its_settings(
    preparing, manager
):
    manager.create_queue(NAMES[0], requires_session=True)

    [warning] = preparing(NAMES).warnings

    assert "(max_delivery_count); it accepts no message without a session" in warning


def test_further_queues_that_cannot_be_looked_up_do_not_stop_a_pairing(preparing, broker, manager):
    preparing(names("contoso", 5))

    with broker.faults.cannot_manage(names("contoso", 4)[3]):
        assert preparing(NAMES, further=names("contoso", 10)[3:]) == BacklogQueues(
            queues=NAMES, made=()
        )


# --- two at once ----------------------------------------------------------------------------------


class Loser:
    """An administration client that finds no queue, and then creates it too late."""

    fully_qualified_namespace = "backup"

    def __init__(self, error: Exception) -> None:
        self._error = error

    def get_queue(self, name: str) -> Any:
        raise ResourceNotFoundError("missing")

    def create_queue(self, name: str, **settings: Any) -> Any:
        raise self._error


def conflict() -> HttpResponseError:
    """What the SDK makes of a 409 whose body it can read."""
    error = HttpResponseError("Conflict")
    error.status_code = 409
    return error


def as_coroutine(method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    async def coroutine(*arguments: Any, **options: Any) -> Any:
        return method(*arguments, **options)

    return coroutine


@pytest.mark.req("Q-03")
@pytest.mark.parametrize("error", [ResourceExistsError("exists"), conflict()])
def test_a_queue_that_another_client_creates_meanwhile_counts_as_found(error):
    loser = Loser(error)
    assert found_by(loser, NAMES) == BacklogQueues(queues=NAMES, made=())

    loser.get_queue = as_coroutine(loser.get_queue)
    loser.create_queue = as_coroutine(loser.create_queue)
    assert asyncio.run(run_async(prepare(loser, NAMES), lambda call: call())) == BacklogQueues(
        queues=NAMES, made=()
    )


@pytest.mark.req("Q-03")
def test_several_pair_at_once_and_each_queue_is_made_once(broker, manager):
    queues, found, start = names("contoso", 6), [], threading.Barrier(6)

    def pair() -> None:
        with managing(broker) as own:
            start.wait()
            found.append(found_by(own, queues))

    threads = [threading.Thread(target=pair) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [each.queues for each in found] == [queues] * 6
    assert sorted(name for each in found for name in each.made) == sorted(queues)


# --- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.req("A-07")
@pytest.mark.parametrize(
    "edits",
    [
        {"SharedAccessKey": "d3Jvbmc="},
        {"SharedAccessKeyName": "nobody"},
        {"SharedAccessKeyName": "sender", "SharedAccessKey": "c2VuZA=="},
        {"SharedAccessKeyName": "listener", "SharedAccessKey": "bGlzdGVu"},
    ],
    ids=["a wrong key", "an unknown policy", "only Send", "only Listen"],
)
def test_missing_rights_are_reported(preparing, broker, manager, edits):
    with pytest.raises(PairingError) as raised:
        preparing(NAMES, edited(broker, **edits))

    error = raised.value
    assert "Manage claim" in str(error)
    assert repr(NAMES[0]) in str(error)
    assert f"'localhost:{broker.port}'" in str(error)
    assert (error.queue, error.namespace) == (NAMES[0], f"localhost:{broker.port}")
    assert isinstance(error.__cause__, ClientAuthenticationError | HttpResponseError)
    assert isinstance(error, ServiceBusError)
    assert list(manager.list_queues()) == []


REASONS = {
    "busy": (HttpResponseError("slow down"), 503, "must be up"),
    "too many queues": (HttpResponseError("quota"), 400, "create the queue by hand"),
    "a full namespace": (HttpResponseError("quota"), 403, "must have room"),
    "no answer": (ServiceRequestError("refused"), None, "must be up"),
    "a bug of a stand-in": (RuntimeError("Session is closed"), None, "RuntimeError: Session is"),
}


@pytest.mark.parametrize(("error", "status", "text"), REASONS.values(), ids=REASONS)
def test_the_error_says_the_reason(error, status, text):
    if status is not None:
        error.status_code = status

    with pytest.raises(PairingError, match=text) as raised:
        found_by(Loser(error), NAMES)

    assert raised.value.error is raised.value.__cause__ is error
    assert "could not be created" in str(raised.value)
