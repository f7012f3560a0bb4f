"""Impossible descriptions cannot be made, and their errors say what would be right."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker.entities.descriptions import QueueDescription, check_name
from pairbus.broker.entities.durations import (
    INFINITE,
    format_duration,
    milliseconds,
    parse_duration,
)
from pairbus.broker.entities.options import Limits, NamespaceOptions
from pairbus.broker.entities.policies import Policy, Right, default_policy
from pairbus.errors import BrokerError, ConfigError

DURATIONS = {
    "PT1M": timedelta(minutes=1),
    "PT10S": timedelta(seconds=10),
    "P14D": timedelta(days=14),
    "P1DT2H3M4S": timedelta(days=1, hours=2, minutes=3, seconds=4),
    "PT0.5S": timedelta(milliseconds=500),
    "PT0S": timedelta(),
    "P10675199DT2H48M5.4775807S": INFINITE,
    "P10675199DT2H48M5.477581S": INFINITE,
    "P10675198DT23H": timedelta(days=10_675_198, hours=23),
    "P999999999D": INFINITE,
}


@pytest.mark.parametrize(("text", "value"), DURATIONS.items())
def test_durations_are_read_as_the_service_writes_them(text, value):
    assert parse_duration(text) == value


NOT_DURATIONS = (
    *("", "P", "PT", "P1DT", "1M", "PT1", "PT-1S", "P1Y", "P1M", "P1W", "pt1m", "PT1S ", "PT1M1H"),
    *("PT1,5S", "P1D2H", "00:01:00"),
)


@pytest.mark.parametrize("text", NOT_DURATIONS)
def test_what_is_no_duration_is_a_value_error(text):
    with pytest.raises(ValueError, match="PT1M"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["PT99999999999999999999S", "PT999999999999999H"])
def test_a_duration_beyond_all_reckoning_is_a_value_error(text):
    with pytest.raises(ValueError, match=text):
        parse_duration(text)


@given(st.timedeltas(min_value=timedelta(), max_value=timedelta(days=10_675_198)))
def test_what_was_written_reads_the_same(value):
    assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize(("text", "value"), list(DURATIONS.items())[:7])
def test_durations_are_written_as_the_service_does(text, value):
    assert format_duration(value) == text


def test_never_has_no_milliseconds():
    assert milliseconds(INFINITE) is None
    assert milliseconds(timedelta(days=10_675_199)) is None
    assert milliseconds(timedelta(seconds=1.5)) == 1500


@pytest.mark.parametrize("name", ["q", "Orders", "a/b", "a.b-c_d", "x" * 260, "9", "a/b/c.d"])
def test_a_good_name_is_let_pass(name):
    check_name(name)


@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", "-a", "a.", "a b", "ä", "a\n", "$cbs", "x" * 261, "a?b"]
)
def test_a_bad_name_is_refused_with_the_rule(name):
    with pytest.raises(ConfigError, match="1 to 260 letters") as caught:
        check_name(name)

    assert repr(name) in str(caught.value)


def test_the_defaults_are_those_of_the_service():
    queue = QueueDescription(name="q")

    assert queue.lock_duration == timedelta(minutes=1)
    assert queue.max_size_in_megabytes == 1024
    assert queue.max_delivery_count == 10
    assert queue.duplicate_detection_history_time_window == timedelta(minutes=10)
    assert queue.default_message_time_to_live == INFINITE
    assert queue.auto_delete_on_idle == INFINITE
    assert queue.max_message_size_in_kilobytes == 256
    assert queue.enable_batched_operations


BEYOND = {
    "a lock of six minutes": ({"lock_duration": timedelta(minutes=6)}, "PT1S and PT5M"),
    "a lock of no time": ({"lock_duration": timedelta()}, "PT1S and PT5M"),
    "a lock that is a number": ({"lock_duration": 60}, "60"),
    "a life of less than a second": (
        {"default_message_time_to_live": timedelta(milliseconds=999)},
        "PT1S",
    ),
    "a window of ten seconds": (
        {"duplicate_detection_history_time_window": timedelta(seconds=10)},
        "PT20S and P7D",
    ),
    "idle for a minute": ({"auto_delete_on_idle": timedelta(minutes=1)}, "PT5M"),
    "no delivery at all": ({"max_delivery_count": 0}, "1 and 2147483647"),
    "more than int32": ({"max_delivery_count": 2**31}, "1 and 2147483647"),
    "a count that is a text": ({"max_delivery_count": "10"}, "'10'"),
    "a count that is a truth": ({"max_delivery_count": True}, "True"),
    "no room": ({"max_size_in_megabytes": 0}, "1 and 81920"),
    "messages beyond 100 MB": ({"max_message_size_in_kilobytes": 102_401}, "1 and 102400"),
    "both express and without duplicates": (
        {"enable_express": True, "requires_duplicate_detection": True},
        "exclude each other",
    ),
    "metadata without end": ({"user_metadata": "x" * 1025}, "1025 characters, at most 1024"),
}


@pytest.mark.parametrize(("settings", "said"), BEYOND.values(), ids=BEYOND)
def test_an_impossible_queue_cannot_be_described(settings, said):
    with pytest.raises(ConfigError) as caught:
        QueueDescription(name="q", **settings)

    assert "queue 'q'" in str(caught.value)
    assert said in str(caught.value)
    assert any(name in str(caught.value) for name in settings)


def test_the_ranges_include_their_ends():
    QueueDescription(
        name="q",
        lock_duration=timedelta(minutes=5),
        default_message_time_to_live=timedelta(seconds=1),
        duplicate_detection_history_time_window=timedelta(days=7),
        auto_delete_on_idle=timedelta(minutes=5),
        max_delivery_count=2**31 - 1,
        max_size_in_megabytes=81_920,
        max_message_size_in_kilobytes=1,
    )


def test_a_configuration_error_is_a_broker_error_and_a_value_error():
    assert issubclass(ConfigError, BrokerError)
    assert issubclass(ConfigError, ValueError)


@pytest.mark.req("B-02")
@pytest.mark.parametrize("right", Right)
def test_manage_includes_every_right_and_the_others_only_themselves(right):
    def policy(*rights):
        return Policy(name="p", key="k", rights=frozenset(rights))

    assert policy(Right.MANAGE).allows(right)
    assert default_policy().allows(right)
    assert policy(right).allows(right)
    assert policy(Right.SEND).allows(right) is (right is Right.SEND)
    assert policy(Right.LISTEN).allows(right) is (right is Right.LISTEN)


BAD_NAMESPACES = {
    "no name": ({"name": ""}, "starting with a letter"),
    "a digit first": ({"name": "9a"}, "starting with a letter"),
    "a dash last": ({"name": "a-"}, "ending with a letter or digit"),
    "too long": ({"name": "a" * 51}, "up to 50"),
    "a port beyond": ({"port": 65_536}, "65536 is not between 0 and 65535"),
    "a negative port": ({"port": -1}, "-1 is not between 0 and 65535"),
    "nobody may enter": ({"policies": ()}, "at least one policy"),
    "one name twice": (
        {"queues": (QueueDescription(name="a"), QueueDescription(name="A"))},
        "'A' is defined twice",
    ),
}


@pytest.mark.parametrize(("settings", "said"), BAD_NAMESPACES.values(), ids=BAD_NAMESPACES)
def test_an_impossible_namespace_cannot_be_described(settings, said):
    with pytest.raises(ConfigError) as caught:
        NamespaceOptions(**settings)

    assert said in str(caught.value)


def test_a_namespace_needs_nothing_but_defaults():
    options = NamespaceOptions()

    assert options.name == "local"
    assert [policy.name for policy in options.policies] == ["RootManageSharedAccessKey"]
    assert options.limits == Limits()
    assert NamespaceOptions(name="a").name == "a"
