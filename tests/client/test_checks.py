"""What must be true of two clients before they are paired."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

import pairbus
import pairbus.aio
from pairbus.client import checks
from pairbus.client.sdk.pairing_errors import (
    PairingError,
    SequenceNumberUnknown,
    UnknownSequenceNumber,
)
from pairbus.options import PairedNamespaceOptions
from tests.client import fakes
from tests.client.fakes import PRIMARY, SECONDARY, connection_string, options, plain_client


def test_options_of_this_kind_and_two_namespaces_are_what_it_takes() -> None:
    given = options()

    assert checks.checked(plain_client(), given, is_asyncio=False) is given


@pytest.mark.parametrize("given", [None, "Endpoint=sb://backup", object()])
def test_something_else_than_options_is_refused(given: Any) -> None:
    with pytest.raises(TypeError) as caught:
        checks.checked(plain_client(), given, is_asyncio=False)

    assert str(caught.value) == (
        f"pair_namespace takes SendAvailabilityPairedNamespaceOptions, not {type(given).__name__}"
    )


@pytest.mark.req("A-02")
def test_another_kind_of_pairing_is_refused() -> None:
    class Another(PairedNamespaceOptions):
        pass

    with pytest.raises(TypeError, match=r"not Another$"):
        checks.checked(plain_client(), Another(), is_asyncio=False)


@pytest.mark.req("A-11")
def test_one_options_object_pairs_once() -> None:
    given = options()
    checks.checked(plain_client(), given, is_asyncio=False)

    with pytest.raises(PairingError, match="have already paired a client; make new options"):
        checks.checked(plain_client(), given, is_asyncio=False)


@pytest.mark.req("A-07")
def test_options_of_a_pairing_that_came_to_nothing_can_be_used_again() -> None:
    given = options()
    checks.checked(plain_client(), given, is_asyncio=False)

    given.release()

    assert checks.checked(plain_client(), given, is_asyncio=False) is given


def test_a_refusal_does_not_use_the_options_up() -> None:
    given = options()

    with pytest.raises(PairingError):
        checks.checked(plain_client(SECONDARY), given, is_asyncio=False)

    assert checks.checked(plain_client(), given, is_asyncio=False) is given


def test_clients_of_the_other_shell_are_refused_with_where_to_get_the_right_ones() -> None:
    with pytest.raises(PairingError, match=r"this client is asyncio, .* are blocking; import them"):
        checks.checked(plain_client(), options(), is_asyncio=True)

    async def refused() -> None:
        given = fakes.asyncio_options()
        try:
            with pytest.raises(
                PairingError, match=r"is blocking, .* are asyncio; .* from azure\.servicebus and"
            ):
                checks.checked(plain_client(), given, is_asyncio=False)
            assert checks.checked(plain_client(), given, is_asyncio=True) is given
        finally:
            await given.secondary_namespace_manager.close()
            await given.messaging_factory.close()

    asyncio.run(refused())


@pytest.mark.parametrize("spelling", ["contoso", "CONTOSO"])
def test_a_namespace_is_not_its_own_secondary(spelling: str) -> None:
    same = connection_string(f"{spelling}.servicebus.windows.net")

    with pytest.raises(PairingError, match="must be two namespaces, and both are"):
        checks.checked(plain_client(), options(same), is_asyncio=False)


def test_a_client_is_not_its_own_secondary() -> None:
    client = plain_client()

    with pytest.raises(PairingError, match="must be two namespaces"):
        checks.checked(client, options(PRIMARY, factory=client), is_asyncio=False)


def test_a_secondary_that_is_bound_to_one_entity_is_refused() -> None:
    bound = f"{SECONDARY};EntityPath=invoices"

    with pytest.raises(PairingError, match="bound to the entity 'invoices'") as caught:
        checks.checked(plain_client(), options(bound), is_asyncio=False)
    assert caught.value.namespace == "backup.servicebus.windows.net"


def test_a_primary_that_is_bound_to_one_entity_can_be_paired() -> None:
    bound = plain_client(f"{PRIMARY};EntityPath=orders")

    checks.checked(bound, options(), is_asyncio=False)


@pytest.mark.req("C-01")
def test_with_a_syphon_the_secondarys_client_is_one_that_tells_when_it_ends() -> None:
    with pytest.raises(PairingError, match="must be pairbus's ServiceBusClient: the SDK's"):
        checks.checked(plain_client(), options(enable_syphon=True), is_asyncio=False)

    telling = pairbus.ServiceBusClient.from_connection_string(SECONDARY)
    checks.checked(plain_client(), options(enable_syphon=True, factory=telling), is_asyncio=False)


def test_a_secondary_whose_client_has_been_closed_is_refused() -> None:
    closed = pairbus.ServiceBusClient.from_connection_string(SECONDARY)
    closed.close()

    with pytest.raises(PairingError, match="the secondary's client has been closed"):
        checks.checked(plain_client(), options(factory=closed), is_asyncio=False)


def test_the_manager_and_the_factory_are_of_one_namespace() -> None:
    with pytest.raises(PairingError, match="the former is for 'elsewhere") as caught:
        checks.checked(
            plain_client(),
            options(manager=connection_string("elsewhere.servicebus.windows.net")),
            is_asyncio=False,
        )
    assert "'backup.servicebus.windows.net'" in str(caught.value)


def test_the_port_of_a_local_namespace_does_not_make_it_another() -> None:
    local = connection_string("localhost:5673", "UseDevelopmentEmulator=true")
    also_local = connection_string("localhost:5672", "UseDevelopmentEmulator=true")

    checks.checked(plain_client(also_local), options(local), is_asyncio=False)


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
    assert checks.namespace_name(plain_client(text), options()) == name


@pytest.mark.req("Q-01")
def test_the_name_in_backlog_paths_is_what_the_options_say() -> None:
    assert checks.namespace_name(plain_client(), options(primary_namespace_name="Fab")) == "Fab"


# --- before a call


UNKNOWN = UnknownSequenceNumber(backlog_queue="q", message_id="7")


@pytest.mark.parametrize(
    "numbers", [UNKNOWN, [UNKNOWN], (3, UNKNOWN), pickle.loads(pickle.dumps([3, UNKNOWN]))]
)
def test_a_number_that_is_not_known_cannot_be_cancelled(numbers: Any) -> None:
    with pytest.raises(SequenceNumberUnknown, match="message '7' for 'orders'"):
        checks.check_cancellable("orders", numbers)


@pytest.mark.parametrize("numbers", [3, [3, 4], [], -1, [-1]])
def test_a_number_of_the_service_can_be_cancelled_even_if_it_is_wrong(numbers: Any) -> None:
    checks.check_cancellable("orders", numbers)


class Live:
    """A sender that records each check of whether it can be used."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.client_state = self

    def check(self) -> None:
        self.asked.append("client")

    @property
    def is_closed(self) -> bool:
        self.asked.append("sender")
        return False


