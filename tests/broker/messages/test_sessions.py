"""Who holds a session, and which is next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker.messages.sessions import Sessions
from pairbus.broker.messages.window import Window

A, B = object(), object()  # holders; Sessions only remembers them


def sessions(*counts):
    return Sessions(counts, lambda session_id: Window({}, lambda *_: [], last_committed=0))


def test_a_session_that_is_ending_expires_only_once():
    found = sessions()
    held = found.hold("a", A, until_ms=100)

    held.is_ending = True

    assert found.expired(now_ms=100) == []
    assert found.next_lock_expiry_ms is None
    assert found.is_held("a")


NAMES = st.sampled_from("abc")
STEPS = st.lists(
    st.tuples(st.sampled_from(["come", "go", "hold", "let go", "next"]), NAMES), max_size=40
)


@pytest.mark.req("B-06")
@given(STEPS)
def test_a_session_is_available_just_while_it_has_messages_and_no_holder(steps):
    found = sessions()
    active, held, order = dict.fromkeys("abc", 0), {}, []
    for step, name in steps:
        if step == "come":
            active[name] += 1
            found.count(name, +1)
        elif step == "go" and active[name]:
            active[name] -= 1
            found.count(name, -1)
        elif step == "hold" and name not in held:
            held[name] = found.hold(name, A, until_ms=1)
        elif step == "let go" and name in held:
            found.release(held.pop(name))
        elif step == "next" and order:
            name = order[0]
            assert found.next_available() == name
            held[name] = found.hold(name, A, until_ms=1)

        free = [n for n in active if active[n] and n not in held]
        order = [n for n in order if n in free] + [n for n in free if n not in order]
        assert found.next_available() == next(iter(order), None)
        assert all(found.is_held(n) == (n in held) for n in active)
        assert all((found.find(n) is not None) == (active[n] > 0 or n in held) for n in active)
