"""SQL filters: which messages an expression matches, by the service's documentation.

To tell UNKNOWN from FALSE, a test also checks the negation: of UNKNOWN, neither matches.
"""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from pairbus.amqp.codec.types import Described, Float, Int, Symbol, Timestamp, UByte, ULong
from pairbus.broker.rules import (
    CorrelationFilter,
    EvaluationError,
    Facts,
    FalseFilter,
    SqlFilter,
    TrueFilter,
    compile_filter,
    work_of,
)
from pairbus.broker.rules.filters import BATCH_WORK_MAX, WORK_MAX
from pairbus.broker.rules.values import decimal_128
from tests.broker.rules.messages import facts, matches, message

ORDER = {"color": "blue", "quantity": Int(10), "price": 2.5, "express": True, "nothing": None}

MATCHES = {
    # equality and order
    "a string equals itself": ("color = 'blue'", True),
    "a string in other case does not": ("color = 'Blue'", False),
    "an integer equals a literal": ("quantity = 10", True),
    "an integer equals a decimal literal of its value": ("quantity = 10.0", True),
    "an integer literal equals a double": ("price * 2 = 5", True),
    "a number in scientific notation": ("quantity < 101.5E5 AND quantity > 0.5e-2", True),
    "a decimal that begins with its point": ("price > .5", True),
    "two conditions, both met": ("color='blue' AND quantity=10", True),
    "two conditions, one met": ("color='red' OR quantity=10", True),
    "unequal, written as in SQL": ("color <> 'red'", True),
    "unequal, written as in C#": ("color != 'red'", True),
    "unequal to its own value": ("color <> 'blue'", False),
    "greater": ("quantity > 9", True),
    "not greater than itself": ("quantity > 10", False),
    "at least itself": ("quantity >= 10 AND quantity <= 10", True),
    "less than a decimal": ("price < 2.51", True),
    "strings have an order": ("color > 'azure' AND color < 'bluer'", True),
    "a boolean": ("express = TRUE", True),
    "the other boolean": ("express = false", False),
    "literal on the left": ("9 < quantity AND 'blue' = color", True),
    "two literals": ("1=1", True),
    "two literals that differ": ("1=0", False),
    "two properties": ("quantity > price", True),
    # names
    "names are compared without regard to case": ("COLOR = 'blue' AND Quantity = 10", True),
    "words may be in any case": ("color = 'blue' aNd NoT quantity = 11", True),
    "the scope of users may be said": ("user.color = 'blue' AND USER.quantity = 10", True),
    "in square brackets": ("[color] = 'blue'", True),
    "in double quotes": ("\"color\" = 'blue'", True),
    "a scope with a name in brackets": ("user.[color] = 'blue'", True),
    "a name that begins like a word": ("quantity = 10 AND orderly IS NULL", True),
    "p is a name, too": ("p IS NULL AND property IS NULL", True),
    # incompatible types are UNKNOWN
    "a string is not compared to a number": ("color = 1", None),
    "nor in order": ("color > 1", None),
    "nor is unequal to it": ("color <> 1", None),
    "a boolean is no number": ("express = 1", None),
    "booleans have no order": ("express >= FALSE", None),
    "nor have two properties that are booleans": ("express >= express", None),
    "a double without end is beyond all numbers": ("price / 0 > quantity", True),
    "zero by zero is no number": ("(price - 2.5) / 0 = 0", False),
    "nor is the rest of a division by zero": ("price % 0 = 0", False),
    # null and missing
    "a missing property equals nothing": ("absent = 'blue'", None),
    "a missing property is unequal to nothing": ("absent <> 'blue'", None),
    "a null equals nothing": ("nothing = 1", None),
    "nothing equals NULL": ("color = NULL", None),
    "a missing property is null": ("absent IS NULL", True),
    "a null property is null": ("nothing IS NULL", True),
    "a property is not null": ("color IS NOT NULL", True),
    "a missing property is not not null": ("absent IS NOT NULL", False),
    "a property exists": ("EXISTS(color)", True),
    "a null property exists": ("EXISTS(nothing)", True),
    "a missing property does not exist": ("EXISTS ( absent )", False),
    # AND, OR, NOT with three values
    "UNKNOWN AND TRUE": ("absent = 1 AND 1 = 1", None),
    "UNKNOWN AND FALSE": ("absent = 1 AND 1 = 0", False),
    "TRUE AND UNKNOWN": ("1 = 1 AND absent = 1", None),
    "FALSE AND UNKNOWN": ("1 = 0 AND absent = 1", False),
    "UNKNOWN AND UNKNOWN": ("absent = 1 AND absent = 1", None),
    "UNKNOWN OR TRUE": ("absent = 1 OR 1 = 1", True),
    "UNKNOWN OR FALSE": ("absent = 1 OR 1 = 0", None),
    "TRUE OR UNKNOWN": ("1 = 1 OR absent = 1", True),
    "FALSE OR UNKNOWN": ("1 = 0 OR absent = 1", None),
    "NOT UNKNOWN": ("NOT absent = 1", None),
    "NOT TRUE": ("NOT 1 = 1", False),
    "NOT twice": ("NOT NOT color = 'blue'", True),
    "AND binds closer than OR": ("1 = 1 OR 1 = 1 AND 1 = 0", True),
    "NOT binds closer than AND": ("NOT 1 = 0 AND 1 = 0", False),
    "parentheses bind closest": ("(1 = 1 OR 1 = 1) AND 1 = 0", False),
    "many parentheses": ("((((color)) = (('blue'))))", True),
    # LIKE
    "LIKE with any end": ("color LIKE 'bl%'", True),
    "LIKE with any beginning": ("color LIKE '%ue'", True),
    "LIKE with anything around": ("color LIKE '%lu%'", True),
    "LIKE with one character open": ("color LIKE 'bl_e'", True),
    "LIKE is about the whole string": ("color LIKE 'lu'", False),
    "LIKE tells case apart": ("color LIKE 'BL%'", False),
    "NOT LIKE": ("color NOT LIKE 'r%'", True),
    "LIKE of a missing property": ("absent LIKE '%'", None),
    "NOT LIKE of a missing property": ("absent NOT LIKE '%'", None),
    "LIKE of a number": ("quantity LIKE '1%'", None),
    "LIKE with a pattern of NULL": ("color LIKE NULL", None),
    "LIKE with a computed pattern": ("color LIKE 'b' + '%'", True),
    "LIKE with a pattern that is missing": ("color LIKE absent", None),
    # IN
    "IN a list": ("color IN ('red', 'blue')", True),
    "not IN a list": ("color IN ('red', 'green')", False),
    "NOT IN a list": ("color NOT IN ('red', 'green')", True),
    "NOT IN a list that has it": ("color NOT IN ('red', 'blue')", False),
    "IN of a missing property": ("absent IN ('red')", None),
    "NOT IN of a missing property": ("absent NOT IN ('red')", None),
    "IN a list of numbers": ("quantity IN (1, 10.0)", True),
    "IN a list of another type": ("quantity IN ('10')", None),
    "IN a list of several types, found": ("color IN (1, 'blue')", True),
    "IN a list of several types, not found": ("color IN (1, 'red')", None),
    "IN a list with NULL, found": ("color IN (NULL, 'blue')", True),
    "IN a list with NULL, not found": ("color IN (NULL, 'red')", None),
    "NOT IN a list with NULL, found": ("color NOT IN (NULL, 'blue')", False),
    "IN a list of properties": ("10 IN (price, quantity)", True),
    "a boolean is not IN a list of numbers": ("express IN (1)", None),
    # arithmetic
    "a sum": ("quantity + 1 = 11", True),
    "a product before a sum": ("1 + quantity * 2 = 21", True),
    "from left to right": ("quantity - 5 - 2 = 3", True),
    "parentheses first": ("(1 + quantity) * 2 = 22", True),
    "integers divide towards zero": ("quantity / 4 = 2 AND -quantity / 4 = -2", True),
    "a remainder has the sign of what is divided": ("-quantity % 4 = -2", True),
    "a double does not": ("price / 2 = 1.25", True),
    "a double has a remainder": ("price % 2 = 0.5", True),
    "a double divides by zero": ("price / 0 > 1000000", True),
    "a sign": ("-quantity = -10 AND +quantity = 10", True),
    "signs in a row": ("- - quantity = 10", True),
    "strings are joined": ("color + '!' = 'blue!'", True),
    "anything is joined to a string": ("'n' + quantity + express + price = 'n10True2.5'", True),
    "UNKNOWN stays UNKNOWN in arithmetic": ("absent + 1 > 0", None),
    "and under a sign": ("-absent < 0", None),
    "and beside a string": ("'a' + absent = 'a'", None),
    # functions
    "a property by its name": ("property('color') = 'blue'", True),
    "a property by its name, short": ("P('co' + 'lor') = 'blue'", True),
    "property() of NULL": ("property(NULL) = 1", None),
    "property() does not reach system properties": ("property('sys.Label') = 'a'", None),
    "no two ids are equal": ("newid() = newid()", False),
}  # fmt: skip