def test_the_client_is_asked_before_the_sender() -> None:
    live = Live()

    checks.check_arguments(live, None, {})

    assert live.asked == ["client", "sender"]


@pytest.mark.parametrize("timeout", [0, -1, -0.5])
def test_a_timeout_that_is_not_positive_is_refused_in_the_words_of_the_sdk(timeout: float) -> None:
    with pytest.raises(ValueError, match=r"^The timeout must be greater than 0\.$"):
        checks.check_arguments(Live(), timeout, {})


def test_an_unknown_argument_causes_a_warning_where_it_was_given() -> None:
    sender = _paired(pairbus.ServiceBusClient.from_connection_string(PRIMARY))

    with pytest.warns(UserWarning, match="Unsupported keyword args: {'color': 'red'}") as caught:
        sender.send_messages([], color="red")

    assert caught[0].filename == __file__


def test_an_unknown_argument_causes_a_warning_where_it_was_given_in_asyncio() -> None:
    async def send() -> None:
        sender = _paired(pairbus.aio.ServiceBusClient.from_connection_string(PRIMARY))
        await sender.send_messages([], color="red")

    with pytest.warns(UserWarning, match="Unsupported keyword args: {'color': 'red'}") as caught:
        asyncio.run(send())

    assert caught[0].filename == __file__


def _paired(client: Any) -> Any:
    sender = client.get_queue_sender("orders")
    sender.client_state.install(object())
    return sender
