"""Every request gets an answer, and a client error if it makes no sense."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.broker.admin.atom import escape
from pairbus.broker.entities.settings import SETTINGS
from tests.broker.admin.site import Site, wrapped

DESCRIPTIONS = ("QueueDescription", "TopicDescription", "SubscriptionDescription")
PATHS = ("q", "t", "t/subscriptions/s", "t/subscriptions/s/rules/r", "new", "a%2Fb", "%ff%00", "$x")
VALUES = ("true", "false", "0", "-1", "256", "PT1M", "P1D", "Active", "q", "sb://localhost:5671/q")
TYPES = ("SqlFilter", "CorrelationFilter", "TrueFilter", "SqlRuleAction", "EmptyRuleAction", "")


@pytest.fixture(scope="module")
def site():
    site = Site()
    site.queue("q")
    site.topic("t")
    site.subscription("t", "s")
    yield site
    site.close()


texts = st.one_of(st.sampled_from(VALUES), st.text(max_size=20)).map(escape)
properties = st.builds(
    lambda name, text: f"<{name}>{text}</{name}>",
    st.sampled_from(
        [*(one.name for one in SETTINGS), "AuthorizationRules", "CountDetails", "Nonsense"]
    ),
    texts,
)
entities = st.builds(
    lambda name, inner: f"<{name}>{''.join(inner)}</{name}>",
    st.sampled_from(DESCRIPTIONS),
    st.lists(properties, max_size=5),
)
values = st.builds(
    lambda kind, text: f"<K><Key>k</Key><Value i:type='x:{kind}'>{text}</Value></K>",
    st.sampled_from(["int", "long", "double", "dateTime", "duration", "boolean", "string", ""]),
    texts,
)
parts = st.builds(
    lambda name, kind, sql, inner: (
        f"<{name} i:type='{kind}'><SqlExpression>{sql}</SqlExpression>"
        f"<Parameters>{inner}</Parameters><Properties>{inner}</Properties></{name}>"
    ),
    st.sampled_from(["Filter", "Action"]),
    st.sampled_from(TYPES),
    texts,
    values,
)
rules = st.lists(parts, max_size=2).map(
    lambda inner: f"<RuleDescription>{''.join(inner)}</RuleDescription>"
)
bodies = st.one_of(
    st.one_of(entities, rules).map(wrapped),
    st.binary(max_size=50),
    st.text(max_size=50).map(str.encode),
)


@settings(max_examples=max(150, settings.default.max_examples))
@given(
    method=st.sampled_from(["GET", "PUT", "PUT", "PUT", "DELETE", "POST"]),
    path=st.sampled_from(PATHS),
    body=bodies,
    is_update=st.booleans(),
)
def test_nothing_that_is_sent_surprises_the_broker(site, method, path, body, is_update):
    headers = {"If-Match": "*"} if is_update else {}

    answer = site.ask(method, f"/{path}?api-version=2021-05", body, headers=headers)

    assert answer.status in (200, 201, 400, 401, 404, 405, 409)
    if answer.body:
        assert answer.xml is not None
    if answer.status >= 400:
        assert len(answer.detail) > 10
