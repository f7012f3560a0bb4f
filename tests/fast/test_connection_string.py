"""Connection strings: parsed, or refused without quoting a key."""

from __future__ import annotations

import pytest

from pairbus.errors import OptionsError
from pairbus.fast.connection_string import ConnectionString, check_entity_path, split_host

KEY = "SharedAccessKeyName=p;SharedAccessKey=s3cret="


def parse(text: str) -> ConnectionString:
    return ConnectionString.parse(text)


def test_a_connection_string_is_parsed_into_its_parts() -> None:
    string = parse(f" Endpoint=sb://shop.servicebus.windows.net/;{KEY};EntityPath=orders; ")

    assert (string.host, string.port) == ("shop.servicebus.windows.net", None)
    assert (string.policy_name, string.key.reveal()) == ("p", "s3cret=")
    assert (string.is_emulator, string.entity_path) == (False, "orders")


@pytest.mark.parametrize(
    ("endpoint", "host", "port", "address"),
    [
        ("Endpoint=sb://ns.example:1234/", "ns.example", 1234, "ns.example:1234"),
        ("Endpoint=ns.example", "ns.example", None, "ns.example"),
        ("Endpoint=sb://[::1]:5672", "::1", 5672, "[::1]:5672"),
        ("HostName=ns.example", "ns.example", None, "ns.example"),
        ("endpoint = sb://ns.example ", "ns.example", None, "ns.example"),
    ],
)
def test_an_endpoint_may_have_a_scheme_and_a_port(
    endpoint: str, host: str, port: int | None, address: str
) -> None:
    string = parse(f"{endpoint};{KEY}")

    assert (string.host, string.port, string.address) == (host, port, address)


@pytest.mark.parametrize(
    ("text", "host", "port", "address"),
    [
        ("ns.example", "ns.example", None, "ns.example"),
        (" sb://ns.example/ ", "ns.example", None, "ns.example"),
        ("https://ns.example:443/", "ns.example", 443, "ns.example:443"),
        ("localhost", "localhost", None, "localhost"),
        ("broker:5671", "broker", 5671, "broker:5671"),
        ("[::1]:5671", "::1", 5671, "[::1]:5671"),
    ],
)
def test_a_host_name_means_an_identity(
    text: str, host: str, port: int | None, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PAIRBUS_CREDENTIAL", raising=False)
    string = parse(text)

    assert (string.host, string.port, string.address) == (host, port, address)
    assert str(string.identity) == "azure.identity:DefaultAzureCredential"
    assert (string.is_emulator, string.entity_path) == (False, None)


@pytest.mark.parametrize("word", ["true", "True", "TRUE"])
def test_an_emulator_is_recognised_in_any_case(word: str) -> None:
    assert parse(f"Endpoint=sb://h;{KEY};UseDevelopmentEmulator={word}").is_emulator


@pytest.mark.parametrize(
    "text",
    [
        f"Endpoint=sb://h:1;{KEY};EntityPath=q;UseDevelopmentEmulator=True",
        f"hostname = h:1 ; {KEY};entitypath=q;USEDEVELOPMENTEMULATOR=TRUE;",
    ],
)
def test_the_text_is_in_the_form_that_the_sdk_understands(text: str) -> None:
    expected = f"Endpoint=sb://h:1/;{KEY};EntityPath=q;UseDevelopmentEmulator=true"

    assert parse(text).text.reveal() == expected


def test_a_signature_replaces_the_key() -> None:
    string = parse("endpoint=sb://h;sharedaccesssignature=SharedAccessSignature sr=a&sig=b")

    assert string.signature.reveal() == "SharedAccessSignature sr=a&sig=b"
    assert string.credential().signature == "SharedAccessSignature sr=a&sig=b"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "or the host name of a namespace, such as contoso"),
        ("s3cret", "or the host name of a namespace, such as contoso"),
        ("s3cret/s3cret.s3cret", "or the host name of a namespace"),
        ("s3cret.s3cret/orders", "or the host name of a namespace"),
        ("s3cret+s3.cret", "or the host name of a namespace"),
        ("Endpoint=sb://ns.example;nonsense", "without '='"),
        (KEY, "has no Endpoint"),
        (f"Endpoint=sb://;{KEY}", "names no host"),
        ("Endpoint=sb://h:SharedAccessKey=s3cret", "Endpoint of the connection string is not"),
        (f"Endpoint=sb://h:x;{KEY}", "the Endpoint 'sb://h:x' is not a URL"),
        (f"Endpoint=sb://h:99999;{KEY}", "Port out of range 0-65535"),
        (f"Endpont=sb://h;{KEY}", "It has 'endpont': did you mean Endpoint"),
        ("Endpoint=sb://h;SharedAccessKeyName=p", "neither SharedAccessKeyName"),
        ("Endpoint=sb://h;SharedAccessKey=s3cret", "neither SharedAccessKeyName"),
        (f"Endpoint=sb://h;{KEY};SharedAccessSignature=x", "remove one of them"),
        (f"Endpoint=sb://a..b;{KEY}", "a part of the host name is empty or too long"),
        ("s3cret..s3cret", "or the host name of a namespace"),
        (f"Endpoint=sb://h;{KEY}\x07x", "has a control character, or is not UTF-8"),
        (f"Endpoint=sb://h;{KEY}\udcff", "has a control character, or is not UTF-8"),
        ("Endpoint=sb://h;SharedAccessSignature=s3creté", "Signature .* is not ASCII"),
    ],
)
def test_the_error_does_not_quote_the_key(text: str, said: str) -> None:
    with pytest.raises(OptionsError, match=said) as caught:
        parse(text)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_connection_string_for_one_entity_covers_what_is_below_it() -> None:
    check_entity_path("Events/Subscriptions/audit", "events")
    check_entity_path("orders", None)
    with pytest.raises(OptionsError, match="for EntityPath 'events' only, not for 'events2'"):
        check_entity_path("events2", "events")


def test_a_host_is_split_from_its_port() -> None:
    assert split_host("sb://ns.example:1234/") == ("ns.example", 1234)
    assert split_host("ns.example") == ("ns.example", None)
