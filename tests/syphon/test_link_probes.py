"""Asking primaries that are down whether they are back, on real brokers."""

import pytest

from pairbus.broker import Broker
from pairbus.syphon.link_probes import LONG_SECONDS, LinkProbes
from pairbus.testing import ManualClock
from tests.syphon.stage import Stage
from tests.waiting import wait_until


@pytest.fixture
def stage():
    with Broker(queues=["orders", "invoices"]) as primary:
        yield Stage(primary, primary, [])


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def probes(stage, clock):
    return LinkProbes({"contoso": stage.address(stage.primary).client}, clock=clock)


def ask(probes, paths=()):
    """The answer to one probe; None if the primary does not answer."""
    wanted = {"contoso": tuple(paths)}
    assert probes.poll(wanted) == {}
    due = probes.next_try("contoso")
    answers = []

    def has_ended():
        answers.append(probes.poll(wanted))
        return probes.next_try("contoso") != due

    wait_until(has_ended, "the end of a probe")
    return answers[-1].get("contoso")


@pytest.mark.req("M-02")
def test_links_show_which_entities_are_back_and_nothing_is_billed(stage, probes, clock):
    faults = stage.primary.faults
    with faults.unreachable():
        assert ask(probes, ["orders"]) is None
        clock.advance(3)
        assert ask(probes) is None
    clock.advance(3)
    assert ask(probes) == ()
    clock.advance(3)
    with faults.unreachable(entity="orders"):
        assert ask(probes, ["orders", "invoices", "none"]) == ("invoices",)
    clock.advance(3)
    assert ask(probes, ["orders", "invoices", "none"]) == ("orders", "invoices")
    total = stage.primary.meter.read().total
    assert sum(total.as_dict().values()) == 0


def test_a_primary_is_asked_every_two_seconds_and_later_every_ten(probes, stage, clock):
    with stage.primary.faults.unreachable():
        ask(probes)
        assert 1.8 <= probes.next_try("contoso") - clock() <= 2.2
        clock.advance(LONG_SECONDS + 1)
        ask(probes)
        assert 9 <= probes.next_try("contoso") - clock() <= 11
    probes.poll({})
    assert probes.next_try("contoso") is None, "nothing waits for it any more"
