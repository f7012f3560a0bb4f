"""What must be true of two clients before they are paired."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import pairbus
from pairbus.client import checks as setup
from pairbus.client.route.router import ToBacklog, ToPrimary
from pairbus.client.sdk.errors import PairingError
from pairbus.options import PairedNamespaceOptions
from tests.client import fakes
from tests.client.fakes import PRIMARY, SECONDARY, connection_string, options, outage, plain_client


def test_options_of_this_kind_and_two_namespaces_are_what_it_takes() -> None:
    given = options()

    assert setup.checked(plain_client(), given, is_asyncio=False) is given


@pytest.mark.parametrize("given", [None, "Endpoint=sb://backup", object()])
def test_something_else_than_options_is_refused(given: Any) -> None:
    with pytest.raises(TypeError) as caught:
        setup.checked(plain_client(), given, is_asyncio=False)

    assert str(caught.value) == (
        f"pair_namespace takes SendAvailabilityPairedNamespaceOptions, not {type(given).__name__}"
    )


@pytest.mark.req("A-02")
def test_another_kind_of_pairing_is_refused() -> None:
    class Another(PairedNamespaceOptions):
        pass

    with pytest.raises(TypeError, match=r"not Another$"):
        setup.checked(plain_client(), Another(), is_asyncio=False)


@pytest.mark.req("A-11")
def test_one_options_object_pairs_once() -> None:
    given = options()
    setup.checked(plain_client(), given, is_asyncio=False)

    with pytest.raises(PairingError, match="have paired a client already; make new ones"):
        setup.checked(plain_client(), given, is_asyncio=False)


@pytest.mark.req("A-07")
def test_options_of_a_pairing_that_came_to_nothing_can_be_used_again() -> None:
    given = options()
    setup.checked(plain_client(), given, is_asyncio=False)

    given.release()

    assert setup.checked(plain_client(), given, is_asyncio=False) is given


def test_a_refusal_does_not_use_the_options_up() -> None:
    given = options()

    with pytest.raises(PairingError):
        setup.checked(plain_client(SECONDARY), given, is_asyncio=False)

    assert setup.checked(plain_client(), given, is_asyncio=False) is given


def test_clients_of_the_other_shell_are_refused_and_told_where_to_get_the_right_ones() -> None:
    with pytest.raises(PairingError, match=r"this client is asyncio, .* are blocking; take them"):
        setup.checked(plain_client(), options(), is_asyncio=True)

    async def refused() -> None:
        given = fakes.asyncio_options()
        try:
            with pytest.raises(
                PairingError, match=r"is blocking, .* are asyncio; .* from azure\.servicebus and"
            ):
                setup.checked(plain_client(), given, is_asyncio=False)
            assert setup.checked(plain_client(), given, is_asyncio=True) is given
        finally:
            await given.secondary_namespace_manager.close()
            await given.messaging_factory.close()

    asyncio.run(refused())


@pytest.mark.parametrize("spelling", ["contoso", "CONTOSO"])
def test_a_namespace_is_not_its_own_secondary(spelling: str) -> None:
    same = connection_string(f"{spelling}.servicebus.windows.net")

    with pytest.raises(PairingError, match="another namespace than the primary, and both are"):
        setup.checked(plain_client(), options(same), is_asyncio=False)


def test_a_client_is_not_its_own_secondary() -> None:
    client = plain_client()

    with pytest.raises(PairingError, match="another namespace than the primary"):
        setup.checked(client, options(PRIMARY, factory=client), is_asyncio=False)


def test_a_secondary_that_is_bound_to_one_entity_is_refused() -> None:
    bound = f"{SECONDARY};EntityPath=invoices"

    with pytest.raises(PairingError, match="bound to the entity 'invoices'") as caught:
        setup.checked(plain_client(), options(bound), is_asyncio=False)
    assert caught.value.namespace == "backup.servicebus.windows.net"


def test_a_primary_that_is_bound_to_one_entity_can_be_paired() -> None:
    bound = plain_client(f"{PRIMARY};EntityPath=orders")

    setup.checked(bound, options(), is_asyncio=False)


@pytest.mark.req("C-01")
def test_with_a_syphon_the_secondarys_client_is_one_that_tells_when_it_ends() -> None:
    with pytest.raises(PairingError, match="must be pairbus's ServiceBusClient and not the SDK's"):
        setup.checked(plain_client(), options(enable_syphon=True), is_asyncio=False)

    telling = pairbus.ServiceBusClient.from_connection_string(SECONDARY)
    setup.checked(plain_client(), options(enable_syphon=True, factory=telling), is_asyncio=False)


def test_a_secondary_whose_client_has_been_closed_is_refused() -> None:
    closed = pairbus.ServiceBusClient.from_connection_string(SECONDARY)
    closed.close()

    with pytest.raises(PairingError, match="the secondary's client has been closed"):
        setup.checked(plain_client(), options(factory=closed), is_asyncio=False)


def test_the_manager_and_the_factory_are_of_one_namespace() -> None:
    with pytest.raises(PairingError, match="the former is of 'elsewhere") as caught:
        setup.checked(
            plain_client(),
            options(manager=connection_string("elsewhere.servicebus.windows.net")),
            is_asyncio=False,
        )
    assert "'backup.servicebus.windows.net'" in str(caught.value)


def test_the_port_of_a_local_namespace_does_not_make_it_another() -> None:
    local = connection_string("localhost:5673", "UseDevelopmentEmulator=true")
    also_local = connection_string("localhost:5672", "UseDevelopmentEmulator=true")

    setup.checked(plain_client(also_local), options(local), is_asyncio=False)


@pytest.mark.req("Q-01")
@pytest.mark.parametrize(
    ("text", "name"),
    [
        (PRIMARY, "contoso"),
        (connection_string("Contoso.servicebus.windows.net"), "contoso"),
        (connection_string("localhost:5672", "UseDevelopmentEmulator=true"), "localhost"),
        (connection_string("contoso-2.servicebus.chinacloudapi.cn"), "contoso-2"),
    ],
)
def test_the_name_in_backlog_paths_is_the_first_label_of_the_primary(text: str, name: str) -> None:
    assert setup.namespace_name(plain_client(text), options()) == name


@pytest.mark.req("Q-01")
def test_the_name_in_backlog_paths_is_what_the_options_say() -> None:
    assert setup.namespace_name(plain_client(), options(primary_namespace_name="Fab")) == "Fab"


def test_the_router_starts_from_the_options() -> None:
    given = options(
        failover_interval=timedelta(seconds=7), ping_primary_interval=timedelta(seconds=3)
    )

    router = setup.router_for("contoso", ("a", "b"), given)

    plan = router.plan("orders", now=100.0)
    assert isinstance(plan, ToPrimary)
    assert not router.failed("orders", plan, outage(), now=100.0)
    assert router.next_due(now=100.0) == 107.0
    diverted = router.plan("orders", now=107.0)
    assert isinstance(diverted, ToBacklog)
    assert diverted.queue in ("a", "b")
    assert router.next_due(now=107.0) == 110.0


@pytest.mark.req("Q-05")
def test_entities_spread_over_the_backlog_queues() -> None:
    router = setup.router_for("contoso", ("a", "b"), options())

    picked = {router.register(f"entity {number}", now=0.0) for number in range(64)}

    assert picked == {"a", "b"}  # that all 64 agree happens once in 2**63