@pytest.mark.req("B-08")
@pytest.mark.parametrize(("expression", "verdict"), MATCHES.values(), ids=MATCHES)
def test_filter_on_an_order(expression, verdict):
    assert matches(expression, ORDER, Label="a") is (verdict is True)
    assert matches(f"NOT ({expression})", ORDER, Label="a") is (verdict is False)


@pytest.mark.req("B-08")
def test_documented_examples_match_the_orders_they_are_about():
    orders = [
        {"color": color, "quantity": Int(quantity), "priority": priority}
        for color, quantity, priority in (
            ("blue", 5, "low"), ("red", 10, "high"), ("yellow", 5, "low"), ("blue", 10, "low")
        )
    ]  # fmt: skip

    def taken(expression):
        return [number for number, order in enumerate(orders) if matches(expression, order)]

    assert taken("1=1") == [0, 1, 2, 3]
    assert taken("color='blue' AND quantity=10") == [3]
    assert taken("user.color='red'") == [1]
    assert taken("Color = 'blue' or Quantity = 10") == [0, 1, 3]
    assert taken("color NOT IN ('red', 'yellow') AND priority LIKE 'l__'") == [0, 3]


ID = UUID("6fa459ea-ee8a-3ca4-894e-db77e160355e")
NOON = datetime(2024, 5, 17, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)
HOUR = timedelta(hours=1)
NAMED = {
    "Property With Space": 1,
    "HR-EmployeeID": 2,
    "a]b": 3,
    'say "hi"': 4,
    "http://schemas.microsoft.com/xrm/2011/Claims/EntityLogicalName": "account",
    "größe": 5,
    "and": 6,
}

