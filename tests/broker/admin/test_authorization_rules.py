"""The authorization rules of entities, as XML."""

import pytest

from tests.broker.admin.site import SERVICE_BUS

KEYS = ("a2V5", "b3RoZXI=")


def rule(name="k", keys=KEYS, rights=("Send",), kind="SharedAccessAuthorizationRule"):
    inner = "".join(f"<AccessRights>{right}</AccessRights>" for right in rights)
    names = ("PrimaryKey", "SecondaryKey")
    given = "".join(f"<{one}>{key}</{one}>" for one, key in zip(names, keys, strict=False))
    return (
        f"<AuthorizationRule i:type='{kind}'><ClaimType>SharedAccessKey</ClaimType>"
        f"<ClaimValue>None</ClaimValue><Rights>{inner}</Rights><KeyName>{name}</KeyName>{given}"
        "</AuthorizationRule>"
    )


def put(site, *rules, **more):
    inner = f"<AuthorizationRules>{''.join(rules)}</AuthorizationRules>"
    return site.put("q", f"<QueueDescription>{inner}</QueueDescription>", **more)


def found(answer):
    def text(one, name):
        return one.findtext(f"{{{SERVICE_BUS}}}{name}")

    rules = answer.description.find(f"{{{SERVICE_BUS}}}AuthorizationRules")
    rights = f"{{{SERVICE_BUS}}}Rights/{{{SERVICE_BUS}}}AccessRights"
    return {
        text(one, "KeyName"): (
            (text(one, "PrimaryKey"), text(one, "SecondaryKey")),
            [right.text for right in one.findall(rights)],
        )
        for one in rules
    }


def test_rules_come_back_as_they_were_given(site):
    put(site, rule("a"), rule("b", ("x", "y"), ("Listen", "Send", "Manage")))

    assert found(site.get("q")) == {
        "a": (KEYS, ["Send"]),
        "b": (("x", "y"), ["Manage", "Send", "Listen"]),
    }


def test_keys_that_are_not_given_are_made(site):
    ((first, _),) = found(put(site, rule(keys=()))).values()
    ((second, _),) = found(put(site, rule(keys=()), update=True)).values()

    assert {len(key) for key in first + second} == {44}
    assert len({*first, *second}) == 4


def test_an_update_replaces_them(site):
    put(site, rule("a"))

    assert list(found(put(site, rule("b"), update=True))) == ["b"]
    assert found(put(site, update=True)) == {}


REFUSED = {
    "one without a name": ([rule(name="")], "needs a KeyName"),
    "one without rights": ([rule(rights=())], "'k' has no AccessRights"),
    "an unknown right": ([rule(rights=("Rule",))], "'Rule', not one of Manage, Send, Listen"),
    "Manage alone": ([rule(rights=("Manage",))], "Manage needs Send and Listen"),
    "a key that would end a connection string": ([rule(keys=["a;b"])], "no ';'"),
    "a key of a kilobyte": ([rule(keys=["a" * 1024])], "at most 256"),
    "two of one name": ([rule("k"), rule("K")], "two authorization rules"),
    "more than twelve": ([rule(f"k{n}") for n in range(13)], "13 authorization rules"),
    "another kind": ([rule(kind="AllowRule")], "SharedAccessAuthorizationRule"),
}


@pytest.mark.parametrize(("rules", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused_is(site, rules, reason):
    answer = put(site, *rules)

    assert answer.status == 400
    assert reason in answer.detail
