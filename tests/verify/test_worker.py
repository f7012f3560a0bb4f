"""What a sender writes down about each message of a call, whatever the call does."""

import pytest
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusConnectionError

from pairbus import BacklogExhausted
from pairbus.verify.journal import Fact, Journal, read_journals
from pairbus.verify.worker import Assignment, Pair, Recorder, Role

WORK = Assignment(
    role=Role.ASYNCIO,
    name="sender-1.1",
    run="r",
    folder="",
    pair=Pair(
        primary="",
        secondary="",
        primary_ca_file=None,
        secondary_ca_file="ca.pem",
        primary_name="east",
    ),
    queue="q",
    session_queue="s",
    rate=10,
    seed=4,
)


def group_of(recorder, size):
    while len(group := recorder.next_group()) != size:
        pass
    return group


@pytest.mark.req("X-15")
@pytest.mark.parametrize(
    ("error", "facts"),
    [
        (None, [Fact.ACKNOWLEDGED] * 3),
        (ServiceBusConnectionError(message="cut"), [Fact.UNKNOWN] * 3),
        (ValueError("too long"), [Fact.FAILED] * 3),
        (MessageSizeExceededError(message="too large"), [Fact.FAILED] * 3),
        (BacklogExhausted(entity="q"), [Fact.UNKNOWN] * 3),
        # The error says how many are safe. They must not get lost.
        (
            BacklogExhausted(entity="q", diverted_count=2),
            [Fact.ACKNOWLEDGED, Fact.ACKNOWLEDGED, Fact.UNKNOWN],
        ),
    ],
)
def test_the_outcome_of_a_call_is_that_of_its_messages(tmp_path, error, facts):
    journal = Journal(tmp_path / "x.journal")
    recorder = Recorder(WORK, journal)
    group = group_of(recorder, 3)

    with recorder.outcome(group):
        if error is not None:
            raise error

    ids = [one.message_id for one in group]
    entries = [each for each in read_journals(tmp_path) if each.message_id in ids]
    assert [each.fact for each in entries] == [Fact.ATTEMPT] * 3 + facts


def test_an_assignment_outlives_the_way_to_its_process():
    assert Assignment.from_line(WORK.to_line()) == WORK