OF_MESSAGES = {
    "a name with spaces, in brackets": ("[Property With Space] = 1", NAMED, {}),
    "a name with a dash, in brackets": ("[HR-EmployeeID] = 2", NAMED, {}),
    "a bracket in brackets is doubled": ("[a]]b] = 3", NAMED, {}),
    "a quote in quotes is doubled": ('"say ""hi""" = 4', NAMED, {}),
    "a name that is a URL, in quotes": (
        "\"http://schemas.microsoft.com/xrm/2011/Claims/EntityLogicalName\" = 'account'", NAMED, {}
    ),
    "letters are letters in all languages": ("GRÖßE = 5", NAMED, {}),
    "a reserved word, in brackets": ("[AND] = 6", NAMED, {}),
    "a quote in a string is doubled": ("name = 'O''Neill'", {"name": "O'Neill"}, {}),
    "a string over two lines": ("name = 'a\nb'", {"name": "a\nb"}, {}),
    "white space is free": ("\tname\r\n =\n 'a'  ", {"name": "a"}, {}),
    "a parameter": ("source = @stringParam", {"source": "orders"}, {"@stringParam": "orders"}),
    "a parameter given without its @": ("source = @Source", {"source": "x"}, {"source": "x"}),
    "a parameter that is a number": ("n > @low + 1", {"n": Int(7)}, {"@low": 5}),
    "a parameter in a list": ("n IN (@a, @b)", {"n": "y"}, {"@a": "x", "@b": "y"}),
    "a parameter as pattern and escape": (
        "n LIKE @pattern ESCAPE @escape", {"n": "10%"}, {"@pattern": "10!%", "@escape": "!"}
    ),
    "a time and a parameter": ("due < @time", {"due": Timestamp(NOON_MS)}, {"@time": NOON + HOUR}),
    "a parameter without a zone is UTC": (
        "due = @time", {"due": Timestamp(NOON_MS)}, {"@time": NOON.replace(tzinfo=None)}
    ),
    "the time between two times": (
        "(b - a) <= @span AND b-a>@none",
        {"a": Timestamp(NOON_MS), "b": Timestamp(NOON_MS + 3_600_000)},
        {"@span": HOUR, "@none": timedelta(0)},
    ),
    "a duration of .NET": (
        "span = @span", {"span": Described(Symbol("com.microsoft:timespan"), 36_000_000_000)},
        {"@span": HOUR},
    ),
    "a time with a zone of .NET": (
        "due = @time",
        {"due": Described(Symbol("com.microsoft:datetime-offset"), 638_515_440_000_000_000)},
        {"@time": NOON},
    ),
    "a URI of .NET": (
        "at LIKE 'https:%'", {"at": Described(Symbol("com.microsoft:uri"), "https://a.b")}, {}
    ),
    "an id and a parameter": ("id = @id", {"id": ID}, {"@id": ID}),
    "a small number of the wire": ("n = 7", {"n": UByte(7)}, {}),
    "a number beyond 63 bits": ("n > 9223372036854775807", {"n": ULong(2**64 - 1)}, {}),
    "a float of four bytes": ("n = 0.5", {"n": Float(0.5)}, {}),
    "a symbol is a string": ("n = 'a'", {"n": Symbol("a")}, {}),
    "of two names that differ by case, the first": ("n = 1", {"N": 1, "n": 2}, {}),
    "NaN is unequal to itself": ("n <> n AND NOT n = n AND NOT n > 1", {"n": float("nan")}, {}),
    "a decimal": ("n = 1.5 AND n < 2 AND n > @low", {"n": decimal_128(Decimal("1.5"))},
        {"@low": Decimal("1.4")}),
    "a decimal beside what is no number": (
        "NOT n < @nan AND n <> @nan", {"n": decimal_128(Decimal("1.5"))}, {"@nan": float("nan")}
    ),
    "bytes equal bytes": ("n = @n", {"n": b"\x00\x01"}, {"@n": b"\x00\x01"}),
    "the largest integer": ("n = 9223372036854775807", {"n": 2**63 - 1}, {}),
    "an escaped wildcard": ("n LIKE 'ABC\\%' ESCAPE '\\'", {"n": "ABC%"}, {}),
}  # fmt: skip


