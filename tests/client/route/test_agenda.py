import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.client.route.agenda import Agenda


def test_an_empty_agenda_has_nothing_next():
    agenda = Agenda()

    assert agenda.next is None
    assert agenda.take(now=1e9) == []


def test_those_whose_moment_has_come_are_taken_once_earliest_first():
    agenda = Agenda()
    for key, at in {"late": 30.0, "early": 10.0, "middle": 20.0}.items():
        agenda.set(key, at)

    assert agenda.next == 10.0
    assert agenda.take(now=9.999) == []
    assert agenda.take(now=20.0) == ["early", "middle"]
    assert agenda.take(now=20.0) == []
    assert agenda.next == 30.0


@pytest.mark.parametrize("moment", [5.0, 15.0])
def test_a_new_moment_replaces_the_old_one(moment):
    agenda = Agenda()
    agenda.set("a", 10.0)
    agenda.set("a", moment)

    assert agenda.next == moment
    assert agenda.take(now=100.0) == ["a"]
    assert agenda.next is None


def test_a_cancelled_moment_is_gone_and_may_come_again():
    agenda = Agenda()
    agenda.set("a", 10.0)
    agenda.set("a", None)
    agenda.set("never there", None)

    assert agenda.next is None

    agenda.set("a", 10.0)

    assert agenda.take(now=10.0) == ["a"]
    assert agenda.take(now=10.0) == []


def test_changing_ones_mind_a_million_times_costs_no_memory():
    agenda = Agenda()
    agenda.set("steady", 1e9)
    for moment in range(100_000):
        agenda.set("fickle", float(moment))
        agenda.set("fickle", None)

    assert len(agenda._heap) < 100
    assert agenda.take(now=1e9) == ["steady"]


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.sampled_from("abcd"), st.one_of(st.none(), st.integers(0, 20))),
            st.integers(0, 20),
        ),
        max_size=200,
    )
)
def test_it_agrees_with_a_plain_dict(steps):
    agenda, plain = Agenda(), {}
    for step in steps:
        if isinstance(step, tuple):
            key, at = step
            agenda.set(key, at)
            plain[key] = at
        else:
            due = sorted((at, key) for key, at in plain.items() if at is not None and at <= step)
            assert agenda.take(now=step) == [key for _, key in due]
            plain.update((key, None) for _, key in due)
        assert agenda.next == min((at for at in plain.values() if at is not None), default=None)
