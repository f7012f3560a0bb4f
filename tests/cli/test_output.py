"""Durations and sizes as people read them."""

from __future__ import annotations

import pytest

from pairbus.cli.output import format_duration, format_size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (-3, "0s"),
        (0.25, "250ms"),
        (59.9, "59s"),
        (61, "1m 1s"),
        (7200, "2h"),
        (273661, "3d 4h"),
        (float("inf"), "-"),
    ],
)
def test_a_duration_is_shown_by_its_two_largest_parts(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (20 * 1024**2, "20.0 MiB"),
        (1024**4, "1.0 TiB"),
    ],
)
def test_a_size_is_shown_in_binary_units(count: int, text: str) -> None:
    assert format_size(count) == text
