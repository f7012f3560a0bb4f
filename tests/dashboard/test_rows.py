"""The rows of tables: a click finds its row, however many have been shown."""

from __future__ import annotations

from pairbus.dashboard.rows import ROW_NAMES_MAX, RowNames


def test_every_row_that_is_shown_can_be_clicked_however_many_were_shown_before() -> None:
    names, shown = RowNames(), [""] * 25
    for first in range(0, 10 * ROW_NAMES_MAX, len(shown)):  # page after page
        for place in range(len(shown)):
            shown[place] = names.name_of(first + place, shown)

        assert [names.key_of(name) for name in shown] == [*range(first, first + len(shown))]


def test_a_row_that_stays_keeps_its_name_and_old_ones_are_forgotten() -> None:
    names = RowNames()
    stays = names.name_of("stays", [])
    oldest = names.name_of("oldest", [stays])
    for number in range(2 * ROW_NAMES_MAX):
        names.name_of(number, [stays])

    assert names.key_of(stays) == "stays"
    assert names.name_of("stays", [stays]) == stays
    assert names.key_of(oldest) is None
