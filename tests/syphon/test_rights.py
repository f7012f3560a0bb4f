"""Rights are checked at the start, also while the backlog is empty."""

import asyncio
import json
import sys
from contextlib import closing

import pytest
from azure.core.exceptions import AzureError
from azure.servicebus.aio.management import (
    ServiceBusAdministrationClient as AsyncAdministrationClient,
)
from azure.servicebus.management import ServiceBusAdministrationClient

import pairbus
import pairbus.aio
from pairbus.broker import Broker
from pairbus.broker.entities.policies import Policy, Right
from pairbus.cli.main import main
from pairbus.fast.address import Address
from pairbus.syphon.background import BackgroundSyphon
from pairbus.syphon.rights import MissingRight, check_right, destinations_in_backlog
from tests.syphon.stage import Stage, backlog_names

QUEUES = backlog_names(2)
KEYS = {right: f"{right.name.lower()}-key".encode().hex() for right in Right}
POLICIES = [
    Policy(name="Root", key=b"root-key".hex(), rights=frozenset(Right)),
    *[Policy(name=f"Only{r.name.title()}", key=KEYS[r], rights=frozenset({r})) for r in Right
      if r is not Right.MANAGE],
]  # fmt: skip


@pytest.fixture(scope="module")
def brokers():
    with (
        Broker(queues=["orders"], policies=POLICIES) as primary,
        Broker(queues=QUEUES, policies=POLICIES) as secondary,
    ):
        yield primary, secondary


def address(broker, policy="Root"):
    return Address.from_connection_string(broker.connection_string_for(policy))


def wrong(text):
    return text.replace("SharedAccessKey=", "SharedAccessKey=A")


@pytest.mark.req("X-12")
def test_a_right_is_proven_by_a_link_and_nothing_is_billed(brokers):
    before = [broker.meter.read().total for broker in brokers]

    sends = check_right(address(brokers[0], "OnlySend"), "Send", lambda: ["orders"], role="the x")
    listens = check_right(address(brokers[1], "OnlyListen"), "Listen", lambda: QUEUES, role="the y")

    assert sends == "the Send right on orders"
    assert listens == f"the Listen right on {QUEUES[0]}, {QUEUES[1]}"
    assert [broker.meter.read().total for broker in brokers] == before


@pytest.mark.req("X-12")
@pytest.mark.parametrize(("right", "policy"), [("Send", "OnlyListen"), ("Listen", "OnlySend")])
def test_a_missing_right_is_named_with_its_namespace_and_entity(brokers, right, policy):
    with pytest.raises(MissingRight) as raised:
        check_right(address(brokers[0], policy), right, lambda: ["orders"], role="the primary")

    host = address(brokers[0]).host
    assert f"the primary {host} lack the {right} right on 'orders'" in str(raised.value)


@pytest.mark.req("X-12")
def test_a_wrong_key_is_found_without_any_entity(brokers):
    bad = Address.from_connection_string(wrong(brokers[0].connection_string))

    with pytest.raises(MissingRight, match=r"the primary localhost:\d+ refuses the cred"):
        check_right(bad, "Send", list, role="the primary")

    assert "cannot be checked" in check_right(
        address(brokers[0], "OnlyListen"), "Send", list, role="the primary"
    )


def test_a_namespace_that_does_not_answer_is_not_a_missing_right(brokers):
    with brokers[0].faults.unreachable(), pytest.raises(AzureError) as raised:
        check_right(address(brokers[0]), "Send", list, role="the primary")

    assert not isinstance(raised.value, MissingRight)


def test_destinations_are_found_in_the_backlog(brokers):
    stage = Stage(*brokers, QUEUES)
    stage.divert(["a"], "Orders", QUEUES[1])

    assert destinations_in_backlog(address(brokers[1]), QUEUES) == ["Orders"]
    assert stage.free(QUEUES[1]) == ["a"]


def test_destinations_are_found_although_a_queue_fails(brokers):
    stage = Stage(*brokers, QUEUES)
    stage.divert(["a"], "Orders", QUEUES[1])

    found = destinations_in_backlog(address(brokers[1]), ["deleted", *QUEUES])

    assert found == ["Orders"]
    assert stage.free(QUEUES[1]) == ["a"]


# --- the commands -----------------------------------------------------------------------------


def run(monkeypatch, brokers, *words, primary="Root", secondary="Root"):
    """The exit code. `primary`, `secondary`: a policy, or a connection string."""
    for name, broker, policy in (
        ("PAIRBUS_PRIMARY", brokers[0], primary),
        ("PAIRBUS_SECONDARY", brokers[1], secondary),
    ):
        text = policy if "=" in policy else broker.connection_string_for(policy)
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(sys, "argv", ["pairbus", *words, "--primary-name", "contoso"])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.req("X-12")
@pytest.mark.parametrize("words", [["syphon", "--once"], ["status"]], ids=str)
def test_a_command_names_a_wrong_key_of_the_primary_while_the_backlog_is_empty(
    brokers, monkeypatch, capsys, words
):
    text = wrong(brokers[0].connection_string)

    assert run(monkeypatch, brokers, *words, primary=text) == 1

    said = " ".join("".join(capsys.readouterr()).split())
    assert "refuses the credentials" in said
    assert "Send right" in said


