"""Units, tallies, and the readings of a meter."""

import json

import pytest

from pairbus.cost.meter import KINDS, UNIT_BYTES, Meter, Tally, units_of

KB = 1024


@pytest.mark.req("M-01")
@pytest.mark.parametrize(
    ("size", "units"),
    [(0, 1), (1, 1), (8 * KB, 1), (64 * KB, 1), (64 * KB + 1, 2), (96 * KB, 2), (256 * KB, 4)],
)
def test_a_message_counts_once_for_each_started_64_kib(size, units):
    assert UNIT_BYTES == 65536
    assert units_of(size) == units


def test_tallies_add_up_and_differ_kind_by_kind():
    one, other = Tally(*range(10)), Tally(*range(0, 100, 10))

    assert (one + other).as_dict() == {kind: 11 * n for n, kind in enumerate(KINDS)}
    assert one + other - other == one
    assert one.total == 45


def test_a_meter_lists_entities_with_operations_and_ignores_case():
    meter = Meter("local", since=1000.0)
    meter.of("Orders").send += 2
    meter.of("orders").receive += 1
    meter.of("idle")

    reading = meter.read()

    assert reading.entities == {"Orders": Tally(send=2, receive=1)}
    assert reading.of("ORDERS").send == 2
    assert reading.of("idle") == reading.of("unheard of") == Tally()


def test_a_reading_is_fixed_and_the_difference_is_what_came_since():
    meter = Meter("local", since=0.0)
    meter.of("orders").send += 5
    meter.of("quiet").send += 1
    first = meter.read()
    meter.of("orders").send += 2
    meter.of("new").ping += 1

    assert first.total == Tally(send=6)
    assert (meter.read() - first).entities == {"orders": Tally(send=2), "new": Tally(ping=1)}


def test_a_reading_is_json_with_camel_case_keys_and_a_utc_time():
    meter = Meter("local", since=12.5)
    meter.of("orders").send += 5
    meter.of("orders").empty_receive += 1

    shown = json.loads(json.dumps(meter.read().as_dict()))

    assert shown["since"] == "1970-01-01T00:00:12.500Z"
    assert shown["unitBytes"] == 65536
    assert shown["entities"]["orders"]["emptyReceive"] == 1
    assert shown["entities"]["orders"]["total"] == shown["total"]["total"] == 6