@pytest.mark.req("B-08")
@pytest.mark.parametrize(
    ("expression", "properties", "parameters"), OF_MESSAGES.values(), ids=OF_MESSAGES
)
def test_a_filter_matches_a_message_with(expression, properties, parameters):
    assert matches(expression, properties, parameters=parameters)


NOT_MATCHED = {
    "an id is not compared to its text": (f"id = '{ID}'", {"id": ID}),
    "a time is not compared to a text": ("due < '2030-01-01'", {"due": Timestamp(NOON_MS)}),
    "a list exists, but compares to nothing": ("n = 1 OR n <> 1", {"n": [1]}),
    "an escaped wildcard is a character": ("n LIKE 'ABC\\%' ESCAPE '\\'", {"n": "ABCD"}),
    "no application properties at all": ("n = 1 OR n <> 1 OR EXISTS(n)", None),
}


@pytest.mark.req("B-08")
@pytest.mark.parametrize(("expression", "properties"), NOT_MATCHED.values(), ids=NOT_MATCHED)
def test_filter_leaves_a_message_for_which(expression, properties):
    assert not matches(expression, properties)


SYSTEM = {
    "MessageId": "m-1",
    "To": "Store5",
    "Label": "the bus stop",
    "ReplyTo": "replies",
    "CorrelationId": "abc-17",
    "ContentType": Symbol("application/json"),
    "SessionId": "s-1",
    "ReplyToSessionId": "r-1",
}
OF_SYSTEM = (
    "sys.MessageId = 'm-1'",
    "sys.messageid = 'm-1'",
    "SYS.MESSAGEID = 'm-1'",
    "sys.[Label] LIKE '%bus%'",
    "sys.Label LIKE '%bus%' OR user.tag IN ('queue', 'topic')",
    "sys.Subject = sys.Label",
    "sys.To IN ('Store5','Store6','Store7') OR StoreId = 'Store8'",
    "sys.ReplyTo = 'replies'",
    "sys.correlationid like 'abc-%'",
    "sys.ContentType = 'application/json'",
    "sys.SessionId = 's-1' AND sys.ReplyToSessionId = 'r-1'",
    "sys.SequenceNumber = 7 AND sys.EnqueuedSequenceNumber = 3",
    "sys.DeliveryCount = 0 AND sys.Size > 100 AND sys.State = 0",
    "sys.EnqueuedTimeUtc = @noon AND sys.ExpiresAtUtc - sys.EnqueuedTimeUtc = @hour",
    "sys.TimeToLive = @hour",
    "sys.PartitionKey = 'p' AND sys.ScheduledEnqueueTimeUtc > @noon",
    "EXISTS(sys.Label) AND sys.DeadLetterSource IS NULL AND sys.LockToken IS NULL",
    "sys.ForcePersistence = FALSE",
)


