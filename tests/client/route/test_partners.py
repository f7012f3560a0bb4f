import pytest

from pairbus.client.route.partners import Partners

pytestmark = pytest.mark.req("C-01")


@pytest.mark.parametrize(("ended", "partner"), [("primary", "secondary"), ("secondary", "primary")])
def test_a_partner_that_does_not_follow_within_5_seconds_is_faulted(ended, partner):
    partners = Partners()
    partners.ended(ended, now=100.0, reason="it was closed")

    assert partners.deadline == 105.0
    assert partners.due(now=104.999) is None

    fault = partners.due(now=105.0)

    assert fault.which == partner
    assert fault.reason == (
        f"the {ended} namespace's client ended (it was closed), and its partner did not within "
        "5 seconds"
    )


def test_a_partner_that_follows_in_time_is_left_alone():
    partners = Partners()
    partners.ended("primary", now=100.0, reason="closed")
    partners.ended("secondary", now=104.0, reason="closed")

    assert partners.deadline is None
    assert partners.due(now=1e9) is None


def test_a_partner_that_followed_before_anybody_looked_is_left_alone_too():
    partners = Partners()
    partners.ended("primary", now=100.0, reason="closed")
    partners.ended("secondary", now=200.0, reason="closed")

    assert partners.due(now=200.0) is None


def test_a_fault_is_asked_for_once():
    partners = Partners(grace_seconds=1.0)
    partners.ended("secondary", now=0.0, reason="broken")

    assert partners.due(now=1.0) is not None
    assert partners.deadline is None
    assert partners.due(now=2.0) is None

    partners.ended("primary", now=3.0, reason="faulted, as asked")

    assert partners.due(now=1e9) is None


def test_ending_twice_does_not_prolong_the_grace():
    partners = Partners()
    partners.ended("primary", now=0.0, reason="broken")
    partners.ended("primary", now=4.0, reason="closed")

    assert partners.deadline == 5.0
    assert "(broken)" in partners.due(now=5.0).reason


def test_while_both_live_nothing_is_due():
    assert Partners().deadline is None
    assert Partners().due(now=1e9) is None