@pytest.mark.req("X-12")
@pytest.mark.parametrize("words", [["syphon", "--once"], ["status", "--json"]], ids=str)
def test_a_policy_without_send_is_named_if_a_message_shows_an_entity(
    brokers, monkeypatch, capsys, words
):
    stage = Stage(*brokers, QUEUES)
    stage.divert(["a"])
    try:
        assert run(monkeypatch, brokers, *words, primary="OnlyListen") == 1
    finally:
        assert stage.free() == ["a"]
    assert "lack the Send right on 'orders'" in "".join(capsys.readouterr())


def test_status_says_what_it_cannot_check_while_the_backlog_is_empty(brokers, monkeypatch, capsys):
    assert run(monkeypatch, brokers, "status", primary="OnlyListen") == 0
    assert (
        "checked on primary: the key or identity; the Send right cannot be checked before an "
        "entity is known\n"
    ) in capsys.readouterr().out

    assert run(monkeypatch, brokers, "status", "--json", primary="OnlyListen") == 0
    primary = json.loads(capsys.readouterr().out)["namespaces"]["primary"]
    assert primary["checked"].startswith("the key or identity; ")

    assert run(monkeypatch, brokers, "status") == 0
    assert "checked on" not in capsys.readouterr().out


def test_status_shows_which_right_is_missing(brokers, monkeypatch, capsys):
    text = wrong(brokers[0].connection_string)

    assert run(monkeypatch, brokers, "status", "--json", primary=text) == 1
    primary = json.loads(capsys.readouterr().out)["namespaces"]["primary"]
    assert primary["reachable"]
    assert "refuses the credentials" in primary["error"]


# --- a paired client --------------------------------------------------------------------------


def options(manager, secondary, module=pairbus):
    return module.SendAvailabilityPairedNamespaceOptions(
        manager,
        secondary,
        backlog_queue_count=2,
        primary_namespace_name="contoso",
        enable_syphon=True,
        syphon=BackgroundSyphon(object()),  # it is never asked to run anything
    )


REFUSED = {
    "a wrong key": ("primary", lambda broker: wrong(broker.connection_string), "refuses"),
    "no Send on the entity of a sender": (
        "primary",
        lambda broker: broker.connection_string_for("OnlyListen"),
        "the primary .* lack the Send right on 'orders'",
    ),
    "no Listen": (
        "secondary",
        lambda broker: broker.connection_string_for("OnlySend"),
        "the secondary .* lack the Listen right",
    ),
    "a client of one entity": (
        "primary",
        lambda broker: f"{broker.connection_string};EntityPath=orders",
        "EntityPath",
    ),
}


@pytest.mark.req("A-07", "X-12")
@pytest.mark.parametrize(("role", "text_of", "said"), REFUSED.values(), ids=REFUSED)
def test_pairing_with_a_syphon_raises_if_it_could_not_work(brokers, role, text_of, said):
    named = dict(zip(("primary", "secondary"), brokers, strict=True))
    texts = {name: broker.connection_string for name, broker in named.items()}
    texts[role] = text_of(named[role])
    with (
        pairbus.ServiceBusClient.from_connection_string(texts["primary"]) as client,
        pairbus.ServiceBusClient.from_connection_string(texts["secondary"]) as secondary,
        ServiceBusAdministrationClient.from_connection_string(
            brokers[1].connection_string, connection_verify=str(brokers[1].ca_file)
        ) as manager,
        closing(client.get_queue_sender("orders")),
    ):
        with pytest.raises(pairbus.PairingError, match=said):
            client.pair_namespace(options(manager, secondary))
        assert client.pairing is None


@pytest.mark.req("A-07", "X-12")
def test_the_asyncio_client_raises_it_too(brokers):
    async def pair():
        text = brokers[1].connection_string_for("OnlySend")
        async with (
            pairbus.aio.ServiceBusClient.from_connection_string(
                brokers[0].connection_string
            ) as client,
            pairbus.aio.ServiceBusClient.from_connection_string(text) as secondary,
            AsyncAdministrationClient.from_connection_string(
                brokers[1].connection_string, connection_verify=str(brokers[1].ca_file)
            ) as manager,
        ):
            with pytest.raises(pairbus.PairingError, match="lack the Listen right"):
                await client.pair_namespace(options(manager, secondary))

    asyncio.run(pair())


@pytest.mark.parametrize("role", ["primary", "secondary"])
def test_a_connection_string_of_one_entity_is_a_usage_error(brokers, monkeypatch, capsys, role):
    text = f"{brokers[role == 'secondary'].connection_string};EntityPath=orders"

    assert run(monkeypatch, brokers, "syphon", "--once", **{role: text}) == 2
    assert "EntityPath 'orders' only; the syphon needs one for the whole" in capsys.readouterr().err
