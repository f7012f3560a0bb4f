"""SQL actions: how they change the bytes of a message."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.codec.sections import (
    read_annotations,
    read_application_properties,
    section_values,
    slice_message,
)
from pairbus.amqp.codec.types import (
    Decimal128,
    Described,
    Float,
    Int,
    Symbol,
    Timestamp,
    UInt,
    ULong,
)
from pairbus.amqp.codec.values import encode
from pairbus.broker.rules import (
    EvaluationError,
    Facts,
    PropertyChanges,
    SqlAction,
    apply_changes,
    compile_action,
)
from pairbus.broker.rules.values import decimal_of
from tests.amqp.wire import same
from tests.broker.rules.messages import BODY, message

NOON = datetime(2024, 5, 17, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)
ID = UUID("6fa459ea-ee8a-3ca4-894e-db77e160355e")
SPAN = Described(Symbol("com.microsoft:timespan"), 600_000_000)
ORDER = {"color": "red", "quantity": Int(10), "priority": "high", "nothing": None}


def acted(expression, parts, **parameters):
    changes = compile_action(SqlAction(expression, parameters))(Facts.from_parts(parts))
    changed = apply_changes(parts, changes)
    # The spans that were moved along must be those that slicing finds.
    again = slice_message(changed.bare)
    assert (again.properties, again.application_properties) == (
        changed.properties,
        changed.application_properties,
    )
    return changed


def properties_after(expression, properties=ORDER, **parameters):
    parts = acted(expression, message(properties, Label="a"), **parameters)
    assert parts.bare.endswith(BODY)
    return read_application_properties(parts.bare, parts.application_properties)


SETS = {
    "a new property": ("SET importance = 'critical'", {"importance": "critical"}),
    "an old one": ("SET color = 'blue'", {"color": "blue"}),
    "in any case, and the name stays": ("set COLOR = 'blue';", {"color": "blue"}),
    "the example of the documents": ("SET quantity = quantity / 2;", {"quantity": Int(5)}),
    "a new integer is a long": ("SET n = 5", {"n": 5}),
    "a double": ("SET n = 2.5", {"n": 2.5}),
    "a boolean": ("SET n = TRUE", {"n": True}),
    "null": ("SET n = NULL", {"n": None}),
    "of null": ("SET nothing = 1", {"nothing": 1}),
    "a missing property is null": ("SET n = absent", {"n": None}),
    "a name in brackets": ("SET [a b] = 1; SET user.\"c d\" = 2", {"a b": 1, "c d": 2}),
    "several statements": ("SET a = 1; SET b = 2;", {"a": 1, "b": 2}),
    "without semicolons": ("SET a = 1 SET b = 2", {"a": 1, "b": 2}),
    "each sees those before": ("SET a = 1; SET b = a + 1; SET a = b + 1", {"a": 3, "b": 2}),
    "a copy": ("SET copy = quantity", {"copy": Int(10)}),
    "a copy by name": ("SET copy = p('quan' + 'tity')", {"copy": Int(10)}),
    "a copy of a name that is missing": ("SET copy = p(absent)", {"copy": None}),
    "a computed string": ("SET color = color + '-' + quantity", {"color": "red-10"}),
    "a system property": ("SET label = sys.Label + '!'", {"label": "a!"}),
    "what does not fit the old type takes its own": ("SET quantity = 2.5", {"quantity": 2.5}),
    "what exceeds the old type takes its own": (
        "SET quantity = 3000000000", {"quantity": 3_000_000_000}
    ),
}  # fmt: skip


@pytest.mark.req("B-08")
@pytest.mark.parametrize(("expression", "expected"), SETS.values(), ids=SETS)
def test_set_makes_application_properties(expression, expected):
    assert same(sorted(properties_after(expression).items()), sorted((ORDER | expected).items()))


OLD_TYPES = {
    "an int stays an int": (Int(1), "SET n = 5", Int(5)),
    "an int from a text": (Int(1), "SET n = '5'", Int(5)),
    "an int, but not from any text": (Int(1), "SET n = 'five'", "five"),
    "an int from a whole decimal": (Int(1), "SET n = @decimal * 2", Int(3)),
    "an int, but not from bytes": (Int(1), "SET n = @bytes", b"5"),
    "a double, but not from any text": (1.5, "SET n = 'five'", "five"),
    "a double, but not from a boolean": (1.5, "SET n = TRUE", True),
    "a double, but not from bytes": (1.5, "SET n = @bytes", b"5"),
    "a time, but not from a number": (Timestamp(1), "SET n = 5", 5),
    "a time from a time": (Timestamp(1), "SET n = @noon", Timestamp(NOON_MS)),
    "an int from a whole double": (Int(1), "SET n = 5.0", Int(5)),
    "an int, but not from a boolean": (Int(1), "SET n = TRUE", True),
    "an unsigned int, but not below zero": (UInt(1), "SET n = -5", -5),
    "a long number stays": (ULong(2**64 - 1), "SET n = n", ULong(2**64 - 1)),
    "a double from an integer": (1.5, "SET n = 5", 5.0),
    "a float from a text": (Float(1.5), "SET n = '2.5'", Float(2.5)),
    "a text from an integer": ("a", "SET n = 5", "5"),
    "a text from a boolean": ("a", "SET n = TRUE", "True"),
    "a boolean from a text": (True, "SET n = 'False'", False),
    "a boolean, but not from any text": (True, "SET n = 'no'", "no"),
    "an id from a text": (ID, f"SET n = '{ID.hex}'", ID),
    "an id, but not from any text": (ID, "SET n = 'me'", "me"),
    "a time from a text": (Timestamp(1), "SET n = '2024-05-17T12:00:00Z'", Timestamp(NOON_MS)),
    "a time, but not from any text": (Timestamp(1), "SET n = 'noon'", "noon"),
    "a duration from a text": (SPAN, "SET n = '0:02'", replace(SPAN, value=1_200_000_000)),
    "a duration, but not from any text": (SPAN, "SET n = '99:99'", "99:99"),
    "a time from a parameter": (1, "SET n = @noon", Timestamp(NOON_MS)),
    "a duration from a parameter": (1, "SET n = @span", SPAN),
    "a list stays if only copied": ([1, "a"], "SET n = n", [1, "a"]),
    "a list makes way": ([1, "a"], "SET n = 1", 1),
}  # fmt: skip


@pytest.mark.req("B-08")
@pytest.mark.parametrize(("old", "expression", "expected"), OLD_TYPES.values(), ids=OLD_TYPES)
def test_set_keeps_the_type_where_it_can(old, expression, expected):
    given = {"noon": NOON, "span": timedelta(minutes=1), "decimal": Decimal("1.5"), "bytes": b"5"}

    after = properties_after(expression, {"n": old}, **given)

    assert same(after["n"], expected)


def test_decimals_can_be_computed_with_and_stored():
    price = Decimal128(bytes.fromhex("303c000000000000000000000000075b"))  # 18.83

    after = properties_after("SET double = price * 2; SET copy = price", {"price": price})

    assert after["copy"] == price
    assert decimal_of(after["double"]) == Decimal("37.66")


@pytest.mark.req("B-08")
def test_remove_removes_properties():
    assert properties_after("REMOVE PRIORITY; REMOVE absent; REMOVE nothing") == {
        "color": "red",
        "quantity": 10,
    }
    assert properties_after("SET n = 1; REMOVE n") == ORDER
    assert properties_after("REMOVE color SET Color = 'blue'")["Color"] == "blue"
    assert "color" not in properties_after("REMOVE color SET Color = 'blue'")


@pytest.mark.req("B-08")
def test_the_example_of_the_documents_with_system_properties():
    parts = message(ORDER, CorrelationId="high", Label="red")

    after = acted(
        "SET quantity = quantity / 2; REMOVE priority;SET sys.CorrelationId = 'low';", parts
    )

    seen = Facts.from_parts(after)
    assert seen.user.read() == {"color": "red", "nothing": None, "quantity": 5}
    assert seen.system["CorrelationId"] == "low"
    assert seen.system["Label"] == "red"


SYSTEM = {
    "the message id": ("SET sys.MessageId = 'x'", "MessageId", "x"),
    "to": ("SET sys.To = 'x'", "To", "x"),
    "the label": ("SET sys.Label = 'SalesEvent'", "Label", "SalesEvent"),
    "the label by its other name": ("SET sys.subject = 'x'", "Label", "x"),
    "reply to": ("SET sys.ReplyTo = 'x'", "ReplyTo", "x"),
    "the correlation id": ("SET sys.CorrelationId = color", "CorrelationId", "red"),
    "the content type": ("SET sys.ContentType = 'text/plain'", "ContentType", "text/plain"),
    "the session": ("SET sys.SessionId = quantity", "SessionId", "10"),
    "the session to reply to": ("SET sys.ReplyToSessionId = @id", "ReplyToSessionId", str(ID)),
    "nothing": ("SET sys.Label = NULL", "Label", None),
    "nothing, from a missing property": ("SET sys.Label = absent", "Label", None),
    "the partition key": ("SET sys.PartitionKey = 'x'", "PartitionKey", "x"),
    "no partition key": ("SET sys.PartitionKey = NULL", "PartitionKey", None),
    "the time to live": ("SET sys.TimeToLive = @hour", "TimeToLive", timedelta(hours=1)),
    "the time to live as a text": (
        "SET sys.TimeToLive = '1.02:03:04.5'",
        "TimeToLive",
        timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=500),
    ),
    "the time of delivery": (
        "SET sys.ScheduledEnqueueTime = '2024-05-17 12:00'", "ScheduledEnqueueTimeUtc", NOON
    ),
}  # fmt: skip


@pytest.mark.req("B-08")
@pytest.mark.parametrize(("expression", "name", "expected"), SYSTEM.values(), ids=SYSTEM)
@pytest.mark.parametrize("has_properties", [True, False])
def test_set_makes_system_properties(expression, name, expected, has_properties):
    own = {"Label": "a", "SessionId": "s"} if has_properties else {}
    parts = message(ORDER, annotations={"x-opt-partition-key": "p", "x-opt-else": 1}, **own)

    after = acted(expression, parts, id=ID, hour=timedelta(hours=1))

    assert Facts.from_parts(after).system[name] == expected
    assert after.bare.endswith(BODY)
    assert read_application_properties(after.bare, after.application_properties) == ORDER
    annotations = read_annotations(after.annotations)
    assert annotations["x-opt-else"] == 1
    assert len(annotations) == after.annotation_count


def test_system_properties_can_be_made_of_what_they_were():
    after = acted("SET sys.Label = sys.Label + '.x'", message({}, Label="a"))

    assert Facts.from_parts(after).system["Label"] == "a.x"


def test_later_statements_see_changed_system_properties():
    after = acted("SET sys.Label = 'x'; SET seen = sys.Subject", message({}, Label="a"))

    assert Facts.from_parts(after).user.read() == {"seen": "x"}


def test_a_content_type_is_written_as_the_symbol_it_is():
    after = acted("SET sys.ContentType = 'text/plain'", message({}))

    assert b"\xa3\x0atext/plain" in after.bare


def test_a_time_to_live_beyond_the_wire_is_for_ever():
    after = acted("SET sys.TimeToLive = '100.00:00:00'", message({}, ttl_ms=5))

    assert after.ttl_ms is None


def test_new_ids_are_new():
    act = compile_action(SqlAction("SET sys.SessionId = newid(); SET id = newid()"))
    seen = Facts.from_parts(message({}))

    one, other = act(seen), act(seen)

    assert UUID(one.system["SessionId"]) != UUID(other.system["SessionId"])
    assert isinstance(one.user_set["id"], UUID)


@pytest.mark.req("B-08")
def test_an_action_leaves_message_and_facts_as_they_were():
    parts = message(ORDER, Label="a")
    before = replace(parts)
    seen = Facts.from_parts(parts)
    act = compile_action(SqlAction("SET color = 'x'; REMOVE quantity; SET sys.Label = 'b'"))

    changes = act(seen)
    apply_changes(parts, changes)

    assert changes == PropertyChanges({"Label": "b"}, {"color": "x"}, {"quantity"})
    assert parts == before
    assert seen.user.read() == ORDER
    assert seen.system["Label"] == "a"


@pytest.mark.parametrize("system", [{}, {"Label": "a"}], ids=["without properties", "with them"])
def test_a_message_without_application_properties_gets_them_behind_its_properties(system):
    after = acted("SET a = 1", message(None, **system))

    assert read_application_properties(after.bare, after.application_properties) == {"a": 1}
    assert after.application_properties[0] == (after.properties[1] if system else 0)


def test_no_changes_are_no_copy():
    parts = message(ORDER)

    assert apply_changes(parts, PropertyChanges()) is parts
    assert acted("REMOVE absent", message(None, Label="a")).application_properties is None


FAILURES = {
    "a system property that does not exist": ("SET a = sys.Nope", "'Nope'"),
    "an integer divided by zero": ("SET a = quantity / 0", "divides by zero"),
    "a session id that is too long": ("SET sys.SessionId = long", "128 characters"),
    "a content type beyond ASCII": ("SET sys.ContentType = 'ä'", "beyond ASCII"),
    "a label of what has no text": ("SET sys.Label = bytes", "has no text"),
    "a time to live that is none": ("SET sys.TimeToLive = 5", "not a positive duration"),
    "a time to live that is over": ("SET sys.TimeToLive = '0:00'", "not a positive duration"),
    "a time that is none": ("SET sys.ScheduledEnqueueTimeUtc = 'soon'", "not a time"),
    "property() of a number": ("SET a = property(quantity)", "takes a name"),
    "a decimal out of range": ("SET a = tiny * tiny * tiny", "does not fit"),
}  # fmt: skip


@pytest.mark.req("B-08")
@pytest.mark.parametrize(("expression", "reason"), FAILURES.values(), ids=FAILURES)
def test_an_action_fails_on(expression, reason):
    tiny = Decimal128((1 << 113 | 1).to_bytes(16))  # 10 ** -6175
    properties = ORDER | {"long": "x" * 129, "bytes": b"x", "tiny": tiny}

    with pytest.raises(EvaluationError, match=reason):
        acted(expression, message(properties))


@given(
    st.dictionaries(st.text(max_size=3), st.integers(-9, 9) | st.text(max_size=300), max_size=5),
    st.dictionaries(st.text(max_size=3), st.integers(-9, 9) | st.text(max_size=300), max_size=5),
    st.sets(st.text(max_size=3), max_size=3),
    st.dictionaries(st.sampled_from(["Label", "To", "SessionId"]), st.none() | st.text()),
    st.booleans(),
)
def test_changes_change_what_they_name_and_nothing_else(old, new, removed, system, swapped):
    parts = message(old, MessageId="m", Label="l")
    if swapped:  # any order of sections is legal
        first, second = parts.properties, parts.application_properties
        bare = parts.bare
        parts = slice_message(bare[slice(*second)] + bare[slice(*first)] + bare[second[1] :])

    after = apply_changes(parts, PropertyChanges(dict(system), dict(new), set(removed)))

    kept = {name: value for name, value in old.items() if name not in removed}
    pairs = section_values(after.bare, *after.application_properties)[1] / 2
    assert pairs == len(kept | new)
    assert read_application_properties(after.bare, after.application_properties) == kept | new
    seen = Facts.from_parts(after)
    for name, value in ({"Label": "l", "To": None, "SessionId": None} | system).items():
        assert seen.system[name] == value
    assert seen.system["MessageId"] == "m"
    assert after.bare.endswith(BODY)
    again = slice_message(after.bare)
    assert again.properties == after.properties
    assert again.application_properties == after.application_properties


def test_a_large_body_is_carried_along_untouched():
    body = b"\x00\x53\x75" + encode(bytes(range(256)) * 1000)
    parts = slice_message(b"\x00\x53\x74" + encode({"a": 1}) + body)

    after = acted("SET a = 2; SET sys.To = 'x'", parts)

    assert after.bare.endswith(body)
    assert after.properties[0] == 0
