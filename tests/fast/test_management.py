"""Requests to $management: peeking, renewing, settling by token."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from pairbus.amqp.client import requests
from pairbus.broker import Broker
from pairbus.client.sdk.failures import Kind, kind_of
from pairbus.fast import management
from pairbus.fast.address import Address
from tests.fast.world import messages, names, take


def test_peeking_pages_by_number_and_locks_nothing(client):
    client.sender("q").send(messages(7))
    management = client.management("q")
    assert names(management.peek(1, 3)) == ["m-0", "m-1", "m-2"]
    assert names(management.peek(4, 100)) == ["m-3", "m-4", "m-5", "m-6"]
    assert management.peek(8, 100) == []
    assert len(take(client.receiver("q", credit=7), 7)) == 7


@pytest.mark.parametrize("half", ["_requests", "_answers"])
def test_if_one_of_its_two_links_is_lost_the_answers_come_on_the_new_ones(client, half):
    client.sender("q").send(messages(1))
    management = client.management("q")
    assert names(management.peek(1, 1)) == ["m-0"]
    getattr(management._requests, half).detach()

    client.set_deadline(time.monotonic() + 5)
    assert names(management.peek(1, 1)) == ["m-0"]


def test_locks_are_renewed_by_token_or_by_its_bytes(client, clock):
    client.sender("q").send(messages(2))
    receiver = client.receiver("q", credit=2)
    taken = take(receiver, 2)
    for _ in range(3):
        clock.advance(40)
        until = client.management("q").renew_locks([taken[0].lock_token, taken[1].lock_token_bytes])
        expected = datetime.fromtimestamp(clock(), UTC) + timedelta(seconds=60)
        assert all(abs(one - expected) < timedelta(seconds=10) for one in until)
        assert len(until) == 2
    receiver.complete(taken)
    assert client.management("q").peek(1, 1) == []


def test_a_lock_that_has_run_out_is_not_renewed(client, clock):
    client.sender("q").send(messages(1))
    [one] = take(client.receiver("q", credit=1), 1)
    clock.advance(61)
    with pytest.raises(MessageLockLostError):
        client.management("q").renew_locks([one.lock_token_bytes])


@pytest.mark.parametrize(
    ("disposition", "left", "dead"),
    [("completed", 0, 0), ("abandoned", 1, 0), ("defered", 1, 0), ("suspended", 0, 1)],
)
def test_another_client_settles_by_token(client, connect, disposition, left, dead):
    client.sender("q").send(messages(1))
    [one] = take(client.receiver("q", credit=1), 1)
    other = connect()
    other.management("q").settle([one.lock_token], disposition, reason="r", description="d")
    assert len(other.management("q").peek(1, 10)) == left
    assert len(other.management("q/$DeadLetterQueue").peek(1, 10)) == dead


def test_of_several_tokens_all_are_settled_or_none(client, clock):
    client.sender("q").send(messages(2))
    taken = take(client.receiver("q", credit=2), 2)
    clock.advance(40)
    client.management("q").renew_locks([taken[0].lock_token_bytes])
    clock.advance(40)
    with pytest.raises(MessageLockLostError):
        client.management("q").settle([one.lock_token_bytes for one in taken], "completed")
    assert len(client.management("q").peek(1, 10)) == 2


def test_a_refusal_of_the_broker_raises_the_error_of_the_sdk(client, broker):
    management = client.management("q")
    with broker.faults.throttle("q"), pytest.raises(ServiceBusServerBusyError):
        management.peek(1, 1)
    with broker.faults.error("q", on=["management"]), pytest.raises(ServiceBusError) as caught:
        management.peek(1, 1)
    assert kind_of(caught.value) is Kind.OUTAGE
    with pytest.raises(ServiceBusError, match="peek-message of 'q'") as caught:
        management.peek(1, 0)
    assert kind_of(caught.value) is Kind.MESSAGE
    assert management.peek(1, 1) == []


def test_a_request_that_is_too_large_is_no_outage(client):
    with pytest.raises(MessageSizeExceededError, match="larger than") as caught:
        client.management("q").settle([UUID(int=1)], "suspended", reason="x" * 2_000_000)
    assert kind_of(caught.value) is Kind.MESSAGE


def test_an_unknown_entity_raises_the_error_of_the_sdk(client):
    with pytest.raises(ServiceBusAuthenticationError) as caught:
        client.management("nowhere").peek(1, 1)
    assert kind_of(caught.value) is Kind.SETUP


def test_an_answer_that_comes_too_late_is_not_taken_for_another(client, broker):
    client.sender("q").send(messages(2))
    management = client.management("q")
    assert names(management.peek(2, 1)) == ["m-1"]
    with broker.faults.hang("q"):
        client.set_deadline(time.monotonic() + 0.2)
        with pytest.raises(OperationTimeoutError):
            management.peek(1, 1)
    client.set_deadline(math.inf)
    assert names(management.peek(2, 1)) == ["m-1"]


def test_if_one_of_several_answers_is_lost_its_request_is_repeated(connect, monkeypatch):
    monkeypatch.setattr(management, "_TOGETHER_SECONDS", 1.0)
    client = connect()
    client.sender("q").send(messages(3))
    found = iter([True, False])

    def without_the_second(answers):
        return [one for one in responses(answers) if next(found, True)]

    responses = requests._responses
    monkeypatch.setattr(requests, "_responses", without_the_second)
    pages = client.management("q").peek_all([(number, 1) for number in (1, 2, 3)])
    assert [names(page) for page in pages] == [["m-0"], ["m-1"], ["m-2"]]


def test_an_entity_has_one_management(client):
    assert client.management("q") is client.management("q")


def test_more_entities_can_be_peeked_at_than_a_connection_has_links_for():
    paths = [f"q{number}" for number in range(130)]
    with (
        Broker(queues=paths) as broker,
        Address.from_connection_string(broker.connection_string).client() as client,
    ):
        first = client.management(paths[0])
        assert [client.management(path).peek(1, 1) for path in paths] == [[]] * 130
        assert first.peek(1, 1) == []


def test_the_first_messages_of_many_entities_are_asked_for_together():
    paths = [f"q{number}" for number in range(130)]
    with (
        Broker(queues=paths) as broker,
        Address.from_connection_string(broker.connection_string).client() as client,
    ):
        client.sender("q1").send(messages(2))
        client.sender("q129").send(messages(1))
        locked = take(client.receiver("q1", credit=1), 1)
        firsts = client.first_messages(paths)
        assert locked
        assert [place for place, first in enumerate(firsts) if first is not None] == [1, 129]
        assert names([first for first in firsts if first is not None]) == ["m-0", "m-0"]
        assert client.first_messages([]) == []


def test_several_entities_are_peeked_at_together_and_one_that_fails_affects_no_other(
    client, monkeypatch
):
    def alone(links, properties, *rest, **settings):
        asked_alone.append(links._address)
        return ask(links, properties, *rest, **settings)

    asked_alone, ask = [], requests.RequestLinks.ask
    monkeypatch.setattr(requests.RequestLinks, "ask", alone)
    client.sender("q").send(messages(3))
    client.sender("other").send(messages(1))
    asked_alone.clear()

    pages = client.peek_each([("q", 2, 5), ("nowhere", 0, 1), ("other", 0, 1)])

    assert names(pages[0]) == ["m-1", "m-2"]
    assert isinstance(pages[1], ServiceBusAuthenticationError)
    assert names(pages[2]) == ["m-0"]
    assert set(asked_alone) == {"$cbs"}, "to find out why there is no token for 'nowhere'"


def test_without_one_of_the_entities_asking_for_first_messages_raises(client):
    with pytest.raises(ServiceBusAuthenticationError, match="nowhere"):
        client.first_messages(["q", "nowhere"])
    assert client.first_messages(["q"]) == [None]


def test_a_service_that_does_not_answer_a_peek_is_no_fault_of_an_entity(client, broker):
    assert client.first_messages(["q", "other"]) == [None, None]
    with broker.faults.hang():
        client.set_deadline(time.monotonic() + 0.2)
        with pytest.raises(OperationTimeoutError):
            client.peek_each([("q", 0, 1), ("other", 0, 1)])
