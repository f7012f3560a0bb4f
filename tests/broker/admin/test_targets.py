"""What a path points to, in all spellings of clients."""

import pytest

from pairbus.broker.admin import targets
from pairbus.broker.admin.access import HttpRefused
from pairbus.broker.admin.targets import AdminTarget, TargetKind

NAMESPACE = AdminTarget(TargetKind.NAMESPACE, "$namespaceinfo")
QUEUES = AdminTarget(TargetKind.QUEUES, "$Resources/Queues")
TOPICS = AdminTarget(TargetKind.TOPICS, "$Resources/Topics")


def entity(name):
    return AdminTarget(TargetKind.ENTITY, name)


def subscription(topic, name):
    return AdminTarget(TargetKind.SUBSCRIPTION, topic, name)


def rule(topic, subscription, name):
    return AdminTarget(TargetKind.RULE, topic, subscription, name)


PATHS = {
    "a queue or topic": ("/Orders", entity("Orders")),
    "a slash in a name, encoded": ("/a%2Fb", entity("a/b")),
    "a slash in a name as Node writes it": ("/a/b", entity("a/b")),
    "blanks are decoded": ("/a%20b", entity("a b")),
    "a slash at the end": ("/orders/", entity("orders")),
    "queues, in any case": ("/$resources/QUEUES", QUEUES),
    "topics": ("/$Resources/topics", TOPICS),
    "the namespace": ("/$namespaceinfo", NAMESPACE),
    "subscriptions of a topic": ("/t/subscriptions", AdminTarget(TargetKind.SUBSCRIPTIONS, "t")),
    "one of them": ("/t/Subscriptions/s", subscription("t", "s")),
    "its rules": ("/t/subscriptions/s/rules", AdminTarget(TargetKind.RULES, "t", "s")),
    "one rule": ("/t/Subscriptions/s/Rules/$Default", rule("t", "s", "$Default")),
    "a topic with a slash": ("/a%2Ft/subscriptions/s", subscription("a/t", "s")),
    "a topic with a slash from Node": ("/a/t/Subscriptions/s/Rules/r", rule("a/t", "s", "r")),
    "a topic called subscriptions": ("/subscriptions", entity("subscriptions")),
    "a subscription called subscriptions": (
        "/t/subscriptions/subscriptions",
        subscription("t", "subscriptions"),
    ),
    "a subscription called rules": ("/t/subscriptions/rules", subscription("t", "rules")),
    "a rule called rules": ("/t/subscriptions/s/rules/rules", rule("t", "s", "rules")),
    "a topic called subscriptions, and its": (
        "/subscriptions/subscriptions/s",
        subscription("subscriptions", "s"),
    ),
    "an encoded slash never separates": ("/t%2Fsubscriptions%2Fs", entity("t/subscriptions/s")),
}


@pytest.mark.parametrize(("path", "target"), PATHS.values(), ids=PATHS)
def test_a_path_points_to(path, target):
    assert targets.parse(path.encode()) == target


@pytest.mark.parametrize(
    ("path", "status"),
    [("/", 400), ("", 400), ("//", 400), ("/" + "a" * 3000, 400), ("/$Resources/x", 404)],
    ids=["nothing", "less than nothing", "slashes", "longer than a name", "an unknown resource"],
)
def test_a_path_that_points_nowhere_is_refused(path, status):
    with pytest.raises(HttpRefused) as refused:
        targets.parse(path.encode())

    assert refused.value.status == status


def test_the_keys_of_a_subscription_open_its_rules():
    for path in ("/t/subscriptions/s", "/t/subscriptions/s/rules", "/t/subscriptions/s/rules/r"):
        assert targets.parse(path.encode()).path == "t/Subscriptions/s"


ADDRESSES = {
    "/q": "q",
    "/t/subscriptions": "t/Subscriptions",
    "/t/subscriptions/s": "t/Subscriptions/s",
    "/t/subscriptions/s/rules": "t/Subscriptions/s/Rules",
    "/t/subscriptions/s/rules/r": "t/Subscriptions/s/Rules/r",
    "/$resources/queues": "$Resources/Queues",
    "/$NAMESPACEINFO": "$namespaceinfo",
}


@pytest.mark.parametrize(("path", "address"), ADDRESSES.items())
def test_each_has_an_address_in_one_spelling(path, address):
    assert targets.parse(path.encode()).address == address
