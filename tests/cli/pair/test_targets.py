"""Which namespaces a pair has, from options and the environment: the same for all commands."""

from pathlib import Path

import pytest

from pairbus.cli.pair.targets import PairOptions, parse_pair
from pairbus.errors import UsageError

EAST = "Endpoint=sb://east.example;SharedAccessKeyName=app;SharedAccessKey=a2V5"
WEST = "Endpoint=sb://west.example;SharedAccessKeyName=app;SharedAccessKey=a2V5"
SIGNED = (
    "Endpoint=sb://east.example;SharedAccessSignature=SharedAccessSignature "
    "sr=sb%3a%2f%2feast.example&sig=c2ln&se=1900000000&skn=app"
)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.delenv("PAIRBUS_PRIMARY", raising=False)


def test_a_signature_with_a_space_is_one_connection_string(monkeypatch):
    monkeypatch.setenv("PAIRBUS_PRIMARY", SIGNED)

    assert list(parse_pair(PairOptions()).primaries) == ["east"]


def test_several_primaries_in_the_environment_are_separated_by_spaces(monkeypatch):
    monkeypatch.setenv("PAIRBUS_PRIMARY", f"{SIGNED}  {WEST}")

    pair = parse_pair(PairOptions())

    assert list(pair.primaries) == ["east", "west"]
    assert pair.names == ("east", "west")


def test_the_option_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("PAIRBUS_PRIMARY", EAST)

    assert list(parse_pair(PairOptions(primary=[WEST])).primaries) == ["west"]


def test_a_primary_has_the_name_that_it_is_given():
    pair = parse_pair(PairOptions(primary=[EAST], primary_name=["contoso"], secondary=WEST))

    assert pair.primaries["contoso"].host == "east.example"
    assert pair.secondary is not None
    assert pair.secondary.host == "west.example"


def test_without_a_primary_its_name_is_kept():
    pair = parse_pair(PairOptions(primary_name=["contoso"], secondary=" "))

    assert (pair.primaries, pair.secondary, pair.names) == ({}, None, ("contoso",))


def test_one_file_is_for_all_primaries_and_several_are_for_one_each(ca_file):
    files = [ca_file, ca_file.with_name("west.pem")]
    files[1].write_bytes(ca_file.read_bytes())

    one = parse_pair(PairOptions(primary=[EAST, WEST], primary_ca_file=files[:1]))
    each = parse_pair(PairOptions(primary=[EAST, WEST], primary_ca_file=files))

    assert [target.ca_file for target in one.primaries.values()] == [files[0]] * 2
    assert [target.ca_file for target in each.primaries.values()] == files


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"primary_name": ["a", "b"]}, "1 primary but 2 times --primary-name"),
        ({"primary": [EAST, EAST]}, "two primaries have the name 'east'"),
        ({"primary": ["x"]}, "the primary: expected a connection string"),
        ({"secondary": "x"}, "the secondary: expected a connection string"),
        ({"secondary": EAST}, "primary and secondary are the same namespace, "),
        ({"primary_ca_file": [Path("absent")]}, "the primary: --primary-ca-file absent: cannot be"),
    ],
)
def test_an_error_says_what_is_wrong(options, text):
    with pytest.raises(UsageError, match=text):
        parse_pair(PairOptions(**({"primary": [EAST]} | options)))
