"""Price lists, and the errors of an invalid one."""

import datetime
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.cost.prices import load, parse
from pairbus.errors import OptionsError

MILLION = 1_000_000
LEAST = """
name = "ours"
as_of = 2026-01-31
currency = "EUR"
[[operations]]
per_million = 1.0
"""


@pytest.fixture(scope="module")
def example():
    return load()


@pytest.mark.req("M-03")
def test_the_default_is_a_dated_example(example):
    assert "example" in example.name
    assert isinstance(example.as_of, datetime.date)
    assert example.currency == "USD"
    assert example.source.startswith("https://azure.microsoft.com/")


@pytest.mark.req("M-03")
@pytest.mark.parametrize(
    ("count", "money"),
    [
        (0, 0),
        (13 * MILLION, 0),
        (14 * MILLION, 0.80),
        (100 * MILLION, 87 * 0.80),
        (101 * MILLION, 87 * 0.80 + 0.50),
        (3_000 * MILLION, 87 * 0.80 + 2_400 * 0.50 + 500 * 0.20),
    ],
)
def test_each_tier_has_its_own_price(example, count, money):
    assert example.for_operations(count) == pytest.approx(money)


def test_other_operations_come_first(example):
    assert example.for_operations(MILLION, after=12 * MILLION) == 0
    assert example.for_operations(MILLION, after=50 * MILLION) == pytest.approx(0.80)


def test_connections_have_tiers_too(example):
    assert example.for_connections(1_000) == 0
    assert example.for_connections(5_000) == pytest.approx(4_000 * 0.03)


@given(st.lists(st.integers(0, 3 * 10**9), min_size=1, max_size=5))
def test_a_bill_is_the_sum_of_its_parts(counts):
    prices = load()
    parts = sum(
        prices.for_operations(count, after=sum(counts[:place]))
        for place, count in enumerate(counts)
    )

    assert parts == pytest.approx(prices.for_operations(sum(counts)))


def test_a_file_needs_only_names_and_one_price(tmp_path):
    file = tmp_path / "prices.toml"
    file.write_text(LEAST)
    prices = load(file)

    assert prices.for_operations(3 * MILLION) == 3
    assert prices.for_connections(10**6) == prices.base_per_hour == 0
    assert prices.first_price * MILLION == 1
    assert prices.unbilled == frozenset()


def test_kinds_may_be_free():
    prices = parse(f"{LEAST}\n[billed]\nsettle = false\npeek = true\n", "it")

    assert prices.unbilled == {"settle"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("name", "= 3"), "name is 3, but must be text"),
        (("as_of", '= "2026"'), "as_of is '2026', but must be a date"),
        (("currency", "= true"), "currency is True, but must be text"),
        (("per_million", "= -1"), r"operations\[0\].per_million is -1, but must be a number"),
        (("per_million", "= nan"), "is nan, but must be a number of at least 0"),
        (("per_million", "= true"), "is True, but must be a number of at least 0"),
        (("per_million", '= "1"'), "is '1', but must be a number of at least 0"),
    ],
)
def test_an_error_names_the_value_and_what_is_valid(change, said):
    name, value = change
    lines = [f"{name} {value}" if line.startswith(name) else line for line in LEAST.splitlines()]

    with pytest.raises(OptionsError, match=said):
        parse("\n".join(lines), "it")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("= 3", "it is not TOML"),
        (
            LEAST + "\nprice = 3",
            r"unknown entry operations\[0\].price; the entries are per_million, up_to",
        ),
        ("nmae = 3\n" + LEAST, "unknown entry nmae; the entries are as_of,"),
        (LEAST + "up_to = 3", "omitted in the last tier"),
        (LEAST + "[[operations]]\nper_million = 1", r"operations\[0\].up_to is None"),
        (LEAST.split("[[")[0], r"it: \[\[operations\]\] is missing"),
        (LEAST.split("[[")[0] + "operations = 3", r"operations is 3, but must be tables"),
        (LEAST + "[billed]\nsend = 1", "billed.send is 1, but must be true or false"),
        (LEAST + "[billed]\ntypo = true", "unknown entry billed.typo"),
        ("billed = 1\n" + LEAST, r"billed is 1, but must be a table \[billed\]"),
    ],
)
def test_an_error_names_the_entry(text, said):
    with pytest.raises(OptionsError, match=said):
        parse(text, "it")


def test_bounds_of_tiers_grow():
    tiers = "[[operations]]\nup_to = 5\nper_million = 1\n" * 2 + "[[operations]]\nper_million = 1\n"

    with pytest.raises(OptionsError, match=r"operations\[1\].up_to is 5, but must be above 5"):
        parse(LEAST.split("[[")[0] + tiers, "it")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(
        OptionsError, match=r"cannot read the price list .*none\.toml: No such file"
    ):
        load(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(
        OptionsError, match=r"cannot read the price list .*bytes\.toml: it is not UTF-8"
    ):
        load(tmp_path / "bytes.toml")


def test_the_price_list_of_the_page_can_be_read():
    page = (Path(__file__).parents[2] / "docs" / "cost.md").read_text("utf-8")
    [text] = re.findall(r"^```toml.*\n((?:.*\n)*?)```$", page, re.MULTILINE)
    prices = parse(text, "the page")

    assert prices.currency == "EUR"
    assert prices.for_operations(14 * MILLION) == pytest.approx(0.74)
