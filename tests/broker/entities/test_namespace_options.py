"""Options of a namespace, and the rights of its policies."""

import pytest

from pairbus.broker.entities.descriptions import QueueDescription
from pairbus.broker.entities.namespace_options import Limits, NamespaceOptions
from pairbus.broker.entities.policies import Policy, Right, default_policy
from pairbus.errors import ConfigError


@pytest.mark.req("B-02")
@pytest.mark.parametrize("right", Right)
def test_manage_includes_every_right_and_the_others_only_themselves(right):
    def policy(*rights):
        return Policy(name="p", key="k", rights=frozenset(rights))

    assert policy(Right.MANAGE).allows(right)
    assert default_policy().allows(right)
    assert policy(right).allows(right)
    assert policy(Right.SEND).allows(right) is (right is Right.SEND)
    assert policy(Right.LISTEN).allows(right) is (right is Right.LISTEN)


BAD_NAMESPACES = {
    "no name": ({"name": ""}, "starting with a letter"),
    "a digit first": ({"name": "9a"}, "starting with a letter"),
    "a dash last": ({"name": "a-"}, "ending with a letter or digit"),
    "too long": ({"name": "a" * 51}, "up to 50"),
    "a port beyond": ({"port": 65_536}, "65536 is not between 0 and 65535"),
    "a negative port": ({"port": -1}, "-1 is not between 0 and 65535"),
    "nobody may enter": ({"policies": ()}, "at least one policy"),
    "one name twice": (
        {"queues": (QueueDescription(name="a"), QueueDescription(name="A"))},
        "'A' is defined twice",
    ),
}


@pytest.mark.parametrize(("settings", "said"), BAD_NAMESPACES.values(), ids=BAD_NAMESPACES)
def test_an_impossible_namespace_cannot_be_described(settings, said):
    with pytest.raises(ConfigError) as caught:
        NamespaceOptions(**settings)

    assert said in str(caught.value)


def test_a_namespace_needs_nothing_but_defaults():
    options = NamespaceOptions()

    assert options.name == "local"
    assert [policy.name for policy in options.policies] == ["RootManageSharedAccessKey"]
    assert options.limits == Limits()
    assert NamespaceOptions(name="a").name == "a"
