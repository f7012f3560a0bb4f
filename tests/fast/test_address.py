"""Addresses: where they lead, and what their login needs."""

from __future__ import annotations

import pickle

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus.exceptions import ServiceBusConnectionError

from pairbus.fast.address import Address
from tests.fast.credentials import Issuer, sender

KEY = "SharedAccessKeyName=p;SharedAccessKey=s3cret="


def test_a_variable_may_hold_a_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAIRBUS_CREDENTIAL", raising=False)
    monkeypatch.setenv("NAMESPACE", "ns.example:1234")
    address = pickle.loads(pickle.dumps(Address.from_env("NAMESPACE")))

    assert (address.host, address.entity_path) == ("ns.example:1234", None)
    assert address.needs("Send").startswith("The identity of DefaultAzureCredential needs the role")


@pytest.mark.parametrize("text", ["127.0.0.9:1234", "sb://127.0.0.9:1234/"])
def test_the_port_of_a_host_name_is_used(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens there, and the error says where it was tried."""
    monkeypatch.setenv("PAIRBUS_CREDENTIAL", "tests.fast.credentials:Issuer")
    client = Address.from_connection_string(text).client(timeout_seconds=5)
    with pytest.raises(ServiceBusConnectionError, match=r"127\.0\.0\.9:1234:"):
        client.open()


@pytest.mark.parametrize(
    ("address", "needs"),
    [
        (Address.from_connection_string(f"Endpoint=sb://h;{KEY}"), "The policy needs the Send"),
        (
            Address.from_credential("h", AzureNamedKeyCredential("p", "k")),
            "The policy needs the Send",
        ),
        (Address.from_credential("h", AzureSasCredential("s")), "The policy needs the Send"),
        (Address.from_credential("h", Issuer()), "The identity of Issuer needs the role"),
        (Address.from_credential("h", Issuer), "The identity of Issuer needs the role"),
        (Address.from_credential("h", sender), "The identity of sender needs the role"),
    ],
)
def test_a_refusal_is_explained_by_a_right_or_by_a_role(address: Address, needs: str) -> None:
    assert address.needs("Send").startswith(needs)
    assert pickle.loads(pickle.dumps(address)).needs("Send").startswith(needs)
