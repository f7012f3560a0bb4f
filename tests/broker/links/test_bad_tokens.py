"""A real broker and somebody who guesses keys: over `$cbs`, with passwords, and over HTTP."""

import http.client
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pairbus.amqp.client.blocking import Connection
from pairbus.amqp.client.requests import RequestLinks
from pairbus.amqp.codec.types import Symbol
from pairbus.amqp.frames import SASL_HEADER, encode_frame
from pairbus.broker import Broker, Policy, QueueDescription, Right
from pairbus.broker.entities.policies import DEFAULT_KEY, default_policy
from pairbus.broker.links.tokens import make_token

pytestmark = pytest.mark.req("B-02")
SECONDS = 60
FREE = 50
"""So many bad tokens cost nothing."""
GUESSER, NEIGHBOUR = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def broker():
    with Broker(queues=["orders"]) as broker:
        yield broker


def token(broker, key):
    policy = Policy(name=default_policy().name, key=key, rights=frozenset(Right))
    audience = f"sb://localhost:{broker.port}"
    return make_token(policy, audience=audience, expires_at=time.time() + 60)


def ask_http(broker, path, *, by, key=None):
    """The status, and the seconds that it took."""
    began = time.monotonic()
    connection = http.client.HTTPConnection(
        "127.0.0.1", broker.port, timeout=SECONDS, source_address=(by, 0)
    )
    headers = {} if key is None else {"Authorization": token(broker, key)}
    connection.request("GET", path, headers=headers)
    status = connection.getresponse().status
    connection.close()
    return status, time.monotonic() - began


def ask_amqp(broker, *, by, web=False):
    """Seconds until the broker speaks AMQP, or opens a WebSocket for it."""
    began = time.monotonic()
    upgrade = (
        "GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
    )
    with socket.create_connection(
        ("127.0.0.1", broker.port), timeout=SECONDS, source_address=(by, 0)
    ) as client:
        client.sendall(upgrade.encode() if web else SASL_HEADER)
        assert client.recv(8) == (b"HTTP/1.1" if web else SASL_HEADER)
    return time.monotonic() - began


def test_a_flood_of_bad_tokens_slows_down_its_address_alone(broker):
    with ThreadPoolExecutor(25) as pool:
        guesses = [
            pool.submit(ask_http, broker, "/orders", by=GUESSER, key="guess")
            for _ in range(FREE + 25)
        ]
    assert {one.result()[0] for one in guesses} == {401}

    def asked(by):
        return [
            pool.submit(ask_http, broker, "/$faults", by=by, key=DEFAULT_KEY),
            pool.submit(ask_http, broker, "/orders", by=by, key="guess"),
            pool.submit(lambda: (0, ask_amqp(broker, by=by))),
            pool.submit(lambda: (0, ask_amqp(broker, by=by, web=True))),
        ]

    with ThreadPoolExecutor(10) as pool:
        slow = asked(GUESSER)
        tries = [
            [*asked(NEIGHBOUR), pool.submit(ask_http, broker, "/$health", by=GUESSER)]
            for _ in range(3)
        ]

    assert [one.result()[0] for one in slow] == [200, 401, 0, 0]
    waits = [one.result()[1] for one in slow]
    # A busy machine may delay one of them.
    others = [min(one.result()[1] for one in same) for same in zip(*tries, strict=True)]
    assert min(waits) >= 1.0
    assert max(others) < min(waits), (others, waits)


def test_on_one_connection_only_the_first_bad_tokens_are_answered_at_once(broker):
    connection = Connection("127.0.0.1", broker.port)
    connection.open(SECONDS)
    links = RequestLinks(connection, "$cbs")
    links.wait_attached(time.monotonic() + SECONDS)
    put = {"operation": "put-token", "type": "jwt", "name": f"sb://localhost:{broker.port}/orders"}

    def seconds_for(key, status):
        """How long the free ones take, and three more."""
        began = time.monotonic()
        asked = [(put, token(broker, key))] * (FREE + 3)
        answers = links.ask_all(asked, until=began + SECONDS, reply_to=False)
        assert {one.properties["status-code"] for one in answers} == {status}
        return time.monotonic() - began

    # The last two bad ones wait for a second each. If the free ones took long, the bucket has
    # drained meanwhile, and all take two seconds just the same.
    assert min(seconds_for(DEFAULT_KEY, 202) for _ in range(3)) < 1.9
    assert 1.9 <= seconds_for("guess", 401) < FREE / 2
    connection.close()


def test_wrong_passwords_count_as_well(broker):
    wrong = SASL_HEADER + encode_frame(0x41, [Symbol("PLAIN"), b"\x00Root\x00guess"], kind=1)

    def guess():
        with socket.create_connection(("127.0.0.1", broker.port), timeout=SECONDS) as client:
            client.sendall(wrong)
            while client.recv(4096):
                pass

    with ThreadPoolExecutor(25) as pool:
        for one in [pool.submit(guess) for _ in range(FREE + 25)]:
            one.result()

    assert ask_amqp(broker, by=GUESSER) >= 1.0


OWN = Policy(name="own", key="b3du", rights=frozenset(Right))
BAD = {
    "no token": lambda audience: "",
    "a guess": lambda audience: signed(default_policy().name, "guess", audience),
    "a guess for a key of the entity": lambda audience: signed("own", "guess", audience),
    "expired": lambda audience: signed(default_policy().name, DEFAULT_KEY, audience, seconds=-60),
    "for another host": lambda audience: signed(
        default_policy().name, DEFAULT_KEY, audience.replace("localhost", "other.example")
    ),
}


def signed(name, key, audience, *, seconds=60):
    policy = Policy(name=name, key=key, rights=frozenset(Right))
    return make_token(policy, audience=audience, expires_at=int(time.time()) + seconds)


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_with_a_bad_token_every_entity_looks_alike(bad):
    with_key = QueueDescription(name="orders", authorization_rules=(OWN,))
    names = ("orders", "plain", "unknown")
    with Broker(queues=[with_key, "plain"]) as broker:
        connection = Connection("127.0.0.1", broker.port)
        connection.open(SECONDS)
        links = RequestLinks(connection, "$cbs")
        links.wait_attached(time.monotonic() + SECONDS)
        seen = {"cbs": set(), "http": set()}
        for name in names:
            audience = f"sb://localhost:{broker.port}/{name}"
            request = {"operation": "put-token", "type": "jwt", "name": audience}
            answer = links.ask(request, bad(audience), until=time.monotonic() + SECONDS)
            seen["cbs"].add(alike(repr(answer.properties), name))
            for method in ("GET", "PUT", "DELETE"):
                seen["http"].add((method, *refused_over_http(broker, method, name, bad(audience))))
        connection.close()
    assert (len(seen["cbs"]), len(seen["http"])) == (1, 3), seen


def refused_over_http(broker, method, name, token):
    connection = http.client.HTTPConnection("127.0.0.1", broker.port, timeout=SECONDS)
    connection.request(method, f"/{name}?api-version=2021-05", headers={"Authorization": token})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status == 401
    return answer.status, alike(text.partition("TrackingId")[0], name)


def alike(text, name):
    """Without the entity's name, and without times: a second may begin between two answers."""
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:]+", "T", text.replace(name, "*"))
