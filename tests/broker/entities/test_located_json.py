import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker.entities.located_json import ConfigMistake, parse

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def plain(node):
    if isinstance(node.value, list):
        return [plain(item) for item in node.value]
    if node.is_object:
        return {member.key: plain(member.node) for member in node.value}
    return node.value


@given(values, st.sampled_from([None, 0, 2]), st.booleans())
def test_what_is_read_is_what_the_standard_decoder_reads(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)

    assert plain(parse(text)) == value


@given(st.lists(st.text()))
def test_every_item_knows_its_line(items):
    node = parse(json.dumps(items, indent=0))

    assert [item.line for item in node.value] == list(range(2, 2 + len(items)))


def test_a_key_and_its_value_may_stand_on_different_lines():
    [member] = parse('{\n"key"\n:\n\n1}').value

    assert (member.line, member.node.line) == (2, 5)


def test_a_repeated_key_is_kept():
    assert [member.key for member in parse('{"a": 1, "a": 2}').value] == ["a", "a"]


def test_invalid_json_is_refused_with_its_line():
    with pytest.raises(ConfigMistake) as caught:
        parse('{\n"a": 1,\n}')

    assert caught.value.line in (2, 3)  # newer decoders point at the comma
