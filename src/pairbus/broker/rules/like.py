"""LIKE: `%` for any characters, `_` for one. Upper and lower case differ.

Patterns and texts are untrusted, so the run time must be bounded: no regular expressions, no
backtracking. Pieces between two `%` are searched from left to right, and the time of each search
grows with the text, not with text times pattern.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

PATTERN_CHARACTERS_MAX: Final = 1024
_FOUND_AT_ONCE: Final = 32
"""The number of characters that `str.find` searches in the time of one step here."""

Matches = Callable[[str], bool]
_ANY_ONE: Final = None
Piece = tuple[str | None, ...]
"""Characters, and None where any character matches."""


class BadPattern(ValueError):
    pass


@dataclass(frozen=True, slots=True)
class Pattern:
    matches: Matches
    steps_through: bool
    """Whether it looks at the characters of a text one by one."""

    def work(self, text: str) -> int:
        """About how many characters it looks at one by one, at most."""
        return len(text) if self.steps_through else len(text) // _FOUND_AT_ONCE


def compile_pattern(pattern: str, escape: str | None = None) -> Pattern:
    """Raises BadPattern with the reason."""
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise BadPattern(
            f"the pattern has {len(pattern)} characters, but at most {PATTERN_CHARACTERS_MAX} are "
            "possible"
        )
    if escape is not None and len(escape) != 1:
        raise BadPattern(f"ESCAPE takes one character, not {escape!r}")
    first, *others = _pieces(pattern, escape)
    if not others:
        return Pattern(_whole(first), steps_through=False)
    *middle, last = others
    finders = [_finder(piece) for piece in middle if piece]
    steps_through = any(len(_runs(piece)) > 1 for piece in middle)
    return Pattern(_spread(first, finders, last), steps_through)


def _whole(piece: Piece) -> Matches:
    fits, size = _fits(piece), len(piece)
    return lambda text: len(text) == size and fits(text, 0)


def _spread(first: Piece, finders: list[Callable[[str, int], int]], last: Piece) -> Matches:
    """Texts that begin with `first`, end with `last`, and have the others between, in order.

    The earliest place for each is the best, because it leaves the most room for the rest.
    """
    begins, ends = _fits(first), _fits(last)
    first_size, last_size = len(first), len(last)

    def matches(text: str) -> bool:
        end = len(text) - last_size
        if end < first_size or not begins(text, 0) or not ends(text, end):
            return False
        at = first_size
        for find in finders:
            at = find(text, at)
            if at < 0:
                return False
        return at <= end

    return matches


def _pieces(pattern: str, escape: str | None) -> list[Piece]:
    pieces: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise BadPattern(f"the pattern {pattern!r} ends with its escape character")
            pieces[-1].append(escaped)
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(_ANY_ONE if character == "_" else character)
    return [tuple(piece) for piece in pieces]


def _runs(piece: Piece) -> list[tuple[int, str]]:
    """The parts of a piece that are characters, and where in it they begin."""
    runs: list[tuple[int, str]] = []
    for offset, character in enumerate(piece):
        if character is None:
            continue
        if runs and runs[-1][0] + len(runs[-1][1]) == offset:
            runs[-1] = (runs[-1][0], runs[-1][1] + character)
        else:
            runs.append((offset, character))
    return runs


def _fits(piece: Piece) -> Callable[[str, int], bool]:
    """Whether a text has the piece exactly at a place. The caller checks that it has room."""
    runs = _runs(piece)
    if len(runs) == 1:
        [(first, only)] = runs
        return lambda text, at: text.startswith(only, at + first)
    return lambda text, at: all(text.startswith(run, at + offset) for offset, run in runs)


def _finder(piece: Piece) -> Callable[[str, int], int]:
    """The end of the first place where the piece is in a text, from `start` on; -1 if nowhere.

    An end beyond the text also means nowhere; the caller checks that once, at the end.
    """
    size, runs = len(piece), _runs(piece)
    if len(runs) > 1:
        return _shift_and(piece)
    [(offset, only)] = runs or [(0, "")]

    def find(text: str, start: int) -> int:
        at = text.find(only, start + offset)
        return at if at < 0 else at - offset + size

    return find


def _shift_and(piece: Piece) -> Callable[[str, int], int]:
    # Bit n of `state` says that the last n + 1 characters fit the piece's first n + 1.
    wild = sum(1 << offset for offset, each in enumerate(piece) if each is None)
    masks: dict[str, int] = {}
    for offset, character in enumerate(piece):
        if character is not None:
            masks[character] = masks.get(character, wild) | 1 << offset
    complete = 1 << (len(piece) - 1)

    def find(text: str, start: int) -> int:
        state = 0
        for at in range(start, len(text)):
            state = (state << 1 | 1) & masks.get(text[at], wild)
            if state & complete:
                return at + 1
        return -1

    return find