@pytest.mark.req("B-08")
@pytest.mark.parametrize("expression", OF_SYSTEM)
def test_filter_on_system_properties(expression):
    annotations = {
        "x-opt-partition-key": "p",
        "x-opt-scheduled-enqueue-time": Timestamp(NOON_MS + 1),
    }
    seen = Facts.from_parts(
        message({}, annotations=annotations, ttl_ms=3_600_000, **SYSTEM),
        sequence=7, enqueued_sequence=3, enqueued_ms=NOON_MS, expires_ms=NOON_MS + 3_600_000,
        size=123,
    )  # fmt: skip

    match = compile_filter(SqlFilter(expression, {"@noon": NOON, "@hour": HOUR}))

    assert match(seen)


@pytest.mark.req("B-08")
def test_system_properties_that_a_message_lacks_are_null():
    assert matches("sys.Label IS NULL AND NOT EXISTS(sys.SessionId)", {})
    assert not matches("sys.Label <> 'a' OR sys.Label = 'a'", {})
    assert matches("sys.TimeToLive > @year", parameters={"@year": timedelta(days=366)})


IDS = {
    "a string": ("m-1", "m-1"),
    "a uuid": (ID, str(ID)),
    "a number": (ULong(17), "17"),
    "bytes": (b"\x00\xff", "00ff"),
}


@pytest.mark.parametrize(("sent", "text"), IDS.values(), ids=IDS)
def test_a_message_id_of_any_type_is_compared_as_text(sent, text):
    assert matches(f"sys.MessageId = '{text}'", MessageId=sent)


FAILURES = {
    "a system property that does not exist": ("sys.Nope = 1", "'Nope'"),
    "the same under IS NULL": ("sys.Nope IS NULL", "'Nope'"),
    "the same under EXISTS": ("EXISTS(sys.Nope)", "'Nope'"),
    "an integer divided by zero": ("quantity / 0 = 1", "divides by zero"),
    "the rest of a division by zero": ("quantity % (5 - 5) = 1", "divides by zero"),
    "a product beyond 64 bits": ("quantity * 9223372036854775807 > 0", "64 bits"),
    "a sum beyond 64 bits": ("9223372036854775807 + 1 > 0", "64 bits"),
    "a time beyond the calendar": ("time + @span > time", "out of range"),
    "a duration that cannot be turned": ("-@span < @span", "out of range"),
    "decimals beyond their range": ("huge * huge > 1", "out of range"),
    "a decimal divided by zero": ("huge / 0 > 1", "divides by zero"),
    "a computed escape that is no string": ("color LIKE 'a' ESCAPE quantity", "one character"),
    "a label that is no string": ("sys.To = 'a'", "sys.To is not a string"),
    "strings cannot be multiplied": ("color * 2 = 1", "string and integer"),
    "booleans cannot be added": ("express + 1 = 2", "boolean and integer"),
    "a string has no sign": ("-color = 1", "on string"),
    "property() of a number": ("property(quantity) = 1", "10"),
    "a computed pattern that is no string": ("color LIKE quantity", "must be a string"),
    "a computed escape of two characters": ("color LIKE 'a' ESCAPE color", "one character"),
    "what follows UNKNOWN is still evaluated": ("absent = 1 AND quantity / 0 = 1", "zero"),
    "a string that grows too long": ("+".join(["long"] * 5) + " = ''", "65536 characters"),
    "LIKE on what is too long": ("longest LIKE 'x%'", "65536 characters"),
    "a list cannot be joined to a string": ("'a' + list = 'a'", "string and list"),
}  # fmt: skip


