"""Units, tallies, and what a meter shows."""

import json

import pytest

from pairbus.cost.meter import KINDS, UNIT_BYTES, Meter, Reading, Tally, units_of

KB = 1024


@pytest.mark.req("M-01")
@pytest.mark.parametrize(
    ("size", "units"),
    [(0, 1), (1, 1), (8 * KB, 1), (64 * KB, 1), (64 * KB + 1, 2), (96 * KB, 2), (256 * KB, 4)],
)
def test_each_begun_64_kb_of_a_message_is_an_operation_and_an_empty_one_is_one(size, units):
    assert UNIT_BYTES == 65536
    assert units_of(size) == units


def test_tallies_add_up_and_differ_kind_by_kind():
    one, other = Tally(*range(10)), Tally(*range(0, 100, 10))

    assert (one + other).as_dict() == {kind: 11 * n for n, kind in enumerate(KINDS)}
    assert one + other - other == one
    assert one.total == 45


def test_transfers_are_what_brings_messages_in_and_out_or_asks_for_them():
    everything = Tally(*[1] * len(KINDS))

    assert everything.transfers == 4  # send, ping, receive, and a receive of nothing
    assert everything.total == len(KINDS)


def test_a_meter_shows_entities_with_operations_and_takes_spellings_for_one():
    meter = Meter("local", since=1000.0)
    meter.of("Orders").send += 2
    meter.of("orders").receive += 1
    meter.of("idle")

    reading = meter.read()

    assert reading.entities == {"Orders": Tally(send=2, receive=1)}
    assert reading.of("ORDERS").send == 2
    assert reading.of("idle") == reading.of("unheard of") == Tally()


def test_a_reading_does_not_move_and_the_next_one_tells_what_came_since():
    meter = Meter("local", since=0.0)
    meter.of("orders").send += 5
    meter.of("quiet").send += 1
    first = meter.read()
    meter.of("orders").send += 2
    meter.of("new").ping += 1

    assert first.total == Tally(send=6)
    assert (meter.read() - first).entities == {"orders": Tally(send=2), "new": Tally(ping=1)}


def test_a_reading_survives_json():
    meter = Meter("local", since=12.5)
    meter.of("orders").send += 5

    told = json.loads(json.dumps(meter.read().as_dict()))

    assert Reading.from_dict(told) == meter.read()
    assert told["unit_bytes"] == 65536
    assert told["entities"]["orders"]["total"] == told["total"]["send"] == 5
