"""What a diverted call sends: everything once, in order, within the limits of the link."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusClient as AsyncClient
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError
from hypothesis import given
from hypothesis import strategies as st

from pairbus.client.backlog_batch import BacklogBatch, batches_of, make_batches
from pairbus.client.sdk import private
from pairbus.client.sdk.batches import DivertedBatch, messages_of
from pairbus.client.sdk.messages import diverted, id_of
from pairbus.client.sdk.pairing_errors import EnvelopeTooLarge
from tests.client.fakes import PRIMARY, sender_with

QUEUE = "contoso/x-servicebus-transfer/0"


def messages(*sizes: int) -> list[AmqpAnnotatedMessage]:
    """As they go to the backlog, numbered."""
    return [
        diverted(ServiceBusMessage(b"x" * size, message_id=str(number)), "orders")
        for number, size in enumerate(sizes)
    ]


def batches(
    sent: list[AmqpAnnotatedMessage], limits: tuple[int, int] = (10_000, 10_000)
) -> list[BacklogBatch]:
    return make_batches(sender_with(limits), sent, path="orders", queue=QUEUE)


def numbers(batch: BacklogBatch) -> list[int]:
    """Which messages are in it."""
    content = batch.content
    if isinstance(content, ServiceBusMessageBatch):
        return [int(id_of(message)) for message in messages_of(content)]
    assert content.properties is not None
    return [int(str(content.properties.message_id))]


def size_of(batch: BacklogBatch) -> int:
    if isinstance(batch.content, ServiceBusMessageBatch):
        return batch.content.size_in_bytes
    return private.encoded_size(sender_with((1, 1)), batch.content)


def test_one_message_goes_as_it_is() -> None:
    [message] = messages(10)

    assert batches([message]) == [BacklogBatch(content=message, count=1)]


def test_many_that_fit_go_as_one_batch_in_order() -> None:
    [batch] = batches(messages(*[10] * 20))

    assert isinstance(batch.content, ServiceBusMessageBatch)
    assert batch.count == 20
    assert numbers(batch) == list(range(20))


@pytest.mark.parametrize("client", [ServiceBusClient, AsyncClient])
def test_a_batch_is_of_the_kind_that_its_sender_sends_without_encoding_it_again(
    client: Any,
) -> None:
    sender = client.from_connection_string(PRIMARY).get_queue_sender(QUEUE)
    [batch] = make_batches(sender, messages(10, 10), path="orders", queue=QUEUE)

    assert batch.content._amqp_transport is sender._amqp_transport


def test_what_its_envelope_made_too_large_is_split_at_the_limit() -> None:
    sent = messages(*[300] * 10)

    first, second, *more = batches(sent, (3_000, 3_000))

    assert more == []
    assert numbers(first) + numbers(second) == list(range(10))
    assert first.count + second.count == 10
    # Not one more would have fitted.
    assert size_of(first) <= 3_000 < size_of(first) + size_of(batches([sent[0]])[0])


def test_a_message_larger_than_a_batch_goes_alone_and_between_its_neighbours() -> None:
    made = batches(messages(10, 10, 5_000, 10), (10_000, 2_000))

    assert [numbers(batch) for batch in made] == [[0, 1], [2], [3]]
    assert isinstance(made[1].content, AmqpAnnotatedMessage)


@given(
    sizes=st.lists(st.integers(0, 900), min_size=2, max_size=40), limit=st.integers(1_200, 5_000)
)
def test_everything_is_sent_once_in_order_and_within_the_limit(
    sizes: list[int], limit: int
) -> None:
    made = batches(messages(*sizes), (limit, limit))

    assert [n for batch in made for n in numbers(batch)] == list(range(len(sizes)))
    assert [batch.count for batch in made] == [len(numbers(batch)) for batch in made]
    assert all(size_of(batch) <= limit for batch in made)


@pytest.mark.parametrize(("path", "is_ready"), [("orders", True), ("others", False)])
def test_a_batch_made_while_failed_over_goes_as_it_is_but_for_another_entity_it_is_made_anew(
    path: str, is_ready: bool
) -> None:
    given = DivertedBatch.of(ServiceBusMessageBatch(10_000), "orders")
    given.add_message(ServiceBusMessage("a", message_id="a"))

    [batch] = batches_of(sender_with((10_000, 10_000)), given, path=path, queue=QUEUE)

    assert (batch.content is given, batch.count) == (is_ready, 1)
    if not is_ready:
        properties: Any = batch.content.application_properties
        assert properties["x-ms-path"]["VALUE"] == "others"


# --- what fits nowhere


def exactly(size: int, **settings: Any) -> ServiceBusMessage:
    """A message that has so many bytes on the wire before it gets its envelope."""

    def of(body: int) -> ServiceBusMessage:
        return ServiceBusMessage(b"x" * body, message_id="0", **settings)

    sender = sender_with((1, 1))
    spare = size - private.encoded_size(sender, of(1_000).raw_amqp_message)
    made = of(1_000 + spare)
    assert private.encoded_size(sender, made.raw_amqp_message) == size
    return made


@pytest.mark.req("E-05")
@pytest.mark.parametrize("neighbours", [0, 2])
def test_a_message_that_fits_but_for_its_envelope_is_refused_before_anything_is_sent(
    neighbours: int,
) -> None:
    sent = [*messages(*[10] * neighbours), diverted(exactly(5_000), "orders")]

    with pytest.raises(EnvelopeTooLarge) as caught:
        batches(sent, (5_000, 5_000))

    error = caught.value
    assert (error.entity, error.backlog_queue, error.limit) == ("orders", QUEUE, 5_000)
    assert error.size is not None
    assert error.size > 5_000
    assert f"it has {error.size} bytes, which exceeds the limit of 5000 bytes" in str(error)


@pytest.mark.req("E-05")
def test_one_byte_decides() -> None:
    message = diverted(exactly(4_900, session_id="s", time_to_live=timedelta(hours=1)), "orders")
    size = private.encoded_size(sender_with((1, 1)), message)

    assert batches([message], (size, size))[0].count == 1
    with pytest.raises(EnvelopeTooLarge):
        batches([message], (size - 1, size - 1))


def test_a_message_that_is_too_large_by_itself_is_reported_so() -> None:
    with pytest.raises(
        EnvelopeTooLarge, match="it has 5001 bytes by itself, and the limit is 5000"
    ) as caught:
        batches([diverted(exactly(5_001), "orders")], (5_000, 5_000))
    assert caught.value.bare_size == 5_001


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"value_body": "x" * 6_000}, id="a value"),
        pytest.param({"sequence_body": [["x" * 3_000], ["x" * 3_000]]}, id="sequences"),
        pytest.param({"data_body": [b"x" * 3_000, b"x" * 3_000]}, id="data in parts"),
    ],
)
def test_every_kind_of_body_is_measured(body: dict[str, Any]) -> None:
    message = diverted(AmqpAnnotatedMessage(**body), "orders")

    with pytest.raises(MessageSizeExceededError):
        batches([message], (5_000, 5_000))
    assert batches([message], (10_000, 10_000))[0].count == 1


def test_a_small_message_is_not_encoded_only_to_be_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measured(sender: Any, message: Any) -> int:
        raise AssertionError("it was measured")

    monkeypatch.setattr(private, "encoded_size", measured)

    assert batches(messages(4_000))[0].count == 1