@pytest.mark.req("B-08")
@pytest.mark.parametrize(("expression", "reason"), FAILURES.values(), ids=FAILURES)
def test_evaluation_fails_on(expression, reason):
    properties = ORDER | {
        "long": "x" * 20_000,
        "longest": "x" * 65_537,
        "list": [1],
        "time": Timestamp(NOON_MS),
        "huge": decimal_128(Decimal("1E+6000")),
    }
    parameters = {"@span": timedelta.max}
    if "huge *" in expression:
        expression = "*".join(["huge"] * 170) + " > 1"  # Python's decimals reach far

    with pytest.raises(EvaluationError, match=reason):
        matches(expression, properties, parameters=parameters, To=[1])


def test_what_does_not_decide_is_not_evaluated():
    assert matches("color = 'blue' OR quantity / 0 = 1", ORDER)
    assert not matches("color = 'red' AND quantity / 0 = 1", ORDER)


def test_text_that_is_not_utf8_fails_the_evaluation_and_nothing_else():
    parts = message({"name": "nnnn"}, Label="llll")
    broken = Facts.from_parts(
        type(parts)(*[
            value.replace(b"nnnn", b"\xff" * 4).replace(b"llll", b"\xff" * 4)
            if isinstance(value := getattr(parts, field), bytes) else value
            for field in parts.__slots__
        ])
    )  # fmt: skip

    for expression in ("name = 'a'", "sys.Label = 'a'"):
        with pytest.raises(EvaluationError, match="cannot be read"):
            compile_filter(SqlFilter(expression))(broken)


@pytest.mark.req("B-08")
def test_a_true_filter_matches_everything_and_a_false_filter_nothing():
    assert compile_filter(TrueFilter())(facts())
    assert not compile_filter(FalseFilter())(facts())


def test_names_are_compared_without_case():
    seen = {"Color": Symbol("red")}

    assert matches("COLOR = 'red' AND sys.LABEL = 'a' AND sys.subject = 'a'", seen, Label="a")


def test_a_filter_reads_each_section_once(monkeypatch):
    from pairbus.broker.rules import facts as module

    read, times = module.read_application_properties, []
    monkeypatch.setattr(
        module, "read_application_properties", lambda *all: times.append(1) or read(*all)
    )
    match = compile_filter(SqlFilter("color = 'blue' AND absent IS NULL AND EXISTS(color)"))

    seen = facts(ORDER)

    assert match(seen)
    assert match(seen)
    assert len(times) == 1


# -- work: what rules are estimated to need ---------------------------------------------------


def test_a_topic_may_have_100_000_ordinary_rules():
    rule = SqlFilter("region = 'europe-west-1' AND kind = 'order/new+paid'")
    assert work_of([rule] * 100_000).steps <= WORK_MAX
    assert work_of([CorrelationFilter(label="x")] * 100_000).steps <= WORK_MAX
    assert work_of([TrueFilter()] * 100_000).steps == 0


def test_a_full_batch_for_hundreds_of_rules_is_possible():
    rules = [SqlFilter(f"label LIKE 'order-{number}%' AND amount > 10") for number in range(500)]
    assert 2000 * work_of(rules).for_properties(60) <= BATCH_WORK_MAX


def test_a_hundred_messages_for_a_thousand_simple_rules_are_far_from_the_limit():
    rules = [SqlFilter(f"region = 'north' AND amount > {number}") for number in range(1000)]
    assert 100 * work_of(rules).for_properties(200) <= BATCH_WORK_MAX // 10


@pytest.mark.parametrize(
    "expression",
    ["+".join(["n"] * 400) + " > 1", " OR ".join(["p LIKE '%z%'"] * 70), "n = newid()" * 50],
)
def test_long_calculations_are_far_more_work_than_comparisons(expression):
    comparisons = " OR ".join(["n = 1"] * (len(expression) // 9))
    assert work_of([SqlFilter(expression)]).steps > 5 * work_of([SqlFilter(comparisons)]).steps
