"""Correlation filters: all given properties must be equal, in type and case."""

from uuid import UUID

import pytest

from pairbus.amqp.codec.types import Float, Int, Symbol
from pairbus.broker.rules import CorrelationFilter, compile_filter
from tests.broker.rules.messages import facts

ID = UUID("6fa459ea-ee8a-3ca4-894e-db77e160355e")
SYSTEM = {
    "MessageId": "m-1", "To": "Store5", "Label": "Important", "ReplyTo": "johndoe@contoso.com",
    "CorrelationId": "high", "ContentType": Symbol("text/plain"), "SessionId": "s-1",
    "ReplyToSessionId": "r-1",
}  # fmt: skip
PROPERTIES = {"color": "Red", "quantity": Int(10), "price": Float(2.5), "express": True, "id": ID}

CASES = {
    "nothing is asked": ({}, True),
    "the correlation id": ({"correlation_id": "high"}, True),
    "another correlation id": ({"correlation_id": "low"}, False),
    "case counts": ({"correlation_id": "High"}, False),
    "the message id": ({"message_id": "m-1"}, True),
    "to": ({"to": "Store5"}, True),
    "the label": ({"label": "Important"}, True),
    "the content type": ({"content_type": "text/plain"}, True),
    "the session": ({"session_id": "s-1", "reply_to_session_id": "r-1"}, True),
    "two, both met": ({"label": "Important", "correlation_id": "high"}, True),
    "two, one met": ({"label": "Important", "correlation_id": "low"}, False),
    "the example of the documents": (
        {"label": "Important", "reply_to": "johndoe@contoso.com", "properties": {"color": "Red"}},
        True,
    ),
    "a property in another case": ({"properties": {"color": "red"}}, False),
    "a property's name in another case": ({"properties": {"Color": "Red"}}, True),
    "a property that is missing": ({"properties": {"absent": "x"}}, False),
    "a number": ({"properties": {"quantity": 10}}, True),
    "a number of another type": ({"properties": {"quantity": 10.0, "price": 2.5}}, True),
    "a number from the wire": ({"properties": {"quantity": Int(10)}}, True),
    "a number is not its text": ({"properties": {"quantity": "10"}}, False),
    "a boolean": ({"properties": {"express": True}}, True),
    "a boolean is no number": ({"properties": {"express": 1}}, False),
    "an id": ({"properties": {"id": ID}}, True),
    "several, all met": ({"to": "Store5", "properties": {"color": "Red", "express": True}}, True),
    "several, but one": ({"to": "Store5", "properties": {"color": "Red", "express": False}}, False),
}


@pytest.mark.req("B-08")
@pytest.mark.parametrize(("asked", "expected"), CASES.values(), ids=CASES)
def test_correlation_filter_on(asked, expected):
    match = compile_filter(CorrelationFilter(**asked))

    assert match(facts(PROPERTIES, **SYSTEM)) is expected


def test_a_message_that_says_nothing_matches_nothing():
    assert not compile_filter(CorrelationFilter(label="a"))(facts())
    assert not compile_filter(CorrelationFilter(properties={"a": 1}))(facts())
