"""`pairbus.testing` without pytest's fixtures: as unittest, or a script, would use it."""

from azure.servicebus import ServiceBusMessage

from pairbus.testing import ManualClock, ServiceBusPair


def test_a_pair_without_fixtures_survives_an_outage():
    with ServiceBusPair(queues=["orders"]) as pair:
        sender = pair.client().get_queue_sender("orders")
        with sender, pair.primary.faults.unreachable():
            sender.send_messages(ServiceBusMessage("during"))
        assert [str(message) for message in pair.backlog()] == ["during"]
        assert pair.bring_home() == 1


def test_a_pair_can_be_started_and_closed_by_hand():
    pair = ServiceBusPair(queues=["orders"]).start()
    pair.client()

    pair.close()
    pair.close()

    assert pair.start().primary.connection_string
    pair.close()


def test_a_clock_stands_still_until_it_is_moved():
    clock = ManualClock(1000.0)
    seen = []
    unsubscribe = clock.subscribe(lambda: seen.append(clock()))

    clock.advance(60)
    unsubscribe()
    clock.advance(1)

    assert clock() == 1061.0
    assert seen == [1060.0]
