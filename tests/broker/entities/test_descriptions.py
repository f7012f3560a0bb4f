"""Invalid descriptions cannot be made, and the error says what would be right."""

from datetime import timedelta

import pytest

from pairbus.broker.entities.descriptions import QueueDescription, check_name
from pairbus.broker.entities.durations import INFINITE
from pairbus.errors import BrokerError, ConfigError


@pytest.mark.parametrize("name", ["q", "Orders", "a/b", "a.b-c_d", "x" * 260, "9", "a/b/c.d"])
def test_a_valid_name_is_accepted(name):
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
        "cannot be combined",
    ),
    "metadata without end": ({"user_metadata": "x" * 1025}, "1025 characters, but at most 1024"),
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
