"""A journal survives the kill of its process, and the verdict says what became of each message."""

import pytest

from pairbus.verify.journal import Fact, Journal, JournalEntry, judge, read_journals

A, K, F, U = Fact.ATTEMPT, Fact.ACKNOWLEDGED, Fact.FAILED, Fact.UNKNOWN
R, X, D, L = Fact.RECEIVED, Fact.DAMAGED, Fact.DEAD_LETTERED, Fact.LEFT


def verdict_of(*facts, late_seconds=5.0):
    """The verdict on one message to which these things happened, a second apart."""
    entries = [JournalEntry(fact, "m", float(at)) for at, fact in enumerate(facts)]
    return judge(entries, late_seconds=late_seconds)


def counts(verdict):
    names = [name for name in verdict.__slots__ if name != "longest_gap_seconds"]
    values = {name: getattr(verdict, name) for name in names}
    sizes = {name: len(v) if isinstance(v, tuple) else v for name, v in values.items()}
    return {name: size for name, size in sizes.items() if size}


SENT = {"attempts": 1, "acknowledged": 1}
OPEN = {"attempts": 1, "unknown": 1}
CASES = {
    "all is well": ((A, K, R), True, {**SENT, "received": 1}),
    "it arrives before the send returns": ((A, R, K), True, {**SENT, "received": 1}),
    "acknowledged and gone": ((A, K), False, {**SENT, "lost": 1}),
    "acknowledged and dead-lettered": ((A, K, D), True, {**SENT, "dead_lettered": 1}),
    "acknowledged and left in the backlog": ((A, K, L), True, {**SENT, "left": 1}),
    "received and found in the backlog": ((A, K, R, L), True, {**SENT, "received": 1}),
    "twice": ((A, K, R, R), True, {**SENT, "received": 1, "duplicated": 1}),
    "damaged": ((A, K, X), False, {**SENT, "received": 1, "damaged": 1}),
    "never sent": ((R,), False, {"received": 1, "unexpected": 1}),
    "failed": ((A, F), True, {"attempts": 1, "failed": 1}),
    "failed, but there": (
        (A, F, R),
        False,
        {"attempts": 1, "failed": 1, "received": 1, "unexpected": 1},
    ),
    "no answer": ((A, U), True, OPEN),
    "the sender was killed": ((A,), True, OPEN),
    "no answer, but there": ((A, U, R), True, {**OPEN, "received": 1, "recovered": 1}),
    "no answer, in the backlog": ((A, U, L), True, {**OPEN, "left": 1, "recovered": 1}),
}


@pytest.mark.req("X-15")
@pytest.mark.parametrize(("facts", "is_valid", "expected"), CASES.values(), ids=CASES)
def test_what_became_of_a_message(facts, is_valid, expected):
    verdict = verdict_of(*facts)

    assert counts(verdict) == expected
    assert verdict.is_valid is is_valid


@pytest.mark.parametrize(("late_seconds", "late"), [(0.5, 1), (1.5, 0)])
def test_late_is_measured_from_the_return_of_the_send(late_seconds, late):
    assert verdict_of(A, K, R, late_seconds=late_seconds).late == late


def test_order_counts_within_a_session_and_a_repeat_is_not_out_of_order():
    arrivals = [("a", 1), ("b", 1), ("a", 3), ("a", 2), ("a", 1), ("b", 2), ("a", 4)]
    entries = [
        JournalEntry(R, f"{session}-{order}", float(at), session, order)
        for at, (session, order) in enumerate(arrivals)
    ]

    assert judge(entries, late_seconds=5).out_of_order == 1


def test_the_longest_gap_is_between_two_sends_that_returned():
    entries = [JournalEntry(K, str(at), float(at)) for at in (10, 1, 2, 4, 12)]

    assert judge(entries, late_seconds=5).longest_gap_seconds == 6


def test_an_empty_run_is_valid_and_says_nothing():
    verdict = judge([], late_seconds=5)

    assert (counts(verdict), verdict.longest_gap_seconds) == ({}, 0)


def test_what_is_written_is_read(tmp_path):
    for name in ("b", "a"):
        journal = Journal(tmp_path / f"{name}.journal", clock=lambda: 12.5)
        journal.write(Fact.ATTEMPT, f"{name}-1")
        journal.write(Fact.RECEIVED, f"{name}-2", "a session with spaces", 7)
        journal.close()

    assert list(read_journals(tmp_path)) == [
        JournalEntry(Fact.ATTEMPT, "a-1", 12.5),
        JournalEntry(Fact.RECEIVED, "a-2", 12.5, "a session with spaces", 7),
        JournalEntry(Fact.ATTEMPT, "b-1", 12.5),
        JournalEntry(Fact.RECEIVED, "b-2", 12.5, "a session with spaces", 7),
    ]


def test_a_line_that_was_cut_off_does_not_count(tmp_path):
    path = tmp_path / "a.journal"
    Journal(path, clock=lambda: 1.0).write(Fact.ATTEMPT, "a-1")
    with path.open("a") as file:
        file.write("acknowledged 1.0")

    assert [entry.fact for entry in read_journals(tmp_path)] == [Fact.ATTEMPT]
