"""The HTTP application, called as a server calls it, but without a server."""

import json
import logging
import re
import sys

import pytest

from pairbus.broker.entities.policies import Policy, Right
from pairbus.broker.port.http import error_response
from pairbus.cost.meter import Tally
from tests.broker.admin.site import NOW, ROOT, SENDER, Site, token


@pytest.fixture
def site():
    site = Site()
    yield site
    site.close()


def test_health_is_json_that_names_the_namespace(site):
    answer = site.ask("GET", "/$health", authorization=None)

    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.body) == {"status": "ok", "namespace": "local"}


@pytest.mark.parametrize("path", ["/orders", "/$Resources/queues", "/a%2Fb/subscriptions/s"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_all_else_is_administration_and_needs_a_token(site, method, path):
    answer = site.ask(method, path, authorization=None)

    assert answer.status == 401
    # The official clients parse a body only if its type says xml.
    assert answer.headers["content-type"] == "application/xml; charset=utf-8"
    assert re.fullmatch(
        r"<Error><Code>401</Code><Detail>MissingToken: [^<]+\. TrackingId:[0-9a-f-]{36}"
        r"</Detail></Error>",
        answer.body.decode(),
    )


def test_a_wrong_method_says_so(site):
    answer = site.ask("PUT", "/$health", authorization=None)

    assert answer.status == 405
    assert "GET" in answer.headers["allow"]
    assert answer.detail == "PUT is not possible at /$health"


def test_an_unexpected_error_is_answered_without_details_and_logged(site):
    def surprise(path):
        raise RuntimeError("secret")

    site.namespace.find = surprise
    answers = []

    with pytest.raises(RuntimeError, match="secret"):
        site.ask("GET", "/orders", authorization=token(), answers=answers)

    assert [answer.status for answer in answers] == [500]
    assert b"secret" not in answers[0].body


def test_nothing_that_a_client_sends_breaks_the_xml(site):
    answer = site.ask("GET", "/$a<b>&\x01" + "c" * 500)

    assert answer.status == 404
    assert "There is no resource '$a<b>&ccc" in answer.detail
    assert len(answer.body) < 500


def test_a_detail_ends_in_one_full_stop():
    body = bytes(error_response(409, "It exists.").body)

    assert body.startswith(b"<Error><Code>409</Code><Detail>It exists. TrackingId:")


# -- meter and metrics


@pytest.mark.req("M-01")
def test_the_meter_is_json_and_needs_the_manage_claim(site):
    site.namespace.meter.of("orders").send += 3

    answer = site.ask("GET", "/$meter")
    reported = json.loads(answer.body)

    assert answer.status == 200
    assert reported["namespace"] == "local"
    orders = reported["entities"]["orders"]
    assert {kind: count for kind, count in orders.items() if count} == {"send": 3, "total": 3}
    assert orders["emptyReceive"] == 0
    assert reported["total"]["total"] == 3


@pytest.mark.parametrize("authorization", [None, "nonsense", token(SENDER)])
def test_the_meter_is_refused_without_the_manage_claim(site, authorization):
    answer = site.ask("GET", "/$meter", authorization=authorization)

    assert answer.status == 401
    assert "error" in json.loads(answer.body)


def test_administration_is_counted_by_entity_if_it_was_done(site):
    site.put("orders", "<QueueDescription/>")
    site.get("orders")
    site.get("$Resources/queues")
    assert site.get("unknown").status == 404

    reading = site.namespace.meter.read()

    assert reading.entities == {"$namespace": Tally(manage=1), "orders": Tally(manage=2)}


def test_metrics_are_refused_to_other_machines_without_a_token(site):
    assert site.ask("GET", "/metrics", authorization=None).status == 401
    assert site.ask("GET", "/$metrics", authorization=token(SENDER)).status == 401


@pytest.mark.parametrize("path", ["/metrics", "/$metrics"])
def test_metrics_have_the_format_of_prometheus(site, path):
    site.put("orders", "<QueueDescription/>")
    site.namespace.meter.of("orders").send += 3

    answer = site.ask("GET", path)
    lines = answer.body.decode().splitlines()

    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    labels = 'entity="orders",namespace="local"'
    assert f'pairbus_broker_operations_total{{{labels},operation="send"}} 3.0' in lines
    assert f'pairbus_broker_messages{{{labels},state="active"}} 0.0' in lines
    assert f"pairbus_broker_size_bytes{{{labels}}} 0.0" in lines
    assert 'pairbus_broker_connections{namespace="local"} 0.0' in lines
    assert 'pairbus_broker_connections_opened_total{namespace="local"} 0.0' in lines
    assert 'pairbus_broker_faults{namespace="local"} 0.0' in lines


def test_a_queue_may_be_called_metrics(site):
    site.put("metrics", "<QueueDescription/>")

    assert site.get("metrics").status == 200
    assert b"QueueDescription" in site.get("metrics").body


def test_without_prometheus_client_the_answer_says_what_to_install(site, monkeypatch):
    monkeypatch.delitem(sys.modules, "pairbus.broker.port.metrics", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    answer = site.ask("GET", "/metrics")

    assert answer.status == 501
    assert b"pip install 'pairbus[prometheus]'" in answer.body


OWN = Policy(name="ops", key="bXkgb3du", rights=frozenset({Right.MANAGE}))


@pytest.mark.parametrize(
    ("options", "policy", "status"),
    [
        ({}, ROOT, 201),
        ({"allows_faults": False}, ROOT, 403),
        ({"allows_faults": False}, OWN, 201),
        ({"allows_faults": False, "accepts_bearer": True}, OWN, 403),
    ],
    ids=["allowed", "well-known key", "own key", "unchecked tokens"],
)
def test_faults_need_an_own_key_or_a_broker_that_allows_them(options, policy, status, caplog):
    caplog.set_level(logging.INFO)
    site = Site(policies=(ROOT, OWN), **options)
    try:
        answer = site.ask("POST", "/$faults", b'{"kind": "hang"}', authorization=token(policy))
        listed = site.ask("GET", "/$faults", authorization=token(policy))
        cleared = site.ask("DELETE", "/$faults", authorization=token(policy))
        assert answer.status == status
        assert (listed.status, cleared.status) == (200, 200 if status == 201 else 403)
        if status == 403:
            assert "start it with --allow-faults" in json.loads(answer.body)["error"]
            assert site.namespace.faults.faults == []
            assert f"policy '{policy.name}': this broker accepts faults only" in caplog.text
    finally:
        site.close()


def test_faults_over_http_end_by_themselves(site):
    one = {"kind": "hang"}
    script = {"script": [{"at": 5, "kind": "cannot-send", "seconds": None}]}
    for body in (one, script):
        assert site.ask("POST", "/$faults", json.dumps(body).encode()).status == 201

    faults = site.namespace.faults.faults

    assert [(fault.fault.kind, fault.ends_at) for fault in faults] == [
        ("hang", NOW + 600),
        ("cannot_send", NOW + 605),
    ]


@pytest.mark.req("B-13")
def test_a_script_of_faults_is_the_same_with_the_same_seed(site):
    script = [{"at": 0, "kind": "throttle", "rate": 0.5}, {"at": 60, "kind": "hang"}]
    body = json.dumps({"script": script, "seed": 7}).encode()

    first, second = (site.ask("POST", "/$faults", body) for _ in range(2))
    faults = [json.loads(answer.body)["faults"] for answer in (first, second)]

    assert first.status == 201
    assert [one["state"] for one in faults[0]] == ["active", "planned"]
    assert [one["seed"] for one in faults[0]] == [one["seed"] for one in faults[1]]
    assert json.loads(site.ask("DELETE", "/$faults").body) == {"faults": []}
    assert site.namespace.faults.faults == []


@pytest.mark.parametrize("authorization", [None, token(SENDER)])
def test_faults_need_the_manage_claim(site, authorization):
    for method, path in (("POST", "/$faults"), ("DELETE", "/$faults"), ("DELETE", "/$faults/1")):
        answer = site.ask(method, path, b'{"kind": "hang"}', authorization=authorization)

        assert answer.status == 401
        assert "error" in json.loads(answer.body)
    assert site.namespace.faults.faults == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"kind": "flood"}', "kind is 'flood', but must be one of unreachable"),
        (b'{"kind": "throttle", "rate": 7}', "rate is 7, but must be a number from 0 to 1"),
        (b'{"script": [{"kind": "hang"}]}', "entry 0 of the script needs 'at'"),
        (b'{"script": [], "seed": -1}', "seed is -1, but must be a whole number from 0"),
        (b'{"script": [], "sed": 1}', "but no 'sed'"),
        (b"[]", "the body must be a fault"),
        (b"{", "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
    ],
)
def test_an_impossible_fault_is_refused(site, body, words):
    answer = site.ask("POST", "/$faults", body)

    assert answer.status == 400
    assert words in json.loads(answer.body)["error"]


def test_a_fault_without_end_is_refused(site):
    answer = site.ask("POST", "/$faults", b" " * (1024 * 1024 + 1))

    assert answer.status == 413
    assert json.loads(answer.body) == {"error": "The body has more than 1048576 bytes"}
