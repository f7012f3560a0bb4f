import threading

import pytest
from azure.core.exceptions import ServiceRequestError
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.broker import Broker
from pairbus.syphon.discovery import ListedQueues, PeriodicDiscovery, backlog_queues, namespace_of
from tests.syphon.stage import Stage, backlog_names

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
def test_backlog_queues_are_found_by_name_in_the_order_of_their_numbers():
    assert backlog_queues(NAMES, "contoso") == [
        "Contoso/X-ServiceBus-Transfer/0",
        "contoso/x-servicebus-transfer/2",
        "contoso/x-servicebus-transfer/10",
    ]


def test_several_primaries_may_share_a_secondary():
    assert backlog_queues(NAMES, "fabrikam") == ["fabrikam/x-servicebus-transfer/0"]


class Queue:
    def __init__(self, name):
        self.name = name


class Manager:
    def __init__(self, names):
        self.names = names

    def list_queues(self):
        return [Queue(name) for name in self.names]


def test_each_call_lists_the_queues_again():
    manager = Manager(NAMES[:2])
    listed = ListedQueues(manager, "contoso")

    assert listed() == ["contoso/x-servicebus-transfer/10"]
    manager.names = NAMES[:3]
    assert len(listed()) == 2


@pytest.mark.req("S-02")
def test_links_show_changes_and_nothing_is_billed_as_long_as_there_are_none():
    names = backlog_names(2)
    with Broker(queues=names) as secondary:
        stage = Stage(secondary, secondary, names)
        with ServiceBusAdministrationClient.from_connection_string(
            secondary.connection_string, connection_verify=str(secondary.ca_file)
        ) as manager:
            connect = stage.address(secondary).client
            listed = ListedQueues(manager, "contoso", "fabrikam", connect=connect)
            assert listed() == names
            before = secondary.meter.read().total
            for _ in range(3):
                assert listed() == names
            assert secondary.meter.read().total == before

            manager.create_queue(backlog_names(3)[2])
            assert listed() == backlog_names(3)
            manager.create_queue("fabrikam/x-servicebus-transfer/0")
            assert listed() == [*backlog_names(3), "fabrikam/x-servicebus-transfer/0"]
            manager.delete_queue(names[0])
            assert listed() == [*backlog_names(3)[1:], "fabrikam/x-servicebus-transfer/0"]


def test_backlog_queues_of_other_primaries_are_counted_and_ignored():
    names = [*NAMES, "adatum/x-servicebus-transfer/0", "adatum/x-servicebus-transfer/1"]
    listed = ListedQueues(Manager(names), "Fabrikam", "contoso")

    assert listed()[0] == "fabrikam/x-servicebus-transfer/0"
    assert len(listed()) == 4
    assert listed.others == {"adatum": 2}


def test_the_name_of_a_backlog_queue_names_its_primary():
    assert namespace_of(NAMES[3]) == "Contoso"
    assert namespace_of("orders") is None


class Slow:
    """Answers when the test lets it, with an error if there is one."""

    def __init__(self):
        self.may_answer = threading.Event()
        self.asked = 0
        self.error = None

    def __call__(self):
        self.asked += 1
        assert self.may_answer.wait(60)
        if self.error is not None:
            raise self.error
        return ["a"]


def answer(discovery):
    return discovery.poll(until=lambda: False)


def test_discovery_never_blocks():
    slow = Slow()
    discovery = PeriodicDiscovery(slow, every_seconds=60)

    assert discovery.poll() is None
    assert discovery.poll(until=lambda: True) is None
    slow.may_answer.set()
    assert answer(discovery) == ["a"]
    assert discovery.poll() is None, "it is not due"
    assert slow.asked == 1
    discovery.request()
    assert answer(discovery) == ["a"]
    assert slow.asked == 2


def test_an_error_of_discovery_is_raised_by_poll():
    slow = Slow()
    slow.may_answer.set()
    slow.error = ServiceRequestError("nobody is there")
    discovery = PeriodicDiscovery(slow, every_seconds=0)

    with pytest.raises(ServiceRequestError, match="nobody is there"):
        answer(discovery)
    slow.error = None
    assert answer(discovery) == ["a"]
