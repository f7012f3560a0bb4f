"""Tokens become grants. Every decision is pure: a value in, a value out."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
from urllib.parse import quote, unquote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pairbus.broker.entities.policies import Policy, Right
from pairbus.broker.hosts import HostNames
from pairbus.broker.links import tokens
from pairbus.broker.links.tokens import (
    NEVER,
    Grant,
    TokenRefused,
    make_token,
    normalise_path,
    verify,
    verify_plain,
)

NOW = 1_700_000_000.0
ROOT = Policy(name="Root", key="c2VjcmV0LXJvb3Q=", rights=frozenset(Right))
SENDER = Policy(name="only send", key="c2VuZA==", rights=frozenset({Right.SEND}))
POLICIES = (ROOT, SENDER)
QUEUE = "sb://localhost:5673/orders"
HOSTS = HostNames(["localhost", "box.example"]).of_namespace("shop")


def signed(
    resource: str, *, key: str = ROOT.key, expiry: str = "1700003600", skn: str = "Root"
) -> str:
    """A token with this `sr`, signed exactly as given."""
    digest = hmac.digest(key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256)
    sig = quote(base64.b64encode(digest).decode(), safe="")
    return f"SharedAccessSignature sr={resource}&sig={sig}&se={expiry}&skn={skn}"


def granted(token: str, *, audience: str = QUEUE, now: float = NOW) -> Grant:
    return verify(token, POLICIES, audience=audience, hosts=HOSTS, now=now)


@pytest.mark.req("B-02")
def test_a_signed_token_grants_the_rights_of_its_policy_on_its_resource() -> None:
    token = make_token(SENDER, audience=QUEUE, expires_at=NOW + 60)

    grant = granted(token)

    assert grant == Grant(
        policy_name="only send", rights=frozenset({Right.SEND}), scope="orders", expires_at=NOW + 60
    )
    assert grant.allows(Right.SEND)
    assert not grant.allows(Right.LISTEN)
    assert not grant.allows(Right.MANAGE)


def test_manage_includes_the_other_rights() -> None:
    grant = Grant(policy_name="m", rights=frozenset({Right.MANAGE}), scope="", expires_at=NEVER)

    assert all(grant.allows(right) for right in Right)


RESOURCES = {
    "unencoded, as one of the SDK's tests sends it": "sb://localhost:5673/orders",
    "percent-encoded, as the SDK does": quote(QUEUE, safe=""),
    "percent-encoded in lower case": quote(QUEUE, safe="").lower(),
    "the namespace, other scheme, no port": quote("https://localhost", safe=""),
    "other case and a slash": quote("AMQPS://LOCALHOST/Orders/", safe=""),
    "another name of this machine": quote("sb://127.0.0.1:1/orders", safe=""),
    "its IPv6 name": quote("sb://[::1]:1/", safe=""),
}


@pytest.mark.parametrize("resource", RESOURCES.values(), ids=RESOURCES)
def test_a_resource_is_signed_as_it_stands_and_compared_normalised(resource: str) -> None:
    assert granted(signed(resource)).policy_name == "Root"


ELSEWHERE = {
    "same start, other queue": ("sb://localhost/orders", "sb://localhost/orders2"),
    "only a part of it": ("sb://localhost/orders/a", "sb://localhost/orders"),
    "a queue is not the namespace": ("sb://localhost/orders", "sb://localhost"),
    "an audience that is a bare path": ("sb://localhost/orders", "bills"),
    "another host": ("sb://box.example/orders", "sb://localhost/orders"),
    "a resource that may be a host or a path": ("my.queue", "sb://my.queue/bills"),
    "dots climb nowhere": ("sb://localhost/a%2F..%2Fb", "sb://localhost/b"),
}


@pytest.mark.parametrize(("resource", "audience"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_token_for_something_else_is_refused(resource: str, audience: str) -> None:
    with pytest.raises(TokenRefused, match=r"not cover|not a URI"):
        granted(signed(quote(resource, safe="")), audience=audience)


@pytest.mark.req("B-02")
@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("localhost", True),
        ("LocalHost:5672", True),
        ("shop.localhost", True),
        ("127.0.0.1:5672", True),
        ("[::1]:5672", True),
        ("192.168.1.7", True),
        ("box.example:5671", True),
        ("shop", True),
        ("shop.servicebus.windows.net", True),
        ("other.servicebus.windows.net", False),
        ("shop.example", False),
        ("box.example.net", False),
        ("localhost.example", False),
    ],
)
def test_a_token_names_our_host(host: str, is_ours: bool) -> None:
    address = f"sb://{host}/orders"
    token = signed(quote(address, safe=""))
    for audience in (address, "orders"):
        if is_ours:
            assert granted(token, audience=audience).scope == "orders"
        else:
            with pytest.raises(TokenRefused, match="which is not a name of this broker: use an"):
                granted(token, audience=audience)


@pytest.mark.parametrize(
    ("scope", "path", "expected"),
    [
        ("", "anything", True),
        ("orders", "Orders", True),
        ("orders", "/orders/$DeadLetterQueue", True),
        ("orders", "amqps://localhost:1/orders/$management", True),
        ("orders", "orders2", False),
        ("orders/sub", "orders", False),
    ],
)
def test_a_grant_covers_its_path_and_what_lies_below(scope: str, path: str, expected: bool) -> None:
    grant = Grant(policy_name="p", rights=frozenset(), scope=scope, expires_at=NEVER)

    assert grant.covers(path) is expected


@pytest.mark.parametrize("skn", ["only send", "only%20send", "only%2520send", "only%252520send"])
def test_a_policy_name_may_be_encoded_more_than_once(skn: str) -> None:
    token = signed(quote(QUEUE, safe=""), key=SENDER.key, skn=skn)

    assert granted(token).policy_name == "only send"


@given(st.permutations(["sr", "sig", "se", "skn", "x=unknown"]))
def test_parameters_may_come_in_any_order(order: list[str]) -> None:
    prefix, _, text = make_token(ROOT, audience=QUEUE, expires_at=NOW + 1).partition(" ")
    parts = {part.partition("=")[0]: part for part in text.split("&")}

    token = f"{prefix} " + "&".join(parts.get(name, name) for name in order)

    assert granted(token).scope == "orders"


@pytest.mark.parametrize("prefix", ["Bearer ", "bearer  "])
def test_a_signature_labelled_bearer_is_still_a_signature(prefix: str) -> None:
    token = make_token(ROOT, audience=QUEUE, expires_at=NOW + 1)

    assert granted(prefix + token).policy_name == "Root"


def test_a_token_ends_at_its_expiry() -> None:
    token = make_token(ROOT, audience=QUEUE, expires_at=NOW + 10)

    grant = granted(token, now=NOW + 9.9)

    assert not grant.is_expired(now=NOW + 9.9)
    assert grant.is_expired(now=NOW + 10)
    with pytest.raises(TokenRefused, match=r"expired at 2023-11-14T22:13:30\+00:00"):
        granted(token, now=NOW + 10)


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ("", "not a shared access signature"),
        ("SharedAccessSignature ", "lacks sr, sig, se, skn"),
        ("SharedAccessSignature sr=a&sig=b&se=1", "lacks skn"),
        ("SharedAccessSignature sr=a&sr=b&sig=b&se=1&skn=Root", "'sr' twice"),
        (signed("sb://localhost", skn="Nobody"), "no policy 'Nobody'"),
        (signed("sb://localhost", key="wrong"), "there is no policy 'Root' with this key"),
        (signed("sb://localhost", expiry="soon"), "not a whole number"),
        (signed("sb://localhost", expiry="1_800_000_000"), "not a whole number"),
        (signed("sb://localhost", expiry="9" * 13), "not a whole number"),
        (signed("sb://localhost", expiry="-1"), "not a whole number"),
        (signed("sb://localhost", expiry="0"), "expired"),
        (signed(""), "lacks sr"),
        (signed("sb://[/orders"), "is not a URI"),
        ("SharedAccessSignature " + "x" * 20_000, "at most 16384"),
        ("eyJhbGciOi.e30.sig", r"bearer tokens \(JWT\)"),
    ],
)
def test_a_refusal_says_what_is_wrong(token: str, reason: str) -> None:
    with pytest.raises(TokenRefused, match=reason) as refused:
        granted(token)
    assert refused.value.reason == str(refused.value)
    assert ROOT.key not in refused.value.reason


VALID = make_token(ROOT, audience=QUEUE, expires_at=NOW + 3600)
_PLAIN = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def meaning(token: str) -> object:
    """What a token means: the percent-encoding of sig and skn does not matter."""
    fields = [part.partition("=")[::2] for part in token.partition(" ")[2].split("&")]
    return sorted((n, unquote(unquote(v)) if n in ("sig", "skn") else v) for n, v in fields)


@given(st.data())
def test_a_mutated_token_never_passes(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(VALID)))
    end = data.draw(st.integers(start, min(len(VALID), start + 6)))
    middle = data.draw(st.text(st.sampled_from(_PLAIN + "%&=+/ \n\0é"), max_size=6))
    mutated = VALID[:start] + middle + VALID[end:]
    assume(meaning(mutated) != meaning(VALID) or not mutated.startswith("SharedAccessSignature "))
    # Parameters that nobody knows are allowed, so one more of them is no forgery.
    known = {f.partition("=")[0] for f in mutated.partition(" ")[2].split("&")}
    assume(known <= {"sr", "sig", "se", "skn"} or "&" not in middle)

    with pytest.raises(TokenRefused):
        granted(mutated)


@given(st.text(max_size=200))
def test_any_text_is_granted_or_refused_but_never_breaks(text: str) -> None:
    for token in (text, f"SharedAccessSignature {text}", signed(text)):
        with contextlib.suppress(TokenRefused):
            granted(token, audience=text)


@given(st.text(_PLAIN + " .-_%", min_size=1, max_size=30), st.text(min_size=1, max_size=60))
def test_what_is_made_is_also_accepted(name: str, key: str) -> None:
    assume("%" not in name)
    try:
        key.encode()
    except UnicodeEncodeError:
        assume(False)
    policy = Policy(name=name, key=key, rights=frozenset({Right.LISTEN}))
    token = make_token(policy, audience=QUEUE, expires_at=NOW + 1)

    assert verify(token, [policy], audience=QUEUE, hosts=HOSTS, now=NOW).policy_name == name


def test_plain_accepts_a_policy_and_its_key() -> None:
    grant = verify_plain("only send", SENDER.key, POLICIES)

    assert grant.allows(Right.SEND)
    assert not grant.allows(Right.LISTEN)
    assert grant.covers("any/queue")
    assert not grant.is_expired(now=1e12)


@pytest.mark.parametrize(
    ("user", "password"), [("Root", "wrong"), ("Root", ""), ("nobody", ROOT.key), ("", "")]
)
def test_plain_refuses_anything_else(user: str, password: str) -> None:
    with pytest.raises(TokenRefused):
        verify_plain(user, password, POLICIES)


def jwt(claims: object) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"eyJhbGciOiJub25lIn0.{payload}.c2ln"


@pytest.mark.parametrize(
    ("token", "expires_at"),
    [
        (jwt({"exp": NOW + 5}), NOW + 5),
        (jwt({"exp": "soon"}), NOW + 3600),
        (jwt({"exp": 10**400}), NOW + 3600),
        (jwt([]), NOW + 3600),
        ("opaque", NOW + 3600),
        ("a.é.c", NOW + 3600),
    ],
)
def test_a_bearer_token_is_taken_unchecked_only_where_that_is_allowed(
    token: str, expires_at: float
) -> None:
    with pytest.raises(TokenRefused):
        verify(token, POLICIES, audience=QUEUE, hosts=HOSTS, now=NOW)

    grant = verify(token, POLICIES, audience=QUEUE, hosts=HOSTS, now=NOW, accepts_bearer=True)

    assert grant.expires_at == expires_at
    assert grant.allows(Right.MANAGE)
    assert grant.covers("anything")


@pytest.mark.parametrize(
    ("roles", "rights"),
    [
        (["Azure Service Bus Data Sender"], {Right.SEND}),
        (["Azure Service Bus Data Receiver"], {Right.LISTEN}),
        (
            ["Azure Service Bus Data Sender", "Azure Service Bus Data Receiver"],
            {Right.SEND, Right.LISTEN},
        ),
        (["Azure Service Bus Data Owner"], set(Right)),
        (["Task.Read"], set(Right)),
        ([], set(Right)),
        ("Sender", set(Right)),
        (7, set(Right)),
        ([["nested"]], set(Right)),
    ],
)
def test_the_roles_of_service_bus_in_a_bearer_token_limit_it(
    roles: object, rights: set[Right]
) -> None:
    token = jwt({"exp": NOW + 5, "roles": roles})

    grant = verify(token, POLICIES, audience=QUEUE, hosts=HOSTS, now=NOW, accepts_bearer=True)

    assert {right for right in Right if grant.allows(right)} == rights
    assert grant.expires_at == NOW + 5


@pytest.mark.parametrize("expiry", [NOW, 0, -1, float("nan")])
def test_an_expired_bearer_token_is_refused_even_so(expiry: float) -> None:
    with pytest.raises(TokenRefused, match="expired"):
        verify(
            jwt({"exp": expiry}),
            POLICIES,
            audience=QUEUE,
            hosts=HOSTS,
            now=NOW,
            accepts_bearer=True,
        )


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("amqps://localhost:5673/Orders", "orders"),
        ("/orders/", "orders"),
        ("sb://host", ""),
        ("", ""),
        ("topic/Subscriptions/s", "topic/subscriptions/s"),
    ],
)
def test_an_address_becomes_a_path(address: str, path: str) -> None:
    assert normalise_path(address) == path


@pytest.mark.req("B-02")
@pytest.mark.parametrize(
    ("path", "is_covered"),
    [
        ("orders", True),
        ("Orders/$DeadLetterQueue", True),
        ("orders/$Transfer/$DeadLetterQueue/$management", True),
        ("orders/Subscriptions/all/$DeadLetterQueue", True),
        ("orders/urgent", False),
        ("orders/urgent/$management", False),
        ("orders2", False),
        ("", False),
    ],
)
def test_a_key_of_an_entity_opens_it_and_its_own_paths_alone(path: str, is_covered: bool) -> None:
    own = Policy(name="own", key="b3du", rights=frozenset(Right))
    token = make_token(own, audience="sb://localhost/", expires_at=NOW + 60)

    found = tokens.grant(
        token,
        shared=POLICIES,
        own=[own],
        entity="Orders",
        audience=QUEUE,
        hosts=HOSTS,
        now=NOW,
        accepts_bearer=False,
    )

    assert found.covers(path) == is_covered
