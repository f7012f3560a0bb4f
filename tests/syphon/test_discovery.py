import threading

import pytest
from azure.core.exceptions import ServiceRequestError

from pairbus.syphon.discovery import Finder, Listed, Named, backlog_queues, namespace_of

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


class Queue:
    def __init__(self, name):
        self.name = name


class Manager:
    def __init__(self, names):
        self.names = names

    def list_queues(self):
        return [Queue(name) for name in self.names]


def test_queues_are_listed_anew_each_time():
    manager = Manager(NAMES[:2])
    listed = Listed(manager, "contoso")

    assert listed.queues() == ["contoso/x-servicebus-transfer/10"]
    manager.names = NAMES[:3]
    assert len(listed.queues()) == 2


def test_those_of_primaries_that_were_not_given_are_counted_and_left_alone():
    names = [*NAMES, "adatum/x-servicebus-transfer/0", "adatum/x-servicebus-transfer/1"]
    listed = Listed(Manager(names), "Fabrikam", "contoso")

    assert listed.queues()[0] == "fabrikam/x-servicebus-transfer/0"
    assert len(listed.queues()) == 4
    assert listed.others == {"adatum": 2}


def test_the_name_of_a_backlog_queue_says_whose_it_is():
    assert namespace_of(NAMES[3]) == "Contoso"
    assert namespace_of("orders") is None


class Slow:
    """Answers when it is let, and fails when it is told to."""

    def __init__(self):
        self.may_answer = threading.Event()
        self.asked = 0
        self.error = None

    def queues(self):
        self.asked += 1
        assert self.may_answer.wait(10)
        if self.error is not None:
            raise self.error
        return ["a"]


def answer(finder):
    return finder.news(is_enough=lambda: False)


def test_who_looks_for_queues_is_held_up_by_nobody():
    slow = Slow()
    finder = Finder(slow, every_seconds=60)

    assert finder.news() is None
    assert finder.news(is_enough=lambda: True) is None
    slow.may_answer.set()
    assert answer(finder) == ["a"]
    assert finder.news() is None, "it is not time"
    assert slow.asked == 1
    finder.ask_soon()
    assert answer(finder) == ["a"]
    assert slow.asked == 2


def test_what_goes_wrong_while_looking_for_queues_is_told():
    slow = Slow()
    slow.may_answer.set()
    slow.error = ServiceRequestError("nobody is there")
    finder = Finder(slow, every_seconds=0)

    with pytest.raises(ServiceRequestError, match="nobody is there"):
        answer(finder)
    slow.error = None
    assert answer(finder) == ["a"]
