"""One message by the shorter way, beside the SDK's own `send_messages`: the same goes out, and the
same is told where nothing can."""

from __future__ import annotations

import asyncio
import functools
from datetime import UTC, datetime, timedelta
from typing import Any

import azure.servicebus
import azure.servicebus.aio
import pytest
from azure.core.settings import settings
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSender
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError
from hypothesis import assume, given
from hypothesis import strategies as st

from pairbus.broker import Broker
from pairbus.client.sdk import private as internals
from tests.client.fakes import PRIMARY
from tests.client.sdk.drawn import messages

SECONDS = 7.0


class Wire:
    """In place of the SDK's AMQP client: what it is handed, as bytes."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, float]] = []
        self.errors: list[Exception] = []

    def send_message(self, message: Any, *, timeout: float) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.sent.append((bytes(encode_payload(bytearray(), message)), round(timeout, 1)))

    def close(self) -> None:
        pass


class AsyncWire(Wire):
    async def send_message_async(self, message: Any, *, timeout: float) -> None:
        self.send_message(message, timeout=timeout)

    async def close_async(self) -> None:
        pass


class Both:
    """A sender of either shell on a wire that goes nowhere."""

    def __init__(self, name: str, **options: Any) -> None:
        self.is_async = name == "asyncio"
        kind: Any = azure.servicebus.aio if self.is_async else azure.servicebus
        client = kind.ServiceBusClient.from_connection_string(PRIMARY, retry_total=0, **options)
        self.sender: Any = client.get_queue_sender("orders")
        self.wire = AsyncWire() if self.is_async else Wire()
        self.sender._handler, self.sender._running = self.wire, True

    def by_sdk(self, message: Any) -> Any:
        return self._outcome(lambda: self.sender.send_messages(message, timeout=SECONDS))

    def by_us(self, message: Any) -> Any:
        return self._outcome(lambda: internals.send(self.sender.send_messages, message, SECONDS))

    def _outcome(self, call: Any) -> Any:
        async def awaited() -> None:
            await call()

        self.wire.sent.clear()
        self.sender._handler, self.sender._running = self.wire, True
        try:
            asyncio.run(awaited()) if self.is_async else call()
        except Exception as error:
            return type(error), str(error), type(error.__cause__)
        return list(self.wire.sent)


@pytest.fixture(params=["blocking", "asyncio"])
def both(request: pytest.FixtureRequest) -> Both:
    return Both(request.param)


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What goes by the SDK's own method."""
    calls: list[Any] = []
    is_known = internals._outgoing

    def watched(by_sdk: Any, message: Any) -> Any:
        outgoing = is_known(by_sdk, message)
        if outgoing is None:
            calls.append(message)
        return outgoing

    monkeypatch.setattr(internals, "_outgoing", watched)
    return calls


def test_the_sdk_of_the_lock_is_one_whose_method_was_read() -> None:
    """If this fails: read its `send_messages`, in both shells, and compare it with
    `internals.send`; then name the release there."""
    assert azure.servicebus.__version__ in internals.SHORT_WAY_IN
    for kind in (azure.servicebus, azure.servicebus.aio):
        assert internals._is_known(kind.ServiceBusSender.send_messages)


@pytest.mark.parametrize(
    "message",
    [
        ServiceBusMessage(b"x"),
        ServiceBusMessage("text", application_properties={"n": 1, b"b": b"text"}, subject="s"),
        ServiceBusMessage(None, session_id="one", time_to_live=timedelta(days=1)),
        ServiceBusMessage(
            b"x" * 100_000, scheduled_enqueue_time_utc=datetime(2030, 1, 1, tzinfo=UTC)
        ),
        AmqpAnnotatedMessage(value_body={"a": [1, 2.5, None]}),
        AmqpAnnotatedMessage(sequence_body=[[1], ["two"]], application_properties={"n": 1}),
    ],
    ids=["bytes", "properties", "session", "schedule", "value", "sequence"],
)
def test_the_same_goes_out(both: Both, message: Any, long_way: list[Any]) -> None:
    theirs, ours = both.by_sdk(message), both.by_us(message)

    if theirs != ours:  # a time to live is told as of this second, which may be over
        theirs, ours = both.by_sdk(message), both.by_us(message)
    assert ours == theirs
    assert len(ours) == 1
    assert long_way == []


QUIET = Both("blocking")


@pytest.mark.parametrize("name", ["blocking", "asyncio"])
def test_the_sdk_is_asked_as_it_asks_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    both, message = Both(name), ServiceBusMessage(b"x")
    asked: list[Any] = []

    def remember(*what: Any, **how: Any) -> Any:
        asked.append((what, how))
        return asyncio.sleep(0) if both.is_async else None

    monkeypatch.setattr(both.sender, "_do_retryable_operation", remember)
    both.by_sdk(message)
    both.by_us(message)

    assert asked[0] == asked[1]


