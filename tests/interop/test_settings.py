"""Every setting of a queue, a topic and a subscription changes the behaviour it names.

One function per setting, run for each kind of entity that has it; `test_every_setting_has_a_test`
fails when a description gets a setting that is in no table here. A setting that can change is
changed while clients are there, so that each test sees both sides of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)
from azure.servicebus.management import AccessRights

from pairbus.broker import QueueDescription
from pairbus.broker.entities.descriptions import (
    EntityDescription,
    SubscriptionDescription,
    TopicDescription,
    subscription_path,
)
from tests.interop.bus import Bus, take
from tests.interop.topics import NOTHING, change, find, make, policy, premium, rule

DEAD_LETTER = "deadletter"
KINDS: dict[str, type[EntityDescription]] = {
    "queue": QueueDescription,
    "topic": TopicDescription,
    "subscription": SubscriptionDescription,
}


class Place:
    """An entity with settings: where to send, and where to receive."""

    def __init__(self, bus: Bus, kind: str, suffix: str = "entity", **settings: Any) -> None:
        self.bus = bus
        self.kind = kind
        self.path = self.source = self.target = bus.path(suffix)
        if kind == "queue":
            make(bus.broker, kind, self.path, **settings)
        else:
            self.target = subscription_path(self.source, "all")
            of_topic = settings if kind == "topic" else {}
            of_subscription = settings if kind == "subscription" else {}
            make(bus.broker, "topic", self.source, **of_topic)
            make(bus.broker, "subscription", self.target, **of_subscription)
            self.path = self.source if kind == "topic" else self.target

    def change(self, **settings: Any) -> None:
        change(self.bus.broker, self.kind, self.path, **settings)

    # To the SDK, a path is a path: the calls for queues serve topics and subscriptions as well.

    def send(self, *texts: str, **settings: Any) -> None:
        self.bus.send(*texts, queue=self.source, **settings)

    def new_sender(self, client: Any = None) -> Any:
        return self.bus.sender(self.source, client=client)

    def receiver(self, **options: Any) -> Any:
        return self.bus.receiver(self.target, **options)

    def left(self, sub_queue: str | None = None) -> list[str]:
        return self.bus.left_bodies(self.target, sub_queue)


# --- locks and deliveries -------------------------------------------------------------------------


def lock_duration(bus: Bus, kind: str) -> None:
    place = Place(bus, kind)
    place.send("long", "short")
    receiver = place.receiver()
    [long] = take(receiver)
    assert long.locked_until_utc.timestamp() == pytest.approx(bus.clock() + 60, abs=5)
    place.change(lock_duration=timedelta(seconds=10))
    [short] = take(receiver)
    assert short.locked_until_utc.timestamp() == pytest.approx(bus.clock() + 10, abs=5)
    bus.advance(11)
    [again] = take(receiver)
    assert (str(again), again.delivery_count) == ("short", 1)


def max_delivery_count(bus: Bus, kind: str) -> None:
    place = Place(bus, kind, max_delivery_count=1)
    place.send("once")
    receiver = place.receiver()
    receiver.abandon_message(take(receiver)[0])
    place.change(max_delivery_count=2)
    place.send("twice")
    receiver.abandon_message(take(receiver)[0])
    assert place.left() == ["twice"]
    assert place.left(DEAD_LETTER) == ["once"]


def requires_session(bus: Bus, kind: str) -> None:
    place = Place(bus, kind, requires_session=True)
    place.send("x", session_id="s")
    with pytest.raises(ServiceBusError, match="requires sessions"):
        place.receiver()
    assert [str(m) for m in take(place.receiver(session_id="s"))] == ["x"]


# --- time -----------------------------------------------------------------------------------------


def default_message_time_to_live(bus: Bus, kind: str) -> None:
    place = Place(bus, kind)
    place.send("stays")
    place.change(default_message_time_to_live=timedelta(seconds=10))
    place.send("goes")
    assert place.left() == ["stays", "goes"]
    bus.advance(11)
    assert place.left() == ["stays"]


def dead_lettering_on_message_expiration(bus: Bus, kind: str) -> None:
    place = Place(bus, kind)
    place.send("gone", time_to_live=timedelta(seconds=10))
    bus.advance(11)
    place.change(dead_lettering_on_message_expiration=True)
    place.send("dead-lettered", time_to_live=timedelta(seconds=10))
    bus.advance(11)
    assert place.left() == []
    assert place.left(DEAD_LETTER) == ["dead-lettered"]


def auto_delete_on_idle(bus: Bus, kind: str) -> None:
    place = Place(bus, kind)
    bus.advance(400)
    assert find(bus.broker, kind, place.path)
    place.change(auto_delete_on_idle=timedelta(minutes=5))
    bus.advance(200)
    bus.advance(6)
    assert find(bus.broker, kind, place.path)
    bus.advance(100)
    bus.advance(6)
    assert not find(bus.broker, kind, place.path)


# --- duplicates, size, order ----------------------------------------------------------------------


def requires_duplicate_detection(bus: Bus, kind: str) -> None:
    place = Place(bus, kind, requires_duplicate_detection=True)
    other = Place(bus, kind, "other")
    for each in (place, other):
        each.send("1", "2", message_id="same")
    assert place.left() == ["1"]
    assert other.left() == ["1", "2"]


def duplicate_detection_history_time_window(bus: Bus, kind: str) -> None:
    seconds = timedelta(seconds=20)
    place = Place(
        bus, kind, requires_duplicate_detection=True,
        duplicate_detection_history_time_window=seconds,
    )  # fmt: skip
    place.send("1", message_id="a")
    bus.advance(21)
    place.send("2", message_id="a")
    place.change(duplicate_detection_history_time_window=2 * seconds)
    place.send("3", message_id="b")
    bus.advance(21)
    place.send("4", message_id="b")
    assert place.left() == ["1", "2", "3"]


def max_size_in_megabytes(bus: Bus, kind: str) -> None:
    place = Place(bus, kind, max_size_in_megabytes=1)
    text = "x" * 200_000
    place.send(*[text] * 5)
    with pytest.raises(ServiceBusQuotaExceededError):
        place.send(text)
    place.change(max_size_in_megabytes=2)
    place.send(*[text] * 5)
    with pytest.raises(ServiceBusQuotaExceededError):
        place.send(text)


def max_message_size_in_kilobytes(bus: Bus, kind: str) -> None:
    with premium(bus) as bus:
        place = Place(bus, kind, max_message_size_in_kilobytes=1024)
        with pytest.raises(MessageSizeExceededError):
            place.send("x" * 1_500_000)
        assert place.new_sender().create_message_batch().max_size_in_bytes == 1024 * 1024
        place.change(max_message_size_in_kilobytes=2048)
        place.new_sender().send_messages(ServiceBusMessage("x" * 1_500_000))
        assert place.left() == ["x" * 1_500_000]


def enable_partitioning(bus: Bus, kind: str) -> None:
    place = Place(bus, kind, enable_partitioning=True)
    for key in "abcdefgh" * 2:
        place.send(key, partition_key=key)
    partitions: dict[str, set[int]] = {}
    for message in bus.left(place.target):
        partitions.setdefault(str(message), set()).add(message.sequence_number >> 48)
    assert all(len(numbers) == 1 for numbers in partitions.values()), "a key has one partition"
    assert len(set.union(*partitions.values())) > 1, "the partitions share the load"
    [message] = take(place.receiver())
    assert message.partition_key == str(message)


# --- where messages go ----------------------------------------------------------------------------


def forward_to(bus: Bus, kind: str) -> None:
    place = Place(bus, kind, forward_to=bus.queue)
    place.send("forwarded")
    place.change(forward_to=None)
    place.send("kept")
    assert bus.left_bodies() == ["forwarded"]
    assert place.left() == ["kept"]


def forward_dead_lettered_messages_to(bus: Bus, kind: str) -> None:
    place = Place(bus, kind, forward_dead_lettered_messages_to=bus.queue)
    place.send("forwarded", "kept")
    receiver = place.receiver()
    receiver.dead_letter_message(take(receiver)[0])
    place.change(forward_dead_lettered_messages_to=None)
    receiver.dead_letter_message(take(receiver)[0])
    [message] = bus.left()
    assert (str(message), message.dead_letter_source) == ("forwarded", place.target)
    assert place.left(DEAD_LETTER) == ["kept"]


def rules(bus: Bus, kind: str) -> None:
    place = Place(bus, kind, rules=(rule("sys.Label = 'red'", "SET seen = 1"),))
    place.send("1", subject="red")
    place.send("2", subject="blue")
    [message] = bus.left(place.target)
    assert (str(message), message.application_properties[b"seen"]) == ("1", 1)
    place.change(rules=(rule(NOTHING),))
    place.send("3", subject="red")
    assert place.left() == ["1"]


def dead_lettering_on_filter_evaluation_exceptions(bus: Bus, kind: str) -> None:
    place = Place(bus, kind, rules=(rule("1 / n > 0"),))
    place.send("dead-lettered", application_properties={"n": 0})
    place.change(dead_lettering_on_filter_evaluation_exceptions=False)
    place.send("gone", application_properties={"n": 0})
    assert place.left(DEAD_LETTER) == ["dead-lettered"]


# --- who may do what ------------------------------------------------------------------------------


def status_of_queue(bus: Bus, kind: str) -> None:
    place = Place(bus, kind)
    place.send("1")
    place.change(status="SendDisabled")
    with pytest.raises(MessagingEntityDisabledError):
        place.new_sender().send_messages(ServiceBusMessage("no"))
    assert [str(m) for m in take(place.receiver(), 1)] == ["1"]
    place.change(status="ReceiveDisabled")
    place.new_sender().send_messages(ServiceBusMessage("2"))
    with pytest.raises(MessagingEntityDisabledError):
        place.receiver()
    place.change(status="Disabled")
    with pytest.raises(MessagingEntityDisabledError):
        place.new_sender().send_messages(ServiceBusMessage("no"))
    place.change(status="Active")
    assert [str(m) for m in take(place.receiver())] == ["2"]


def status_of_topic(bus: Bus, kind: str) -> None:
    place = Place(bus, kind)
    place.send("1")
    for status in ("SendDisabled", "Disabled"):
        place.change(status=status)
        with pytest.raises(MessagingEntityDisabledError):
            place.new_sender().send_messages(ServiceBusMessage("no"))
        with pytest.raises(ServiceBusError):
            place.send("no, on a link that was open")
    place.change(status="Active")
    place.new_sender().send_messages(ServiceBusMessage("2"))
    assert place.left() == ["1", "2"]


def status_of_subscription(bus: Bus, kind: str) -> None:
    place = Place(bus, kind)
    place.send("1")
    place.change(status="ReceiveDisabled")
    with pytest.raises(MessagingEntityDisabledError):
        place.receiver()
    place.send("2")
    place.change(status="Disabled")
    place.send("3")
    place.change(status="Active")
    assert [str(m) for m in take(place.receiver(), 2)] == ["1", "2"]
    assert place.left() == ["1", "2"]


def status(bus: Bus, kind: str) -> None:
    check: dict[str, Callable[[Bus, str], None]] = {
        "queue": status_of_queue,
        "topic": status_of_topic,
        "subscription": status_of_subscription,
    }
    check[kind](bus, kind)


def authorization_rules(bus: Bus, kind: str) -> None:
    text = bus.connection_string("own", "b3duIGtleQ==")
    place, other = Place(bus, kind), Place(bus, kind, "other")
    with pytest.raises(ServiceBusAuthenticationError):
        place.new_sender(bus.connect(text)).send_messages(ServiceBusMessage("no"))
    place.change(authorization_rules=[policy("own", "b3duIGtleQ==", AccessRights.SEND)])
    client = bus.connect(text)
    place.new_sender(client).send_messages(ServiceBusMessage("yes"))
    assert place.left() == ["yes"]
    with pytest.raises(ServiceBusAuthenticationError):
        other.new_sender(client).send_messages(ServiceBusMessage("no"))
    refusals = (ServiceBusAuthenticationError, ServiceBusAuthorizationError)
    with pytest.raises(refusals):
        place.receiver(client=client)


# --- what is only kept ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """User metadata is stored and given back, and has no other effect."""

    value: object


KEPT = {
    "user_metadata": Kept("a note"),
    # Permission to be careless, which this broker does not use: what is taken is always durable.
    "enable_express": Kept(True),
    # The order of a topic's messages is kept in either case.
    "support_ordering": Kept(False),
}


def kept(bus: Bus, kind: str, setting: str) -> None:
    place = Place(bus, kind, **{setting: KEPT[setting].value})
    place.send("1", "2")
    assert place.left() == ["1", "2"]
    assert find(bus.broker, kind, place.path)[setting] == KEPT[setting].value


# --- all of them ----------------------------------------------------------------------------------

BEHAVIOURS: dict[str, Callable[[Bus, str], None]] = {
    function.__name__: function
    for function in (
        lock_duration,
        max_delivery_count,
        requires_session,
        default_message_time_to_live,
        dead_lettering_on_message_expiration,
        auto_delete_on_idle,
        requires_duplicate_detection,
        duplicate_detection_history_time_window,
        max_size_in_megabytes,
        max_message_size_in_kilobytes,
        enable_partitioning,
        forward_to,
        forward_dead_lettered_messages_to,
        rules,
        dead_lettering_on_filter_evaluation_exceptions,
        status,
        authorization_rules,
    )
}


def settings_of(kind: str) -> set[str]:
    described = KINDS[kind]
    return {field.name for field in fields(described)} - {"name"} - described.lacks


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_has_a_test(kind: str) -> None:
    # Counted where the commits are: tests/broker/links/test_separate_operations.py.
    elsewhere = {"enable_batched_operations"}
    assert settings_of(kind) - BEHAVIOURS.keys() - KEPT.keys() == elsewhere


@pytest.mark.req("B-05")
@pytest.mark.req("B-08")
@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        pytest.param(kind, setting, id=f"{setting} of a {kind}")
        for setting in (*BEHAVIOURS, *KEPT)
        for kind in KINDS
        if setting in settings_of(kind)
    ],
)
def test_a_setting_changes_the_behaviour_it_names(bus: Bus, kind: str, setting: str) -> None:
    if setting in KEPT:
        kept(bus, kind, setting)
    else:
        BEHAVIOURS[setting](bus, kind)
