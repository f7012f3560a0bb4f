import pytest

from pairbus.syphon.discovery import Listed, Named, backlog_queues

NAMES = [
    "orders",
    "contoso/x-servicebus-transfer/10",
    "contoso/x-servicebus-transfer/2",
    "Contoso/X-ServiceBus-Transfer/0",
    "fabrikam/x-servicebus-transfer/0",
    "contoso/x-servicebus-transfer/",
    "contoso/x-servicebus-transfer/1/more",
    "x-servicebus-transfer/1",
]


@pytest.mark.req("S-01")
def test_backlog_queues_are_known_by_their_names_in_the_order_of_their_numbers():
    assert backlog_queues(NAMES, "contoso") == [
        "Contoso/X-ServiceBus-Transfer/0",
        "contoso/x-servicebus-transfer/2",
        "contoso/x-servicebus-transfer/10",
    ]


def test_several_primaries_may_share_a_secondary():
    assert backlog_queues(NAMES, "fabrikam") == ["fabrikam/x-servicebus-transfer/0"]


def test_queues_can_be_named_by_who_may_not_list_them():
    assert Named(["a", "b"]).queues() == ("a", "b")


def test_queues_are_listed_anew_each_time():
    class Queue:
        def __init__(self, name):
            self.name = name

    class Manager:
        names = NAMES[:2]

        def list_queues(self):
            return [Queue(name) for name in self.names]

    listed = Listed(Manager(), "contoso")
    assert listed.queues() == ["contoso/x-servicebus-transfer/10"]
    Manager.names = NAMES[:3]
    assert len(listed.queues()) == 2
