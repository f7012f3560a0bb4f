"""Rules as XML: what clients send, and what they get back."""

from datetime import UTC, datetime, timedelta
from math import inf
from xml.etree.ElementTree import fromstring

import pytest

from pairbus.broker.admin import atom
from pairbus.broker.admin import rule_xml as rules
from pairbus.broker.admin.access import HttpRefused
from pairbus.broker.admin.atom import INSTANCE, SERVICE_BUS
from pairbus.broker.entities.descriptions import RuleDescription
from pairbus.broker.rules import CorrelationFilter, FalseFilter, SqlAction, SqlFilter, TrueFilter
from tests.broker.admin.site import wrapped

EVERY_TYPE = {
    "text": " <ü> ",
    "int": 5,
    "long": 2**40,
    "negative": -(2**31) - 1,
    "yes": True,
    "no": False,
    "double": 0.1,
    "endless": inf,
    "moment": datetime(2020, 7, 5, 11, 12, 13),
    "utc": datetime(2020, 7, 5, 11, 12, 13, tzinfo=UTC),
    "span": timedelta(days=1, hours=2, minutes=3),
}
RULES = {
    "true": RuleDescription(name="r", filter=TrueFilter()),
    "false": RuleDescription(name="r", filter=FalseFilter()),
    "sql": RuleDescription(name="r", filter=SqlFilter("a = @p AND b < 3", {"@p": "x"})),
    "correlation": RuleDescription(
        name="r",
        filter=CorrelationFilter(
            correlation_id="c",
            message_id="m",
            to="t",
            reply_to="r",
            label="l",
            session_id="s",
            reply_to_session_id="rs",
            content_type="ct",
            properties=EVERY_TYPE,
        ),
    ),
    "an action": RuleDescription(name="r", action=SqlAction("SET a = @p", {"@p": 1.5})),
}


def read(inner):
    content = atom.read_content(wrapped(f"<RuleDescription>{inner}</RuleDescription>"))
    return rules.read_rule(content, "r", now_ms=7)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_comes_back_as_it_was(rule):
    text = rules.write_rule(rule)

    again = rules.read_rule(fromstring(text), "r", now_ms=rule.created_ms)

    assert again == rule


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_filter_and_action_are_always_there_in_order(rule):
    element = fromstring(rules.write_rule(rule))

    names = [child.tag.removeprefix(f"{{{SERVICE_BUS}}}") for child in element]
    assert names == ["Filter", "Action", "CreatedAt", "Name"]
    assert all(child.get(f"{{{INSTANCE}}}type") for child in element[:2])


def test_types_of_values_have_a_prefix_that_both_clients_can_cut_off():
    text = rules.write_rule(RULES["correlation"])

    assert 'i:type="d6p1:int"' in text  # Python splits at the colon, Node cuts five characters


def test_a_rule_without_a_filter_matches_everything():
    assert read("") == RuleDescription(name="r", filter=TrueFilter(), created_ms=7)


def test_a_true_filter_is_true_whatever_expression_comes_with_it():
    rule = read('<Filter i:type="TrueFilter"><SqlExpression>1=0</SqlExpression></Filter>')

    assert rule.filter == TrueFilter()


def value(kind, text):
    return (
        '<Filter i:type="CorrelationFilter"><Properties><KeyValueOfstringanyType><Key>k</Key>'
        f'<Value i:type="x:{kind}">{text}</Value></KeyValueOfstringanyType></Properties></Filter>'
    )


REFUSED = {
    "a filter of no type": ("<Filter/>", "filter's type"),
    "a filter of an unknown type": ('<Filter i:type="Maybe"/>', "not 'Maybe'"),
    "an action of an unknown type": ('<Action i:type="Explode"/>', "not 'Explode'"),
    "SQL without an expression": ('<Filter i:type="SqlFilter"/>', "Filter has no SqlExpression"),
    "a value of an unknown type": (
        value("guid", "1"),
        "the type 'guid', but must be one of string, int",
    ),
    "an int that is none": (value("int", "five"), "'five', which is not a valid int"),
    "an int that is a long": (value("int", str(2**31)), "which is not a valid int"),
    "a long beyond all": (value("long", str(2**63)), "which is not a valid long"),
    "a boolean that is none": (value("boolean", "maybe"), "which is not a valid boolean"),
    "a double that is none": (value("double", "1_0"), "which is not a valid double"),
    "a time that is none": (value("dateTime", "noon"), "which is not a valid dateTime"),
    "a duration that is none": (value("duration", "long"), "which is not a valid duration"),
    "a key twice": (
        '<Filter i:type="CorrelationFilter"><Properties>'
        + "<K><Key>k</Key><Value i:type='x:int'>1</Value></K>" * 2
        + "</Properties></Filter>",
        "'k' occurs twice",
    ),
    "a pair without a key": (
        '<Filter i:type="CorrelationFilter"><Properties><K/></Properties></Filter>',
        "needs a Key and a Value",
    ),
    "too many values": (
        '<Filter i:type="CorrelationFilter"><Properties>'
        + "".join(f"<K><Key>{n}</Key><Value i:type='x:int'>1</Value></K>" for n in range(300))
        + "</Properties></Filter>",
        "300 values",
    ),
}


@pytest.mark.parametrize(("inner", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused_is(inner, reason):
    with pytest.raises(HttpRefused, match=reason) as refused:
        read(inner)

    assert refused.value.status == 400
