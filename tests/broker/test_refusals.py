"""The log of refusals: its lines, and what a flood of them costs."""

import logging

import pytest

from pairbus.broker.refusals import BadTokens, RefusalLog, peer_name
from pairbus.testing import ManualClock

PEER = "127.0.0.1:4711"


@pytest.fixture
def clock():
    return ManualClock(1000.0)


@pytest.fixture
def refusals(clock, caplog):
    caplog.set_level(logging.INFO, logger="pairbus.broker")
    return RefusalLog("local", clock=clock)


def test_a_line_says_who_was_refused_what_and_why(refusals, caplog):
    refusals.add(PEER, "the key is wrong", entity="orders", policy="sender")
    refusals.add(PEER, "it sent no AMQP")
    assert caplog.messages == [
        f"namespace local refused {PEER}, entity 'orders', policy 'sender': the key is wrong",
        f"namespace local refused {PEER}: it sent no AMQP",
    ]


def test_what_a_client_writes_stays_on_one_line_and_short(refusals, caplog):
    refusals.add(PEER, "no\nnamespace forged" * 1000, entity="a\nb", policy="p" * 10_000)
    [line] = caplog.messages
    assert "\n" not in line
    assert len(line) < 1000


def test_a_flood_by_strangers_ends_in_one_line_and_hides_no_known_client(refusals, clock, caplog):
    for _ in range(1000):
        refusals.add(PEER, "no token")
    refusals.add(PEER, "no claim", is_known=True)
    assert len(caplog.messages) == 20 + 1
    assert caplog.messages[-1].endswith("no claim")
    caplog.clear()
    clock.advance(10)
    refusals.add(PEER, "no token")
    assert caplog.messages == [
        "namespace local refused clients without a valid token 980 more times in 10 s",
        f"namespace local refused {PEER}: no token",
    ]


def test_a_client_that_asks_for_a_missing_entity_again_and_again_has_few_lines(
    refusals, clock, caplog
):
    def ask(peer, entity):
        refusals.add(peer, "not found", entity=entity, is_known=True, is_missing=True)
        return len(caplog.messages)

    assert ask(PEER, "backlog-1") == 1
    assert ask("127.0.0.1:4712", "Backlog-1") == 1
    assert ask(PEER, "backlog-2") == 2
    assert ask("10.0.0.1:4711", "backlog-1") == 3
    for _ in range(119):
        clock.advance(5)
        assert ask(PEER, "backlog-1") == 3
    clock.advance(5)
    assert ask(PEER, "backlog-1") == 4


def test_the_address_of_a_client_is_shown_with_its_port():
    assert peer_name(("127.0.0.1", 4711)) == PEER
    assert peer_name(("::1", 4711, 0, 0)) == "[::1]:4711"
    assert peer_name(None) == "a client"


def test_an_address_waits_after_many_bad_tokens_and_is_free_again_soon(clock):
    bad = BadTokens(clock=clock)
    for _ in range(50):
        bad.add("10.0.0.1")
    assert bad.delay_seconds("10.0.0.1") == 0
    for _ in range(100_000):
        bad.add("10.0.0.1")

    assert bad.delay_seconds("10.0.0.1") == 1
    assert bad.delay_seconds("10.0.0.2") == 0
    clock.advance(29)
    assert bad.delay_seconds("10.0.0.1") == 1
    clock.advance(1)
    assert bad.delay_seconds("10.0.0.1") == 0


def test_bad_tokens_from_everywhere_take_little_memory(clock):
    bad = BadTokens(clock=clock)
    for _ in range(100):
        bad.add("first")
    for number in range(9_999):
        bad.add(str(number))
    assert bad.delay_seconds("first") == 1

    bad.add("one more")

    assert bad.delay_seconds("first") == 0  # forgotten
