"""Who may administer what: keys of the namespace, keys of an entity, and no key."""

import pytest

from pairbus.broker.entities.policies import Policy, Right
from pairbus.broker.links.tokens import make_token
from tests.broker.admin.site import HOST, NOW, ROOT, SENDER, token

OWN = Policy(name="own", key="b3du", rights=frozenset(Right))
KEYS = (
    "<AuthorizationRules><AuthorizationRule i:type='SharedAccessAuthorizationRule'><Rights>"
    "<AccessRights>Manage</AccessRights><AccessRights>Send</AccessRights>"
    "<AccessRights>Listen</AccessRights></Rights><KeyName>own</KeyName>"
    "<PrimaryKey>b3du</PrimaryKey></AuthorizationRule></AuthorizationRules>"
)
FORWARD = f"<ForwardTo>sb://{HOST}/target</ForwardTo>"
NODE_URL = f"https://{HOST}/q?api-version=2021-05"

REFUSED = {
    "no token": (None, "MissingToken"),
    "an empty token": ("", "MissingToken"),
    "no signature": ("Basic dXNlcg==", "not a shared access signature"),
    "a JWT": ("Bearer a.b.c", "cannot check bearer tokens"),
    "a wrong key": (token(Policy(name=ROOT.name, key="no", rights=ROOT.rights)), "with this key"),
    "an unknown policy": (token(OWN), "no policy 'own'"),
    "an expired one": (token(expires_at=NOW - 1), "expired at"),
    "one for another entity": (token(audience=f"https://{HOST}/other"), "does not cover"),
    "one without Manage": (token(SENDER), "Manage,EntityRead claims required"),
}


@pytest.mark.req("B-02")
@pytest.mark.parametrize(("authorization", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused_as_unauthorized_is(site, authorization, reason):
    site.queue("q")

    answer = site.get("q", authorization=authorization)

    assert answer.status == 401
    assert reason in answer.detail
    assert answer.headers["www-authenticate"] == "SharedAccessSignature, Bearer"


TAKEN = {
    "a token for the namespace": token(),
    "one for the entity": token(audience=f"sb://{HOST}/q"),
    "one that is labelled Bearer": f"Bearer {token()}",
    "one for just this address, as Node signs it": token(audience=NODE_URL),
}


@pytest.mark.parametrize("authorization", TAKEN.values(), ids=TAKEN)
def test_taken_is(site, authorization):
    site.queue("q")

    assert site.get("q", authorization=authorization).status == 200


def test_without_a_token_nobody_learns_what_exists(site):
    site.queue("q")

    for path in ("q", "nothing", "$Resources/queues", "$namespaceinfo"):
        assert site.get(path, authorization=None).status == 401
    assert site.put("q", "<QueueDescription/>", authorization=None).status == 401
    assert site.delete("q", authorization=token(SENDER)).status == 401
    assert site.get("q").status == 200


def test_an_address_signed_by_node_opens_no_other(site):
    site.queue("q")
    site.queue("q2")

    assert site.get("q2", authorization=token(audience=NODE_URL)).status == 401


@pytest.mark.parametrize(
    "path", ["t/subscriptions", "t/subscriptions/s", "t/subscriptions/s/rules/$Default"]
)
def test_a_token_for_an_entity_is_valid_for_that_entity_only(site, path):
    site.topic("t")
    site.subscription("t", "s")
    authorization = token(audience=f"https://{HOST}/{path}")

    assert site.get(path, authorization=authorization).status == 200
    assert site.get("t", authorization=authorization).status == 401


@pytest.mark.req("B-02")
def test_a_key_of_an_entity_opens_that_entity_alone(site):
    site.queue("q", KEYS)
    site.topic("t", KEYS)
    site.subscription("t", "s")
    site.queue("other")

    assert site.get("q", authorization=token(OWN)).status == 200
    assert site.get("t/subscriptions/s/rules", authorization=token(OWN)).status == 200
    for path in ("other", "$Resources/queues", "$namespaceinfo"):
        answer = site.get(path, authorization=token(OWN))
        assert answer.status == 401
        assert "no policy 'own'" in answer.detail


def test_the_error_of_a_wrong_key_names_the_policy(site):
    site.queue("q", KEYS)
    wrong = Policy(name="own", key="wrong", rights=OWN.rights)

    answer = site.get("q", authorization=token(wrong))

    assert answer.status == 401
    assert "there is no policy 'own' with this key" in answer.detail


def test_a_key_of_an_entity_cannot_lock_the_namespaces_keys_out(site):
    site.queue("q", KEYS.replace("own", ROOT.name))

    own = Policy(name=ROOT.name, key=OWN.key, rights=OWN.rights)
    for policy in (ROOT, own):
        assert site.get("q", authorization=token(policy)).status == 200


LISTENER = Policy(name="listener", key="bGlzdGVu", rights=frozenset({Right.LISTEN}))
BAD = {
    "none": None,
    "one for another entity": token(audience=f"sb://{HOST}/other"),
    "one without Send": token(LISTENER, audience=f"sb://{HOST}/target"),
    "an expired one for the host": make_token(ROOT, audience=HOST, expires_at=NOW - 1),
    "one for another host": make_token(ROOT, audience="other:1", expires_at=NOW + 60),
    "nonsense": "nonsense&se=9999999999",
    "nonsense without an expiry": "nonsense",
}


class TestForwarding:
    """Forwarding needs a token for the target: the request's own, or one in a header."""

    HEADER = "ServiceBusSupplementaryAuthorization"

    def put(self, site, supplementary, *, own_scope=True):
        site.queue("target")
        authorization = token(audience=f"https://{HOST}/q") if own_scope else token()
        headers = {} if supplementary is None else {self.HEADER: supplementary}
        return site.put(
            "q",
            f"<QueueDescription>{FORWARD}</QueueDescription>",
            authorization=authorization,
            headers=headers,
        )

    def test_a_token_for_the_namespace_is_enough(self, site):
        assert self.put(site, None, own_scope=False).status == 201

    def test_a_token_for_the_target_is_enough(self, site):
        audience = f"sb://{HOST}/target"
        assert self.put(site, token(SENDER, audience=audience)).status == 201

    def test_a_token_for_the_bare_host_is_enough_as_node_sends_it(self, site):
        assert self.put(site, make_token(ROOT, audience=HOST, expires_at=NOW + 60)).status == 201

    @pytest.mark.parametrize("supplementary", BAD.values(), ids=BAD)
    def test_not_enough_is(self, make_site, supplementary):
        site = make_site(policies=(ROOT, SENDER, LISTENER))

        answer = self.put(site, supplementary)

        assert answer.status == 401
        assert "Forwarding to 'target'" in answer.detail
        assert site.get("q").status == 404
