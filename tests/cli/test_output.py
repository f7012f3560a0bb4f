"""Durations and sizes as people read them."""

from __future__ import annotations

import pytest
from rich.console import Console

from pairbus.cli.output import (
    format_count,
    format_duration,
    format_size,
    make_table,
    print_table,
)


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


@pytest.mark.parametrize(
    ("count", "words", "text"),
    [
        (1, (), "1 message"),
        (1234, (), "1,234 messages"),
        (1, ("run",), "1 run"),
        (0, ("run",), "0 runs"),
        (2, ("primary", "primaries"), "2 primaries"),
    ],
)
def test_a_count_has_the_singular_or_the_plural(
    count: int, words: tuple[str, ...], text: str
) -> None:
    assert format_count(count, *words) == text


def test_a_narrow_screen_wraps_the_only_text_column_and_cuts_no_number() -> None:
    table = make_table("change", right=("fewer operations", "USD less"))
    table.add_row("a long description of a saving " * 4, "59,666,666", "1,234.56")
    console = Console(width=80)

    with console.capture() as capture:
        console.print(table)

    lines = capture.get().splitlines()
    assert lines[0].split() == ["change", "fewer", "operations", "USD", "less"]
    assert lines[1].endswith(" 59,666,666  1,234.56")
    assert len(lines) > 2


def test_a_table_for_a_program_is_what_rich_would_print_with_enough_room(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = make_table("name", "text", right=("count",))
    for number in range(30):
        text = "日本 [bold]x[/] :smile: " * (number % 4)
        table.add_row(f"queue-{number}" * (number % 3), text, f"{number**3:,}")
    wide = Console(width=10_000, markup=False, highlight=False, emoji=False)
    with wide.capture() as expected:
        wide.print(table)

    print_table(table)

    lines = [line.rstrip() for line in expected.get().splitlines()]
    assert capsys.readouterr().out.splitlines() == lines


def test_a_row_is_one_line_for_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    table = make_table("name", "note")
    table.add_row("orders", "first line\nsecond line")

    print_table(table, "and a text")

    lines = ["name    note", "orders  first line second line", "and a text"]
    assert capsys.readouterr().out.splitlines() == lines


def test_a_table_of_20_000_rows_is_printed_without_rich(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take eight seconds."""
    monkeypatch.setattr(Console, "print", None)
    table = make_table("sequence", "body")
    for number in range(20_000):
        table.add_row(str(number), "hello")

    print_table(table)

    assert capsys.readouterr().out.count("\n") == 20_001
