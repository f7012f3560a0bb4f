"""What rules are estimated to need, and what that means for real topics."""

import pytest

from pairbus.broker.rules import CorrelationFilter, SqlFilter, TrueFilter, work_of
from pairbus.broker.rules.work import BATCH_WORK_MAX, WORK_MAX


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
