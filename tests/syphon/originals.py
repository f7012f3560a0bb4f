"""Any message that an application may send, as a hypothesis strategy."""

from __future__ import annotations

from datetime import UTC, datetime

from azure.servicebus._pyamqp.utils import amqp_long_value
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from hypothesis import strategies as st

from pairbus.client.route.envelope import ALIASES, KEPT_PREFIX

NAMES = st.one_of(
    st.text(max_size=8),
    st.sampled_from(ALIASES),
    st.builds("".join, st.tuples(st.just(KEPT_PREFIX), st.sampled_from([*ALIASES, "", "a"]))),
)
SIMPLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.text(min_size=250, max_size=260),
    st.uuids(),
    st.datetimes(min_value=datetime(1970, 1, 2)).map(lambda time: time.replace(tzinfo=UTC)),
    st.integers(-(2**63), 2**63 - 1).map(amqp_long_value),
)
NESTED = st.recursive(
    st.one_of(SIMPLE, st.binary(max_size=20)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
BODY = st.one_of(
    st.fixed_dictionaries({"data_body": st.lists(st.binary(max_size=300), min_size=1, max_size=3)}),
    st.fixed_dictionaries({"sequence_body": st.lists(st.lists(NESTED, max_size=3), min_size=1)}),
    st.fixed_dictionaries({"value_body": NESTED}),
)
NOTES = st.dictionaries(st.sampled_from(["x-a", "x-opt-b", "x-opt-partition-key"]), SIMPLE)
OPTIONAL_TEXT = st.one_of(st.none(), st.text(max_size=30))


@st.composite
def messages(draw):
    """What an application may send."""
    annotations = draw(NOTES)
    if draw(st.booleans()):
        due = draw(st.integers(0, 10**12).map(lambda ms: datetime.fromtimestamp(ms / 1000, UTC)))
        annotations = {"x-opt-scheduled-enqueue-time": due, **annotations}
    return AmqpAnnotatedMessage(
        **draw(BODY),
        header=AmqpMessageHeader(
            durable=draw(st.one_of(st.none(), st.booleans())),
            priority=draw(st.one_of(st.none(), st.integers(0, 255))),
            time_to_live=draw(st.one_of(st.none(), st.integers(0, 2**32 - 1))),
        ),
        properties=AmqpMessageProperties(
            message_id=draw(st.one_of(st.text(min_size=1), st.uuids(), st.binary(min_size=1))),
            to=draw(OPTIONAL_TEXT),
            subject=draw(OPTIONAL_TEXT),
            correlation_id=draw(st.one_of(OPTIONAL_TEXT, st.integers(0, 2**64 - 1))),
            content_type=draw(OPTIONAL_TEXT),
            group_id=draw(OPTIONAL_TEXT),
            group_sequence=draw(st.one_of(st.none(), st.integers(0, 2**32 - 1))),
            reply_to_group_id=draw(OPTIONAL_TEXT),
        ),
        application_properties=draw(st.dictionaries(NAMES, SIMPLE, max_size=6)),
        annotations=annotations,
        delivery_annotations=draw(st.dictionaries(st.just("x-hop"), SIMPLE)),
        footer=draw(st.dictionaries(st.just("x-foot"), SIMPLE)),
    )


DELIVERIES = st.fixed_dictionaries(
    {
        "delivery_count": st.integers(0, 300),
        "is_locked": st.booleans(),
        "partition_id": st.one_of(st.none(), st.integers(0, 15)),
    }
)
