"""Topics and subscriptions with the official SDK. A subscription behaves like a queue."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusMessage,
    ServiceBusMessageState,
)
from azure.servicebus.exceptions import (
    MessageNotFoundError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
    SessionCannotBeLockedError,
)
from azure.servicebus.management import CorrelationRuleFilter, FalseRuleFilter

from tests.interop.bus import take
from tests.interop.shells import both_clients
from tests.interop.topics import Topic, administration, rule

pytestmark = pytest.mark.req("B-08")

DEAD_LETTER = "deadletter"


@both_clients
def test_every_subscription_gets_the_whole_message(bus):
    topic = Topic(bus, a={}, b={})
    sent = ServiceBusMessage(
        b"body",
        message_id="id",
        subject="subject",
        correlation_id="correlation",
        content_type="text/plain",
        to="to",
        reply_to="reply",
        session_id="session",
        time_to_live=timedelta(minutes=5),
        application_properties={"text": "ünï", "number": 42, "flag": True, "real": 0.5},
    )
    topic.send(sent)
    for name in "ab":
        [message] = take(topic.receiver(name))
        assert str(message) == "body"
        for key in ("message_id", "subject", "correlation_id", "content_type", "to", "reply_to"):
            assert getattr(message, key) == getattr(sent, key)
        assert message.session_id == "session"
        assert message.time_to_live == timedelta(minutes=5)
        assert message.application_properties == {
            b"text": "ünï".encode(), b"number": 42, b"flag": True, b"real": 0.5,
        }  # fmt: skip
        assert (message.sequence_number, message.enqueued_sequence_number) == (1, None)
        assert message.delivery_count == 0


@pytest.mark.req("B-05")
def test_scheduled_messages_come_to_every_subscription_when_they_are_due(bus):
    topic = Topic(bus, a={}, b={})
    sender = topic.sender()
    later = datetime.fromtimestamp(bus.clock(), UTC) + timedelta(seconds=60)
    numbers = sender.schedule_messages([ServiceBusMessage("1"), ServiceBusMessage("2")], later)
    sender.cancel_scheduled_messages(numbers[0])
    with pytest.raises(MessageNotFoundError):
        sender.cancel_scheduled_messages(numbers[0])
    assert topic.left("a") == []
    bus.advance(61)
    for name in "ab":
        [message] = topic.left(name)
        assert str(message) == "2"
        assert message.enqueued_sequence_number == numbers[1]
        assert message.scheduled_enqueue_time_utc is not None


@pytest.mark.req("B-03")
def test_each_settlement_concerns_one_subscription_only(bus):
    topic = Topic(bus, a={}, other={})
    topic.send("complete", "abandon", "defer", "dead")
    receiver = topic.receiver("a")
    for message in take(receiver, 4):
        settle = {
            "complete": receiver.complete_message,
            "abandon": receiver.abandon_message,
            "defer": receiver.defer_message,
            "dead": lambda m: receiver.dead_letter_message(m, reason="r", error_description="d"),
        }
        settle[str(message)](message)
    found = {str(m): (m.delivery_count, m.state) for m in topic.left("a")}
    assert found == {
        "abandon": (1, ServiceBusMessageState.ACTIVE),
        "defer": (0, ServiceBusMessageState.DEFERRED),
    }
    assert topic.left_bodies("other") == ["complete", "abandon", "defer", "dead"]
    dead = topic.receiver("a", sub_queue=DEAD_LETTER)
    [message] = take(dead)
    assert (message.dead_letter_reason, message.dead_letter_error_description) == ("r", "d")
    dead.complete_message(message)
    assert topic.left("a", DEAD_LETTER) == []


@both_clients
@pytest.mark.req("B-06")
def test_a_subscription_has_sessions_with_state_and_order(bus):
    topic = Topic(bus, s={"requires_session": True}, plain={})
    for n in range(4):
        topic.send(str(n), session_id="ab"[n % 2])
    with topic.receiver("s", session_id="b") as receiver:
        assert [str(m) for m in take(receiver, 2)] == ["1", "3"]
        with pytest.raises(SessionCannotBeLockedError):
            topic.receiver("s", session_id="b")
        receiver.session.set_state(b"seen")
        assert receiver.session.renew_lock() is not None
    assert len(topic.left("plain")) == 4
    with topic.receiver("s", session_id="b") as receiver:
        assert bytes(receiver.session.get_state()) == b"seen"
    with topic.receiver("s", session_id=NEXT_AVAILABLE_SESSION) as receiver:
        assert receiver.session.session_id == "a"
        for message in take(receiver, 2):
            receiver.complete_message(message)


@pytest.mark.req("B-06")
def test_what_has_no_session_id_is_a_dead_letter_where_sessions_are_required(bus):
    topic = Topic(bus, s={"requires_session": True})
    topic.send("x")
    [message] = topic.left("s", DEAD_LETTER)
    assert message.dead_letter_reason == "Session ID is null."


# rules


def test_rules_see_what_the_sdk_sets(bus):
    topic = Topic(
        bus,
        label={"rules": [rule("sys.Label = 'red' AND quantity > 5")]},
        correlation={"rules": [rule(CorrelationRuleFilter(correlation_id="c", label="red"))]},
        like={"rules": [rule("user.name LIKE 'A%' OR sys.To IN ('x', 'y')")]},
        session={"rules": [rule("sys.SessionId = 's' AND sys.ContentType = 'text/plain'")]},
        exists={"rules": [rule("EXISTS(name) AND NOT EXISTS(quantity)")]},
        none={"rules": [rule(FalseRuleFilter())]},
    )
    topic.send("1", subject="red", application_properties={"quantity": 6})
    topic.send("2", subject="red", correlation_id="c", application_properties={"quantity": 5})
    topic.send("3", to="y", session_id="s", content_type="text/plain")
    topic.send("4", application_properties={"name": "Anna"})
    expected = {
        "label": ["1"],
        "correlation": ["2"],
        "like": ["3", "4"],
        "session": ["3"],
        "exists": ["4"],
        "none": [],
    }
    assert {name: topic.left_bodies(name) for name in expected} == expected


def test_an_action_changes_the_message_for_its_subscription_only(bus):
    act = "SET sys.Label = 'vip'; SET total = price * 2; REMOVE price; "
    act += "SET sys.TimeToLive = '00:01:00'"
    topic = Topic(
        bus,
        a={"rules": [rule("price > 10", act, name="rich"), rule("price > 10", name="plain")]},
        b={},
    )
    topic.send("x", subject="old", application_properties={"price": 20, "kept": "yes"})
    plain, changed = topic.left("a")
    assert plain.subject == "old"
    assert changed.subject == "vip"
    assert changed.application_properties == {
        b"kept": b"yes", b"total": 40, b"RuleName": b"rich",
    }  # fmt: skip
    assert changed.time_to_live == timedelta(minutes=1)
    [other] = topic.left("b")
    assert (other.subject, other.application_properties[b"price"]) == ("old", 20)


def test_what_a_filter_fails_on_is_a_dead_letter_of_its_subscription(bus):
    topic = Topic(
        bus,
        a={"rules": [rule("10 / n > 1")]},
        quiet={
            "rules": [rule("10 / n > 1")],
            "dead_lettering_on_filter_evaluation_exceptions": False,
        },
    )
    topic.send("x", application_properties={"n": 0})
    [message] = topic.left("a", DEAD_LETTER)
    assert message.dead_letter_reason == "FilterEvaluationException"
    assert "zero" in message.dead_letter_error_description
    assert topic.left("quiet") == topic.left("quiet", DEAD_LETTER) == []


# errors


def test_nothing_can_be_sent_to_a_subscription(bus):
    topic = Topic(bus, a={})
    with pytest.raises(ServiceBusError, match="nothing can be sent"):
        bus.sender(topic.path("a")).send_messages(ServiceBusMessage("x"))


def test_nothing_can_be_received_from_a_topic(bus):
    topic = Topic(bus, a={})
    with pytest.raises(ServiceBusError, match="use a subscription"):
        bus.receiver(topic.name)


def test_an_unknown_subscription_and_an_unknown_topic_are_refused_like_a_bad_token(bus):
    topic = Topic(bus, a={})
    with pytest.raises(ServiceBusAuthenticationError):
        topic.receiver("nobody")
    topic.name = bus.path("nothing")
    with pytest.raises(ServiceBusAuthenticationError):
        topic.receiver("a")
    with pytest.raises(ServiceBusAuthenticationError):
        topic.sender().send_messages(ServiceBusMessage("x"))


@pytest.mark.req("B-02")
def test_sending_needs_send_and_receiving_listen(bus):
    topic = Topic(bus, a={})
    listener = bus.connect(bus.connection_string("listener"))
    sender = bus.connect(bus.connection_string("sender"))
    with pytest.raises(ServiceBusAuthorizationError):
        topic.sender(listener).send_messages(ServiceBusMessage("no"))
    with pytest.raises(ServiceBusAuthorizationError):
        topic.receiver("a", client=sender)
    topic.sender(sender).send_messages(ServiceBusMessage("yes"))
    assert [str(m) for m in take(topic.receiver("a", client=listener))] == ["yes"]


# entities that change under their clients


def test_a_deleted_subscription_ends_its_receivers_and_no_others(bus):
    topic = Topic(bus, a={}, b={})
    gone, stays = topic.receiver("a"), topic.receiver("b")
    administration(bus.broker).delete_subscription(topic.name, "a")
    topic.send("x")
    assert [str(m) for m in take(stays)] == ["x"]
    with pytest.raises(MessagingEntityNotFoundError):
        gone.receive_messages(1, max_wait_time=30)
