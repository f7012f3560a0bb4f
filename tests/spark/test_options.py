"""The options of the data source: what is accepted, and the errors for the rest."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pairbus.errors import OptionsError
from pairbus.fast.address import Address
from pairbus.fast.columns import DESTINATION, NAMES
from pairbus.fast.connection_string import ConnectionString
from pairbus.fast.token_cache import SCOPE, LoginFailed
from pairbus.fast.typed import TYPES
from pairbus.spark.options import READ, WRITE, read_options, write_options
from tests.spark.world import VARIABLE

KEY = "c2VjcmV0LWtleQ=="
TEXT = (
    f"Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey={KEY}"
)
QUEUE = {"connectionString": TEXT, "queue": "orders"}


def test_a_queue_is_enough() -> None:
    options = read_options(QUEUE, streaming=False)
    assert (options.path, options.mode, options.partitions) == ("orders", "peek", 1)
    assert options.address.host == "contoso.servicebus.windows.net"
    assert write_options(QUEUE, has_destination=False).path == "orders"


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"queue": "/a/b/"}, "a/b"),
        ({"topic": "t", "subscription": "s"}, "t/Subscriptions/s"),
        ({"queue": "q", "subQueue": "deadletter"}, "q/$DeadLetterQueue"),
        ({"queue": "q", "subQueue": "transferDeadLetter"}, "q/$Transfer/$DeadLetterQueue"),
        (
            {"topic": "t", "subscription": "s", "subQueue": "deadLetter"},
            "t/Subscriptions/s/$DeadLetterQueue",
        ),
        ({"connectionString": TEXT + ";EntityPath=named"}, "named"),
        (
            {"connectionString": TEXT + ";EntityPath=named", "subscription": "s"},
            "named/Subscriptions/s",
        ),
    ],
)
def test_where_is_read(given: dict[str, str], path: str) -> None:
    assert read_options({"connectionString": TEXT} | given, streaming=False).path == path


@pytest.mark.parametrize("streaming", [True, False])
def test_a_connection_string_for_one_entity_is_for_no_other(streaming: bool) -> None:
    given = {"connectionString": TEXT + ";EntityPath=named", "queue": "orders"}
    with pytest.raises(OptionsError, match="for EntityPath 'named' only, not for 'orders'"):
        read_options(given, streaming=streaming)
    with pytest.raises(OptionsError, match="for EntityPath 'named' only, not for 'orders'"):
        write_options(given, has_destination=False)


def test_a_connection_string_in_the_wrong_option_is_not_quoted() -> None:
    with pytest.raises(OptionsError, match="option namespace: expected the host") as caught:
        read_options({"namespace": TEXT, "queue": "q"}, streaming=False)
    assert KEY not in str(caught.value)


def test_names_and_values_may_be_in_any_case() -> None:
    options = read_options(
        {"CONNECTIONSTRING": TEXT, "Queue": "Q", "receivemode": "PEEKLOCK"}, streaming=True
    )
    assert (options.path, options.mode, options.trigger_messages_max) == ("Q", "peekLock", 10_000)


def test_where_to_begin() -> None:
    def first(word: str) -> int | None:
        return read_options(QUEUE | {"fromSequenceNumber": word}, streaming=True).from_sequence

    assert (first("earliest"), first("latest"), first("7")) == (None, -1, 7)


def test_options_of_spark_itself_are_ignored() -> None:
    options = {"checkpointLocation": "/tmp/x", "spark.whatever": "1"}
    assert write_options(QUEUE | options, has_destination=False).path == "orders"


def test_rows_may_have_their_own_destination() -> None:
    assert write_options({"connectionString": TEXT}, has_destination=True).path is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"queu": "q"}, "option queu is unknown; did you mean queue?"),
        ({"zzz": "q"}, "option zzz is unknown; known are connectionString"),
        ({"path": "q"}, "option path: load() and save() take no path here"),
        ({"queue": " "}, "option queue is empty"),
        ({"topic": "t"}, "options queue and topic: expected one of them, not both"),
        ({"queue": None}, "option queue is missing"),
        ({"queue": None, "topic": "t"}, "option subscription is missing"),
        ({"subscription": "s"}, "option subscription: 's' belongs to a topic"),
        ({"subQueue": "dead"}, "option subQueue: expected deadLetter, transferDeadLetter, not"),
        ({"receiveMode": "lock"}, "option receiveMode: expected peek, peekLock, receiveAndDelete"),
        ({"maxMessages": "5"}, "option maxMessages is for a batch"),
        ({"maxMessagesPerTrigger": "0"}, "expected a whole number of at least 1, not '0'"),
        (
            {"maxMessagesPerTrigger": "many"},
            "option maxMessagesPerTrigger: expected a whole number",
        ),
        (
            {"maxWaitSeconds": "-1"},
            "option maxWaitSeconds: expected a number of seconds from 0 to 600",
        ),
        ({"partitions": "1.5"}, "option partitions: expected a whole number from 1 to 10000"),
        ({"fromSequenceNumber": "first"}, "of at least 0, 'earliest' or 'latest', not 'first'"),
        ({"toSequenceNumber": "5"}, "option toSequenceNumber is for a batch"),
        (
            {"receiveMode": "peekLock", "fromSequenceNumber": "5"},
            "option fromSequenceNumber is for receiveMode 'peek'",
        ),
        ({"maxLockRenewalSeconds": "5"}, "option maxLockRenewalSeconds is for a stream with"),
        ({"includeScheduled": "maybe"}, "option includeScheduled: expected true, false"),
        ({"port": "99999"}, "option port: expected a whole number from 1 to 65535"),
        (
            {"connectionString": None},
            "expected one of the options connectionString, connectionString.env",
        ),
        ({"connectionString.env": "X"}, "not connectionString and connectionString.env"),
        (
            {"connectionString": KEY},
            "option connectionString: the connection string has no Endpoint",
        ),
        ({"credential": "a:b"}, "option credential is for the option namespace"),
        (
            {"connectionString": None, "namespace": "n.example", "credential": "b"},
            "option credential: expected the name of a class or function without arguments",
        ),
        (
            {"connectionString": None, "namespace": "https://n/", "credential": "a:b"},
            "option namespace: expected the host of a namespace",
        ),
    ],
)
def test_a_wrong_option_is_named_in_the_error(given: dict[str, Any], said: str) -> None:
    options = {name: text for name, text in (QUEUE | given).items() if text is not None}
    with pytest.raises(OptionsError) as caught:
        read_options(options, streaming=True)
    assert said in str(caught.value)
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_batch_cannot_settle() -> None:
    with pytest.raises(OptionsError, match="option receiveMode: 'peekLock' needs a stream"):
        read_options(QUEUE | {"receiveMode": "peekLock"}, streaming=False)
    with pytest.raises(OptionsError, match="'latest' is for a stream only"):
        read_options(QUEUE | {"fromSequenceNumber": "latest"}, streaming=False)
    with pytest.raises(OptionsError, match="maxMessagesPerTrigger is for a stream"):
        read_options(QUEUE | {"maxMessagesPerTrigger": "1"}, streaming=False)
    with pytest.raises(OptionsError, match="toSequenceNumber: 3 is before fromSequenceNumber"):
        read_options(QUEUE | {"fromSequenceNumber": "5", "toSequenceNumber": "3"}, streaming=False)


def test_rows_must_go_somewhere() -> None:
    with pytest.raises(OptionsError, match="option queue or topic is missing"):
        write_options({"connectionString": TEXT}, has_destination=False)
    with pytest.raises(OptionsError, match="option subscription is unknown"):
        write_options(QUEUE | {"subscription": "s"}, has_destination=False)


# -- how to get in --------------------------------------------------------------------------------


def test_no_secret_shows_and_all_of_it_travels() -> None:
    options = read_options(QUEUE, streaming=True)
    for shown in (repr(options), str(options), f"{options.address}", repr(options.address.source)):
        assert KEY[:-2] not in shown
    assert "contoso" in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options
    assert replace(options, partitions=2).address == options.address
    assert KEY[:-2] not in repr(options.address.client())


def test_a_variable_is_looked_up_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    address = read_options({"connectionString.env": VARIABLE, "queue": "q"}, streaming=True).address
    travelled = pickle.loads(pickle.dumps(address))
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(OptionsError, match=f"the environment variable {VARIABLE} is not set"):
        travelled.client()
    monkeypatch.setenv(VARIABLE, TEXT)
    assert travelled.host == "contoso.servicebus.windows.net"
    assert KEY.encode() not in pickle.dumps(address)
    monkeypatch.setenv(VARIABLE, KEY)
    with pytest.raises(OptionsError, match=f"in the environment variable {VARIABLE}") as caught:
        travelled.client()
    assert KEY not in str(caught.value)


class Credential:
    made = 0

    def __init__(self) -> None:
        type(self).made += 1

    def get_token(self, *scopes: str) -> Any: ...


def test_a_credential_is_made_where_it_is_needed() -> None:
    address = Address.from_credential("n.servicebus.windows.net", Credential)
    assert Credential.made == 0
    address.client()
    assert Credential.made == 1
    assert repr(address) == "<Address n.servicebus.windows.net>"
    ready = Address.from_credential("n.servicebus.windows.net", Credential())
    ready.client()
    assert Credential.made == 2


def test_a_credential_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"namespace": "n.servicebus.windows.net", "queue": "q"}
    monkeypatch.setattr(f"{__name__}.OnDriver", Credential, raising=False)
    options = read_options(given | {"credential": f"{__name__}:OnDriver"}, streaming=True)
    assert options.address.host == "n.servicebus.windows.net"
    monkeypatch.undo()  # as on a worker, whose module is another one
    credential = pickle.loads(pickle.dumps(options.address)).source.credential()
    with pytest.raises(LoginFailed, match=f"credential {__name__}:OnDriver cannot be imported"):
        credential.get_token(SCOPE)
    for name in ("nowhere:Nobody", "azure.core.credentials:Nobody"):
        with pytest.raises(OptionsError, match=f"credential {name} cannot be imported: "):
            read_options(given | {"credential": name}, streaming=True)


def test_without_a_credential_the_default_identity_logs_in(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"namespace": "n.servicebus.windows.net:5671", "queue": "q"}
    for name in ("azure.identity:DefaultAzureCredential", "tests.spark.test_options:Credential"):
        address = read_options(given, streaming=False).address
        assert isinstance(address.source, ConnectionString)
        assert str(address.source.identity) == name
        monkeypatch.setenv("PAIRBUS_CREDENTIAL", "tests.spark.test_options:Credential")


# -- the page -------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()


@pytest.mark.parametrize("name", sorted({*READ, *WRITE, *NAMES, DESTINATION, *TYPES}))
def test_the_page_has_every_option_column_and_type(name: str) -> None:
    assert f"`{name}`" in PAGE
