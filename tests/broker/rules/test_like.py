"""LIKE against a naive matcher, and with patterns that would make a naive matcher slow."""

import time
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker.rules.like import BadPattern, compile_pattern


def tried(pattern, text):
    """By the definition, one character at a time; for short texts only."""
    if not pattern:
        return not text
    first, rest = pattern[0], pattern[1:]
    if first == "%":
        return any(tried(rest, text[start:]) for start in range(len(text) + 1))
    if not text:
        return False
    return (first == "_" or first == ("is", text[0])) and tried(rest, text[1:])


def unescaped(pattern, escape):
    found, characters = [], iter(pattern)
    for character in characters:
        if character == escape:
            found.append(("is", next(characters)))
        else:
            found.append(character if character in "%_" else ("is", character))
    return found


@pytest.mark.req("B-08")
def test_every_short_pattern_matches_what_the_definition_says():
    texts = ["".join(each) for size in range(5) for each in product("ab", repeat=size)]
    for size in range(6):
        for pattern in map("".join, product("ab%_", repeat=size)):
            matches, definition = compile_pattern(pattern).matches, unescaped(pattern, None)
            taken = [text for text in texts if matches(text)]
            assert taken == [text for text in texts if tried(definition, text)], pattern


@pytest.mark.req("B-08")
@given(st.text("ab%_\n", max_size=9), st.text("ab\n", max_size=12))
def test_a_pattern_matches_what_the_definition_says(pattern, text):
    assert compile_pattern(pattern).matches(text) == tried(unescaped(pattern, None), text)


@pytest.mark.req("B-08")
@given(st.text("ab%_!", max_size=7), st.text("ab%_!", max_size=8))
def test_an_escape_makes_a_character_of_what_follows(pattern, text):
    if pattern.replace("!!", "").endswith("!"):
        with pytest.raises(BadPattern, match="ends with its escape"):
            compile_pattern(pattern, "!")
    else:
        assert compile_pattern(pattern, "!").matches(text) == tried(unescaped(pattern, "!"), text)


CASES = {
    "an end that overlaps the beginning": ("ab%ba", "aba", False),
    "an end beside the beginning": ("ab%ba", "abba", True),
    "nothing matches nothing": ("", "", True),
    "nothing matches only nothing": ("", "a", False),
    "percent matches nothing": ("%", "", True),
    "lines are characters": ("a%b_c", "a\n\nb\nc", True),
    "an underscore wants a character": ("a_", "a", False),
    "brackets are characters": ("[a]", "a", False),
    "a wildcard as its own escape": ("100%%", "100%", True),
}


@pytest.mark.parametrize(("pattern", "text", "expected"), CASES.values(), ids=CASES)
def test_like(pattern, text, expected):
    escape = "%" if pattern == "100%%" else None

    assert compile_pattern(pattern, escape).matches(text) is expected


HOSTILE = {
    "many wildcards": ("%a" * 512, "a" * 65_536 + "b"),
    "many open characters": ("%" + "_a" * 510 + "b%", "a" * 65_536),
    "many pieces with open characters": ("%_a" * 340 + "%c", "ab" * 32_768),
    "a long piece that nearly fits": ("%" + "a" * 1000 + "b%", "a" * 65_536),
    "nothing but percents": ("%" * 1024, "a" * 65_536),
}


@pytest.mark.parametrize(("pattern", "text"), HOSTILE.values(), ids=HOSTILE)
def test_no_pattern_takes_long(pattern, text):
    matches = compile_pattern(pattern).matches

    started = time.process_time()
    matches(text)

    assert time.process_time() - started < 0.5  # a few hundredths; going back would take minutes


def test_a_pattern_has_at_most_1024_characters():
    with pytest.raises(BadPattern, match="1025"):
        compile_pattern("a" * 1025)


@pytest.mark.parametrize("pattern", ["%a_b%", "%ab%", "a%b", "a_b", "ab"])
def test_the_work_of_a_pattern_is_counted_in_characters_looked_at_one_by_one(pattern):
    assert compile_pattern(pattern).work("a" * 3200) == (3200 if pattern == "%a_b%" else 100)
