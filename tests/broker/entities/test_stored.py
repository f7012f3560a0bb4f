"""A queue's description survives the data file."""

import json
from datetime import UTC, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker.entities.descriptions import (
    QueueDescription,
    RuleDescription,
    Status,
    SubscriptionDescription,
)
from pairbus.broker.entities.durations import INFINITE
from pairbus.broker.entities.policies import Policy, Right
from pairbus.broker.entities.stored import FIXED, changed_fixed_setting, from_stored, to_stored
from pairbus.broker.rules import CorrelationFilter, SqlAction, SqlFilter


def durations(low, high):
    return st.timedeltas(min_value=timedelta(seconds=low), max_value=timedelta(seconds=high))


POLICIES = st.builds(
    Policy,
    name=st.just("own"),
    key=st.just("b3du"),
    rights=st.frozensets(st.sampled_from(Right), min_size=1),
    secondary_key=st.none() | st.just("dHdv"),
)
DESCRIPTIONS = st.builds(
    QueueDescription,
    name=st.just("q"),
    lock_duration=durations(1, 300),
    max_size_in_megabytes=st.integers(1, 81_920),
    requires_duplicate_detection=st.booleans(),
    default_message_time_to_live=st.just(INFINITE) | durations(1, 10**10),
    dead_lettering_on_message_expiration=st.booleans(),
    duplicate_detection_history_time_window=durations(20, 7 * 86_400),
    max_delivery_count=st.integers(1, 2**31 - 1),
    enable_batched_operations=st.booleans(),
    status=st.sampled_from(Status),
    auto_delete_on_idle=st.just(INFINITE) | durations(300, 10**10),
    enable_partitioning=st.booleans(),
    forward_to=st.none() | st.just("there"),
    forward_dead_lettered_messages_to=st.none() | st.just("elsewhere"),
    user_metadata=st.none() | st.text(max_size=20),
    max_message_size_in_kilobytes=st.integers(1, 102_400),
    authorization_rules=st.just(()) | st.tuples(POLICIES),
) | st.builds(QueueDescription, name=st.just("q"), requires_session=st.booleans())


@given(DESCRIPTIONS)
def test_a_stored_description_reads_the_same(description):
    stored = json.loads(json.dumps(to_stored(description)))

    assert from_stored("queue", "q", stored) == description


VALUES = (
    st.text(max_size=5)
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.datetimes(timezones=st.just(UTC))
    | st.timedeltas()
    | st.just(INFINITE)
    | st.uuids()
    | st.binary(max_size=5)
    | st.decimals(allow_nan=False, allow_infinity=False, places=3)
)
NAMES = st.sampled_from(["n", "$time", "$duration", "$uuid", "$bytes", "$decimal", "$map"])


@given(st.dictionaries(NAMES, VALUES, max_size=2))
def test_the_values_of_rules_read_the_same_whatever_their_names_are(values):
    description = SubscriptionDescription(
        name="t/Subscriptions/a",
        rules=(
            RuleDescription(name="equal", filter=CorrelationFilter(properties=values)),
            RuleDescription(
                name="sql", filter=SqlFilter("1=1", values), action=SqlAction("SET a = 1", values)
            ),
        ),
    )
    stored = json.loads(json.dumps(to_stored(description)))

    assert from_stored("subscription", description.name, stored) == description


def test_only_settings_that_are_not_defaults_are_stored():
    plain = QueueDescription(name="q")
    special = QueueDescription(
        name="q", lock_duration=timedelta(seconds=30), status=Status.DISABLED, forward_to="r"
    )

    assert to_stored(plain) == {}
    assert to_stored(special) == {
        "lock_duration": "PT30S",
        "status": "Disabled",
        "forward_to": "r",
    }


def test_a_setting_that_is_not_known_is_an_error_that_names_it():
    with pytest.raises(Exception, match="shiny"):
        from_stored("queue", "q", {"shiny": True})


@pytest.mark.parametrize("name", FIXED)
def test_the_error_names_the_setting_that_cannot_be_changed(name):
    old = QueueDescription(name="q")

    assert changed_fixed_setting(old, QueueDescription(name="q", **{name: True})) == name
    assert changed_fixed_setting(QueueDescription(name="q", **{name: True}), old) == name


def test_everything_else_can_be_changed():
    old = QueueDescription(name="q")
    new = QueueDescription(name="q", lock_duration=timedelta(seconds=5), max_delivery_count=1)

    assert changed_fixed_setting(old, new) is None
    assert changed_fixed_setting(old, old) is None
