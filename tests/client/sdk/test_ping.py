"""The ping, and the sequence number that stands for an unknown one."""

from __future__ import annotations

import copy
import json
import pickle
import uuid
from datetime import timedelta

import pytest

from pairbus.client.sdk.messages import PING_CONTENT_TYPE, ping_message
from pairbus.client.sdk.pairing_errors import UnknownSequenceNumber


@pytest.mark.req("G-02")
def test_a_ping_is_an_empty_message_of_its_own_kind_that_lives_a_second():
    ping, other = ping_message(), ping_message()

    assert b"".join(ping.body) == b""
    assert ping.content_type == PING_CONTENT_TYPE == "application/vnd.ms-servicebus-ping"
    assert ping.time_to_live == timedelta(seconds=1)
    assert uuid.UUID(ping.session_id)
    assert ping.session_id != other.session_id
    assert ping.message_id != other.message_id


def test_an_unknown_number_is_a_number_that_says_what_it_is():
    number = UnknownSequenceNumber(
        backlog_queue="contoso/x-servicebus-transfer/3", message_id="m-1"
    )

    assert number == -1
    assert isinstance(number, int)
    for text in (repr(number), str(number), f"{number}", f"{[number]}"):
        assert "'m-1' was diverted to backlog queue 'contoso/x-servicebus-transfer/3'" in text
    assert (number.backlog_queue, number.message_id) == ("contoso/x-servicebus-transfer/3", "m-1")
    assert json.dumps([number]) == "[-1]"


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda n: pickle.loads(pickle.dumps(n))]
)
def test_an_unknown_number_is_copied_with_its_story(again):
    number = again(UnknownSequenceNumber(backlog_queue="b", message_id="m"))

    assert type(number) is UnknownSequenceNumber
    assert (number, number.backlog_queue, number.message_id) == (-1, "b", "m")
