"""The syphon without keys: each part has only the role that it needs, and tokens are renewed."""

from __future__ import annotations

import pickle
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

import pairbus
from pairbus.broker import Broker, NamespaceOptions, QueueDescription
from pairbus.cli.main import main
from pairbus.errors import NamespaceError
from pairbus.fast.address import Address
from pairbus.fast.identity import VARIABLE
from pairbus.fast.token_cache import TokenCache
from pairbus.syphon.background import BackgroundSyphon
from pairbus.syphon.discovery import ListedQueues
from pairbus.syphon.drain import DrainTask, drain
from pairbus.syphon.job import Job
from pairbus.syphon.options import SyphonOptions
from pairbus.syphon.receipts import Drained, ReceiptOutcome
from pairbus.syphon.rights import MissingRight, check_right
from pairbus.testing import ManualClock
from tests.fast import credentials
from tests.fast.credentials import Issuer
from tests.fast.world import bearer_broker
from tests.syphon.stage import Stage, backlog_names, count, id_of, numbered

QUEUES = backlog_names(2)
SENDER, RECEIVER, OWNER = (
    f"Azure Service Bus Data {name}" for name in ("Sender", "Receiver", "Owner")
)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with bearer_broker("orders") as primary, bearer_broker(*QUEUES) as secondary:
        yield Stage(primary, secondary, QUEUES)


def address(broker: Any, issuer: Any) -> Address:
    return Address.from_credential("localhost", issuer, ca_file=broker.ca_file, port=broker.port)


def options(stage: Stage, primary: Any, secondary: Any) -> SyphonOptions:
    return SyphonOptions(
        primaries={"contoso": address(stage.primary, primary)},
        secondary=address(stage.secondary, secondary),
        round_seconds=1.0,
    )


class Pickling:
    """Runs tasks in this process, but pickled, as Spark does."""

    slots = 1
    folder = None

    def run(self, tasks: Sequence[DrainTask]) -> list[Drained]:
        return [drain(pickle.loads(pickle.dumps(task))) for task in tasks]


def test_executors_send_to_the_primary_and_receive_from_the_secondary_and_need_no_more(stage):
    """The owner's token lists the queues, as that of the driver does."""
    ids = numbered(50)
    stage.divert(ids)
    sender, receiver = Issuer(roles=[SENDER]), Issuer(roles=[RECEIVER])
    with ServiceBusAdministrationClient(
        f"localhost:{stage.secondary.port}",
        Issuer(roles=[OWNER]),
        connection_verify=str(stage.secondary.ca_file),
    ) as manager:
        job = Job(options(stage, sender, receiver), Pickling(), ListedQueues(manager, "contoso"))
        receipts = job.run(once=True)

    assert count(receipts, ReceiptOutcome.BROUGHT_HOME) == 50
    assert stage.home() == ids
    assert (sender.count, receiver.count) == (1, 1), "a token serves all rounds and connections"


def test_a_primary_that_refuses_the_identity_names_the_role_and_loses_nothing(stage):
    stage.divert(["a"])
    settings = options(stage, Issuer(roles=[RECEIVER]), Issuer(roles=[RECEIVER]))
    with pytest.raises(NamespaceError) as caught:
        Job(settings, Pickling(), lambda: QUEUES).run(once=True)
    text = str(caught.value)
    assert text.startswith("the primary localhost refuses the credentials for 'orders': ")
    assert f"The identity of Issuer needs the role {SENDER} (or Data Owner)." in text
    assert stage.free() == ["a"]


def test_a_secondary_that_refuses_the_identity_names_the_role(stage):
    stage.divert(["a"])
    settings = options(stage, Issuer(roles=[SENDER]), Issuer(roles=[SENDER]))
    drained = drain(stage.task(primary=settings.primaries["contoso"], secondary=settings.secondary))
    assert dict(drained.errors).keys() == set(QUEUES)
    for text in dict(drained.errors).values():
        assert f"; an identity needs the role {RECEIVER} (or Data Owner)." in text
    assert stage.free() == ["a"]


@pytest.mark.parametrize(
    ("credential", "accepts", "said"),
    [
        (
            credentials.refusing,
            True,
            "cannot log in to the primary localhost: Issuer gave no",
        ),
        (
            credentials.receiver,
            True,
            "needs the role Azure Service Bus Data Sender (or Data Owner)",
        ),
        (credentials.sender, False, "The identity of Issuer needs the role Azure Service Bus Data"),
    ],
)
def test_the_check_at_the_start_names_the_role(credential, accepts, said):
    queue = QueueDescription(name="orders")
    options = NamespaceOptions(name="local", port=0, queues=[queue], accepts_bearer=accepts)
    with Broker(namespaces=[options]) as broker, pytest.raises(MissingRight) as caught:
        check_right(address(broker, credential()), "Send", lambda: ["orders"], role="the primary")
    assert said in str(caught.value)


