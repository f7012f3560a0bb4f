"""What a client shares with its senders, before and after it is paired, and when it ends."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from pairbus.client.sdk.pairing_errors import PairingError
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


def test_a_closed_client_makes_senders_as_the_sdk_does_unless_it_is_paired() -> None:
    client = state()
    client.is_closed = True
    assert sender(client, "orders").entity_name == "orders"

    paired = state()
    paired.install(Pairing())
    paired.is_closed = True
    with pytest.raises(ValueError, match="cannot make a sender for 'orders': this paired client"):
        sender(paired, "orders")


# --- pairing


def test_a_client_pairs_once() -> None:
    client = state()
    client.check_unpaired()
    client.install(Pairing())

    with pytest.raises(PairingError, match=r"already paired, with 'backup.* a client pairs once"):
        client.check_unpaired()