@pytest.mark.parametrize("name", ["blocking", "asyncio"])
def test_a_try_has_as_long_as_the_client_says(name: str) -> None:
    both = Both(name, try_timeout=3.0)

    [(_, seconds)] = both.by_us(message := ServiceBusMessage(b"x"))

    assert [seconds] == [each for _, each in both.by_sdk(message)]


@given(message=messages())
def test_whatever_the_message_the_same_goes_out(message: Any) -> None:
    both = QUIET
    before, ours, after = both.by_sdk(message), both.by_us(message), both.by_sdk(message)

    assume(before == after)
    assert ours == before


@given(
    wrong=st.sampled_from(
        [
            AmqpAnnotatedMessage(value_body={1}),
            ServiceBusMessage(b"x", application_properties={"n": object()}),
            ServiceBusMessage(b"x", application_properties={"n": b"\xff"}),
        ]
    )
)
def test_what_cannot_be_encoded_is_refused_in_the_sdks_words(wrong: Any) -> None:
    both = QUIET

    assert both.by_us(wrong) == both.by_sdk(wrong)


def test_a_message_whose_sections_are_wrong_is_refused_in_the_sdks_words(both: Both) -> None:
    wrong = ServiceBusMessage(b"x")
    wrong.raw_amqp_message.properties = "none"  # type: ignore[assignment]

    theirs = both.by_sdk(wrong)

    assert theirs[0] is TypeError
    assert both.by_us(wrong) == theirs


@pytest.mark.parametrize(
    "error", [TimeoutError("late"), OSError("gone"), OperationTimeoutError(message="too late")]
)
def test_a_failure_is_told_as_the_sdk_tells_it(both: Both, error: Exception) -> None:
    both.wire.errors = [error]
    theirs = both.by_sdk(ServiceBusMessage(b"x"))
    both.wire.errors = [error]

    assert issubclass(theirs[0], ServiceBusError)
    assert both.by_us(ServiceBusMessage(b"x")) == theirs


def test_a_sender_that_is_closed_is_told_as_the_sdk_tells_it(both: Both) -> None:
    both.sender._shutdown.set()

    theirs = both.by_sdk(ServiceBusMessage(b"x"))

    assert theirs[0] is ValueError
    assert both.by_us(ServiceBusMessage(b"x")) == theirs


@pytest.mark.parametrize("message", [{"body": b"x"}, 7, "text", None])
def test_all_but_messages_go_by_the_sdks_method(
    both: Both, message: Any, long_way: list[Any]
) -> None:
    ours = both.by_us(message)

    assert long_way == [message]
    if message != {"body": b"x"}:  # which gets another id each time
        assert ours == both.by_sdk(message)


def test_a_traced_message_goes_by_the_sdks_method(both: Both, long_way: list[Any]) -> None:
    message = ServiceBusMessage(b"x")
    settings.tracing_implementation.set_value(lambda **_: None)
    try:
        assert both.by_us(message) == both.by_sdk(message)
        assert long_way == [message]
    finally:
        settings.tracing_implementation.unset_value()


def test_tracing_that_is_set_up_wrongly_is_told_by_the_sdk(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong() -> None:
        raise ValueError("no such tracing")

    monkeypatch.setattr(settings.tracing_implementation, "_system_hook", wrong)

    theirs = both.by_sdk(ServiceBusMessage(b"x"))

    assert theirs[0] is ValueError
    assert both.by_us(ServiceBusMessage(b"x")) == theirs


def test_a_method_that_somebody_has_wrapped_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those do who trace the SDK from outside."""
    seen: list[Any] = []
    own = ServiceBusSender.send_messages

    @functools.wraps(own)
    def wrapped(self: Any, message: Any, **settings: Any) -> None:
        seen.append(message)
        own(self, message, **settings)

    monkeypatch.setattr(ServiceBusSender, "send_messages", wrapped)
    both, message = Both("blocking"), ServiceBusMessage(b"x")

    assert len(both.by_us(message)) == 1
    assert seen == [message]


def test_another_release_of_the_sdk_is_left_to_itself(
    monkeypatch: pytest.MonkeyPatch, long_way: list[Any]
) -> None:
    monkeypatch.setattr(internals, "SHORT_WAY_IN", ("7.14.0",))
    internals._is_known.cache_clear()
    try:
        assert len(Both("blocking").by_us(ServiceBusMessage(b"x"))) == 1
        assert len(long_way) == 1
    finally:
        internals._is_known.cache_clear()


def test_what_arrives_is_what_the_sdk_would_have_sent() -> None:
    with (
        Broker(queues=["orders"]) as broker,
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender("orders") as sender,
        client.get_queue_receiver("orders") as receiver,
    ):
        message = ServiceBusMessage(
            b"x", message_id="one", application_properties={"n": 1}, time_to_live=timedelta(days=1)
        )
        sender.send_messages(message)
        internals.send(sender.send_messages, message, SECONDS)

        theirs, ours = receiver.peek_messages(2)

    assert bytes(next(iter(ours.body))) == bytes(next(iter(theirs.body)))
    assert ours.application_properties == theirs.application_properties
    assert (ours.message_id, ours.time_to_live) == (theirs.message_id, theirs.time_to_live)
