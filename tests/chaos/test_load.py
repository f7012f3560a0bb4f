"""The verdict of `make chaos-load` must be able to say no."""

from __future__ import annotations

from tests.chaos.load import grown, quarters


def test_a_value_has_a_median_for_each_quarter_of_the_run() -> None:
    values = [(float(at), float(at // 10)) for at in range(40)]

    assert quarters(values, 40) == [0, 1, 2, 3]
    assert quarters([(1, 5.0)], 40) == [5, 0, 0, 0]


def test_what_is_much_higher_in_the_last_quarter_has_grown() -> None:
    rows = {
        "primary MiB": [50.0, 100.0, 100.0, 130.0],
        "secondary MiB": [50.0, 100.0, 100.0, 105.0],
        "clients 1 files": [10.0, 300.0, 300.0, 250.0],
        "a send, median, ms": [5.0, 10.0, 100.0, 300.0],
    }

    assert grown(rows) == ["primary MiB", "a send, median, ms"]
