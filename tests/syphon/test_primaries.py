"""Several primaries that share a secondary and a syphon, on real brokers."""

import threading

import pytest

from pairbus.broker import Broker
from pairbus.errors import NamespaceError
from pairbus.syphon.job import Job
from pairbus.syphon.options import SyphonOptions
from pairbus.syphon.receipts import ReceiptOutcome
from pairbus.syphon.runner import InProcessRunner
from tests.syphon.stage import Stage, count, numbered
from tests.waiting import wait_until

CONTOSO = [f"contoso/x-servicebus-transfer/{n}" for n in range(2)]
FABRIKAM = [f"Fabrikam/x-servicebus-transfer/{n}" for n in range(2)]
STRANGER = "stranger/x-servicebus-transfer/0"
QUEUES = [*CONTOSO, *FABRIKAM, STRANGER]


class World:
    def __init__(self, contoso, fabrikam, secondary):
        self.contoso = Stage(contoso, secondary, CONTOSO)
        self.fabrikam = Stage(fabrikam, secondary, FABRIKAM)
        self.rounds = []

    def job(self, queues=QUEUES, **settings):
        primaries = {
            "Contoso": self.contoso.address(self.contoso.primary),
            "fabrikam": self.fabrikam.address(self.fabrikam.primary),
        }
        options = SyphonOptions(
            primaries=primaries | settings.pop("primaries", {}),
            secondary=self.contoso.address(self.contoso.secondary),
            **settings,
        )
        return Job(options, InProcessRunner(), lambda: queues, progress=self.rounds.append)


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr("pairbus.syphon.job.ONCE_REST_SECONDS_MAX", 0.1)
    with (
        Broker(queues=["orders"]) as contoso,
        Broker(queues=["orders"]) as fabrikam,
        Broker(queues=QUEUES) as secondary,
    ):
        yield World(contoso, fabrikam, secondary)


@pytest.mark.req("S-01")
def test_each_message_goes_home_to_the_primary_that_its_backlog_queue_names(world):
    world.contoso.divert(numbered(30, "c"))
    world.contoso.divert(numbered(5, "d"), queue=CONTOSO[1])
    world.fabrikam.divert(numbered(20, "f"), queue=FABRIKAM[1])
    world.contoso.divert(numbered(3, "s"), queue=STRANGER)

    job = world.job()
    receipts = job.run(once=True)

    assert job.left == ""
    assert count(receipts, ReceiptOutcome.BROUGHT_HOME) == 55
    assert sorted(world.contoso.home()) == [*numbered(30, "c"), *numbered(5, "d")]
    assert world.fabrikam.home() == numbered(20, "f")
    assert world.contoso.free(STRANGER) == numbered(3, "s"), "whose primary is not ours"
    assert {receipt.queue for receipt in receipts} == {*CONTOSO, FABRIKAM[1]}


@pytest.mark.req("S-04")
def test_a_primary_that_is_down_is_named_and_does_not_hold_up_another(world, monkeypatch):
    monkeypatch.setattr("pairbus.syphon.job.FUTILE_SECONDS", 1.0)
    world.contoso.divert(numbered(5, "c"))
    world.fabrikam.divert(numbered(5, "f"))

    with world.fabrikam.primary.faults.throttle(entity="orders"):
        job = world.job()
        receipts = job.run(once=True)

    assert "fabrikam: orders is throttled" in job.left
    assert "Contoso" not in job.left
    assert count(receipts, ReceiptOutcome.BROUGHT_HOME) == 5
    assert world.contoso.home() == numbered(5, "c")
    assert world.fabrikam.free() == numbered(5, "f")
    found = {(name, one.path, one.condition.value) for name, one in world.rounds[-1].destinations}
    assert found == {("Contoso", "orders", "up"), ("fabrikam", "orders", "throttled")}


@pytest.mark.req("S-04")
def test_new_messages_of_one_primary_go_home_while_those_of_another_wait(world):
    world.fabrikam.divert(numbered(1, "f"))
    job = world.job()
    thread = threading.Thread(target=job.run)

    def brought_home():
        return sum(count(each.receipts, ReceiptOutcome.BROUGHT_HOME) for each in world.rounds)

    with world.fabrikam.primary.faults.throttle(entity="orders"):
        thread.start()
        try:
            wait_until(lambda: world.rounds, "a round")
            world.contoso.divert(numbered(1, "c"), queue=CONTOSO[1])
            wait_until(brought_home, "the message of the other one")
        finally:
            job.stop()
            thread.join(60)

    assert world.contoso.home() == numbered(1, "c")
    assert world.fabrikam.free() == numbered(1, "f"), "and nothing is locked"


def test_a_primary_that_refuses_the_credentials_ends_the_run_only_if_no_other_accepts_messages(
    world, monkeypatch
):
    monkeypatch.setattr("pairbus.syphon.job.FUTILE_SECONDS", 1.0)
    text = world.fabrikam.primary.connection_string
    broker = type("Wrong", (), {"connection_string": text.replace("AccessKey=", "AccessKey=A")})
    wrong = {"fabrikam": world.fabrikam.address(broker)}
    world.fabrikam.divert(numbered(1, "f"))

    with pytest.raises(NamespaceError, match=r"the primary localhost:\d+ refuses.* Send right"):
        world.job(primaries=wrong).run(once=True)

    world.contoso.divert(numbered(1, "c"))
    job = world.job(primaries=wrong)
    job.run(once=True)
    assert "fabrikam: orders is forbidden" in job.left
    assert world.contoso.home() == numbered(1, "c")
    assert world.fabrikam.free() == numbered(1, "f")