@pytest.mark.parametrize("make", [credentials.refusing, lambda: "tests.fast.nowhere:make"])
def test_a_task_without_a_token_reports_why_and_does_not_fail(stage, make, monkeypatch):
    """Spark would repeat a task that raises, and then end the whole run."""
    made = make()
    if isinstance(made, str):
        monkeypatch.setenv(VARIABLE, made)
        broker = stage.secondary
        where = Address.from_connection_string(f"localhost:{broker.port}", ca_file=broker.ca_file)
        reason = "tests.fast.nowhere:make cannot be imported"
    else:
        where, reason = address(stage.secondary, made), "Issuer gave no token: AADSTS90033"
    task = stage.task(secondary=where)
    drained = drain(pickle.loads(pickle.dumps(task)))
    assert [reason in text for text in dict(drained.errors).values()] == [True, True]


def test_a_token_that_cannot_be_renewed_holds_up_the_drain_until_it_can():
    """Two hours with tokens of one hour; for half an hour of them nobody gives out tokens."""
    clock = ManualClock(runs=True)
    issuer = Issuer(clock=clock)
    cache = TokenCache(issuer, clock=clock)
    with (
        bearer_broker("orders", clock=clock) as primary,
        bearer_broker(*QUEUES, clock=clock) as secondary,
    ):
        timed = Stage(primary, secondary, QUEUES)
        own = Issuer(clock=clock)  # a key would be signed by the real time
        timed.client = lambda broker: address(broker, lambda: own).client(clock=clock)
        task = timed.task(
            primary=address(primary, lambda: cache),
            secondary=address(secondary, lambda: cache),
            seconds=0.5,
        )
        errors: Counter[str] = Counter()
        for quarter in range(9):
            issuer.is_down = 4 <= quarter <= 5
            timed.divert([f"m-{quarter}"])
            errors.update(text[:60] for _, text in drain(task).errors)
            clock.advance(900)

        assert issuer.count == 2
        assert sum(errors.values()) == 4, "two rounds without a token, for two queues each"
        assert all("gave no token: AADSTS90033" in text for text in errors)
        assert timed.home() == [f"m-{quarter}" for quarter in range(9)]


@pytest.fixture
def syphon(stage, monkeypatch, capsys) -> Any:
    """Runs the command with host names, and a credential by name."""

    def run(credential: str) -> tuple[Any, str, str]:
        monkeypatch.setenv("PAIRBUS_PRIMARY", f"localhost:{stage.primary.port}")
        monkeypatch.setenv("PAIRBUS_SECONDARY", f"localhost:{stage.secondary.port}")
        monkeypatch.setenv(VARIABLE, credential)
        words = ["syphon", "--once", "--json", "--primary-name", "contoso"]
        words += ["--primary-ca-file", str(stage.primary.ca_file)]
        words += ["--secondary-ca-file", str(stage.secondary.ca_file)]
        monkeypatch.setattr(sys, "argv", ["pairbus", *words])
        with pytest.raises(SystemExit) as exit_:
            main()
        return exit_.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("refusing", "the secondary: cannot log in to {}: refusing gave no token: AADSTS90033: a "),
        ("receiver", "the secondary: {} rejected the identity of receiver: check that it has the"),
    ],
)
def test_a_login_that_fails_ends_the_command_before_spark_starts(syphon, stage, name, said):
    code, out, err = syphon(f"tests.fast.credentials:{name}")
    assert (code, out) == (1, "")
    assert err.startswith(f"pairbus: {said.format(f'localhost:{stage.secondary.port}')}")
    assert err.count("\n") == 1


@pytest.mark.spark
@pytest.mark.req("A-06")
def test_a_syphon_in_the_background_gives_its_tokens_to_the_tasks(spark, stage):
    """The workers could not even import the credential."""
    primary_login, secondary_login = Issuer(roles=[SENDER]), Issuer(roles=[SENDER, RECEIVER])
    with (
        pairbus.ServiceBusClient(
            f"localhost:{stage.primary.port}", primary_login, use_tls=False, retry_total=0
        ) as primary,
        pairbus.ServiceBusClient(
            f"localhost:{stage.secondary.port}", secondary_login, use_tls=False
        ) as secondary,
        ServiceBusAdministrationClient(
            f"localhost:{stage.secondary.port}",
            Issuer(roles=[OWNER]),
            connection_verify=str(stage.secondary.ca_file),
        ) as manager,
    ):
        options = pairbus.SendAvailabilityPairedNamespaceOptions(
            manager,
            secondary,
            backlog_queue_count=2,
            failover_interval=timedelta(0),
            primary_namespace_name="contoso",
            enable_syphon=True,
            syphon=BackgroundSyphon(spark),
        )
        primary.pair_namespace(options)
        with stage.primary.faults.unreachable(), primary.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("order", message_id="diverted"))
        with stage.client(stage.primary) as client:
            receiver = client.receiver("orders", credit=1, mode="receiveAndDelete")
            [found] = receiver.receive(1, max_wait_seconds=180)
    assert id_of(found.data) == "diverted"
