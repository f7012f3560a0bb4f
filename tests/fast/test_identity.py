"""Identities: found by name, asked rarely, renewed in time, and reported in one line."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential
from azure.core.exceptions import ClientAuthenticationError

from pairbus.amqp.outcomes import AmqpError
from pairbus.client.sdk.failures import Kind, kind_of
from pairbus.errors import MissingExtra, OptionsError
from pairbus.fast.address import Address
from pairbus.fast.errors import from_refusal
from pairbus.fast.identity import Identity
from pairbus.fast.token_cache import SCOPE, LoginFailed, TokenCache, login, reason_of
from pairbus.testing import ManualClock
from tests.fast.credentials import Issuer
from tests.fast.world import bearer_broker, message, names

# -- names ----------------------------------------------------------------------------------------


def test_an_identity_is_pickled_as_a_name_and_makes_one_credential_in_each_process() -> None:
    identity = Identity.named("tests.fast.credentials:sender")
    travelled = pickle.loads(pickle.dumps(identity))

    assert b"Issuer" not in pickle.dumps(identity)
    assert login(identity) is login(travelled)
    assert login(identity).name == "sender"


def test_the_environment_names_another_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAIRBUS_CREDENTIAL", "azure.identity:AzureCliCredential")
    assert Identity.from_environment() == Identity("azure.identity", "AzureCliCredential")
    monkeypatch.setenv("PAIRBUS_CREDENTIAL", "AzureCliCredential")
    with pytest.raises(OptionsError, match="PAIRBUS_CREDENTIAL: expected the name of a class"):
        Identity.from_environment()


def test_a_missing_azure_identity_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pairbus.fast.identity.find_spec", lambda name: None)
    identity = Identity.named("azure.identity:DefaultAzureCredential")
    with pytest.raises(MissingExtra, match=r"pip install 'pairbus\[identity\]'"):
        identity.check_installed()
    # On a worker of Spark, where nothing was checked before.
    with pytest.raises(LoginFailed, match=r"needs azure-identity.*pairbus\[identity\]"):
        login(identity).get_token(SCOPE)


def test_parsing_a_host_name_loads_no_sdk() -> None:
    code = (
        "import sys; from pairbus.fast.address import Address; "
        "Address.from_connection_string('ns.example'); print('azure.core' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr


# -- tokens ---------------------------------------------------------------------------------------


def test_a_token_is_kept_until_shortly_before_its_end() -> None:
    clock = ManualClock(1_000_000.0)
    issuer = Issuer(seconds=3600, clock=clock)
    cache = TokenCache(issuer, clock=clock)

    first = cache.get_token(SCOPE)
    clock.advance(3200)
    assert cache.get_token(SCOPE) == first
    clock.advance(100)
    assert cache.get_token(SCOPE) != first
    assert issuer.count == 2


def test_threads_that_need_a_token_at_the_same_time_get_one() -> None:
    issuer, together = Issuer(), threading.Barrier(8)

    def make() -> Issuer:
        return issuer

    def ask(_: int) -> AccessToken:
        together.wait(30)
        token: AccessToken = login(make).get_token(SCOPE)
        return token

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1
    assert issuer.count == 1


def test_while_a_token_is_valid_a_credential_may_fail() -> None:
    clock = ManualClock(1_000_000.0)
    issuer = Issuer(seconds=3600, clock=clock)
    cache = TokenCache(issuer, clock=clock)
    first = cache.get_token(SCOPE)

    issuer.is_down = True
    clock.advance(3500)
    assert cache.get_token(SCOPE) == first
    clock.advance(101)
    with pytest.raises(LoginFailed, match="Issuer gave no token: AADSTS90033") as caught:
        cache.get_token(SCOPE)
    assert kind_of(caught.value) is Kind.SETUP
    issuer.is_down = False
    assert cache.get_token(SCOPE) != first


def test_a_credential_that_returns_the_same_token_is_asked_again_soon() -> None:
    """azure-identity keeps a token until five minutes before its end."""
    clock = ManualClock(1_000_000.0)
    asked: list[float] = []

    class Stubborn:
        def get_token(self, *scopes: str) -> AccessToken:
            asked.append(clock() - 1_000_000.0)
            return AccessToken("same", 1_003_600)

    cache = TokenCache(Stubborn(), clock=clock)
    for _ in range(118):
        cache.get_token(SCOPE)
        clock.advance(30)
    assert [second for second in asked if second < 3300] == [0.0, 3240.0]
    assert any(3300 < second < 3500 for second in asked)


def test_a_request_with_claims_is_not_answered_with_a_kept_token() -> None:
    class Challenged(Issuer):
        def get_token(self, *scopes: str, **options: Any) -> AccessToken:
            return super().get_token(*scopes)

    issuer = Challenged()
    cache = TokenCache(issuer)
    first = cache.get_token(SCOPE, claims=None)
    assert cache.get_token(SCOPE) == first
    assert cache.get_token(SCOPE, claims="xyz") != first


# -- in place of a credential object, a task gets a token -----------------------------------------


def test_a_credential_object_is_never_pickled_but_its_token_is() -> None:
    issuer = Issuer()
    issuer.secret = "s3cret"  # type: ignore[attr-defined]
    address = Address.from_credential("ns.example", issuer)

    data = pickle.dumps(address)
    assert b"s3cret" not in data
    handed = pickle.loads(data).source.credential()
    assert handed.get_token(SCOPE).token == address.source.credential().get_token(SCOPE).token  # type: ignore[union-attr]
    assert issuer.count == 1
    assert handed.get_token(SCOPE).token not in repr(handed)


def test_a_task_learns_why_the_driver_had_no_token() -> None:
    issuer = Issuer()
    issuer.is_down = True
    address = pickle.loads(pickle.dumps(Address.from_credential("ns.example", issuer)))
    with pytest.raises(LoginFailed, match="Issuer gave no token: AADSTS90033"):
        address.source.credential().get_token(SCOPE)


def test_a_key_is_pickled_as_it_is() -> None:
    address = Address.from_credential("ns.example", AzureNamedKeyCredential("p", "s3cret"))
    assert pickle.loads(pickle.dumps(address)).source.credential().named_key == ("p", "s3cret")


# -- reasons --------------------------------------------------------------------------------------


def test_a_machine_without_an_identity_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    identity = pytest.importorskip("azure.identity")
    # The managed identity and the tools of developers would look for servers and programs.
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    monkeypatch.delenv("AZURE_CLIENT_ID", raising=False)
    with pytest.raises(LoginFailed) as caught:
        TokenCache(identity.DefaultAzureCredential()).get_token(SCOPE)
    text = str(caught.value)
    assert text.startswith("DefaultAzureCredential gave no token: it found no identity on this")
    assert "(it tried Environment)" in text
    assert "az login" in text
    assert "\n" not in text
    assert len(text) < 400
    assert capfd.readouterr() == ("", "")


def test_the_reason_of_a_found_identity_is_kept() -> None:
    """A chain ends at the first credential that is there but fails."""
    text = (
        "DefaultAzureCredential failed to retrieve a token from the included credentials.\n"
        "Attempted credentials:\n"
        "\tEnvironmentCredential: EnvironmentCredential authentication unavailable. Environment\n"
        "\tManagedIdentityCredential: ManagedIdentityCredential authentication unavailable.\n"
        "\tAzureCliCredential: Please run 'az login' to set up an account\n"
        "To mitigate this issue, please refer to the troubleshooting guidelines here at https://x"
    )
    reason = reason_of(ClientAuthenticationError(text))
    assert reason == "AzureCliCredential: Please run 'az login' to set up an account"
    assert reason_of(RuntimeError("two\nlines")) == "RuntimeError: two lines"
    assert len(reason_of(ClientAuthenticationError("long " * 500))) < 400


def test_a_log_that_is_set_up_still_gets_the_whole_story(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        logging.getLogger("azure.identity._credentials.chained").warning("the whole story")
    assert "the whole story" in caplog.text


# -- on a connection ------------------------------------------------------------------------------


def test_hours_of_connections_need_few_tokens_and_none_expires() -> None:
    """Like a drain of two hours: new connections all the time, and one that waits in between."""
    clock = ManualClock(runs=True)
    issuer = Issuer(seconds=3600, clock=clock)
    cache = TokenCache(issuer, clock=clock)
    with bearer_broker("q", clock=clock) as broker:
        address = Address.from_credential(
            "localhost", lambda: cache, ca_file=broker.ca_file, port=broker.port
        )
        with address.client(clock=clock) as waiting:
            receiver = waiting.receiver("q", credit=1, mode="receiveAndDelete")
            for number in range(48):
                with address.client(clock=clock) as client:
                    client.sender("q").send([message(f"m-{number}")])
                assert names(receiver.receive(1, max_wait_seconds=10)) == [f"m-{number}"]
                clock.advance(150)
    assert issuer.count == 3


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("Unauthorized access. 'Send' claim(s) are required to perform this operation.", "Sender"),
        ("policy 'bearer' does not have the Listen claim for q", "Receiver"),
        ("'com.microsoft:peek-message' on 'q' needs the Listen claim", "Receiver"),
    ],
)
def test_the_role_for_a_missing_claim_is_named(text: str, role: str) -> None:
    error = from_refusal(AmqpError("amqp:unauthorized-access", text), "sending to 'q'")
    assert f"; an identity needs the role Azure Service Bus Data {role} (or Data" in str(error)
