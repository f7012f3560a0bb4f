"""How our JSON looks: keys in camelCase, times in UTC."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from pairbus.json_style import camel_case, camel_case_keys, utc_text


@pytest.mark.parametrize(
    ("name", "key"),
    [("sent", "sent"), ("brought_home", "broughtHome"), ("p99_seconds", "p99Seconds")],
)
def test_a_key_is_in_camel_case(name, key):
    assert camel_case(name) == key


def test_only_the_keys_of_this_level_change():
    assert camel_case_keys({"by_entity": {"my_queue": 1}}) == {"byEntity": {"my_queue": 1}}


def test_a_time_is_utc_with_milliseconds():
    east = timezone(timedelta(hours=2))

    assert utc_text(datetime(2026, 3, 1, 10, tzinfo=UTC)) == "2026-03-01T10:00:00.000Z"
    assert utc_text(datetime(2026, 3, 1, 12, tzinfo=east)) == "2026-03-01T10:00:00.000Z"
    assert utc_text(12.5) == "1970-01-01T00:00:12.500Z"
