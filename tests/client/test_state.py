"""What a client shares with its senders, before and after it is paired, and when it ends."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from pairbus.client.sdk.errors import ClientFaulted, PairingError
from pairbus.client.state import ClientState
from tests.client.fakes import plain_client


class Made:
    """What the SDK would make."""

    def __init__(self, name: str, **options: Any) -> None:
        self.entity_name = name
        self.options = options


class Adopted(Made):
    def bind(self, state: Any) -> None:
        self.state = state


class Pairing:
    secondary = "backup.servicebus.windows.net"

    def __init__(self) -> None:
        self.registered: list[str] = []

    def register(self, path: str) -> None:
        self.registered.append(path)


def state() -> ClientState[Any]:
    return ClientState(plain_client())


def sender(of: ClientState[Any], name: str, **options: Any) -> Adopted:
    return of.adopt(Made, name, options, Adopted)


# --- senders


def test_a_sender_of_the_sdk_becomes_one_of_ours_and_belongs_to_the_client() -> None:
    client = state()

    made = sender(client, "orders", client_identifier="me")

    assert isinstance(made, Adopted)
    assert made.state is client
    assert made.options == {"client_identifier": "me"}


def test_the_senders_of_an_entity_are_known_however_it_is_spelled() -> None:
    client = state()
    one, another = sender(client, "orders"), sender(client, "Orders")
    elsewhere = sender(client, "orders/more")

    found = client.senders_of("ORDERS")

    assert sorted(map(id, found)) == sorted(map(id, (one, another)))
    assert elsewhere not in found
    del found, one, another
    gc.collect()
    assert client.senders_of("orders") == []


@pytest.mark.req("A-01")
def test_senders_made_before_and_after_the_pairing_are_made_known_to_it() -> None:
    client, pairing = state(), Pairing()
    before = [sender(client, "orders"), sender(client, "invoices")]

    assert sorted(client.install(pairing)) == ["invoices", "orders"]
    after = sender(client, "payments")

    assert client.pairing is pairing
    assert pairing.registered == ["payments"]
    assert {each.state for each in [*before, after]} == {client}


def test_a_sender_that_nobody_has_any_more_is_forgotten() -> None:
    client = state()
    sender(client, "orders")
    kept = sender(client, "invoices")
    gc.collect()

    assert client.install(Pairing()) == ["invoices"]
    assert kept.entity_name == "invoices"


def test_a_closed_client_makes_senders_as_the_sdk_does_unless_it_is_paired() -> None:
    client = state()
    client.end()
    assert sender(client, "orders").entity_name == "orders"

    paired = state()
    paired.install(Pairing())
    paired.end()
    with pytest.raises(ValueError, match="cannot make a sender for 'orders': this paired client"):
        sender(paired, "orders")


# --- pairing


def test_a_client_pairs_once() -> None:
    client = state()
    client.check_unpaired()
    client.install(Pairing())

    with pytest.raises(PairingError, match=r"already paired, with 'backup.* a client pairs once"):
        client.check_unpaired()


def test_a_closed_client_is_not_paired() -> None:
    client = state()
    client.end()

    with pytest.raises(PairingError, match="has been closed; make a new one") as caught:
        client.check_unpaired()
    assert caught.value.namespace == "contoso.servicebus.windows.net"


def test_a_client_that_was_closed_while_it_was_paired_stays_unpaired() -> None:
    client = state()
    client.check_unpaired()
    client.end()

    with pytest.raises(PairingError, match="has been closed"):
        client.install(Pairing())
    assert client.pairing is None


# --- the end


def test_each_listener_is_called_once_at_the_end() -> None:
    client = state()
    seen: list[str] = []
    client.listen("one", seen.append)
    client.listen("another", seen.append)

    for listener in [*client.end(), *client.end()]:
        listener("closed")

    assert seen == ["closed", "closed"]
    assert client.is_closed


def test_a_listener_of_a_closed_client_is_called_at_once() -> None:
    client = state()
    client.end()
    seen: list[str] = []

    client.listen("one", seen.append)

    assert seen == ["closed"]


def test_a_removed_listener_is_not_called() -> None:
    client = state()
    seen: list[str] = []
    client.listen("one", seen.append)
    client.listen("another", seen.append)
    client.listen("one", seen.append)

    client.forget("one")
    client.forget("nobody")

    assert len(client.end()) == 1


@pytest.mark.req("C-01")
@pytest.mark.parametrize("which", ["primary", "secondary"])
def test_a_faulted_client_reports_the_reason_for_every_call(which: str) -> None:
    client = state()
    if which == "primary":
        client.install(Pairing())
    client.check()

    client.set_fault("its partner closed")

    for asked in (client.check, client.check_unpaired, lambda: sender(client, "orders")):
        with pytest.raises(ClientFaulted, match="its partner closed") as caught:
            asked()
        assert caught.value.which == which


def test_its_host_is_all_that_it_asks_of_a_client() -> None:
    client: Any = SimpleNamespace(fully_qualified_namespace="contoso")

    assert ClientState(client).pairing is None
