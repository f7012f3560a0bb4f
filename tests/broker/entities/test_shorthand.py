import pytest

from pairbus.broker.entities.descriptions import (
    SubscriptionDescription,
    TopicDescription,
    topics_from_names,
)
from pairbus.errors import ConfigError


def names(given):
    return [entity.name for entity in topics_from_names(given)]


def test_a_name_is_a_topic_and_a_path_its_subscription():
    topic, subscription = topics_from_names(["events", "events/Subscriptions/audit"])

    assert topic == TopicDescription(name="events")
    assert subscription == SubscriptionDescription(name="events/Subscriptions/audit")


def test_topics_come_first_in_whatever_order_they_are_given():
    given = [SubscriptionDescription(name="b/Subscriptions/s", max_delivery_count=3), "a", "b"]

    assert names(given) == ["a", "b", "b/Subscriptions/s"]
    assert topics_from_names(given)[2].max_delivery_count == 3


def test_a_subscription_stands_for_its_topic_too():
    assert names(["events/subscriptions/a", "Events/Subscriptions/b"]) == [
        "events",
        "events/Subscriptions/a",
        "Events/Subscriptions/b",
    ]


def test_a_topic_that_is_described_is_not_made_up():
    described = TopicDescription(name="Events", max_size_in_megabytes=5)

    assert topics_from_names(["events/Subscriptions/a", described])[0] is described


@pytest.mark.parametrize("name", ["", "no good", "events/Subscriptions/", "t/Subscriptions/a/b"])
def test_a_name_that_cannot_be_is_refused(name):
    with pytest.raises(ConfigError, match="is not valid"):
        topics_from_names([name])
