"""The messages of a run carry an identity and a checksum, and the same seed makes the same ones."""

from types import SimpleNamespace

import pytest

from pairbus.verify.messages import MessageMaker, read


def made(seed=1, count=50):
    maker = MessageMaker("run", "sender-1", seed=seed)
    return [one for number in range(count) for one in maker.group(has_session=number % 2 == 0)]


def received(one, **changes):
    """As the SDK shows a received message: names and texts of properties are bytes."""
    properties = {
        name.encode(): value.encode() if isinstance(value, str) else value
        for name, value in one.message.application_properties.items()
    }
    fields = {
        "message_id": one.message_id,
        "session_id": one.session_id or None,
        "body": one.message.body,
        "application_properties": properties,
    }
    return SimpleNamespace(**fields | changes)


def test_the_seed_decides():
    def content(seed):
        return [(one.message_id, b"".join(one.message.body)) for one in made(seed)]

    assert content(1) == content(1) != content(2)
    assert len({message_id for message_id, _ in content(1)}) == len(content(1))


def test_a_message_is_read_as_it_was_made():
    for one in made():
        found = read(received(one))
        expected = (one.message_id, one.session_id, one.order, False)
        assert (found.message_id, found.session_id, found.order, found.is_damaged) == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda one: {"body": [b"other"]},
        lambda one: {"message_id": "other"},
        lambda one: {"application_properties": None},
        lambda one: {"application_properties": {b"number": 1, b"checksum": b"x"}},
        lambda one: {
            "application_properties": received(one).application_properties | {b"text": b"other"}
        },
    ],
    ids=["body", "id", "no properties", "fewer properties", "another value"],
)
def test_a_change_is_noticed(change):
    one = made()[0]

    assert read(received(one, **change(one))).is_damaged
