"""Messages of every kind that the SDK can encode, for hypothesis to draw."""

from __future__ import annotations

import string as letters
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from hypothesis import strategies as st

from pairbus.client.route.envelope import ALIASES

SCHEDULE = "x-opt-scheduled-enqueue-time"

# What the SDK can encode. Text without halves of surrogates, numbers of 32 bits.
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
int32 = st.integers(-(2**31), 2**31 - 1)
uint32 = st.integers(0, 2**32 - 1)
times = st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))
milliseconds = st.integers(1, 253_402_243_199_000)
simple = st.one_of(
    st.none(),
    st.booleans(),
    int32,
    st.floats(),
    text,
    st.uuids(),
    times,
    st.binary(max_size=20).map(bytearray),
    st.decimals(-1000, 1000, places=3).map(Decimal),
    st.integers(-(2**63), 2**63 - 1).map(lambda n: {"TYPE": "LONG", "VALUE": n}),
    st.integers(0, 2**64 - 1).map(lambda n: {"TYPE": "ULONG", "VALUE": n}),
    st.floats(width=32).map(lambda x: {"TYPE": "FLOAT", "VALUE": x}),
    text.map(lambda value: {"TYPE": "SYMBOL", "VALUE": value}),
)
# A property's bytes go out as text: the SDK decodes them, and changes the application's dict for
# that.
values = st.one_of(simple, text.map(str.encode))
nested = st.recursive(
    st.one_of(simple, st.binary(max_size=20)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
names = text.filter(lambda name: name not in ALIASES and not name.startswith("x-pairbus-kept:"))
either = st.one_of(names, names.map(str.encode))
symbols = st.text(letters.ascii_lowercase, min_size=1, max_size=12).map("x-opt-{}".format)
notes = st.dictionaries(st.one_of(symbols, symbols.map(str.encode)), simple, max_size=3)
ids = st.one_of(text.filter(bool), st.binary(min_size=1, max_size=20), st.uuids(), uint32)
perhaps_text = st.one_of(st.none(), text, text.map(str.encode))

bodies = st.one_of(
    st.lists(st.binary(max_size=300), min_size=1, max_size=3).map(lambda b: {"data_body": b}),
    text.map(lambda b: {"data_body": b}),
    st.lists(st.lists(nested, max_size=3), min_size=1, max_size=3).map(
        lambda b: {"sequence_body": b}
    ),
    # The SDK knows types that are named inside of a value, and not of the value itself.
    nested.filter(lambda b: not (isinstance(b, dict) and "TYPE" in b)).map(
        lambda b: {"value_body": b}
    ),
)
headers = st.builds(
    AmqpMessageHeader,
    delivery_count=st.none() | uint32,
    time_to_live=st.none() | uint32,
    durable=st.none() | st.booleans(),
    first_acquirer=st.none() | st.booleans(),
    priority=st.none() | st.integers(0, 255),
)
properties = st.builds(
    AmqpMessageProperties,
    message_id=ids,
    user_id=st.none() | st.binary(max_size=20),
    to=perhaps_text,
    subject=perhaps_text,
    reply_to=perhaps_text,
    correlation_id=st.none() | ids,
    content_type=perhaps_text,
    content_encoding=perhaps_text,
    creation_time=st.none() | milliseconds,
    absolute_expiry_time=st.none() | milliseconds,
    group_id=perhaps_text,
    group_sequence=st.none() | uint32,
    reply_to_group_id=perhaps_text,
)
schedules = st.one_of(
    times,
    times.map(lambda time: time.replace(tzinfo=None)),
    milliseconds.map(lambda n: {"TYPE": "TIMESTAMP", "VALUE": n}),
)


@st.composite
def messages(draw: Any) -> AmqpAnnotatedMessage:
    annotations = draw(st.none() | notes)
    if draw(st.booleans()):
        key = draw(st.sampled_from([SCHEDULE, SCHEDULE.encode()]))
        annotations = {**(annotations or {}), key: draw(schedules)}
    return AmqpAnnotatedMessage(
        **draw(bodies),
        header=draw(st.none() | headers),
        properties=draw(st.none() | properties),
        application_properties=draw(
            # A name goes out as text whether it is bytes or not, so the two must not collide.
            st.none()
            | st.lists(
                st.tuples(either, values), max_size=5, unique_by=lambda p: text_of(p[0])
            ).map(dict)
        ),
        annotations=annotations,
        delivery_annotations=draw(st.none() | notes),
        footer=draw(st.none() | notes),
    )


def text_of(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode()
