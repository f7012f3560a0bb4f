"""The HTTP application, called as a server would call it, without one."""

import json
import re

import pytest

from pairbus.broker.port.http import error_response
from tests.broker.admin.site import Site, token


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
