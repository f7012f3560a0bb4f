"""The billed operations of a client in addition to one per message, and all that it has spent."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import given
from hypothesis import strategies as st

from pairbus.client.billing import extra_units
from pairbus.client.sdk import private
from pairbus.client.sdk.messages import diverted
from pairbus.cost.meter import units_of
from tests.client.fakes import plain_client

KB = 1024


@pytest.fixture(scope="module")
def sender() -> Any:
    """A sender of the SDK that never connects."""
    return plain_client().get_queue_sender("orders")


@pytest.mark.req("M-01")
@pytest.mark.parametrize(
    ("size", "extra"), [(0, 0), (500, 0), (60 * KB, 0), (65 * KB, 1), (130 * KB, 2)]
)
def test_each_begun_64_kb_beyond_the_first_is_one_more(sender: Any, size: int, extra: int) -> None:
    message = ServiceBusMessage(b"x" * size)

    assert extra_units(sender, message) == extra
    assert extra_units(sender, message.raw_amqp_message) == extra
    assert extra_units(sender, [message, ServiceBusMessage("small")]) == extra
    assert extra_units(sender, diverted(message, "orders")) == extra


def test_bodies_of_every_kind_are_measured(sender: Any) -> None:
    large = "x" * 70 * KB

    assert extra_units(sender, AmqpAnnotatedMessage(value_body=large)) == 1
    assert extra_units(sender, AmqpAnnotatedMessage(sequence_body=[[large], [1]])) == 1
    assert extra_units(sender, AmqpAnnotatedMessage(data_body=[b"x" * 40 * KB] * 2)) == 1
    assert extra_units(sender, AmqpAnnotatedMessage(value_body=None)) == 0


def test_a_batch_counts_by_its_messages(sender: Any) -> None:
    batch = _empty(sender)
    for size in (10, 65 * KB, 10, 130 * KB):
        batch.add_message(ServiceBusMessage(b"x" * size))

    assert extra_units(sender, batch) == 1 + 2


def test_many_small_messages_in_a_large_batch_are_one_each(sender: Any) -> None:
    batch = _empty(sender)
    for _ in range(20):
        batch.add_message(ServiceBusMessage(b"x" * 10 * KB))

    assert extra_units(sender, batch) == 0


def _empty(sender: Any) -> Any:
    return private.new_batch(sender, 1024 * KB)


@given(
    size=st.integers(58 * KB, 67 * KB),
    properties=st.dictionaries(
        st.text(min_size=1, max_size=20), st.text(max_size=600) | st.integers(-9, 9), max_size=5
    ),
)
def test_near_the_bound_it_is_what_is_encoded(size: int, properties: dict[Any, Any]) -> None:
    sender = plain_client().get_queue_sender("orders")
    message = ServiceBusMessage(b"x" * size, application_properties=properties)
    encoded = private.encoded_size(sender, message.raw_amqp_message)

    assert extra_units(sender, message) == units_of(encoded) - 1

    copied = diverted(message, "orders")
    encoded = private.encoded_size(sender, copied)
    assert extra_units(sender, copied) == units_of(encoded) - 1


@pytest.mark.parametrize("nonsense", [None, 3, object(), [None]])
def test_what_cannot_be_measured_is_one_and_never_an_error(sender: Any, nonsense: Any) -> None:
    assert extra_units(sender, nonsense) == 0
