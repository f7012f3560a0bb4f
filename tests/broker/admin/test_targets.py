"""What a path points to, however the client wrote it."""

import pytest

from pairbus.broker.admin import targets
from pairbus.broker.admin.errors import Refused
from pairbus.broker.admin.targets import (
    Entity,
    NamespaceInfo,
    Queues,
    Rule,
    Rules,
    Subscription,
    Subscriptions,
    Topics,
)

PATHS = {
    "a queue or topic": ("/Orders", Entity("Orders")),
    "a slash in a name, encoded": ("/a%2Fb", Entity("a/b")),
    "a slash in a name as Node writes it": ("/a/b", Entity("a/b")),
    "blanks are decoded": ("/a%20b", Entity("a b")),
    "a slash at the end": ("/orders/", Entity("orders")),
    "queues, in any case": ("/$resources/QUEUES", Queues()),
    "topics": ("/$Resources/topics", Topics()),
    "the namespace": ("/$namespaceinfo", NamespaceInfo()),
    "subscriptions of a topic": ("/t/subscriptions", Subscriptions("t")),
    "one of them": ("/t/Subscriptions/s", Subscription("t", "s")),
    "its rules": ("/t/subscriptions/s/rules", Rules("t", "s")),
    "one rule": ("/t/Subscriptions/s/Rules/$Default", Rule("t", "s", "$Default")),
    "a topic with a slash": ("/a%2Ft/subscriptions/s", Subscription("a/t", "s")),
    "a topic with a slash from Node": ("/a/t/Subscriptions/s/Rules/r", Rule("a/t", "s", "r")),
    "a topic called subscriptions": ("/subscriptions", Entity("subscriptions")),
    "a subscription called subscriptions": (
        "/t/subscriptions/subscriptions",
        Subscription("t", "subscriptions"),
    ),
    "a subscription called rules": ("/t/subscriptions/rules", Subscription("t", "rules")),
    "a rule called rules": ("/t/subscriptions/s/rules/rules", Rule("t", "s", "rules")),
    "a topic called subscriptions, and its": (
        "/subscriptions/subscriptions/s",
        Subscription("subscriptions", "s"),
    ),
    "an encoded slash never separates": ("/t%2Fsubscriptions%2Fs", Entity("t/subscriptions/s")),
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
    with pytest.raises(Refused) as refused:
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
